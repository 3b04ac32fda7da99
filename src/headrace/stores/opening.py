"""Opens a store at a path, whatever its layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError, StoreError
from headrace.io import Reader, check_local
from headrace.stores.aleph_alpha import META_SUFFIX
from headrace.stores.folders import Opening, check_only_key, holds_shards, listed_keys, open_folder
from headrace.stores.hdf5 import Hdf5Store
from headrace.stores.hdf5_layout import HDF5_SUFFIXES, DatasetOrder, check_order
from headrace.stores.indexed_dialects import Dialect, Documents, IndexedOptions
from headrace.stores.indexed_pairs import SUFFIXES, open_pair
from headrace.stores.jsonl import JSON_SUFFIXES, open_json
from headrace.stores.keyed import KeyedStore
from headrace.stores.manifest import MANIFEST_NAME
from headrace.stores.manifest_output import META_NAME
from headrace.stores.sample_layouts import WORDS, open_samples, sample_layout
from headrace.stores.segmented import SegmentedStore
from headrace.stores.sharded import ShardedStore
from headrace.stores.store import Store

_DEFAULTS: Final = {"key": None, "dialect": None, "documents": "indices", "dataset_order": "number"}
_NOTHING: Final = object()


def open(  # noqa: A001 - headrace.open
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    reader: str | Reader = "mmap",
    split_part: str | None = None,
    **options: Any,
) -> Any:
    """Open what lies at a path: documents of tokens, a `Store`, or samples with named parts, a `SampleStore`.

    O(1) a shard: headers and sizes are validated, nothing else is read, but that a tar without an index is gone through
    once.

    Args:
        path: what `open_tokens` takes; or samples:

            - a folder with a ``.nv-meta``: a dataset of Energon's, or a folder of files;
            - a ``.tar``, a pattern ``shards-{000..127}.tar``, a list of these, or a folder with such below: tar shards;
            - a ``.jsonl`` with a ``.jsonl.idx`` beside it, or whose first record is not lists of numbers.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
        split_part: of a dataset of Energon's the part (``"train"``); without, all shards. Its other options are
            those of `EnergonStore`.
        options: of tokens, those of `open_tokens`.

    Raises:
        StoreError: as `open_tokens`.
        ConfigError: as `open_tokens`; or an option is of the other kind of store.
        InputError: a tar is faulty or compressed.
    """
    check_local(path)
    layout = sample_layout(path, reader)
    if layout is not None:
        given = [name for name, value in options.items() if value != _DEFAULTS.get(name, _NOTHING)]
        if given:
            raise ConfigError(f"{path}: {', '.join(given)} is for stores of tokens; this is {WORDS[layout]}")
        return open_samples(path, layout, split_part=split_part, using=reader)
    if split_part is not None:
        raise ConfigError(f"{path}: split_part={split_part!r} is for datasets of Energon; this has no .nv-meta")
    return open_tokens(path, reader=reader, **options)  # type: ignore[arg-type]  # a list is of tars


def open_tokens(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
    dataset_order: DatasetOrder = "number",
) -> Store:
    """Open documents of tokens. O(1) a shard: headers and sizes are validated, documents are not read.

    HDF5 costs some 40 us a dataset, and JSON lines a pass over the file, which is kept if the file is large.

    Args:
        path: one of

            - a prefix, ``data/web`` for ``data/web.bin`` and ``data/web.idx``; or one of these two files; of Megatron
              and its relatives, fairseq, or Aleph Alpha (with ``data/web.meta.json``);
            - a ``.h5``, ``.hdf5``, ``.jsonl`` or ``.json``: one shard of records;
            - a folder with a ``headrace.json``: the shards that it lists, in its order, and no others; keys with shards
              of their own are combined, see `CombinedStore`;
            - a folder with a ``meta.json``, or that file: one shard of the keyed format;
            - a folder with pairs of ``.bin`` and ``.idx``: all of them, in the order of `headrace.io.natural_key`;
            - any other folder: every folder with a ``meta.json`` below it, or else every ``.h5`` and ``.hdf5`` below
              it, in that order; hidden ones are left out;
            - or else every ``.jsonl`` in it, or every ``.json``.
        key: of several keys the main one. Of keys with shards of their own, in the indexed format, it opens that one
            alone.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
        dialect: of pairs, who wrote them, where their bytes do not tell (an error says so): ``"megatron"``,
            ``"deepspeed"``, ``"neox"`` or ``"fairseq"``.
        documents: of pairs, ``"sequences"`` takes each sequence as a document, whatever the index says.
        dataset_order: of HDF5, ``"number"``, or ``"name"`` as AstrAI read it: data_10 before data_2.

    Raises:
        StoreError: nothing is there, a file is missing, or what is there is malformed, unknown or of two formats, or
            holds samples.
        ConfigError: there is no such key, or the option is unknown, or is for pairs and there are none.
        MissingExtraError: it is HDF5, and h5py is not installed.
    """
    check_local(path)
    name = os.fspath(path)
    _refuse_samples(name, reader)
    options = IndexedOptions(dialect=dialect, documents=documents)
    check_order(dataset_order)
    how = Opening(key=key, reader=reader, options=options, dataset_order=dataset_order)
    prefix = _prefix(name)
    pair = [suffix for suffix in SUFFIXES if Path(prefix + suffix).is_file()]
    if pair == [".idx"] and name.endswith(JSON_SUFFIXES) and Path(name).is_file():
        pair = []  # x.jsonl.idx is an index of the lines of x.jsonl
    # Megatron keeps its cache in a folder named like the prefix; that one holds no store, and the pair is meant.
    if Path(name).is_dir() and (not pair or name.endswith("/") or holds_shards(Path(name))):
        if pair and not name.endswith("/"):
            raise StoreError(
                f"{name}: both a folder of shards and the prefix of {name}{pair[0]}; write {name}/ for the folder, or"
                f" {name}.idx for the pair"
            )
        store = open_folder(name, how)
    elif Path(name).name == META_NAME and Path(name).is_file():
        store = KeyedStore(Path(name).parent, key=key, using=reader)
    elif pair:
        store = open_pair(prefix, using=reader, options=options)
        check_only_key(name, key)
    elif name.endswith(HDF5_SUFFIXES) and Path(name).is_file():
        store = Hdf5Store(name, key=key, using=reader, order=dataset_order)
    elif name.endswith(JSON_SUFFIXES) and Path(name).is_file() and Path(name).name != MANIFEST_NAME:
        store = open_json(name, key=key, using=reader)
    elif Path(name).exists():
        raise StoreError(
            f"{name}: the format is unknown; expected a pair of .bin and .idx, a {META_NAME}, a .h5 or .jsonl, or a"
            " folder of them"
        )
    else:
        raise StoreError(f"{name}: nothing is there; expected {prefix}.bin and {prefix}.idx, or a folder of such pairs")
    if isinstance(store, KeyedStore | SegmentedStore) and options != IndexedOptions():
        raise ConfigError(
            f"{name}: dialect and documents are for pairs of .bin and .idx; this is the {store.format} format"
        )
    store.path = name
    return store


def open_keys(
    path: str | os.PathLike[str],
    *,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
    dataset_order: DatasetOrder = "number",
) -> dict[str, Store]:
    """Every key of what lies at a path, each with a store whose main key it is.

    Raises:
        StoreError: as `open`.
        ConfigError: as `open`.
    """

    check_local(path)

    def opened(key: str | None) -> Store:
        return open_tokens(
            path, key=key, reader=reader, dialect=dialect, documents=documents, dataset_order=dataset_order
        )

    keys = listed_keys(Path(path))
    if len(keys) > 1:
        return {key: opened(key) for key in keys}
    store = opened(None)
    if keys:
        return {keys[0]: store}
    return {store.keys[0]: store, **{key: _with_main(store, key) or opened(key) for key in store.keys[1:]}}


def _refuse_samples(name: str, reader: str | Reader) -> None:
    """What is no store of tokens, and plainly something else; a ``.jsonl`` of text has a message of its own."""
    layout = None if name.endswith(JSON_SUFFIXES) else sample_layout(name, reader)
    if layout is not None:
        raise StoreError(
            f"{name}: holds samples ({WORDS[layout]}), and tokens are needed; headrace.open opens it, and"
            " headrace.datasets.media makes samples for training of it"
        )


def _with_main(store: Store, key: str) -> Store | None:
    """The same store with another main key, where that is cheaper than to open it again."""
    if isinstance(store, KeyedStore | SegmentedStore):
        return store.with_main(key)
    shards = store.shards if isinstance(store, ShardedStore) else ()
    same = [shard.with_main(key) for shard in shards if isinstance(shard, KeyedStore | SegmentedStore)]
    return ShardedStore(same, store.path) if same and len(same) == len(shards) else None


def _prefix(name: str) -> str:
    """The path without the suffix of one of a store's files."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    stem = name.removesuffix(META_SUFFIX)
    return stem if stem != name and Path(stem + ".idx").is_file() else name
