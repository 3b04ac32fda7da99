"""Megatron's datasets under Megatron's names: the same samples in the same order, without its index files.

    prefix.bin, .idx --> GPTDataset --> GPTBlend --> Run(..., order=Order(kind="none")), or CyclicDataset around it
                         GPTFIMDataset: fill in the middle; MockGPTDataset: data without files
    export_cache(dataset) --> the index files that Megatron looks for; caches: checks such files against the data
    IndexedDataset, IndexedDatasetBuilder: read and write a pair of files sequence by sequence

The order itself is arithmetic, and lives in `headrace.plan.megatron`. This room does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.compat.megatron.blend import GPTBlend
    from headrace.compat.megatron.cache_export import ExportedCache, export_cache
    from headrace.compat.megatron.cyclic import CyclicDataset
    from headrace.compat.megatron.fim import GPTFIMDataset
    from headrace.compat.megatron.gpt import GPTDataset, GPTMasks
    from headrace.compat.megatron.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from headrace.compat.megatron.mock import MockGPTDataset, MockStore
    from headrace.plan.megatron import FillInTheMiddle, FIMTokens, TextCodec

_HOMES = {
    "CyclicDataset": "headrace.compat.megatron.cyclic",
    "ExportedCache": "headrace.compat.megatron.cache_export",
    "FIMTokens": "headrace.plan.megatron",
    "FillInTheMiddle": "headrace.plan.megatron",
    "GPTBlend": "headrace.compat.megatron.blend",
    "GPTDataset": "headrace.compat.megatron.gpt",
    "GPTFIMDataset": "headrace.compat.megatron.fim",
    "GPTMasks": "headrace.compat.megatron.gpt",
    "IndexedDataset": "headrace.compat.megatron.indexed_dataset",
    "IndexedDatasetBuilder": "headrace.compat.megatron.indexed_dataset",
    "MockGPTDataset": "headrace.compat.megatron.mock",
    "MockStore": "headrace.compat.megatron.mock",
    "TextCodec": "headrace.plan.megatron",
    "export_cache": "headrace.compat.megatron.cache_export",
}

__all__ = [
    "CyclicDataset",
    "ExportedCache",
    "FIMTokens",
    "FillInTheMiddle",
    "GPTBlend",
    "GPTDataset",
    "GPTFIMDataset",
    "GPTMasks",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "MockGPTDataset",
    "MockStore",
    "TextCodec",
    "export_cache",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
