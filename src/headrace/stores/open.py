"""Opens a store at a path, whatever its layout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import ConfigError, StoreError
from headrace.io import Reader, natural_key
from headrace.stores.aleph_alpha import META_SUFFIX
from headrace.stores.indexed import IndexedStore
from headrace.stores.indexed_dialects import Dialect, Documents, IndexedOptions
from headrace.stores.indexed_pairs import SUFFIXES, open_pair
from headrace.stores.keyed import KeyedStore
from headrace.stores.manifest import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.manifest_output import META_NAME, OutputShard
from headrace.stores.sharded import ShardedStore
from headrace.stores.store import MAIN, Store


def open(  # noqa: A001 - headrace.open
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
) -> Store:
    """Open what lies at a path. O(1) a shard: headers and sizes are validated, documents are not read.

    Args:
        path: one of

            - a prefix, ``data/web`` for ``data/web.bin`` and ``data/web.idx``; or one of these two files; of Megatron
              and its relatives, fairseq, or Aleph Alpha (with ``data/web.meta.json``);
            - a folder with a ``headrace.json``: the shards that it lists, in its order, and no others;
            - a folder with a ``meta.json``, or that file: one shard of the keyed format;
            - a folder with pairs of ``.bin`` and ``.idx``: all of them, in the order of `headrace.io.natural_key`;
            - any other folder: every folder with a ``meta.json`` below it, in that order; hidden ones are left out.
        key: of several keys the main one. The ``headrace.json`` of several keys in the indexed format needs it.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
        dialect: of pairs, who wrote them, where their bytes do not tell (an error says so): ``"megatron"``,
            ``"deepspeed"``, ``"neox"`` or ``"fairseq"``.
        documents: of pairs, ``"sequences"`` takes each sequence as a document, whatever the index says.

    Raises:
        StoreError: nothing is there, a file is missing, what is there is malformed or unknown, or has several keys.
        ConfigError: there is no such key, or the option is unknown, or is for pairs and there are none.
    """
    name = os.fspath(path)
    options = IndexedOptions(dialect=dialect, documents=documents)
    prefix = _prefix(name)
    pair = [suffix for suffix in SUFFIXES if Path(prefix + suffix).is_file()]
    # Megatron keeps its cache in a folder named like the prefix; that one holds no store, and the pair is meant.
    if Path(name).is_dir() and (not pair or name.endswith("/") or _holds_shards(Path(name))):
        if pair and not name.endswith("/"):
            raise StoreError(
                f"{name}: both a folder of shards and the prefix of {name}{pair[0]}; write {name}/ for the folder, or"
                f" {name}.idx for the pair"
            )
        store = _open_folder(name, key, reader, options)
    elif Path(name).name == META_NAME and Path(name).is_file():
        store = KeyedStore(Path(name).parent, key=key, using=reader)
    elif pair:
        store = open_pair(prefix, using=reader, options=options)
        _check_only_key(name, key)
    elif Path(name).exists():
        raise StoreError(
            f"{name}: the format is unknown; expected a pair of .bin and .idx, a {META_NAME}, or a folder of them"
        )
    else:
        raise StoreError(f"{name}: nothing is there; expected {prefix}.bin and {prefix}.idx, or a folder of such pairs")
    if isinstance(store, KeyedStore) and options != IndexedOptions():
        raise ConfigError(f"{name}: dialect and documents are for pairs of .bin and .idx; this is the keyed format")
    store.path = name
    return store


def open_keys(
    path: str | os.PathLike[str],
    *,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
) -> dict[str, Store]:
    """Every key of what lies at a path, each with a store whose main key it is.

    Raises:
        StoreError: as `open`.
        ConfigError: as `open`.
    """

    def opened(key: str | None) -> Store:
        return open(path, key=key, reader=reader, dialect=dialect, documents=documents)

    keys = _listed_keys(Path(path))
    if len(keys) > 1:
        return {key: opened(key) for key in keys}
    store = opened(None)
    if keys:
        return {keys[0]: store}
    return {store.keys[0]: store, **{key: opened(key) for key in store.keys[1:]}}


def _prefix(name: str) -> str:
    """The path without the suffix of one of a store's files."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    stem = name.removesuffix(META_SUFFIX)
    return stem if stem != name and Path(stem + ".idx").is_file() else name


def _listed_keys(folder: Path) -> tuple[str, ...]:
    """The keys of shards in the indexed format, which only a manifest can name."""
    if not (folder / MANIFEST_NAME).is_file():
        return ()
    manifest = load_manifest(folder)
    return manifest.keys if all(shard.format == "indexed" for shard in manifest.outputs) else ()


def _holds_shards(folder: Path) -> bool:
    return any(file.name in (MANIFEST_NAME, META_NAME) or file.suffix in SUFFIXES for file in folder.iterdir())


