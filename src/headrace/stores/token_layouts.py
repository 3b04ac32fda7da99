"""The layouts of documents of tokens. Each says which paths are its own, finds its shards in a folder, and opens one.

    layout      one shard                                      in a folder without a manifest
    keyed       a folder with a meta.json, or that file        all below
    raw         a .bin without a .idx: tokens and no more      those in the folder, if there are no others
    pairs       prefix.bin and prefix.idx                      those in the folder
    HDF5        a .h5 or .hdf5                                 all below
    JSON        a .jsonl or .json                              those in the folder
    Parquet     a .parquet                                     those in the folder

A folder that ``Dataset.save_to_disk`` of the library ``datasets`` wrote is a store as a whole.

`token_store` opens what lies at a path: a shard, or a folder of shards.
"""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, TypedDict, get_args

import msgspec

from headrace.config import check_choice, nearest_path, unknown_name
from headrace.errors import ConfigError, StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, holds, natural_key, path_at, reader, walk
from headrace.io.finding import matching
from headrace.stores.arguments import check_case, check_name
from headrace.stores.combined import CombinedStore, ShardedStore
from headrace.stores.foreign import (
    ForeignStore,
    JsonlStore,
    JsonObjectStore,
    ParquetStore,
    SavedDatasetStore,
    is_object,
    is_saved_dataset,
)
from headrace.stores.foreign_ranges import DatasetOrder, Hdf5Store, RawDtype, RawStore, foreign_format, raw_header
from headrace.stores.indexed.layout import Dialect, Documents, IndexedOptions
from headrace.stores.indexed.pairs import META_SUFFIX, SUFFIXES, open_pair
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.keyed.store import KeyedStore
from headrace.stores.manifest import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import MAIN, READING_AHEAD, Store
from headrace.stores.written import META_NAME, OutputShard


