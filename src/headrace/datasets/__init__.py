"""Map-style datasets over stores, blends of them, and the run that decides what each step is fed. No torch.

    Store --> WindowDataset ---------+
    Store --> PackedSequenceDataset -+--> Blend --> Run: step N -> positions -> (source, epoch, sample) -> NumPy batch
    Store --> SFTDataset, PreferenceDataset, GroupDataset, PromptDataset: records, padded batch by batch --> the same
    SampleStore --> MediaDataset: images, video, text, decoded and cooked --> the same

May import: stores, cache, plan, samples, encoders, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

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

_HOMES = homes(
    {
        "headrace.datasets.accounts": "check_supervised count_samples count_step",
        "headrace.datasets.blend": "Blend ScheduledBlend Stage",
        "headrace.datasets.dataset": "CountedDataset Counts Dataset Fields FixedDataset RaggedDataset Sample Traits",
        "headrace.datasets.encoded": "EncodedDataset Framed FramedRun MeasuredDataset",
        "headrace.datasets.exclusions": "Exclude Excluded",
        "headrace.datasets.lengths": "Concat FilledDataset Limit Repeat Subset",
        "headrace.datasets.map_style": "MapStyleDataset",
        "headrace.datasets.mapped": "MapDataset",
        "headrace.datasets.measuring": "measure MeasuredFacts",
        "headrace.datasets.media": "JoinedMediaDataset MediaDataset",
        "headrace.datasets.mix": "Mix",
        "headrace.datasets.packed_sequences": "PackedSequenceDataset",
        "headrace.datasets.records": "Collation RecordDataset SFTDataset",
        "headrace.datasets.rl_records": "GroupDataset PreferenceDataset PromptDataset",
        "headrace.datasets.run": "Located Run",
        "headrace.datasets.windows": "WindowDataset",
    }
)

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
