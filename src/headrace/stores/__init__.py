"""Stores on disk: documents of tokens and samples with named parts, in several layouts with one interface each.

    writing     IndexedWriter -> prefix.bin, prefix.idx ----------.
                KeyedWriter   -> folder/<key>.bin, meta.json -----+-> WrittenShard -.
                Hdf5Writer, JsonlWriter -> file.h5, file.jsonl ---'                 v
                save_manifest(folder, Manifest(outputs=[OutputShard...])) -> headrace.json
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

from headrace._lazy import lazily
from headrace.io import Reader, RetryPolicy, may_pass

if TYPE_CHECKING:
    from headrace.stores.checking import check_file
    from headrace.stores.combined import CombinedStore, ShardedStore
    from headrace.stores.energon import EnergonStore, FilesystemStore, JoinedStore, JsonlSamplesStore
    from headrace.stores.hdf5.store import Hdf5Store, Hdf5Writer, write_hdf5
    from headrace.stores.indexed.layout import Dialect, Documents, IndexedOptions, optimal_dtype
    from headrace.stores.indexed.pairs import AlephAlphaStore, TntStore
    from headrace.stores.indexed.store import IndexedStore
    from headrace.stores.indexed.writer import IndexedWriter
    from headrace.stores.json.store import JsonlStore, JsonlWriter
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
    from headrace.stores.parquet import ParquetStore
    from headrace.stores.provenance import Provenance, ProvenanceWriter
    from headrace.stores.saved_dataset import SavedDatasetStore, to_datasets
    from headrace.stores.store import PartPlace, Problem, RawSample, SampleStore, Store
    from headrace.stores.tar.store import TarStore
    from headrace.stores.writer import Writer
    from headrace.stores.written import KeyInfo, OutputShard, WrittenShard

_HOMES = {
    "AlephAlphaStore": "headrace.stores.indexed.pairs",
    "BackendInfo": "headrace.stores.manifest",
    "CombinedStore": "headrace.stores.combined",
    "ContentLedger": "headrace.stores.manifest",
    "Dialect": "headrace.stores.indexed.layout",
    "DocumentLedger": "headrace.stores.manifest",
    "Documents": "headrace.stores.indexed.layout",
    "EnergonStore": "headrace.stores.energon",
    "ErrorEntry": "headrace.stores.manifest",
    "FilesystemStore": "headrace.stores.energon",
    "Hdf5Store": "headrace.stores.hdf5.store",
    "Hdf5Writer": "headrace.stores.hdf5.store",
    "IndexedOptions": "headrace.stores.indexed.layout",
    "IndexedStore": "headrace.stores.indexed.store",
    "IndexedWriter": "headrace.stores.indexed.writer",
    "InputFile": "headrace.stores.manifest",
    "InputOrder": "headrace.stores.manifest",
    "JoinedStore": "headrace.stores.energon",
    "JsonlSamplesStore": "headrace.stores.energon",
    "JsonlStore": "headrace.stores.json.store",
    "JsonlWriter": "headrace.stores.json.store",
    "KeyInfo": "headrace.stores.written",
    "KeyedStore": "headrace.stores.keyed.store",
    "KeyedWriter": "headrace.stores.keyed.writer",
    "Ledger": "headrace.stores.manifest",
    "MANIFEST_NAME": "headrace.stores.manifest",
    "Manifest": "headrace.stores.manifest",
    "OutputShard": "headrace.stores.written",
    "PROVENANCE_NAME": "headrace.stores.manifest",
    "ParquetStore": "headrace.stores.parquet",
    "PartPlace": "headrace.stores.store",
    "Problem": "headrace.stores.store",
    "Provenance": "headrace.stores.provenance",
    "ProvenanceWriter": "headrace.stores.provenance",
    "RawSample": "headrace.stores.store",
    "SavedDatasetStore": "headrace.stores.saved_dataset",
    "SampleLedger": "headrace.stores.manifest",
    "SampleStore": "headrace.stores.store",
    "ShardedStore": "headrace.stores.combined",
    "ShuffledOrder": "headrace.stores.manifest",
    "Store": "headrace.stores.store",
    "TarStore": "headrace.stores.tar.store",
    "TntStore": "headrace.stores.indexed.pairs",
    "TokenLedger": "headrace.stores.manifest",
    "TokenizerInfo": "headrace.stores.manifest",
    "Writer": "headrace.stores.writer",
    "WrittenShard": "headrace.stores.written",
    "check_arrays": "headrace.stores.kept_arrays",
    "check_file": "headrace.stores.checking",
    "find_arrays": "headrace.stores.kept_arrays",
    "find_cache": "headrace.stores.kept_arrays",
    "keep_arrays": "headrace.stores.kept_arrays",
    "kept_name": "headrace.stores.kept_arrays",
    "load_manifest": "headrace.stores.manifest",
    "open": "headrace.stores.opening",
    "open_keys": "headrace.stores.opening",
    "open_tokens": "headrace.stores.opening",
    "optimal_dtype": "headrace.stores.indexed.layout",
    "encoded_manifest": "headrace.stores.manifest",
    "save_manifest": "headrace.stores.manifest",
    "to_datasets": "headrace.stores.saved_dataset",
    "write_hdf5": "headrace.stores.hdf5.store",
}

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
    "WrittenShard",
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