class OpenOptions(TypedDict, total=False):
    """Options for stores of tokens of one layout, see `headrace.stores.open_tokens`; the others refuse them.

    Attributes:
        dialect: the program that wrote .bin and .idx, if the bytes do not show it.
        documents: what a document of .bin and .idx is: ``sequences`` makes each sequence a document; by default
            ``indices``.
        dataset_order: the order of the datasets of a key in HDF5.
        dtype: the dtype of a .bin without .idx and without a header.
        eod: of a .bin without .idx, the id with which each document ends.
        bos: of a .bin without .idx, the id with which each document begins.
    """

    dialect: Dialect | None
    documents: Documents
    dataset_order: DatasetOrder
    dtype: RawDtype | None
    eod: int | None
    bos: int | None


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a store of tokens is to be opened: the fields are arguments of `headrace.stores.open_tokens`."""

    key: str | None = None
    reader: str | Reader = "mmap"
    dialect: Dialect | None = None
    documents: Documents = "indices"
    dataset_order: DatasetOrder = "number"
    dtype: RawDtype | None = None
    eod: int | None = None
    bos: int | None = None

    def __post_init__(self) -> None:
        check_choice("dataset_order", self.dataset_order, get_args(DatasetOrder))
        if self.dtype is not None:
            check_choice("dtype", self.dtype, get_args(RawDtype))
        _ = self.of_pairs  # which refuses unknown values

    @property
    def of_pairs(self) -> IndexedOptions:
        """The options of pairs of .bin and .idx."""
        return IndexedOptions(dialect=self.dialect, documents=self.documents)

    @property
    def given(self) -> list[str]:
        """The names of the options of one layout that are not as by default."""
        usual = {field.name: field.default for field in msgspec.structs.fields(self)}
        return [name for name in _MEANT_FOR if getattr(self, name) != usual[name]]


_PAIRS_WORDS: Final = "pairs of .bin and .idx"
_RAW_WORDS: Final = "a .bin without a .idx"
_MEANT_FOR: Final = {
    **dict.fromkeys(("dialect", "documents"), _PAIRS_WORDS),
    "dataset_order": "HDF5",
    **dict.fromkeys(("dtype", "eod", "bos"), _RAW_WORDS),
}

Place = str | os.PathLike[str]


class TokenLayout(ABC):
    """A layout of shards of tokens."""

    format: str

    @abstractmethod
    def at(self, name: str, how: Opening) -> Place | None:
        """Return the shard of this layout that a path names; None if the path is not of this layout."""

    @abstractmethod
    def find(self, folder: AnyPath, how: Opening) -> list[AnyPath]:
        """Return the shards of this layout in a folder without a manifest, in the natural order of their names."""

    @abstractmethod
    def open(self, where: Place, how: Opening, vouched: OutputShard | None = None) -> Store:
        """Open a shard that `at` or `find` has returned, or that a manifest vouches for."""

    def open_listed(self, folder: AnyPath, entry: OutputShard, how: Opening) -> Store:
        """Open a shard that the manifest of a folder lists."""
        file = (folder / entry.prefix).with_name(entry.files[0].name)
        _check_there(file, folder)
        return self.open(file, how, entry)


class _Pairs(TokenLayout):
    format = "indexed"

    def at(self, name: str, how: Opening) -> Place | None:
        prefix = _prefix(name, how.reader)
        found = [suffix for suffix in SUFFIXES if holds(path_at(prefix + suffix, how.reader).is_file)]
        if found == [".idx"] and name.endswith(JsonlStore.suffixes) and path_at(name, how.reader).is_file():
            return None  # x.jsonl.idx is an index of the lines of x.jsonl
        return prefix if found else None

    def find(self, folder: AnyPath, how: Opening) -> list[AnyPath]:
        files = _files_in(folder, SUFFIXES)
        return [folder / stem for stem in sorted({file.stem for file in files}, key=natural_key)]

    def open(self, where: Place, how: Opening, vouched: OutputShard | None = None) -> Store:
        if vouched is not None:
            return IndexedStore(where, using=how.reader, vouched=vouched, options=how.of_pairs)
        store = open_pair(where, using=how.reader, options=how.of_pairs)
        check_only_key(str(where), how.key)
        return store


class _Keyed(TokenLayout):
    format = "keyed"

    def at(self, name: str, how: Opening) -> Place | None:
        return name if Path(name).name == META_NAME and path_at(name, how.reader).is_file() else None

    def find(self, folder: AnyPath, how: Opening) -> list[AnyPath]:
        return _in_order(found for found, files in walk(folder, followlinks=True) if META_NAME in files)

    def open(self, where: Place, how: Opening, vouched: OutputShard | None = None) -> Store:
        folder = path_at(where, how.reader)
        if folder.is_file():
            folder = folder.parent
        elif any(file.suffix == ".idx" for file in folder.iterdir()):
            raise StoreError(
                f"{folder}: the folder holds both a {META_NAME} and .idx files, so it is unclear whether its format is"
                " keyed or indexed; keep the two in separate folders"
            )
        return KeyedStore(folder, key=how.key, using=how.reader, vouched=vouched)

    def open_listed(self, folder: AnyPath, entry: OutputShard, how: Opening) -> Store:
        _check_there(folder / entry.prefix / META_NAME, folder)
        return self.open(folder / entry.prefix, how, entry)


class _Files(TokenLayout):
    """A format of another program, of which each file is a shard.

    Args:
        store: what reads it; its suffixes are those of the files, of which the first that a folder has counts.
        is_below: whether the files at any depth below a folder count, of all suffixes.
    """

    def __init__(self, store: type[ForeignStore], *, is_below: bool = False) -> None:
        self._store = store
        self._is_below = is_below
        self.suffixes = store.suffixes
        self.format = store.format

    def at(self, name: str, how: Opening) -> Place | None:
        is_own = name.endswith(self.suffixes) and Path(name).name != MANIFEST_NAME
        return name if is_own and path_at(name, how.reader).is_file() else None

    def find(self, folder: AnyPath, how: Opening) -> list[AnyPath]:
        if not self._is_below:
            found = ([file for file in _files_in(folder, (suffix,)) if file.is_file()] for suffix in self.suffixes)
            return _in_order(next(filter(None, found), []))
        places = []
        for where, files in walk(folder, followlinks=True):
            check_case(where, files, self.suffixes)
            places += [where / file for file in files if file.endswith(self.suffixes)]
        return _in_order(places)

    def open(self, where: Place, how: Opening, vouched: OutputShard | None = None) -> Store:
        if self._store is Hdf5Store:
            return Hdf5Store(where, key=how.key, using=how.reader, order=how.dataset_order, vouched=vouched)
        return self._store(where, key=how.key, using=how.reader, vouched=vouched)


class _Json(_Files):
    def open(self, where: Place, how: Opening, vouched: OutputShard | None = None) -> Store:
        name = os.fspath(where)
        if vouched is None and (name.endswith(".json") or is_object(name, reader(how.reader))):
            return JsonObjectStore(where, key=how.key, using=how.reader)
        return super().open(where, how, vouched)


class _Raw(_Files):
    def at(self, name: str, how: Opening) -> Place | None:
        found = super().at(name, how)
        return found if found is not None and self._is_raw(path_at(name, how.reader), how) else None

    def find(self, folder: AnyPath, how: Opening) -> list[AnyPath]:
        files = super().find(folder, how)
        if not files or any(file.with_suffix(".idx").is_file() for file in files) or not self._is_raw(files[0], how):
            return []
        splits = [split for split in ("train", "val", "test") if any(split in file.name for file in files)]
        if len(splits) > 1:
            raise StoreError(
                f"{folder}: holds tokens of several splits, {' and '.join(splits)}: name those of one, such as"
                f" {folder}/*{splits[0]}*.bin"
            )
        return files

    def open(self, where: Place, how: Opening, vouched: OutputShard | None = None) -> Store:
        return RawStore(where, key=how.key, using=how.reader, dtype=how.dtype, eod=how.eod, bos=how.bos)

    def _is_raw(self, file: AnyPath, how: Opening) -> bool:
        """Return whether a ``.bin`` is no half of a pair, and it is known which numbers its tokens are."""
        if file.with_suffix(".idx").is_file():
            return False
        return how.dtype is not None or raw_header(str(file), reader(how.reader)) is not None


PAIRS: Final = _Pairs()
KEYED: Final = _Keyed()
RAW: Final = _Raw(RawStore)
HDF5: Final = _Files(Hdf5Store, is_below=True)
JSON: Final = _Json(JsonlStore)
PARQUET: Final = _Files(ParquetStore)
LAYOUTS: Final[tuple[TokenLayout, ...]] = (KEYED, RAW, PAIRS, HDF5, JSON, PARQUET)
"""All layouts; of several to which a path belongs, the first counts."""


def token_store(name: str, how: Opening) -> Store:
    """Open the shard or the folder of shards at a path, or those that a pattern ``data/train_*.bin`` names.

    Raises:
        StoreError: nothing is there, a file is missing, or the data are malformed, of an unknown format or of two
            formats.
        ConfigError: there is no such key, or an option is for another layout.
    """
    check_name(name)
    store: Store
    try:
        if is_saved_dataset(name, how.reader):
            store = SavedDatasetStore(name, key=how.key, using=how.reader)
        elif glob.has_magic(name) and name.endswith(RAW.suffixes) and not path_at(name, how.reader).exists():
            if not (files := matching(name, how.reader)):
                raise StoreError(f"{name}: no file matches this pattern")
            store = _opened_files(RAW, files, name, how)
        else:
            store = _open_folder(name, how) if _is_folder(name, how) else _open_shard(name, how)
    except StoreError as error:
        if how.dtype is not None or isinstance(error, StoreAwayError):
            raise
        if found := foreign_format(name, how.reader, is_opening=True):
            raise StoreError(f"{name}: {found}") from error
        raise
    _check_options(name, store, how)
    return store.with_path(name)


def _check_options(name: str, store: Store, how: Opening) -> None:
    """Raise ConfigError if an option is given that is for another layout: it would do nothing."""
    shard = store.shards[0] if isinstance(store, ShardedStore) else store
    fitting = _PAIRS_WORDS if not isinstance(shard, SegmentedStore) else ""
    fitting = "HDF5" if isinstance(shard, Hdf5Store) else _RAW_WORDS if isinstance(shard, RawStore) else fitting
    for option in how.given:
        if _MEANT_FOR[option] != fitting:
            raise ConfigError(f"{name}: {option} is for {_MEANT_FOR[option]}; this is the {shard.format} format")


def listed_keys(folder: AnyPath) -> tuple[str, ...]:
    """Return the keys that a folder's manifest lists for shards in the indexed format; empty if there are none."""
    if not (folder / MANIFEST_NAME).is_file():
        return ()
    manifest = load_manifest(folder)
    return manifest.keys if all(shard.format == PAIRS.format for shard in manifest.outputs) else ()


