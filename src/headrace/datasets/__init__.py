"""Map-style datasets over stores, blends of them, and the run that fixes what comes when. No torch.

    Store --> WindowDataset ---------+
    Store --> PackedSequenceDataset -+--> Blend --> Run: step N -> positions -> (source, epoch, sample) -> NumPy batch
    Store --> DocumentDataset --> PackedDataset: torchtune's class and results

May import: stores, plan, samples, encoders, errors.
"""

from headrace.datasets.blend import Blend
from headrace.datasets.dataset import Counts, Dataset, Fields, Sample
from headrace.datasets.documents import DocumentDataset
from headrace.datasets.gpt import GPTDataset
from headrace.datasets.gpt_blend import GPTBlend
from headrace.datasets.gpt_masks import GPTMasks
from headrace.datasets.packed import PackedDataset
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.datasets.run import Located, Run
from headrace.datasets.windows import WindowDataset

__all__ = [
    "Blend",
    "Counts",
    "Dataset",
    "DocumentDataset",
    "Fields",
    "GPTBlend",
    "GPTDataset",
    "GPTMasks",
    "Located",
    "PackedDataset",
    "PackedSequenceDataset",
    "Run",
    "Sample",
    "WindowDataset",
]
