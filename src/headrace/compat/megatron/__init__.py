"""Megatron's datasets under Megatron's names: the same samples in the same order, without its index files.

    prefix.bin, .idx --> GPTDataset --> GPTBlend --> Run(..., order=Order(kind="none")), or CyclicDataset around it
                         GPTFIMDataset: fill in the middle; MockGPTDataset: data without files
    export_cache(dataset) --> the index files that Megatron looks for
    IndexedDataset, IndexedDatasetBuilder: read and write a pair of files sequence by sequence

The order itself is arithmetic, and lives in `headrace.plan.megatron`. This room does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.compat.megatron.blend import CyclicDataset, GPTBlend
    from headrace.compat.megatron.caches import ExportedCache, export_cache
    from headrace.compat.megatron.gpt import GPTDataset, GPTFIMDataset, GPTMasks
    from headrace.compat.megatron.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from headrace.compat.megatron.mock import MockGPTDataset, MockStore
    from headrace.plan.megatron import FillInTheMiddle, FIMTokens, TextCodec

_HOMES = homes(
    {
        "headrace.compat.megatron.blend": "CyclicDataset GPTBlend",
        "headrace.compat.megatron.caches": "ExportedCache export_cache",
        "headrace.compat.megatron.gpt": "GPTDataset GPTFIMDataset GPTMasks",
        "headrace.compat.megatron.indexed_dataset": "IndexedDataset IndexedDatasetBuilder",
        "headrace.compat.megatron.mock": "MockGPTDataset MockStore",
        "headrace.plan.megatron": "FIMTokens FillInTheMiddle TextCodec",
    }
)

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
