"""Map-style datasets over stores, blends of them, and the run that decides what each step is fed. No torch.

    Store --> WindowDataset ---------+
    Store --> PackedSequenceDataset -+--> Blend --> Run: step N -> positions -> (source, epoch, sample) -> NumPy batch
    Store --> SFTDataset, PreferenceDataset, GroupDataset, PromptDataset: records, padded batch by batch --> the same
    SampleStore --> MediaDataset: images, video, text, decoded and cooked --> the same

May import: stores, cache, plan, samples, encoders, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.datasets.accounts import check_supervised, count_samples, count_step
    from headrace.datasets.blend import Blend, ScheduledBlend, Stage
    from headrace.datasets.dataset import (
        CountedDataset,
        Counts,
        Dataset,
        Fields,
        FixedDataset,
        RaggedDataset,
        Sample,
        Traits,
    )
    from headrace.datasets.encoded import EncodedDataset, Framed, FramedRun, MeasuredDataset
    from headrace.datasets.exclusions import Exclude, Excluded
    from headrace.datasets.lengths import Concat, FilledDataset, Limit, Repeat, Subset
    from headrace.datasets.map_style import MapStyleDataset
    from headrace.datasets.mapped import MapDataset
    from headrace.datasets.measuring import MeasuredFacts, measure
    from headrace.datasets.media import JoinedMediaDataset, MediaDataset
    from headrace.datasets.mix import Mix
    from headrace.datasets.packed_sequences import PackedSequenceDataset
    from headrace.datasets.records import Collation, RecordDataset, SFTDataset
    from headrace.datasets.rl_records import GroupDataset, PreferenceDataset, PromptDataset
    from headrace.datasets.run import Located, Run
    from headrace.datasets.windows import WindowDataset

_HOMES = {
    "Blend": "headrace.datasets.blend",
    "Collation": "headrace.datasets.records",
    "Concat": "headrace.datasets.lengths",
    "CountedDataset": "headrace.datasets.dataset",
    "Counts": "headrace.datasets.dataset",
    "Dataset": "headrace.datasets.dataset",
    "EncodedDataset": "headrace.datasets.encoded",
    "Exclude": "headrace.datasets.exclusions",
    "Excluded": "headrace.datasets.exclusions",
    "Fields": "headrace.datasets.dataset",
    "FilledDataset": "headrace.datasets.lengths",
    "FixedDataset": "headrace.datasets.dataset",
    "Framed": "headrace.datasets.encoded",
    "FramedRun": "headrace.datasets.encoded",
    "GroupDataset": "headrace.datasets.rl_records",
    "JoinedMediaDataset": "headrace.datasets.media",
    "Limit": "headrace.datasets.lengths",
    "Located": "headrace.datasets.run",
    "MapDataset": "headrace.datasets.mapped",
    "MapStyleDataset": "headrace.datasets.map_style",
    "MeasuredDataset": "headrace.datasets.encoded",
    "MeasuredFacts": "headrace.datasets.measuring",
    "MediaDataset": "headrace.datasets.media",
    "Mix": "headrace.datasets.mix",
    "PackedSequenceDataset": "headrace.datasets.packed_sequences",
    "PreferenceDataset": "headrace.datasets.rl_records",
    "PromptDataset": "headrace.datasets.rl_records",
    "RaggedDataset": "headrace.datasets.dataset",
    "RecordDataset": "headrace.datasets.records",
    "Repeat": "headrace.datasets.lengths",
    "Run": "headrace.datasets.run",
    "SFTDataset": "headrace.datasets.records",
    "Sample": "headrace.datasets.dataset",
    "ScheduledBlend": "headrace.datasets.blend",
    "Stage": "headrace.datasets.blend",
    "Subset": "headrace.datasets.lengths",
    "Traits": "headrace.datasets.dataset",
    "WindowDataset": "headrace.datasets.windows",
    "check_supervised": "headrace.datasets.accounts",
    "count_samples": "headrace.datasets.accounts",
    "count_step": "headrace.datasets.accounts",
    "measure": "headrace.datasets.measuring",
}

__all__ = [
    "Blend",
    "Collation",
    "Concat",
    "CountedDataset",
    "Counts",
    "Dataset",
    "EncodedDataset",
    "Exclude",
    "Excluded",
    "Fields",
    "FilledDataset",
    "FixedDataset",
    "Framed",
    "FramedRun",
    "GroupDataset",
    "JoinedMediaDataset",
    "Limit",
    "Located",
    "MapDataset",
    "MapStyleDataset",
    "MeasuredDataset",
    "MeasuredFacts",
    "MediaDataset",
    "Mix",
    "PackedSequenceDataset",
    "PreferenceDataset",
    "PromptDataset",
    "RaggedDataset",
    "RecordDataset",
    "Repeat",
    "Run",
    "SFTDataset",
    "Sample",
    "ScheduledBlend",
    "Stage",
    "Subset",
    "Traits",
    "WindowDataset",
    "check_supervised",
    "count_samples",
    "count_step",
    "measure",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
