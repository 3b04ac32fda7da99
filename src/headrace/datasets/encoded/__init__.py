"""Samples of media through a task encoder.

    fixed       EncodedDataset     one output for each sample

`SampleEncoder` makes the outputs of a sample for all of them, and holds to the error policy.
"""

from headrace.datasets.encoded.dataset import EncodedDataset

__all__ = ["EncodedDataset"]