def check_only_key(name: str, key: str | None, *known: str) -> None:
    """Raise ConfigError if a key is not the only key of a store in the indexed format."""
    if key not in (None, MAIN, *known):
        keys = ", ".join(map(repr, known or (MAIN,)))
        raise ConfigError(f"{name}: no key {key!r}; a store in the indexed format has one key, which is {keys} here")


def _open_shard(name: str, how: Opening) -> Store:
    for layout in LAYOUTS:
        if (found := layout.at(name, how)) is not None:
            return layout.open(found, how)
    if path_at(name, how.reader).exists():
        raise StoreError(
            f"{name}: the format is unknown; expected a pair of .bin and .idx, a {META_NAME}, a .h5 or .jsonl, or a"
            " folder of them"
        )
    prefix = _prefix(name, how.reader)
    near = nearest_path(name)
    raise StoreError(
        f"{name}: nothing is there{near}; expected {prefix}.bin and {prefix}.idx, or a folder of such pairs"
    )


def _is_folder(name: str, how: Opening) -> bool:
    """Return whether a path means a folder of shards.

    Megatron keeps its cache in a folder named like the prefix; that folder holds no store, and the pair is meant.
    """
    folder, pair = path_at(name, how.reader), PAIRS.at(name, how)
    if not folder.is_dir():
        return False
    if pair is None or name.endswith("/"):
        return True
    if any(file.name in (MANIFEST_NAME, META_NAME) or file.suffix in SUFFIXES for file in folder.iterdir()):
        file = next(suffix for suffix in SUFFIXES if path_at(f"{pair}{suffix}", how.reader).is_file())
        raise StoreError(
            f"{name}: this is both a folder of shards and the prefix of {name}{file}; write {name}/ for the folder, or"
            f" {name}.idx for the pair"
        )
    return False