def _check_only_key(name: str, key: str | None, *known: str) -> None:
    if key not in (None, MAIN, *known):
        keys = ", ".join(map(repr, known or (MAIN,)))
        raise ConfigError(f"{name}: no key {key!r}; a store in the indexed format has one key, here {keys}")


def _open_folder(name: str, key: str | None, reader: str | Reader, options: IndexedOptions) -> Store:
    folder = Path(name)
    shards: list[Store]
    if (folder / MANIFEST_NAME).exists():
        shards = _listed_shards(folder, key, reader, options)
    elif (folder / META_NAME).exists():
        shards = [_open_keyed(folder, key, reader)]
    else:
        shards = _found_pairs(folder, key, reader, options) or _keyed_shards(list(_found_keyed(folder)), key, reader)
    if not shards:
        raise StoreError(
            f"{name}: a folder without shards; expected pairs of .bin and .idx, a {MANIFEST_NAME}, or folders with a"
            f" {META_NAME}"
        )
    return shards[0] if len(shards) == 1 else ShardedStore(shards, name)


def _listed_shards(folder: Path, key: str | None, reader: str | Reader, options: IndexedOptions) -> list[Store]:
    manifest = load_manifest(folder)
    outputs = [shard for shard in manifest.outputs if shard.format == "keyed"]
    if outputs:
        return _keyed_shards([folder / shard.prefix for shard in outputs], key, reader, outputs)
    shards: list[Store] = []
    for entry in _chosen(folder, manifest, key):
        prefix = folder / entry.prefix
        for suffix in SUFFIXES:
            file = prefix.with_name(prefix.name + suffix)
            if not file.is_file():
                raise StoreError(f"{file}: missing, but {folder / MANIFEST_NAME} lists it")
        shards.append(IndexedStore(prefix, using=reader, vouched=entry, options=options))
    return shards


def _chosen(folder: Path, manifest: Manifest, key: str | None) -> list[OutputShard]:
    """The shards of one key in the indexed format."""
    keys = manifest.keys
    if len(keys) <= 1:
        _check_only_key(str(folder), key, *keys)
        return list(manifest.outputs)
    if key is None:
        first = {name: next(shard.prefix for shard in manifest.outputs if name in shard.keys) for name in keys}
        ways = ", ".join(f"key={name!r} ({prefix}, ...)" for name, prefix in first.items())
        raise StoreError(f"{folder}: holds several keys, each with shards of its own; open one of them with {ways}")
    if key not in keys:
        raise ConfigError(f"{folder}: no key {key!r}; its keys are {', '.join(map(repr, keys))}")
    return [shard for shard in manifest.outputs if key in shard.keys]


def _keyed_shards(
    folders: list[Path], key: str | None, reader: str | Reader, vouched: list[OutputShard] | None = None
) -> list[Store]:
    shards: list[Store] = []
    for number, folder in enumerate(folders):
        entry = vouched[number] if vouched is not None else None
        try:
            shard = _open_keyed(folder, key, reader, entry)
        except ConfigError as error:
            if not shards:
                raise
            raise StoreError(
                f"{error}; shards of different kinds are not one store: {shards[0].path} has it"
            ) from error
        # The order of the keys may differ from shard to shard: what the first one's main key is, is that of all.
        key = shard.keys[0]
        shards.append(shard)
    return shards


def _open_keyed(folder: Path, key: str | None, reader: str | Reader, vouched: OutputShard | None = None) -> KeyedStore:
    if not (folder / META_NAME).is_file():
        raise StoreError(f"{folder / META_NAME}: missing, but {MANIFEST_NAME} lists the shard")
    if any(file.suffix == ".idx" for file in folder.iterdir()):
        raise StoreError(
            f"{folder}: both a {META_NAME} and files named .idx: a shard of the keyed format or of the indexed one?"
            " Keep them in folders of their own"
        )
    return KeyedStore(folder, key=key, using=reader, vouched=vouched)


def _found_pairs(folder: Path, key: str | None, reader: str | Reader, options: IndexedOptions) -> list[Store]:
    files = [file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith(".")]
    if files:
        _check_only_key(str(folder), key)
    stems = sorted({file.stem for file in files}, key=natural_key)
    return [open_pair(folder / stem, using=reader, options=options) for stem in stems]


def _found_keyed(folder: Path) -> Iterator[Path]:
    """Every folder below that holds a ``meta.json``, links followed, in natural order of the paths."""
    found = []
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        status = Path(name).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        if META_NAME in files:
            found.append(Path(name).relative_to(folder))
    for place in sorted(found, key=lambda place: natural_key(place.as_posix())):
        yield folder / place
