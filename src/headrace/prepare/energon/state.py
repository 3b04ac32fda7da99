"""What is known of a dataset that was prepared here: ``.nv-meta/headrace.json``, which Energon does not look at.

By it a later run tells which shards are as they were, and takes what it knows of them from the index of before.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from headrace.prepare.energon.options import MediaFilter
from headrace.stores.energon.layout import INDEX_NAME, META_FOLDER
from headrace.stores.tar.index import index_path

STATE_NAME: Final = "headrace.json"
VERSION: Final = 1


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
    """

    version: int = VERSION
    shards: dict[str, ShardState] = {}
    index: IndexState | None = None
    excluded: tuple[str, ...] = ()

    def numbers(self) -> dict[str, int]:
        """Shard -> its number in ``index.sqlite``."""
        return {name: at for at, name in enumerate(name for name, shard in self.shards.items() if shard.count)}


def read_state(root: Path) -> DatasetState:
    """The state of a dataset; an empty one where there is none, or of another version.

    Where ``index.sqlite`` is another than the one that was written then, nothing is said of rows.
    """
    try:
        state = msgspec.json.decode((root / META_FOLDER / STATE_NAME).read_bytes(), type=DatasetState)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return DatasetState()
    if state.version != VERSION:
        return DatasetState()
    if state.index is not None and not _is_as_it_was(root, state.index):
        state = msgspec.structs.replace(state, index=None)
    return state


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
    """The content of the file, a line a shard."""
    data = msgspec.json.format(msgspec.json.encode(state), indent=1)
    # Numbers and hashes of a shard are not read by people: one line for all of them.
    return re.sub(rb"\n   +(?! *\})", b" ", data).replace(b"\n  }", b" }") + b"\n"
