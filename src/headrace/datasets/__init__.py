"""Map-style datasets over stores, blends of them, and the run that fixes what comes when. No torch.

    Store --> WindowDataset ---------+
    Store --> PackedSequenceDataset -+--> Blend --> Run: step N -> positions -> (source, epoch, sample) -> NumPy batch
    Store --> SFTDataset, PreferenceDataset, GroupDataset, PromptDataset: records, padded batch by batch --> the same
    SampleStore --> MediaDataset: images, video, text, decoded and cooked --> the same
    Store --> DocumentDataset --> PackedDataset: torchtune's class and results

May import: stores, plan, samples, encoders, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.datasets.blend import Blend
    from headrace.datasets.collation import Collation
    from headrace.datasets.concat import ConcatDataset
    from headrace.datasets.cyclic import CyclicDataset
    from headrace.datasets.dataset import Counts, Dataset, Fields, Sample
    from headrace.datasets.documents import DocumentDataset
    from headrace.datasets.encoded import (
        EncodedDataset,
        FilterDataset,
        Framed,
        FramedRun,
        GroupBatchDataset,
        IterMapDataset,
        MeasuredDataset,
        PackingDataset,
        ShuffleBufferDataset,
    )
    from headrace.datasets.factory import BaseDataset, DatasetFactory, load_dataset
    from headrace.datasets.filled import FilledDataset
    from headrace.datasets.gpt import GPTDataset
    from headrace.datasets.gpt_blend import GPTBlend
    from headrace.datasets.gpt_cache_export import ExportedCache, export_cache
    from headrace.datasets.gpt_fim import GPTFIMDataset
    from headrace.datasets.gpt_masks import GPTMasks
    from headrace.datasets.gpt_mock import MockGPTDataset
    from headrace.datasets.gpt_mock_store import MockStore
    from headrace.datasets.group_records import GroupDataset
    from headrace.datasets.lengths import LimitDataset, RepeatDataset, SubsetDataset
    from headrace.datasets.mapped import MapDataset
    from headrace.datasets.measuring import MeasuredFacts, measure
    from headrace.datasets.media import JoinedMediaDataset, MediaDataset
    from headrace.datasets.mix import Mix
    from headrace.datasets.mixing import BlendDataset, MixBatchDataset
    from headrace.datasets.packed import PackedDataset
    from headrace.datasets.packed_sequences import PackedSequenceDataset
    from headrace.datasets.preference_records import PreferenceDataset
    from headrace.datasets.prompt_records import PromptDataset
    from headrace.datasets.records import RecordDataset
    from headrace.datasets.run import Located, Run
    from headrace.datasets.sampler import ResumableDistributedSampler
    from headrace.datasets.scheduled import ScheduledBlend, Stretch
    from headrace.datasets.sft_records import SFTDataset
    from headrace.datasets.stream_windows import StreamWindows
    from headrace.datasets.trace_answers import Topology
    from headrace.datasets.windows import WindowDataset

_HOMES = {
    "BaseDataset": "headrace.datasets.factory",
    "Blend": "headrace.datasets.blend",
    "BlendDataset": "headrace.datasets.mixing",
    "Collation": "headrace.datasets.collation",
    "ConcatDataset": "headrace.datasets.concat",
    "Counts": "headrace.datasets.dataset",
    "CyclicDataset": "headrace.datasets.cyclic",
    "Dataset": "headrace.datasets.dataset",
    "DatasetFactory": "headrace.datasets.factory",
    "DocumentDataset": "headrace.datasets.documents",
    "EncodedDataset": "headrace.datasets.encoded",
    "ExportedCache": "headrace.datasets.gpt_cache_export",
    "Fields": "headrace.datasets.dataset",
    "FilledDataset": "headrace.datasets.filled",
    "FilterDataset": "headrace.datasets.encoded",
    "Framed": "headrace.datasets.encoded",
    "FramedRun": "headrace.datasets.encoded",
    "GPTBlend": "headrace.datasets.gpt_blend",
    "GPTDataset": "headrace.datasets.gpt",
    "GPTFIMDataset": "headrace.datasets.gpt_fim",
    "GPTMasks": "headrace.datasets.gpt_masks",
    "GroupBatchDataset": "headrace.datasets.encoded",
    "GroupDataset": "headrace.datasets.group_records",
    "IterMapDataset": "headrace.datasets.encoded",
    "JoinedMediaDataset": "headrace.datasets.media",
    "LimitDataset": "headrace.datasets.lengths",
    "Located": "headrace.datasets.run",
    "MapDataset": "headrace.datasets.mapped",
    "MeasuredDataset": "headrace.datasets.encoded",
    "MeasuredFacts": "headrace.datasets.measuring",
    "MediaDataset": "headrace.datasets.media",
    "Mix": "headrace.datasets.mix",
    "MixBatchDataset": "headrace.datasets.mixing",
    "MockGPTDataset": "headrace.datasets.gpt_mock",
    "MockStore": "headrace.datasets.gpt_mock_store",
    "PackedDataset": "headrace.datasets.packed",
    "PackedSequenceDataset": "headrace.datasets.packed_sequences",
    "PackingDataset": "headrace.datasets.encoded",
    "PreferenceDataset": "headrace.datasets.preference_records",
    "PromptDataset": "headrace.datasets.prompt_records",
    "RecordDataset": "headrace.datasets.records",
    "RepeatDataset": "headrace.datasets.lengths",
    "ResumableDistributedSampler": "headrace.datasets.sampler",
    "Run": "headrace.datasets.run",
    "SFTDataset": "headrace.datasets.sft_records",
    "Sample": "headrace.datasets.dataset",
    "ScheduledBlend": "headrace.datasets.scheduled",
    "ShuffleBufferDataset": "headrace.datasets.encoded",
    "StreamWindows": "headrace.datasets.stream_windows",
    "Stretch": "headrace.datasets.scheduled",
    "SubsetDataset": "headrace.datasets.lengths",
    "Topology": "headrace.datasets.trace_answers",
    "WindowDataset": "headrace.datasets.windows",
    "export_cache": "headrace.datasets.gpt_cache_export",
    "load_dataset": "headrace.datasets.factory",
    "measure": "headrace.datasets.measuring",
}

__all__ = [
    "BaseDataset",
    "Blend",
    "BlendDataset",
    "Collation",
    "ConcatDataset",
    "Counts",
    "CyclicDataset",
    "Dataset",
    "DatasetFactory",
    "DocumentDataset",
    "EncodedDataset",
    "ExportedCache",
    "Fields",
    "FilledDataset",
    "FilterDataset",
    "Framed",
    "FramedRun",
    "GPTBlend",
    "GPTDataset",
    "GPTFIMDataset",
    "GPTMasks",
    "GroupBatchDataset",
    "GroupDataset",
    "IterMapDataset",
    "JoinedMediaDataset",
    "LimitDataset",
    "Located",
    "MapDataset",
    "MeasuredDataset",
    "MeasuredFacts",
    "MediaDataset",
    "Mix",
    "MixBatchDataset",
    "MockGPTDataset",
    "MockStore",
    "PackedDataset",
    "PackedSequenceDataset",
    "PackingDataset",
    "PreferenceDataset",
    "PromptDataset",
    "RecordDataset",
    "RepeatDataset",
    "ResumableDistributedSampler",
    "Run",
    "SFTDataset",
    "Sample",
    "ScheduledBlend",
    "ShuffleBufferDataset",
    "StreamWindows",
    "Stretch",
    "SubsetDataset",
    "Topology",
    "WindowDataset",
    "export_cache",
    "load_dataset",
    "measure",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
