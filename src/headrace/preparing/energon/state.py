"""The state of a prepared dataset, ``.nv-meta/headrace.json``, which Energon ignores; and the report of a run.

With the state a later run finds the shards that have not changed, and copies their rows from the index that exists.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import xxhash

from headrace.errors import StoreAwayError, StoreError
from headrace.io import AnyPath, FileSum, file_sum, hash_bytes, local_file, read_small
from headrace.preparing.energon.options import MediaFilter
from headrace.stores import Problem, check_file
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER
from headrace.stores.tar.index import index_path

STATE_NAME: Final = "headrace.json"
VERSION: Final = 1
_log = logging.getLogger("headrace")


class ShardFault(msgspec.Struct, frozen=True):
    """A fault of a shard: its place and what is wrong. The samples before it are used."""

    byte: int
    sample: int
    message: str


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was read.

    Attributes:
        size: size of the tar in bytes.
        mtime_ns: time of its last change; 0 if it has an ETag.
        count: number of samples.
        parts: names of its parts, sorted; at most 50.
        tar_index: hash of its ``.tar.idx``.
        digest: hash of its rows in ``index.sqlite``; None if not all of them are there.
        media: number of its media whose metadata are in the index.
        faults: the faults because of which samples are missing.
        etag: what an object store says stands for its content.
    """

    size: int
    mtime_ns: int
    count: int
    parts: tuple[str, ...]
    tar_index: str
    digest: str | None = None
    media: int = 0
    faults: tuple[ShardFault, ...] = ()
    etag: str | msgspec.UnsetType = msgspec.UNSET


class IndexState(msgspec.Struct, frozen=True, kw_only=True):
    """The ``index.sqlite`` of these shards. It numbers the shards that have samples in their order.

    Of an object, ``mtime_ns`` is 0: it is known by its hash.
    """

    size: int
    mtime_ns: int
    media: MediaFilter | None = None
    duplicates: str = "error"
    """What was done with samples whose key an earlier sample has."""


