"""Join indices: which samples of several datasets belong together by their keys, ``join_index_<sha256>.bin``.

    8 bytes ``JIDX0001``, int64 number of columns, then rows of (shard, byte, bytes) a column, int64 little-endian

A shard is counted in the list of the column's split; (-1, -1, -1) stands for no sample. The name is a hash of the
datasets' uuids, excludes and rules, and says nothing of the split, so that in Energon the joins of two splits share one
file. Here a file under that name is used only if its rows are those of this split; else the join has a name of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from headrace.errors import ConfigError, StoreError
from headrace.io import Reader
from headrace.stores.energon.layout import META_FOLDER, UUID_NAME
from headrace.stores.energon.store import EnergonStore
from headrace.stores.types import IntArray

MAGIC: Final = b"JIDX0001"
HEADER_BYTES: Final = 16
PLACE: Final = 3
"""Numbers that say where a sample is: shard, byte, bytes."""

Nonmatch = Literal["error", "skip", "none"]


class JoinColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One of the datasets that are joined: the first is the primary one, whose samples are all taken in its order.

    Attributes:
        store: opened with the split of the join.
        nonmatch: what becomes of a primary sample that has no partner in this split: ``"error"``, it is left out by
            ``"skip"``, and is alone with ``"none"``. Of the primary itself always ``"error"``.
        name: of its parts in a joined sample; by default its number.
    """

    store: EnergonStore
    nonmatch: Nonmatch = "error"
    name: str | None = None


def cache_folder(metadataset: str | os.PathLike[str]) -> Path:
    """Where the join indices of a metadataset lie: ``<name>.yaml.cache`` beside it."""
    path = Path(metadataset)
    return path.with_name(f"{path.name}.cache")


def join_name(columns: Sequence[JoinColumn], *, with_split: bool = False) -> str:
    """Name of the index of a join: Energon's, or with the shards of each split in it.

    Energon hashes excludes in the order of a set, which changes from process to process where there are several; here
    they are sorted.

    Raises:
        StoreError: a dataset has no ``index.uuid``.
        ConfigError: the columns cannot be joined.
    """
    check_columns(columns)
    hasher = hashlib.sha256()
    for column in columns:
        part = column.store.part_shards
        hasher.update(b"\0uuid=" + _uuid(column.store.root) + b"\0excludes=")
        for exclude in sorted(entry for entry in part.exclude if "/" in entry):
            hasher.update(exclude.encode() + b"\0")
        hasher.update(f"\0nonmatch={column.nonmatch}\0".encode())
        if with_split:
            hasher.update(b"\0split=" + "\0".join(part.listed).encode() + b"\0")
    return f"join_index_{hasher.hexdigest()}.bin"


def check_columns(columns: Sequence[JoinColumn]) -> None:
    """Raise ConfigError unless the columns can be joined."""
    if not columns:
        raise ConfigError("a join needs a primary dataset and others")
    if columns[0].nonmatch != "error":
        raise ConfigError(
            f"the primary dataset of a join, {columns[0].store.path}, must have nonmatch: error; found"
            f" {columns[0].nonmatch!r}"
        )
    for column in columns:
        if column.nonmatch not in ("error", "skip", "none"):
            raise ConfigError(f"{column.store.path}: nonmatch is error, skip or none; found {column.nonmatch!r}")
        if not all(name.endswith(".tar") for name in column.store.shards):
            raise ConfigError(f"{column.store.path}: only datasets of tar shards can be joined")
    names = [str(number) if column.name is None else column.name for number, column in enumerate(columns)]
    if len(set(names)) < len(names) or any("." in name for name in names):
        raise ConfigError(f"the columns of a join need different names without a dot; found {', '.join(names)}")


def read_rows(path: Path, using: Reader, num_columns: int) -> IntArray:
    """(rows, columns, 3) int64: the rows of a join index, mapped where the reader maps. O(1).

    Raises:
        StoreError: it is missing, malformed, or of another number of columns.
    """
    data = using.view(str(path))
    if data is None:
        data = using.read_ranges(str(path), np.array([0]), np.array([using.size(str(path))]))
    if data[: len(MAGIC)].tobytes() != MAGIC or len(data) < HEADER_BYTES:
        raise StoreError(f"{path}: begins with {data[:8].tobytes()!r}, a join index with {MAGIC!r}; {_AGAIN}")
    found = int(np.frombuffer(data[len(MAGIC) : HEADER_BYTES], "<i8")[0])
    row_bytes = num_columns * PLACE * 8
    if found != num_columns or (len(data) - HEADER_BYTES) % row_bytes:
        raise StoreError(
            f"{path}: {len(data) - HEADER_BYTES} bytes of rows of {found} columns; expected rows of {num_columns}"
            f" columns, {row_bytes} bytes each; {_AGAIN}"
        )
    using.release(str(path))  # the array holds the mapping
    rows: IntArray = np.frombuffer(data[HEADER_BYTES:], "<i8").reshape(-1, num_columns, PLACE)
    return rows


def find_join(folder: Path, columns: Sequence[JoinColumn], using: Reader) -> Path:
    """The index of a join in a cache folder: ours, or Energon's if its rows are those of this split, as far as some of
    them tell; every row is compared when it is read.

    Raises:
        StoreError: there is none.
        ConfigError: the columns cannot be joined.
    """
    ours, theirs = folder / join_name(columns, with_split=True), folder / join_name(columns)
    if ours.is_file():
        return ours
    fault = "missing"
    if theirs.is_file():
        rows = read_rows(theirs, using, len(columns))
        fault = rows_fault(rows, columns) or ""
        if not fault:
            return theirs
    raise StoreError(f"{theirs}: {fault}, and there is no {ours.name} either; {_AGAIN}")


def rows_fault(rows: IntArray, columns: Sequence[JoinColumn], num_tried: int = 16) -> str | None:
    """What shows that rows are not of this join: their number, or one of some that are spread over them."""
    primary = len(columns[0].store)
    exact = all(column.nonmatch != "skip" for column in columns)
    if len(rows) > primary or (exact and len(rows) != primary):
        return f"holds {len(rows):,} rows, the primary dataset {primary:,} samples: of another split"
    for number in np.unique(np.linspace(0, len(rows) - 1, min(num_tried, len(rows))).astype(np.int64)).tolist():
        keys = set()
        for at, column in enumerate(columns):
            shard, offset, size = rows[number, at].tolist()
            if shard < 0 and at and column.nonmatch == "none":
                continue
            place = None
            if 0 <= shard < len(column.store.part_shards.listed):
                place = column.store.place_of(shard, offset, size)
            if place is None:
                return f"row {number} names no sample of {column.store.path}: of another split"
            keys.add(column.store.read_places([place], ())[0].key)
        if len(keys) > 1:
            return f"row {number} joins samples of different keys: of another split"
    return None


def _uuid(root: Path) -> bytes:
    path = root / META_FOLDER / UUID_NAME
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror or error}; a dataset that is joined needs it: prepare it again"
        ) from error


_AGAIN: Final = "make it with headrace prepare or energon prepare of the metadataset"
