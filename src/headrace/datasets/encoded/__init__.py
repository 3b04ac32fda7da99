"""Samples of media through a task encoder.

    fixed       EncodedDataset     one output for each sample
    measured    MeasuredDataset    filtered, grouped and packed by facts that `measure` kept
    framed      Framed             none, one or several; filtered, grouped and packed while the run goes
                  --> FramedRun        its order, lanes and batches
                  --> UnitReader       what makes units, in one process

`SampleEncoder` makes the outputs of a sample for all of them, and holds to the error policy.
"""

from headrace.datasets.encoded.dataset import EncodedDataset
from headrace.datasets.encoded.framed import Framed
from headrace.datasets.encoded.framed_run import FramedRun
from headrace.datasets.encoded.functions import (
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    PackingDataset,
    ShuffleBufferDataset,
)
from headrace.datasets.encoded.measured import MeasuredDataset
from headrace.datasets.encoded.unit_reader import UnitReader

__all__ = [
    "EncodedDataset",
    "FilterDataset",
    "Framed",
    "FramedRun",
    "GroupBatchDataset",
    "IterMapDataset",
    "MeasuredDataset",
    "PackingDataset",
    "ShuffleBufferDataset",
    "UnitReader",
]
