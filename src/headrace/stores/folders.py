"""Finds out what lies in a folder, and opens it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.io import Reader, natural_key
from headrace.stores.combined import CombinedStore
from headrace.stores.hdf5 import Hdf5Store
from headrace.stores.hdf5_layout import HDF5_SUFFIXES, DatasetOrder
from headrace.stores.indexed import IndexedStore
from headrace.stores.indexed_dialects import IndexedOptions
from headrace.stores.indexed_pairs import SUFFIXES, open_pair
from headrace.stores.jsonl import JsonlStore, open_json
from headrace.stores.keyed import KeyedStore
from headrace.stores.manifest import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.manifest_output import META_NAME, OutputShard
from headrace.stores.segmented import SegmentedStore
from headrace.stores.sharded import ShardedStore
from headrace.stores.store import MAIN, Store


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is to be opened; see `headrace.open`."""

    key: str | None
    reader: str | Reader
    options: IndexedOptions
    dataset_order: DatasetOrder


def open_folder(name: str, how: Opening) -> Store:
    """The store in a folder.

    Raises:
        StoreError: there is none, or two of different formats, or it is malformed.
        ConfigError: there is no such key.
    """
    folder = Path(name)
    if (folder / MANIFEST_NAME).exists():
        return _listed(folder, name, how)
    if (folder / META_NAME).exists():
        return _joined([_open_keyed(folder, how.key, how)], name)
    shards = _found_pairs(folder, how)
    if not shards:
        keyed, hdf5 = _found_below(folder)
        if keyed and hdf5:
            raise StoreError(
                f"{name}: shards of two formats below: {keyed[0] / META_NAME} and {hdf5[0]}; name a folder that holds"
                " one of them"
            )
        if keyed:
            shards = _series([str(place) for place in keyed], how, lambda at, key: _open_keyed(keyed[at], key, how))
        else:
            files = hdf5 or _found_json(folder)
            shards = _series([str(file) for file in files], how, lambda at, key: _open_file(files[at], key, how))
    if not shards:
        raise StoreError(
            f"{name}: a folder without shards; expected pairs of .bin and .idx, a {MANIFEST_NAME}, folders with a"
            f" {META_NAME}, or files .h5 or .jsonl"
        )
    return _joined(shards, name)


def holds_shards(folder: Path) -> bool:
    """Whether a folder holds a store, or parts of one, at its own level."""
    return any(file.name in (MANIFEST_NAME, META_NAME) or file.suffix in SUFFIXES for file in folder.iterdir())


def listed_keys(folder: Path) -> tuple[str, ...]:
    """The keys of shards in the indexed format, which only a manifest can name."""
    if not (folder / MANIFEST_NAME).is_file():
        return ()
    manifest = load_manifest(folder)
    return manifest.keys if all(shard.format == "indexed" for shard in manifest.outputs) else ()


def check_only_key(name: str, key: str | None, *known: str) -> None:
    """Raise ConfigError for another key than the only one of a store in the indexed format."""
    if key not in (None, MAIN, *known):
        keys = ", ".join(map(repr, known or (MAIN,)))
        raise ConfigError(f"{name}: no key {key!r}; a store in the indexed format has one key, here {keys}")


def _joined(shards: Sequence[Store], name: str) -> Store:
    return shards[0] if len(shards) == 1 else ShardedStore(shards, name)


def _listed(folder: Path, name: str, how: Opening) -> Store:
    """What a manifest lists."""
    manifest = load_manifest(folder)
    outputs = manifest.outputs
    if outputs and outputs[0].format != "indexed":  # one manifest, one format
        names = [str(folder / entry.prefix) for entry in outputs]
        return _joined(_series(names, how, lambda at, key: _open_listed(folder, outputs[at], key, how)), name)
    if not outputs:
        raise StoreError(f"{name}: a folder without shards: its {MANIFEST_NAME} lists none")
    keys = manifest.keys
    if len(keys) == 1:
        check_only_key(str(folder), how.key, *keys)
        return _joined(_listed_pairs(folder, manifest, keys[0], how), name)
    if how.key is None:
        stores = {key: _joined(_listed_pairs(folder, manifest, key, how), name) for key in keys}
        return CombinedStore(stores, name)
    if how.key not in keys:
        raise ConfigError(f"{folder}: no key {how.key!r}; its keys are {', '.join(map(repr, keys))}")
    return _joined(_listed_pairs(folder, manifest, how.key, how), name)


