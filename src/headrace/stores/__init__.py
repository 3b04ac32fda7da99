"""Documents of tokens on disk: layouts that are opened, read, written and checked, each behind the same face.

    writing     IndexedWriter -> prefix.bin + prefix.idx -> WrittenShard ---.
                                                                            v
                save_manifest(folder, Manifest(outputs=[OutputShard...])) -> headrace.json
    reading     open(path) -> IndexedStore, or ShardedStore of several -> document, fetch, gather
    checking    Store.check() -> Problem, Problem, ...   every rule of the format, and every byte if a manifest vouches

A store is opened in O(1) a shard and read by ranges; whoever reads it never knows which layout it has.
This room imports ``headrace.io`` and ``headrace.errors``; it knows neither torch nor the order of training.
"""

from __future__ import annotations

from headrace.stores.indexed import IndexedStore
from headrace.stores.indexed_layout import optimal_dtype
from headrace.stores.indexed_writer import IndexedWriter, WrittenShard
from headrace.stores.manifest import (
    MANIFEST_NAME,
    DocumentLedger,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    TokenizerInfo,
    TokenLedger,
    load_manifest,
    save_manifest,
)
from headrace.stores.open import open
from headrace.stores.sharded import ShardedStore
from headrace.stores.store import Problem, Store

__all__ = [
    "MANIFEST_NAME",
    "DocumentLedger",
    "IndexedStore",
    "IndexedWriter",
    "InputFile",
    "Ledger",
    "Manifest",
    "OutputShard",
    "Problem",
    "ShardedStore",
    "Store",
    "TokenLedger",
    "TokenizerInfo",
    "WrittenShard",
    "load_manifest",
    "open",
    "optimal_dtype",
    "save_manifest",
]