def _open_folder(name: str, how: Opening) -> Store:
    folder = path_at(name, how.reader)
    if (folder / MANIFEST_NAME).is_file():
        return _open_manifest(folder, name, how)
    if (folder / META_NAME).is_file():
        return KEYED.open(folder, how)
    if raw := RAW.find(folder, how):
        return _opened_files(RAW, raw, name, how)
    if pairs := PAIRS.find(folder, how):
        check_only_key(str(folder), how.key)
        _read_ahead(pairs, [], how)
        return _joined([PAIRS.open(pair, how) for pair in pairs], name)
    keyed, hdf5 = KEYED.find(folder, how), HDF5.find(folder, how)
    if keyed and hdf5:
        raise StoreError(
            f"{name}: the folder holds shards of two formats: {keyed[0] / META_NAME} and {hdf5[0]}; name a folder that"
            " holds only one of them"
        )
    _read_ahead([], keyed, how)
    if keyed or hdf5:
        return _opened_files(KEYED if keyed else HDF5, keyed or hdf5, name, how)
    for layout in (JSON, PARQUET):
        if files := layout.find(folder, how):
            return _opened_files(layout, files, name, how)
    raise StoreError(
        f"{name}: a folder without shards; expected pairs of .bin and .idx, a {MANIFEST_NAME}, folders with a"
        f" {META_NAME}, or files .h5 or .jsonl"
    )


def _open_manifest(folder: AnyPath, name: str, how: Opening) -> Store:
    """Open the shards that the manifest of a folder lists; all of them have the same format."""
    manifest = load_manifest(folder)
    if not manifest.outputs:
        raise StoreError(f"{name}: a folder without shards: its {MANIFEST_NAME} lists none")
    layout = next((layout for layout in LAYOUTS if layout.format == manifest.outputs[0].format), None)
    if layout is None:
        raise StoreError(
            f"{name}: its {MANIFEST_NAME} lists shards of samples ({manifest.outputs[0].format}), not of tokens"
        )
    if layout is PAIRS:
        return _open_keys(folder, name, manifest, how)
    _read_ahead([], [folder / entry.prefix for entry in manifest.outputs if layout is KEYED], how)
    shards = [(str(folder / entry.prefix), partial(layout.open_listed, folder, entry)) for entry in manifest.outputs]
    return _joined(_series(shards, how), name)