def _listed_pairs(folder: Path, manifest: Manifest, key: str, how: Opening) -> list[Store]:
    """The shards of one key in the indexed format."""
    shards: list[Store] = []
    for entry in manifest.outputs:
        if key not in entry.keys:
            continue
        prefix = folder / entry.prefix
        for suffix in SUFFIXES:
            _check_there(prefix.with_name(prefix.name + suffix), folder)
        shards.append(IndexedStore(prefix, using=how.reader, vouched=entry, options=how.options))
    return shards


def _open_listed(folder: Path, entry: OutputShard, key: str | None, how: Opening) -> Store:
    place = folder / entry.prefix
    if entry.format == "keyed":
        _check_there(place / META_NAME, folder)
        return _open_keyed(place, key, how, entry)
    file = place.with_name(entry.files[0].name)
    _check_there(file, folder)
    if entry.format == "jsonl":
        return JsonlStore(file, key=key, using=how.reader, vouched=entry)
    return Hdf5Store(file, key=key, using=how.reader, order=how.dataset_order, vouched=entry)


def _check_there(file: Path, folder: Path) -> None:
    if not file.is_file():
        raise StoreError(f"{file}: missing, but {folder / MANIFEST_NAME} lists it")


def _series(names: Sequence[str], how: Opening, opened: Callable[[int, str | None], Store]) -> list[Store]:
    """Shards of several keys, all with the same main one."""
    shards: list[Store] = []
    key = how.key
    for at in range(len(names)):
        try:
            shard = opened(at, key)
        except ConfigError as error:
            if not shards:
                raise
            raise StoreError(f"{error}; shards of different kinds are not one store: {names[0]} has it") from error
        # The order of the keys may differ from shard to shard: what the first one's main key is, is that of all.
        key = shard.keys[0]
        shards.append(shard)
    return _agreed(shards)


def _agreed(shards: list[Store]) -> list[Store]:
    """The shards with the dtypes that all of them can have, where a file does not say which: one without values."""
    segmented = [shard for shard in shards if isinstance(shard, SegmentedStore)]
    if len(segmented) < 2 or len({frozenset(shard.keys) for shard in segmented}) > 1:
        return shards
    dtypes = {}
    for key in segmented[0].keys:
        for dtype in dict.fromkeys(shard.dtypes[key] for shard in segmented):
            if all(shard.can_be(key, dtype) for shard in segmented):
                dtypes[key] = dtype
    return [shard if dict(shard.dtypes) == dtypes else shard.with_dtypes(dtypes) for shard in segmented]


def _open_keyed(folder: Path, key: str | None, how: Opening, vouched: OutputShard | None = None) -> KeyedStore:
    if any(file.suffix == ".idx" for file in folder.iterdir()):
        raise StoreError(
            f"{folder}: both a {META_NAME} and files named .idx: a shard of the keyed format or of the indexed one?"
            " Keep them in folders of their own"
        )
    return KeyedStore(folder, key=key, using=how.reader, vouched=vouched)


def _open_file(file: Path, key: str | None, how: Opening) -> Store:
    if file.suffix in HDF5_SUFFIXES:
        return Hdf5Store(file, key=key, using=how.reader, order=how.dataset_order)
    return open_json(file, key=key, using=how.reader)


def _found_pairs(folder: Path, how: Opening) -> list[Store]:
    files = [file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith(".")]
    if files:
        check_only_key(str(folder), how.key)
    stems = sorted({file.stem for file in files}, key=natural_key)
    return [open_pair(folder / stem, using=how.reader, options=how.options) for stem in stems]


def _found_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Every folder that holds a ``meta.json``, and every HDF5 file, links followed, in natural order of the paths."""
    keyed, hdf5 = [], []
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        status = Path(name).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        place = Path(name).relative_to(folder)
        if META_NAME in files:
            keyed.append(place)
        hdf5 += [place / file for file in files if file.endswith(HDF5_SUFFIXES) and not file.startswith(".")]
    return _in_order(folder, keyed), _in_order(folder, hdf5)


def _in_order(folder: Path, found: list[Path]) -> list[Path]:
    return [folder / place for place in sorted(found, key=lambda place: natural_key(place.as_posix()))]


def _found_json(folder: Path) -> list[Path]:
    """The files ``.jsonl`` in the folder itself, or where there are none its files ``.json``."""
    names = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    for suffix in (".jsonl", ".json"):
        found = [Path(file.name) for file in names if file.suffix == suffix]
        if found:
            return _in_order(folder, found)
    return []
