"""Map-style datasets over stores, blends of them, and the run that fixes what comes when. No torch.

    Store --> WindowDataset --+
    Store --> WindowDataset --+--> Blend --> Run: step N -> positions -> (source, epoch, sample) -> NumPy batch

May import: stores, plan, samples, encoders, errors.
"""

from headrace.datasets.blend import Blend
from headrace.datasets.dataset import Counts, Dataset, Fields, Sample
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.datasets.run import Located, Run
from headrace.datasets.windows import WindowDataset

__all__ = ["Blend", "Counts", "Dataset", "Fields", "Located", "PackedSequenceDataset", "Run", "Sample", "WindowDataset"]