def _open_keys(folder: AnyPath, name: str, manifest: Manifest, how: Opening) -> Store:
    """Open the pairs that a manifest lists, of which each has one key."""
    keys = manifest.keys
    if len(keys) == 1:
        check_only_key(str(folder), how.key, *keys)
    elif how.key is not None:
        if how.key not in keys:
            raise unknown_name(folder, "key", how.key, keys)
        keys = (how.key,)
    wanted = [entry for entry in manifest.outputs if not entry.keys.keys().isdisjoint(keys)]
    for entry in wanted:
        for suffix in SUFFIXES:
            _check_there(folder / f"{entry.prefix}{suffix}", folder)
    _read_ahead([folder / entry.prefix for entry in wanted], [], how)
    stores = {
        key: _joined([PAIRS.open(folder / entry.prefix, how, entry) for entry in wanted if key in entry.keys], name)
        for key in keys
    }
    return stores[keys[0]] if len(keys) == 1 else CombinedStore(stores, name)


def _read_ahead(pairs: Sequence[AnyPath], keyed: Sequence[AnyPath], how: Opening) -> None:
    """Fetch at the same time what opening and knowing shards at URLs reads; see `reading_ahead.read_shards`."""
    if (using := reader(how.reader)).reads_urls:
        resolve_name(f"{READING_AHEAD}:read_shards")(pairs, keyed, using)


def _opened_files(layout: TokenLayout, places: Sequence[Place], name: str, how: Opening) -> Store:
    return _joined(_series([(str(place), partial(layout.open, place)) for place in places], how), name)


def _joined(shards: Sequence[Store], name: str) -> Store:
    return shards[0] if len(shards) == 1 else ShardedStore(shards, name)


def _check_there(file: AnyPath, folder: AnyPath) -> None:
    if not file.is_file():
        raise StoreError(f"{file}: missing, but {folder / MANIFEST_NAME} lists it")


def _series(shards: Sequence[tuple[str, Callable[[Opening], Store]]], how: Opening) -> list[Store]:
    """Open shards that may have several keys, all with the same main key. Each is given by name and by a function."""
    found: list[Store] = []
    for _, opened in shards:
        try:
            shard = opened(how)
        except ConfigError as error:
            if not found:
                raise
            raise StoreError(
                f"{error}; shards of different kinds are not one store: {shards[0][0]} has this key"
            ) from error
        # The order of the keys may differ from shard to shard; the main key of the first shard is that of all.
        how = msgspec.structs.replace(how, key=shard.keys[0])
        found.append(shard)
    return _agreed(found)


def _agreed(shards: list[Store]) -> list[Store]:
    """Give all shards the same dtypes, if they can have them: some files, such as those without values, name none."""
    segmented = [shard for shard in shards if isinstance(shard, SegmentedStore)]
    if len(segmented) < 2 or len({frozenset(shard.keys) for shard in segmented}) > 1:
        return shards
    dtypes = {}
    for key in segmented[0].keys:
        for dtype in dict.fromkeys(shard.dtypes[key] for shard in segmented):
            if all(shard.can_be(key, dtype) for shard in segmented):
                dtypes[key] = dtype
    return [shard if dict(shard.dtypes) == dtypes else shard.with_dtypes(dtypes) for shard in segmented]


def _files_in(folder: AnyPath, suffixes: tuple[str, ...]) -> list[AnyPath]:
    """Return the files in a folder that end so and are not hidden."""
    files = [file for file in folder.iterdir() if not file.name.startswith(".")]
    check_case(folder, (file.name for file in files), suffixes)
    return [file for file in files if file.suffix in suffixes]


def _in_order(found: Iterable[AnyPath]) -> list[AnyPath]:
    return sorted(found, key=lambda one: natural_key(one.as_posix()))


def _prefix(name: str, using: str | Reader) -> str:
    """Return the path without the suffix of a file of a pair."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    stem = name.removesuffix(META_SUFFIX)
    return stem if stem != name and path_at(stem + ".idx", using).is_file() else name
