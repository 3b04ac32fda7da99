"""Headrace feeds training runs: raw text in, shuffled, blended, exactly resumable batches out.

The public names are loaded when they are first used: ``import headrace`` imports neither torch nor any
other heavy package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.datasets import (
        Blend,
        DocumentDataset,
        GPTBlend,
        GPTDataset,
        GPTMasks,
        PackedDataset,
        PackedSequenceDataset,
        Run,
        WindowDataset,
    )
    from headrace.errors import (
        ConfigError,
        HeadraceError,
        InputError,
        MissingExtraError,
        OutputError,
        StateError,
        StoreError,
        WorkerError,
    )
    from headrace.loader import Loader, Ranks, Reading
    from headrace.plan import BatchSchedule, Order
    from headrace.plan.packing import Packing
    from headrace.stores import IndexedDataset, IndexedDatasetBuilder, Store, open

_HOMES = {
    "BatchSchedule": "headrace.plan",
    "Blend": "headrace.datasets",
    "ConfigError": "headrace.errors",
    "DocumentDataset": "headrace.datasets",
    "GPTBlend": "headrace.datasets",
    "GPTDataset": "headrace.datasets",
    "GPTMasks": "headrace.datasets",
    "HeadraceError": "headrace.errors",
    "IndexedDataset": "headrace.stores",
    "IndexedDatasetBuilder": "headrace.stores",
    "InputError": "headrace.errors",
    "Loader": "headrace.loader",
    "MissingExtraError": "headrace.errors",
    "Order": "headrace.plan",
    "OutputError": "headrace.errors",
    "PackedDataset": "headrace.datasets",
    "PackedSequenceDataset": "headrace.datasets",
    "Packing": "headrace.plan.packing",
    "Ranks": "headrace.loader",
    "Reading": "headrace.loader",
    "Run": "headrace.datasets",
    "StateError": "headrace.errors",
    "Store": "headrace.stores",
    "StoreError": "headrace.errors",
    "WindowDataset": "headrace.datasets",
    "WorkerError": "headrace.errors",
    "open": "headrace.stores",
}

__all__ = [
    "BatchSchedule",
    "Blend",
    "ConfigError",
    "DocumentDataset",
    "GPTBlend",
    "GPTDataset",
    "GPTMasks",
    "HeadraceError",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "InputError",
    "Loader",
    "MissingExtraError",
    "Order",
    "OutputError",
    "PackedDataset",
    "PackedSequenceDataset",
    "Packing",
    "Ranks",
    "Reading",
    "Run",
    "StateError",
    "Store",
    "StoreError",
    "WindowDataset",
    "WorkerError",
    "__version__",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