class DatasetState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        version: version of this layout.
        shards: the shards by name, in the order of the info file, including those without samples.
        index: the index; None if only the tar indices were asked for.
        excluded: ``shard/key`` of samples that a run has excluded, because an earlier sample has the key.
        files: files of ``.nv-meta`` that users do not edit (index, its uuid and the info), with their hashes.
        xxh3_128: hash of this file with this field empty.
    """

    version: int = VERSION
    shards: dict[str, ShardState] = {}
    index: IndexState | None = None
    excluded: tuple[str, ...] = ()
    files: tuple[FileSum, ...] = ()
    xxh3_128: str = ""

    def numbers(self) -> dict[str, int]:
        """Return the number of each shard in ``index.sqlite``."""
        return {name: at for at, name in enumerate(name for name, shard in self.shards.items() if shard.count)}


def read_state(root: AnyPath) -> DatasetState:
    """Read the state of a dataset; an empty one if there is none, or it is damaged.

    If ``index.sqlite`` has changed since the state was written, the field ``index`` is None.
    """
    try:
        state = load_state(root)
    except StoreAwayError:
        raise
    except StoreError as error:
        _log.warning("%s; all shards are read again", error)
        state = None
    if state is None:
        return DatasetState()
    if state.index is not None and not _is_as_it_was(root, state.index, state.files):
        state = msgspec.structs.replace(state, index=None)
    return state


def load_state(root: AnyPath) -> DatasetState | None:
    """Read the state of a dataset; None if there is none.

    Raises:
        StoreError: the file is damaged, or has another version.
    """
    path = root / META_FOLDER / STATE_NAME
    try:
        data = read_small(path)
    except OSError:
        return None
    try:
        state = msgspec.json.decode(data, type=DatasetState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: {error}") from error
    if state.version != VERSION or encode_state(state) != data:
        raise StoreError(f"{path}: damaged: its content does not match its own hash")
    return state


def state_problems(root: AnyPath) -> Iterator[Problem]:
    """Yield a problem for each file of a prepared dataset (state, index, info, tar indices) with another hash."""
    try:
        state = load_state(root)
    except StoreError as error:
        path = str(root / META_FOLDER / STATE_NAME)
        yield Problem.of(path, error)
        return
    if state is None:
        return
    for file in state.files:
        yield from check_file(root / META_FOLDER / file.name, file)
    for name, shard in state.shards.items():
        if not is_indexed(root, name, shard):
            yield Problem(path=str(index_path(root / name)), place="", message="is not the index that was written")


def state_of_new_index(root: AnyPath, index: Path) -> bytes | None:
    """Return the state with the hash of a new ``index.sqlite``; None if it holds no hash of one, or there is none.

    Raises:
        StoreError: the state is damaged.
    """
    state = load_state(root)
    if state is None or all(file.name != INDEX_NAME for file in state.files):
        return None
    files = tuple(file_sum(index) if file.name == INDEX_NAME else file for file in state.files)
    return encode_state(msgspec.structs.replace(state, files=files))


def _is_as_it_was(root: AnyPath, index: IndexState, files: Sequence[FileSum]) -> bool:
    path = root / META_FOLDER / INDEX_NAME
    try:
        if not isinstance(path, Path):
            known = [(file.size, file.xxh3_128) for file in files if file.name == INDEX_NAME]
            found = file_sum(local_file(path))
            return known == [(found.size, found.xxh3_128)]
        status = path.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (index.size, index.mtime_ns)


def tar_index_hash(data: bytes) -> str:
    """Return the hash of a ``.tar.idx`` that `ShardState` holds."""
    return xxhash.xxh3_64_hexdigest(data)


def is_indexed(root: AnyPath, name: str, shard: ShardState) -> bool:
    """Whether the ``.tar.idx`` of a shard is the one that was written for it; True for a shard without samples."""
    if not shard.count:
        return True
    try:
        return tar_index_hash(index_path(root / name).read_bytes()) == shard.tar_index
    except OSError:
        return False


def encode_state(state: DatasetState) -> bytes:
    """Encode the state as the content of its file, with its hash."""
    blank = msgspec.structs.replace(state, xxh3_128="")
    return _encoded(msgspec.structs.replace(state, xxh3_128=hash_bytes(_encoded(blank))))


def _encoded(state: DatasetState) -> bytes:
    data = msgspec.json.format(msgspec.json.encode(state), indent=1)
    # One line per shard: people do not read its numbers and hashes.
    return re.sub(rb"\n   +(?! *\})", b" ", data).replace(b"\n  }", b" }") + b"\n"


Kind = Literal["shards", "jsonl", "media", "metadataset"]


class DuplicateKey(msgspec.Struct, frozen=True, kw_only=True):
    """A sample whose key an earlier sample of the dataset has too."""

    key: str
    shard: str
    sample: int
    first_shard: str
    first_sample: int


class EnergonReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        kind: what was prepared.
        path: the path of the dataset.
        shards: number of shards in the dataset.
        samples: number of samples in the shards, of files in a folder of media, of records in a JSONL file, or of rows
            of joins.
        parts: names of the parts, sorted; at most 50.
        read: number of shards that this run, or the unfinished run that it continued, has read.
        unchanged: number of shards that were not read, because they have not changed since an earlier run.
        new: number of shards that the dataset did not have before.
        removed: number of shards that the dataset had before and no longer has.
        empty: tars without samples, which are left out.
        faults: for each malformed shard its faults; samples are missing or cannot be read.
        duplicates: samples whose key an earlier sample has too.
        split: for each part of the split its numbers of shards and samples.
        media: number of media whose metadata are in the index; None if metadata were not asked for.
        uuid: uuid of the index; None if there is no index.
        written: new files of ``.nv-meta``, or paths of the files that were written.
    """

    kind: Kind
    path: str
    shards: int = 0
    samples: int = 0
    parts: tuple[str, ...] = ()
    read: int = 0
    unchanged: int = 0
    new: int = 0
    removed: int = 0
    empty: tuple[str, ...] = ()
    faults: dict[str, tuple[ShardFault, ...]] = {}
    duplicates: tuple[DuplicateKey, ...] = ()
    split: dict[str, tuple[int, int]] = {}
    media: int | None = None
    uuid: str | None = None
    written: tuple[str, ...] = ()
