"""Headrace feeds training runs: raw text in, shuffled, blended, exactly resumable batches out.

The public names are loaded when they are first used: ``import headrace`` imports neither torch nor any
other heavy package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.copying import CopyOptions, convert, merge, split
    from headrace.datasets import (
        Blend,
        BlendDataset,
        Collation,
        ConcatDataset,
        CyclicDataset,
        DatasetFactory,
        DocumentDataset,
        FilledDataset,
        GPTBlend,
        GPTDataset,
        GPTFIMDataset,
        GPTMasks,
        GroupDataset,
        LimitDataset,
        MapDataset,
        MeasuredDataset,
        MeasuredFacts,
        MediaDataset,
        MixBatchDataset,
        MockGPTDataset,
        PackedDataset,
        PackedSequenceDataset,
        PreferenceDataset,
        PromptDataset,
        RepeatDataset,
        ResumableDistributedSampler,
        Run,
        ScheduledBlend,
        SFTDataset,
        Stretch,
        SubsetDataset,
        WindowDataset,
        export_cache,
        measure,
        open_cache,
    )
    from headrace.errors import (
        ConfigError,
        HeadraceError,
        InputError,
        MissingExtraError,
        OutputError,
        StaleCacheError,
        StateError,
        StoreError,
        WorkerError,
    )
    from headrace.loader import Balance, Loader, Ranks, Reading
    from headrace.plan import BatchSchedule, Bucketing, Order
    from headrace.plan.megatron import FillInTheMiddle, FIMTokens, TextCodec
    from headrace.plan.packing import Packing
    from headrace.prepare import prepare_recipe
    from headrace.stores import IndexedDataset, IndexedDatasetBuilder, Store, open

_HOMES = {
    "Balance": "headrace.loader",
    "BatchSchedule": "headrace.plan",
    "Blend": "headrace.datasets",
    "BlendDataset": "headrace.datasets",
    "Bucketing": "headrace.plan",
    "Collation": "headrace.datasets",
    "ConcatDataset": "headrace.datasets",
    "ConfigError": "headrace.errors",
    "CopyOptions": "headrace.copying",
    "CyclicDataset": "headrace.datasets",
    "DatasetFactory": "headrace.datasets",
    "DocumentDataset": "headrace.datasets",
    "FIMTokens": "headrace.plan.megatron",
    "FillInTheMiddle": "headrace.plan.megatron",
    "FilledDataset": "headrace.datasets",
    "GPTBlend": "headrace.datasets",
    "GPTDataset": "headrace.datasets",
    "GPTFIMDataset": "headrace.datasets",
    "GPTMasks": "headrace.datasets",
    "GroupDataset": "headrace.datasets",
    "HeadraceError": "headrace.errors",
    "IndexedDataset": "headrace.stores",
    "IndexedDatasetBuilder": "headrace.stores",
    "InputError": "headrace.errors",
    "LimitDataset": "headrace.datasets",
    "Loader": "headrace.loader",
    "MapDataset": "headrace.datasets",
    "MeasuredDataset": "headrace.datasets",
    "MeasuredFacts": "headrace.datasets",
    "MediaDataset": "headrace.datasets",
    "MissingExtraError": "headrace.errors",
    "MixBatchDataset": "headrace.datasets",
    "MockGPTDataset": "headrace.datasets",
    "Order": "headrace.plan",
    "OutputError": "headrace.errors",
    "PackedDataset": "headrace.datasets",
    "PackedSequenceDataset": "headrace.datasets",
    "Packing": "headrace.plan.packing",
    "PreferenceDataset": "headrace.datasets",
    "PromptDataset": "headrace.datasets",
    "Ranks": "headrace.loader",
    "Reading": "headrace.loader",
    "RepeatDataset": "headrace.datasets",
    "ResumableDistributedSampler": "headrace.datasets",
    "Run": "headrace.datasets",
    "SFTDataset": "headrace.datasets",
    "ScheduledBlend": "headrace.datasets",
    "StaleCacheError": "headrace.errors",
    "StateError": "headrace.errors",
    "Store": "headrace.stores",
    "StoreError": "headrace.errors",
    "Stretch": "headrace.datasets",
    "SubsetDataset": "headrace.datasets",
    "TextCodec": "headrace.plan.megatron",
    "WindowDataset": "headrace.datasets",
    "WorkerError": "headrace.errors",
    "convert": "headrace.copying",
    "export_cache": "headrace.datasets",
    "measure": "headrace.datasets",
    "merge": "headrace.copying",
    "open": "headrace.stores",
    "open_cache": "headrace.datasets",
    "prepare_recipe": "headrace.prepare",
    "split": "headrace.copying",
}

__all__ = [
    "Balance",
    "BatchSchedule",
    "Blend",
    "BlendDataset",
    "Bucketing",
    "Collation",
    "ConcatDataset",
    "ConfigError",
    "CopyOptions",
    "CyclicDataset",
    "DatasetFactory",
    "DocumentDataset",
    "FIMTokens",
    "FillInTheMiddle",
    "FilledDataset",
    "GPTBlend",
    "GPTDataset",
    "GPTFIMDataset",
    "GPTMasks",
    "GroupDataset",
    "HeadraceError",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "InputError",
    "LimitDataset",
    "Loader",
    "MapDataset",
    "MeasuredDataset",
    "MeasuredFacts",
    "MediaDataset",
    "MissingExtraError",
    "MixBatchDataset",
    "MockGPTDataset",
    "Order",
    "OutputError",
    "PackedDataset",
    "PackedSequenceDataset",
    "Packing",
    "PreferenceDataset",
    "PromptDataset",
    "Ranks",
    "Reading",
    "RepeatDataset",
    "ResumableDistributedSampler",
    "Run",
    "SFTDataset",
    "ScheduledBlend",
    "StaleCacheError",
    "StateError",
    "Store",
    "StoreError",
    "Stretch",
    "SubsetDataset",
    "TextCodec",
    "WindowDataset",
    "WorkerError",
    "__version__",
    "convert",
    "export_cache",
    "measure",
    "merge",
    "open",
    "open_cache",
    "prepare_recipe",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
