"""What is known of a dataset that was prepared here: ``.nv-meta/headrace.json``, which Energon does not look at.

By it a later run tells which shards are as they were, and takes what it knows of them from the index of before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from headrace.errors import StoreError
from headrace.io import FileSum, atomic_write, file_sum, hash_bytes
from headrace.prepare.energon.options import MediaFilter
from headrace.stores import Problem, check_file
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER
from headrace.stores.tar.index import index_path

STATE_NAME: Final = "headrace.json"
VERSION: Final = 1
_log = logging.getLogger("headrace")


class ShardFault(msgspec.Struct, frozen=True):
    """What is wrong with a shard: the samples before it are taken."""

    byte: int
    sample: int
    message: str


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was read.

    Attributes:
        size: bytes of the tar.
        mtime_ns: when it was changed last.
        count: samples.
        parts: names of its parts, some at most.
        tar_index: hash of its ``.tar.idx``.
        digest: of its rows in ``index.sqlite``; None where they are not there, or not all of them.
        media: its media whose facts are in the index.
        faults: why samples are missing.
    """

    size: int
    mtime_ns: int
    count: int
    parts: tuple[str, ...]
    tar_index: str
    digest: str | None = None
    media: int = 0
    faults: tuple[ShardFault, ...] = ()


class IndexState(msgspec.Struct, frozen=True, kw_only=True):
    """The ``index.sqlite`` that these shards are in, numbered in their order, those without samples left out."""

    size: int
    mtime_ns: int
    media: MediaFilter | None = None
    duplicates: str = "error"
    """What became of samples whose key was there before."""


class DatasetState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        version: of this layout.
        shards: by name, in the order of the info file; those without samples too.
        index: None where only the tar indexes were asked for.
        excluded: ``shard/key`` that a run has excluded, because an earlier sample has the key.
        files: of ``.nv-meta`` that nobody edits: index, its uuid and the info, with their hashes.
        xxh3_128: of the file with this field empty. Before there was this hash, it and ``files`` were not there.
    """

    version: int = VERSION
    shards: dict[str, ShardState] = {}
    index: IndexState | None = None
    excluded: tuple[str, ...] = ()
    files: tuple[FileSum, ...] = ()
    xxh3_128: str = ""

    def numbers(self) -> dict[str, int]:
        """Shard -> its number in ``index.sqlite``."""
        return {name: at for at, name in enumerate(name for name, shard in self.shards.items() if shard.count)}


def read_state(root: Path) -> DatasetState:
    """The state of a dataset; an empty one where there is none, or of another version, or it is damaged.

    Where ``index.sqlite`` is another than the one that was written then, nothing is said of rows.
    """
    try:
        state = load_state(root)
    except StoreError as error:
        _log.warning("%s; all shards are read anew", error)
        state = None
    if state is None:
        return DatasetState()
    if state.index is not None and not _is_as_it_was(root, state.index):
        state = msgspec.structs.replace(state, index=None)
    return state


def load_state(root: Path) -> DatasetState | None:
    """The state of a dataset; None where there is none, or of another version.

    Raises:
        StoreError: a bit of it was changed.
    """
    path = root / META_FOLDER / STATE_NAME
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        state = msgspec.json.decode(data, type=DatasetState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: {error}") from error
    if state.version != VERSION and not state.xxh3_128:
        return None
    if state.xxh3_128 and encode_state(state) != data:
        raise StoreError(f"{path}: damaged: its own hash is not that of its content")
    return state


def state_problems(root: Path) -> Iterator[Problem]:
    """What differs of a prepared dataset from what was written: state, index, info and tar indexes, by their hashes."""
    try:
        state = load_state(root)
    except StoreError as error:
        path = str(root / META_FOLDER / STATE_NAME)
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))
        return
    if state is None:
        return
    for file in state.files:
        yield from check_file(root / META_FOLDER / file.name, file)
    for name, shard in state.shards.items():
        if not is_indexed(root, name, shard):
            yield Problem(path=str(index_path(root / name)), place="", message="is not the index that was written")


def tell_of_new_index(root: Path) -> None:
    """Write down the hash of an ``index.sqlite`` that was changed in its place, where one was written down before.

    Raises:
        StoreError: the state is damaged.
        OutputError: the system refuses.
    """
    state = load_state(root)
    meta = root / META_FOLDER
    if state is not None and any(file.name == INDEX_NAME for file in state.files):
        files = tuple(file_sum(meta / file.name) if file.name == INDEX_NAME else file for file in state.files)
        atomic_write(meta / STATE_NAME, encode_state(msgspec.structs.replace(state, files=files)))


def _is_as_it_was(root: Path, index: IndexState) -> bool:
    try:
        status = (root / META_FOLDER / INDEX_NAME).stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (index.size, index.mtime_ns)


def tar_index_hash(data: bytes) -> str:
    """What `ShardState` keeps of a ``.tar.idx``."""
    return xxhash.xxh3_64_hexdigest(data)


def is_indexed(root: Path, name: str, shard: ShardState) -> bool:
    """Whether the ``.tar.idx`` of a shard is the one that was written for it; a shard without samples has none."""
    if not shard.count:
        return True
    try:
        return tar_index_hash(index_path(root / name).read_bytes()) == shard.tar_index
    except OSError:
        return False


def encode_state(state: DatasetState) -> bytes:
    """The content of the file, with its hash."""
    blank = msgspec.structs.replace(state, xxh3_128="")
    return _encoded(msgspec.structs.replace(state, xxh3_128=hash_bytes(_encoded(blank))))


def _encoded(state: DatasetState) -> bytes:
    """A line a shard."""
    data = msgspec.json.format(msgspec.json.encode(state), indent=1)
    # Numbers and hashes of a shard are not read by people: one line for all of them.
    return re.sub(rb"\n   +(?! *\})", b" ", data).replace(b"\n  }", b" }") + b"\n"
