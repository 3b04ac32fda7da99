"""Samples of several datasets side by side, by a join index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.errors import HeadraceError, StoreError
from headrace.io import Reader, reader
from headrace.stores.arguments import positions, sample_numbers
from headrace.stores.energon.join_index import JoinColumn, check_columns, find_join, read_rows
from headrace.stores.sample_store import PartPlace, RawSample, SampleStore
from headrace.stores.store import Problem
from headrace.stores.types import IntArray

Joined = tuple[RawSample | None, ...]
"""One sample a column, None where it has no partner."""


class JoinedStore(SampleStore):
    """The samples of a primary dataset, each with its partners in others.

    `read_joined` gives them column by column. As a store it is one shard, the index; a sample is that of the primary
    dataset with the parts of all columns, ``"<column>.<part>"``.

    Args:
        columns: the datasets; the first is the primary one.
        folder: where the index lies, see `cache_folder`.
        using: how to read the index, ``"mmap"`` or ``"pread"``; or a reader.

    Raises:
        StoreError: there is no index of this join, or it is malformed.
        ConfigError: the datasets cannot be joined.
    """

    format = "joined"

    def __init__(self, columns: Sequence[JoinColumn], folder: str | Path, *, using: str | Reader = "mmap") -> None:
        check_columns(columns)
        self.columns = tuple(columns)
        self.names = tuple(str(at) if column.name is None else column.name for at, column in enumerate(columns))
        self._folder = Path(folder)
        self._reader = reader(using)
        self.index_path = find_join(self._folder, self.columns, self._reader)
        self.path = str(self.index_path)
        self._rows = read_rows(self.index_path, self._reader, len(self.columns))

    @property
    def shards(self) -> tuple[str, ...]:
        """The name of the index."""
        return (self.index_path.name,)

    @property
    def shard_bounds(self) -> IntArray:
        """(2,) int64: 0 and the number of rows."""
        return np.array([0, len(self._rows)])

    @property
    def files(self) -> tuple[Path, ...]:
        """The index, and the files of all columns."""
        return (self.index_path, *(file for column in self.columns for file in column.store.files))

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the fingerprints of the columns, and of number, ends and middle of the rows."""
        rows = self._rows[np.unique([0, len(self._rows) // 2, len(self._rows) - 1])] if len(self._rows) else self._rows
        facts = (self.format, len(self._rows), rows.tolist(), [column.store.fingerprint for column in self.columns])
        return xxhash.xxh3_128_hexdigest(repr(facts).encode())

    def read_joined(self, indices: IntArray, parts: Sequence[Collection[str] | None] | None = None) -> list[Joined]:
        """The samples of some numbers, column by column, in the order asked for.

        Args:
            indices: (n,) int64 in [0, len).
            parts: for each column the parts wanted, None for all of them.

        Raises:
            IndexError: no such sample.
            StoreError: a row is not of these datasets: it names no sample, or samples of different keys.
            InputError: a sample is malformed.
        """
        wanted = [None] * len(self.columns) if parts is None else list(parts)
        found = []
        for at, column in enumerate(self.columns):
            places = self._places(indices, at)
            there = [place for place in places if place is not None]
            samples = iter(column.store.read_places(there, wanted[at]))
            found.append([None if place is None else next(samples) for place in places])
        joined = list(zip(*found, strict=True))
        for index, row in zip(indices.tolist(), joined, strict=True):
            if len({sample.key for sample in row if sample is not None}) > 1:
                keys = ", ".join(repr(sample.key) for sample in row if sample is not None)
                raise self._foreign(f"row {index} joins samples of different keys: {keys}")
        return joined

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """See `SampleStore.read`; parts are named ``"<column>.<part>"``."""
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
        """The key of a sample, which all columns share."""
        number = sample_numbers([index], len(self), self.path)
        # `_places` refuses a row without a primary sample.
        places = [place for place in self._places(number, 0) if place is not None]
        return self.columns[0].store.read_places(places, ())[0].key

    def find(self, key: str) -> int:
        """By a search of the primary dataset, and of the rows, which are in its order."""
        store = self.columns[0].store
        shard, offset = store.start_of(store.find(key))
        low, high = 0, len(self._rows)
        while low < high:
            middle = (low + high) // 2
            if tuple(self._rows[middle, 0, :2].tolist()) < (shard, offset):
                low = middle + 1
            else:
                high = middle
        if low == len(self._rows) or tuple(self._rows[low, 0, :2].tolist()) != (shard, offset):
            raise KeyError(f"{self.path}: sample {key!r} has not all its partners, and is left out")
        return low

    def places(self, index: int) -> dict[str, PartPlace]:
        """Where each part lies, named ``"<column>.<part>"``."""
        number = sample_numbers([index], len(self), self.path)
        found: dict[str, PartPlace] = {}
        for at, (name, column) in enumerate(zip(self.names, self.columns, strict=True)):
            place = self._places(number, at)[0]
            if place is not None:
                found |= {f"{name}.{part}": where for part, where in column.store.part_places(place).items()}
        return found

    def check(self) -> Iterator[Problem]:
        """Read every row and the samples that it names."""
        for index in range(len(self)):
            try:
                self.read_joined(np.array([index]), [()] * len(self.columns))
            except HeadraceError as error:
                message = str(error).removeprefix(f"{self.path}: ")
                yield Problem(path=self.path, place=f"row {index}", message=message)
                return

    def close(self) -> None:
        """Let go of the index and of the files of all columns."""
        self._reader.close()
        for column in self.columns:
            column.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self.columns, self._folder, self._reader, self.index_path.name)

    def _places(self, indices: IntArray, at: int) -> list[tuple[int, int] | None]:
        """Where the samples of one column are, each proved to begin and end where its row says."""
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
                    f"row {index}: byte {offset} of shard {shard}, {size} bytes, is no sample of {column.store.path}"
                )
            found.append(place)
        return found

    def _foreign(self, what: str) -> StoreError:
        return StoreError(
            f"{self.path}: {what}; it is of another split, or a dataset was prepared again: make the index anew with"
            " headrace prepare of the metadataset"
        )


def _reopen(
    kind: type[JoinedStore], columns: tuple[JoinColumn, ...], folder: Path, using: Reader, name: str
) -> JoinedStore:
    store = kind(columns, folder, using=using)
    if store.index_path.name != name:
        raise StoreError(f"{store.path}: {name} was opened, and is gone; open the join again")
    return store
