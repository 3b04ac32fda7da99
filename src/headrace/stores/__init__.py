"""Stores on disk: documents of tokens and samples with named parts, in several layouts with one interface each.

    writing     IndexedWriter -> prefix.bin, prefix.idx ----------.
                KeyedWriter   -> folder/<key>.bin, meta.json -----+-> OutputShard -.
                Hdf5Writer, JsonlWriter -> file.h5, file.jsonl ---'                 v
                save_manifest(folder, Manifest(outputs=[OutputShard.of(...)])) -> headrace.json
    reading     open(path) -> IndexedStore, KeyedStore, Hdf5Store, JsonlStore -> document, fetch, gather
                           -> ShardedStore: several one after another; CombinedStore: keys side by side
    samples     open(path) -> TarStore, EnergonStore, ...: keys and named parts, with the interface SampleStore
    layouts     token_layouts, sample_layouts: tables of what can lie at a path; each layout knows its own, and opens it
    checking    Store.check() -> Problem, Problem, ...   every rule of the format, and every byte that a manifest lists

Opening a store costs O(1) a shard. Reads are by ranges, and the code that reads does not depend on the layout.
This package imports only ``headrace.io`` and ``headrace.errors``; it knows neither torch nor the order of training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily
from headrace.io import Reader, RetryPolicy, may_pass

if TYPE_CHECKING:
    from headrace.stores.checking import check_file
    from headrace.stores.combined import CombinedStore, ShardedStore
    from headrace.stores.energon import EnergonStore, FilesystemStore, JoinedStore, JsonlSamplesStore
    from headrace.stores.foreign import JsonlStore, JsonObjectStore, ParquetStore, SavedDatasetStore
    from headrace.stores.foreign_ranges import Hdf5Store, RawStore
    from headrace.stores.foreign_writers import Hdf5Writer, JsonlWriter, to_datasets, write_hdf5
    from headrace.stores.indexed.layout import Dialect, Documents, IndexedOptions, optimal_dtype
    from headrace.stores.indexed.pairs import AlephAlphaStore, TntStore
    from headrace.stores.indexed.store import IndexedStore
    from headrace.stores.indexed.writer import IndexedWriter
    from headrace.stores.kept_arrays import check_arrays, find_arrays, find_cache, keep_arrays, kept_name
    from headrace.stores.keyed.store import KeyedStore
    from headrace.stores.keyed.writer import KeyedWriter
    from headrace.stores.manifest import (
        MANIFEST_NAME,
        PROVENANCE_NAME,
        BackendInfo,
        ContentLedger,
        DocumentLedger,
        ErrorEntry,
        InputFile,
        InputOrder,
        Ledger,
        Manifest,
        SampleLedger,
        ShuffledOrder,
        TokenizerInfo,
        TokenLedger,
        encoded_manifest,
        load_manifest,
        save_manifest,
    )
    from headrace.stores.opening import open, open_keys, open_tokens
    from headrace.stores.provenance import Provenance, ProvenanceWriter
    from headrace.stores.store import PartPlace, Problem, RawSample, SampleStore, Store
    from headrace.stores.tar.store import TarStore
    from headrace.stores.writer import Writer
    from headrace.stores.written import KeyInfo, OutputShard

_HOMES = homes(
    {
        "headrace.stores.checking": "check_file",
        "headrace.stores.combined": "CombinedStore ShardedStore",
        "headrace.stores.energon": "EnergonStore FilesystemStore JoinedStore JsonlSamplesStore",
        "headrace.stores.foreign": "JsonObjectStore JsonlStore ParquetStore SavedDatasetStore",
        "headrace.stores.foreign_ranges": "Hdf5Store RawStore",
        "headrace.stores.foreign_writers": "Hdf5Writer JsonlWriter to_datasets write_hdf5",
        "headrace.stores.indexed.layout": "Dialect Documents IndexedOptions optimal_dtype",
        "headrace.stores.indexed.pairs": "AlephAlphaStore TntStore",
        "headrace.stores.indexed.store": "IndexedStore",
        "headrace.stores.indexed.writer": "IndexedWriter",
        "headrace.stores.kept_arrays": "check_arrays find_arrays find_cache keep_arrays kept_name",
        "headrace.stores.keyed.store": "KeyedStore",
        "headrace.stores.keyed.writer": "KeyedWriter",
        "headrace.stores.manifest": (
            "BackendInfo ContentLedger DocumentLedger ErrorEntry InputFile InputOrder Ledger MANIFEST_NAME"
            " Manifest PROVENANCE_NAME SampleLedger ShuffledOrder TokenLedger TokenizerInfo encoded_manifest"
            " load_manifest save_manifest"
        ),
        "headrace.stores.opening": "open open_keys open_tokens",
        "headrace.stores.provenance": "Provenance ProvenanceWriter",
        "headrace.stores.store": "PartPlace Problem RawSample SampleStore Store",
        "headrace.stores.tar.store": "TarStore",
        "headrace.stores.writer": "Writer",
        "headrace.stores.written": "KeyInfo OutputShard",
    }
)

__all__ = [
    "MANIFEST_NAME",
    "PROVENANCE_NAME",
    "AlephAlphaStore",
    "BackendInfo",
    "CombinedStore",
    "ContentLedger",
    "Dialect",
    "DocumentLedger",
    "Documents",
    "EnergonStore",
    "ErrorEntry",
    "FilesystemStore",
    "Hdf5Store",
    "Hdf5Writer",
    "IndexedOptions",
    "IndexedStore",
    "IndexedWriter",
    "InputFile",
    "InputOrder",
    "JoinedStore",
    "JsonObjectStore",
    "JsonlSamplesStore",
    "JsonlStore",
    "JsonlWriter",
    "KeyInfo",
    "KeyedStore",
    "KeyedWriter",
    "Ledger",
    "Manifest",
    "OutputShard",
    "ParquetStore",
    "PartPlace",
    "Problem",
    "Provenance",
    "ProvenanceWriter",
    "RawSample",
    "RawStore",
    "Reader",
    "RetryPolicy",
    "SampleLedger",
    "SampleStore",
    "SavedDatasetStore",
    "ShardedStore",
    "ShuffledOrder",
    "Store",
    "TarStore",
    "TntStore",
    "TokenLedger",
    "TokenizerInfo",
    "Writer",
    "check_arrays",
    "check_file",
    "encoded_manifest",
    "find_arrays",
    "find_cache",
    "keep_arrays",
    "kept_name",
    "load_manifest",
    "may_pass",
    "open",
    "open_keys",
    "open_tokens",
    "optimal_dtype",
    "save_manifest",
    "to_datasets",
    "write_hdf5",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
