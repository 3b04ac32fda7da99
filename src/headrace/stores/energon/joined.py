"""`JoinedStore`, which reads samples of several datasets side by side by a join index, ``join_index_<sha256>.bin``.

    8 bytes ``JIDX0001``, int64 number of columns, then rows of (shard, byte, bytes) a column, int64 little-endian

The number of a shard is its position in the column's split; (-1, -1, -1) means that there is no sample. The name is a
hash of the datasets' uuids, excludes and rules. It does not depend on the split, so in Energon the joins of two splits
share one file. Headrace uses a file of that name only if its rows belong to this split; otherwise the join has a name
of its own.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import AnyPath, Reader, path_at, read_small, reader, reader_at
from headrace.io.finding import each
from headrace.stores.arguments import IntArray, positions, sample_numbers
from headrace.stores.energon.config_file import META_FOLDER, UUID_NAME
from headrace.stores.energon.store import EnergonStore
from headrace.stores.store import (
    Extents,
    Numbering,
    PartPlace,
    Problem,
    RawSample,
    SampleStore,
    read_ahead_of_fingerprints,
)

MAGIC: Final = b"JIDX0001"
HEADER_BYTES: Final = 16
PLACE: Final = 3
"""How many numbers the place of a sample has: shard, byte, bytes."""

_TRIED_ROWS: Final = 16

Nonmatch = Literal["error", "skip", "none"]


class JoinColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One of the datasets of a join. The first is the primary dataset, whose samples are joined in its order.

    Attributes:
        store: the dataset, opened with the split of the join.
        nonmatch: what to do with a primary sample that has no partner in this split: ``"error"`` raises an error,
            ``"skip"`` leaves the sample out, and ``"none"`` keeps it without the partner. For the primary dataset it
            must be ``"error"``.
        name: name of the column in the names of parts of a joined sample; by default its number.

    Example:
        >>> store = headrace.stores.EnergonStore("shards", split_part="train")
        >>> column = headrace.stores.energon.JoinColumn(store=store, name="images")
        >>> column.nonmatch
        'error'
    """

    store: EnergonStore
    nonmatch: Nonmatch = "error"
    name: str | None = None


def cache_folder(metadataset: str | os.PathLike[str]) -> AnyPath:
    """Return the folder of a metadataset's join indices: ``<name>.yaml.cache`` beside it."""
    path = path_at(metadataset)
    return path.with_name(f"{path.name}.cache")


