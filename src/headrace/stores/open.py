"""Opens a store at a path, whatever its layout."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import StoreError
from headrace.io import Reader, natural_key
from headrace.stores.indexed import IndexedStore
from headrace.stores.manifest import MANIFEST_NAME, load_manifest
from headrace.stores.sharded import ShardedStore
from headrace.stores.store import Store

_SUFFIXES = (".bin", ".idx")


def open(path: str | os.PathLike[str], *, reader: str | Reader = "mmap") -> Store:  # noqa: A001 - headrace.open
    """Open what lies at a path. O(1) a shard: headers and sizes are validated, documents are not read.

    Args:
        path: one of

            - a prefix, ``data/web`` for ``data/web.bin`` and ``data/web.idx``; or one of these two files;
            - a folder with a ``headrace.json``: the shards that it lists, in its order, and no others;
            - any other folder: every pair of ``.bin`` and ``.idx`` in it, in the order of `headrace.io.natural_key`.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.

    Raises:
        StoreError: nothing is there, a file of a pair is missing, or what is there is malformed or unknown.
    """
    name = os.fspath(path)
    prefix = name[:-4] if name.endswith(_SUFFIXES) else name
    pair = [suffix for suffix in _SUFFIXES if Path(prefix + suffix).is_file()]
    # Megatron keeps its cache in a folder named like the prefix; that one holds no store, and the pair is meant.
    if Path(name).is_dir() and (not pair or name.endswith("/") or _holds_shards(Path(name))):
        if pair and not name.endswith("/"):
            raise StoreError(
                f"{name}: both a folder of shards and the prefix of {name}{pair[0]}; write {name}/ for the folder, or"
                f" {name}.idx for the pair"
            )
        store = _open_folder(name, reader)
    elif pair:
        store = _open_pair(prefix, pair, reader)
    elif Path(name).exists():
        raise StoreError(f"{name}: the format is unknown; expected a pair of .bin and .idx, or a folder of them")
    else:
        raise StoreError(f"{name}: nothing is there; expected {prefix}.bin and {prefix}.idx, or a folder of such pairs")
    store.path = name
    return store


def _holds_shards(folder: Path) -> bool:
    return any(file.name == MANIFEST_NAME or file.suffix in _SUFFIXES for file in folder.iterdir())


def _open_pair(prefix: str, pair: list[str], reader: str | Reader) -> IndexedStore:
    for suffix in _SUFFIXES:
        if suffix not in pair:
            raise StoreError(
                f"{prefix}{suffix}: missing beside {prefix}{pair[0]}; a store is the pair of both (an interrupted"
                " write or copy leaves one alone)"
            )
    return IndexedStore(prefix, using=reader)


def _open_folder(name: str, reader: str | Reader) -> Store:
    folder = Path(name)
    shards = _listed_shards(folder, reader) if (folder / MANIFEST_NAME).exists() else _found_shards(folder, reader)
    if not shards:
        raise StoreError(f"{name}: a folder without shards; expected pairs of .bin and .idx, or a {MANIFEST_NAME}")
    return shards[0] if len(shards) == 1 else ShardedStore(shards, name)


def _listed_shards(folder: Path, reader: str | Reader) -> list[IndexedStore]:
    shards = []
    for entry in load_manifest(folder).outputs:
        prefix = folder / entry.prefix
        for suffix in _SUFFIXES:
            file = prefix.with_name(prefix.name + suffix)
            if not file.is_file():
                raise StoreError(f"{file}: missing, but {folder / MANIFEST_NAME} lists it")
        shards.append(IndexedStore(prefix, using=reader, vouched=entry))
    return shards


def _found_shards(folder: Path, reader: str | Reader) -> list[IndexedStore]:
    found: dict[str, list[str]] = {}
    for file in folder.iterdir():
        if file.suffix in _SUFFIXES and not file.name.startswith("."):
            found.setdefault(file.name[:-4], []).append(file.suffix)
    return [_open_pair(str(folder / stem), found[stem], reader) for stem in sorted(found, key=natural_key)]
