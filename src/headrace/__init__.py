"""Headrace feeds training runs: raw text and media in; shuffled, blended batches out, exactly resumable.

    headrace.prepare                           turns text, records or media into a store; more in headrace.preparing
    headrace.open                              opens an existing store, ours or another system's
    headrace.WindowDataset, SFTDataset, ...    make samples from a store; more in headrace.datasets
    headrace.Blend, Order, Run                 mix sources, order their samples, and say which make step N
    headrace.Loader                            yields the batches of this rank as torch tensors, resumable
    headrace.NumpyLoader                       yields them as NumPy arrays, without torch
    headrace.inspect                           describes, checks and shows what is on disk, as the commands do
    headrace.compat                            the names of Megatron, Energon, torchtune and AstrAI

Names and sub-packages are loaded when they are first used: ``import headrace`` imports neither torch nor any other
heavy package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import PROVIDED, homes, lazily
from headrace._version import __version__

if TYPE_CHECKING:
    from headrace import cache as cache
    from headrace import compat as compat
    from headrace import copying as copying
    from headrace import datasets as datasets
    from headrace import encoders as encoders
    from headrace import errors as errors
    from headrace import inspect as inspect
    from headrace import io as io
    from headrace import loader as loader
    from headrace import plan as plan
    from headrace import preparing as preparing
    from headrace import samples as samples
    from headrace import stores as stores
    from headrace import tracing as tracing
    from headrace import ui as ui
    from headrace.cache import Cache
    from headrace.copying import convert, merge, split
    from headrace.datasets import (
        Blend,
        Exclude,
        FramedRun,
        GroupDataset,
        MapDataset,
        MapStyleDataset,
        MeasuredDataset,
        MediaDataset,
        PackedSequenceDataset,
        PreferenceDataset,
        PromptDataset,
        Run,
        ScheduledBlend,
        SFTDataset,
        WindowDataset,
    )
    from headrace.errors import ConfigError, HeadraceError, InputError, StateError, StoreError, WorkerError
    from headrace.integrations.exact import exact
    from headrace.integrations.numpy import NumpyLoader
    from headrace.io import Storage
    from headrace.loader import DataLoader, Dealing, Loader, Metrics, Prompts, loader_for
    from headrace.plan import BatchSchedule, Order
    from headrace.plan.packing import Packing
    from headrace.preparing import prepare
    from headrace.stores import open, to_datasets

_ROOMS = (
    *("cache", "compat", "copying", "datasets", "encoders", "errors", "inspect", "io", "kinds", "loader", "plan"),
    *("preparing", "samples", "stores", "tracing", "ui"),
)

_HOMES = homes(
    {
        "headrace.cache": "Cache",
        "headrace.copying": "convert merge split",
        "headrace.datasets": "Blend Exclude FramedRun GroupDataset MapDataset MapStyleDataset MeasuredDataset "
        "MediaDataset PackedSequenceDataset PreferenceDataset PromptDataset Run ScheduledBlend SFTDataset "
        "WindowDataset",
        "headrace.errors": "ConfigError HeadraceError InputError StateError StoreError WorkerError",
        "headrace.integrations.exact": "exact",
        "headrace.integrations.numpy": "NumpyLoader",
        "headrace.io": "Storage",
        "headrace.loader": "DataLoader Dealing Loader loader_for Metrics Prompts",
        "headrace.plan": "BatchSchedule Order",
        "headrace.plan.packing": "Packing",
        "headrace.preparing": "prepare",
        "headrace.stores": "open to_datasets",
    }
)

__all__ = [
    "BatchSchedule",
    "Blend",
    "Cache",
    "ConfigError",
    "DataLoader",
    "Dealing",
    "Exclude",
    "FramedRun",
    "GroupDataset",
    "HeadraceError",
    "InputError",
    "Loader",
    "MapDataset",
    "MapStyleDataset",
    "MeasuredDataset",
    "MediaDataset",
    "Metrics",
    "NumpyLoader",
    "Order",
    "PackedSequenceDataset",
    "Packing",
    "PreferenceDataset",
    "PromptDataset",
    "Prompts",
    "Run",
    "SFTDataset",
    "ScheduledBlend",
    "StateError",
    "Storage",
    "StoreError",
    "WindowDataset",
    "WorkerError",
    "__version__",
    "convert",
    "exact",
    "loader_for",
    "merge",
    "open",
    "prepare",
    "split",
    "to_datasets",
]

PROVIDED.update(load_run="headrace.tracing.sources:load_run", account="headrace.tracing:account")

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES, _ROOMS)