def join_name(columns: Sequence[JoinColumn], *, with_split: bool = False) -> str:
    """Return the name of the index of a join: Energon's name, or one that also depends on the shards of each split.

    Energon hashes excludes in the order of a set, which differs from process to process if there are several; here they
    are sorted.

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
        raise ConfigError("a join has no columns; it needs a primary dataset and others")
    if columns[0].nonmatch != "error":
        raise ConfigError(
            f"the primary dataset of a join, {columns[0].store.path}, must have nonmatch: error; found"
            f" {columns[0].nonmatch!r}"
        )
    for column in columns:
        if column.nonmatch not in ("error", "skip", "none"):
            raise ConfigError(f"{column.store.path}: nonmatch must be error, skip or none; found {column.nonmatch!r}")
    names = [str(number) if column.name is None else column.name for number, column in enumerate(columns)]
    if len(set(names)) < len(names) or any("." in name for name in names):
        raise ConfigError(f"the columns of a join need different names without a dot; found {', '.join(names)}")


def read_rows(path: AnyPath, using: Reader, num_columns: int) -> IntArray:
    """Read the rows of a join index, (rows, columns, 3) int64; they are mapped if the reader maps. O(1).

    Raises:
        StoreError: the index is missing or malformed, or has another number of columns.
    """
    using.keep(str(path))
    data = using.whole(str(path))
    if data[: len(MAGIC)].tobytes() != MAGIC or len(data) < HEADER_BYTES:
        raise StoreError(
            f"{path}: begins with {data[:8].tobytes()!r}, but a join index begins with {MAGIC!r}; {_AGAIN}"
        )
    found = int(np.frombuffer(data[len(MAGIC) : HEADER_BYTES], "<i8")[0])
    row_bytes = num_columns * PLACE * 8
    if found != num_columns or (len(data) - HEADER_BYTES) % row_bytes:
        raise StoreError(
            f"{path}: has {len(data) - HEADER_BYTES} bytes of rows of {found} columns; expected rows of {num_columns}"
            f" columns, {row_bytes} bytes each; {_AGAIN}"
        )
    using.release(str(path))  # the array keeps the mapping alive
    rows: IntArray = np.frombuffer(data[HEADER_BYTES:], "<i8").reshape(-1, num_columns, PLACE)
    return rows


def _uuid(root: AnyPath) -> bytes:
    path = root / META_FOLDER / UUID_NAME
    try:
        return read_small(path)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror or error}; a join needs this file: prepare the dataset again"
        ) from error


_AGAIN: Final = "make it with headrace prepare or energon prepare of the metadataset"

Joined = tuple[RawSample | None, ...]
"""One sample for each column; None if a column has no partner."""


class JoinedStore(SampleStore):
    """The samples of a primary dataset, each with its partners in other datasets.

    `read_joined` returns them column by column. As a store it has one shard, the index. A sample has the key of the
    primary dataset's sample and the parts of all columns, named ``"<column>.<part>"``.

    Args:
        columns: the datasets; the first is the primary one.
        folder: the folder of the index, see `cache_folder`.
        using: how to read the index: ``"mmap"`` or ``"pread"``, or a `Reader`.

    Raises:
        StoreError: there is no index of this join, or it is malformed.
        ConfigError: the datasets cannot be joined.

    Example:
        >>> train = headrace.stores.EnergonStore("shards", split_part="train")
        >>> columns = [headrace.stores.energon.JoinColumn(store=train, name=name) for name in ("left", "right")]
        >>> join = headrace.stores.energon.write_join(headrace.stores.energon.cache_folder("mix.yaml"), columns)
        >>> joined = headrace.stores.JoinedStore(columns, "mix.yaml.cache")
        >>> len(joined) == len(train), sorted(joined[0].parts)
        (True, ['left.jpg', 'left.txt', 'right.jpg', 'right.txt'])
    """

    format = "joined"

    def __init__(self, columns: Sequence[JoinColumn], folder: str | AnyPath, *, using: str | Reader = "mmap") -> None:
        check_columns(columns)
        self.columns = tuple(columns)
        self.names = tuple(str(at) if column.name is None else column.name for at, column in enumerate(columns))
        self._reader = reader(reader_at(os.fspath(folder), using))
        self._folder = path_at(folder, self._reader)
        ours, theirs = (self._folder / join_name(columns, with_split=with_split) for with_split in (True, False))
        self.index_path = ours if ours.is_file() else theirs
        self.path = str(self.index_path)
        if not self.index_path.is_file():
            raise StoreError(f"{self.path}: missing, and there is no {ours.name} either; {_AGAIN}")
        self._rows = read_rows(self.index_path, self._reader, len(self.columns))
        self._numbering = Numbering(np.array([len(self._rows)]))
        if self.index_path == theirs:
            self._check_some()

    @property
    def shards(self) -> tuple[str, ...]:
        """One shard, the name of the index."""
        return (self.index_path.name,)

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The one of the index, and those of all columns, each once."""
        return tuple(dict.fromkeys([self._reader, *(one for column in self.columns for one in column.store.readers)]))

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The index, and the files of all columns."""
        return (self.index_path, *(file for column in self.columns for file in column.store.files))

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the fingerprints of the columns, and of number, ends and middle of the rows."""
        read_ahead_of_fingerprints([self])
        return self._hashed([column.store.fingerprint for column in self.columns])

    @property
    def layout_fingerprint(self) -> str:
        """The same of the columns' layouts."""
        return self._hashed([column.store.layout_fingerprint for column in self.columns])

    def _hashed(self, columns: list[str]) -> str:
        rows = self._rows[np.unique([0, len(self._rows) // 2, len(self._rows) - 1])] if len(self._rows) else self._rows
        facts = (self.format, len(self._rows), rows.tolist(), columns)
        return xxhash.xxh3_128_hexdigest(repr(facts).encode())

    def read_joined(self, indices: IntArray, parts: Sequence[Collection[str] | None] | None = None) -> list[Joined]:
        """Return samples by number, in the order of ``indices``, each with its sample of every column.

        Args:
            indices: (n,) int64 in [0, len).
            parts: for each column the parts to read; None reads all.

        Raises:
            IndexError: there is no such sample.
            StoreError: a row does not belong to these datasets: it names no sample, or samples with different keys.
            InputError: a sample is malformed.
        """
        wanted = [None] * len(self.columns) if parts is None else list(parts)
        found = []
        for at, column in enumerate(self.columns):
            places = self._column_places(indices, at)
            present = [place for place in places if place is not None]
            samples = iter(column.store.read_places(present, wanted[at]))
            found.append([None if place is None else next(samples) for place in places])
        joined = list(zip(*found, strict=True))
        for index, row in zip(indices.tolist(), joined, strict=True):
            if len({sample.key for sample in row if sample is not None}) > 1:
                keys = ", ".join(repr(sample.key) for sample in row if sample is not None)
                raise self._foreign(f"row {index} joins samples with different keys: {keys}")
        return joined

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, as `SampleStore.read` does; parts are named ``"<column>.<part>"``."""
        wanted: list[Collection[str] | None] | None = None
        if parts is not None:
            wanted = [{part[len(name) + 1 :] for part in parts if part.startswith(f"{name}.")} for name in self.names]
        found = []
        for index, row in zip(indices.tolist(), self.read_joined(indices, wanted), strict=True):
            content = {
                f"{name}.{part}": data
                for name, sample in zip(self.names, row, strict=True)
                if sample is not None
                for part, data in sample.parts.items()
            }
            key = next(sample.key for sample in row if sample is not None)
            found.append(RawSample(key, self.shards[0], index, content))
        return found

    def key(self, index: int) -> str:
        """Return the key of a sample, which is the same in all columns."""
        number = sample_numbers([index], len(self), self.path)
        # `_column_places` refuses a row without a primary sample.
        places = [place for place in self._column_places(number, 0) if place is not None]
        return self.columns[0].store.read_places(places, ())[0].key

    def find(self, key: str) -> int:
        """Find the number of the sample with a key in the primary dataset, and then its row by bisection."""
        store = self.columns[0].store
        wanted, rows = store.start_of(store.find(key)), self._rows[:, 0, :2]
        at = bisect_left(range(len(rows)), wanted, key=lambda row: tuple(rows[row].tolist()))
        if at == len(rows) or tuple(rows[at].tolist()) != wanted:
            raise KeyError(f"{self.path}: sample {key!r} is left out, since it lacks a partner")
        return at

    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where each part lies; parts are named ``"<column>.<part>"``."""
        number = sample_numbers([index], len(self), self.path)
        found: dict[str, PartPlace] = {}
        for at, (name, column) in enumerate(zip(self.names, self.columns, strict=True)):
            place = self._column_places(number, at)[0]
            if place is not None:
                found |= {f"{name}.{part}": where for part, where in column.store.part_places(place).items()}
        return found

    def column_extents(self, indices: IntArray) -> list[Extents]:
        """Return for each column which bytes of its shards hold its samples; one that is missing has no range.

        Raises:
            IndexError: there is no such sample.
            StoreError: a row does not belong to these datasets.
        """
        indices = positions(indices, len(self), f"{self.path}: sample numbers")
        found = []
        for at, column in enumerate(self.columns):
            shards, begins, sizes = self._rows[indices, at].T.astype(np.int64)
            rows = np.flatnonzero((shards != -1) | (at == 0) | (column.nonmatch != "none"))
            numbers = column.store.numbers_of_listed
            is_known = (shards[rows] >= 0) & (shards[rows] < len(numbers))
            files = np.where(is_known, numbers[np.where(is_known, shards[rows], 0)], -1)
            if (wrong := rows[files < 0]).size:
                raise self._foreign(f"row {indices[wrong[0]]}: shard {shards[wrong[0]]} is not of {column.store.path}")
            begins, ends = begins[rows], (begins + sizes)[rows]
            found.append(Extents(column.store, rows.astype(np.int64), files, begins, ends))
        return found

    def check(self) -> Iterator[Problem]:
        """Read every row and the samples that it names, and yield the first fault."""
        for index in range(len(self)):
            try:
                self.read_joined(np.array([index]), [()] * len(self.columns))
            except HeadraceError as error:
                yield Problem.of(self.path, error, place=f"row {index}")
                return

    def close(self) -> None:
        """Close the index and the files of all columns."""
        self._reader.close()
        for column in self.columns:
            column.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(columns=self.columns, folder=self._folder, using=self._reader)

    def _identity(self) -> str:
        return self.index_path.name

    def _check_some(self) -> None:
        """Raise StoreError if the rows cannot be of this split, by their number and by some of them, evenly spread.

        Every row is compared when it is read. At URLs the indexes of all shards are fetched at the same time, and so
        are the samples.
        """
        num_rows, primary = len(self._rows), len(self.columns[0].store)
        exact = all(column.nonmatch != "skip" for column in self.columns)
        if num_rows > primary or (exact and num_rows != primary):
            raise self._foreign(f"has {num_rows:,} rows for {primary:,} samples of the primary dataset")
        read_ahead_of_fingerprints(column.store for column in self.columns)
        tried = np.unique(np.linspace(0, num_rows - 1, min(_TRIED_ROWS, num_rows)).astype(np.int64))
        headers: list[Collection[str]] = [()] * len(self.columns)
        paths = [column.store.path for column in self.columns]
        for _ in each(
            lambda row: self.read_joined(row, headers), np.split(tried, len(tried)) if num_rows else [], paths
        ):
            pass

    def _column_places(self, indices: IntArray, at: int) -> list[tuple[int, int] | None]:
        """Return the places of samples of one column; each is verified to begin and end where its row says."""
        indices = positions(indices, len(self), f"{self.path}: sample numbers")
        column = self.columns[at]
        num_shards = len(column.store.part_shards.listed)
        found: list[tuple[int, int] | None] = []
        for index, (shard, offset, size) in zip(indices.tolist(), self._rows[indices, at].tolist(), strict=True):
            if shard == -1 and at and column.nonmatch == "none":
                found.append(None)
                continue
            place = column.store.place_of(shard, offset, size) if 0 <= shard < num_shards else None
            if place is None:
                raise self._foreign(
                    f"row {index}: the {size} bytes from byte {offset} of shard {shard} on are not a sample of"
                    f" {column.store.path}"
                )
            found.append(place)
        return found

    def _foreign(self, what: str) -> StoreError:
        return StoreError(
            f"{self.path}: {what}; the index belongs to another split, or a dataset was prepared again: make the index"
            " again with headrace prepare of the metadataset"
        )
