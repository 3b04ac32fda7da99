"""Which number a sample has: by its key, and where some samples are left out.

Numbers of samples in a dataset some of whose samples are left out. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headrace.errors import InputError, StoreError
from headrace.stores.arguments import IntArray
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER
from headrace.stores.energon.shards import DatasetShards
from headrace.stores.energon.sqlite_index import SqliteIndex
from headrace.stores.tar.index import KeyTable


class KeyLookup:
    """The keys of some shards of a dataset.

    Args:
        root: the folder of the dataset.
        all_names: of the shards of the info file, as the index numbers them.
        names: of the shards that are looked at, each once.
        shards: these shards.
        counts: (shards,) int64, their samples.
    """

    def __init__(
        self, root: Path, all_names: Sequence[str], names: Sequence[str], shards: DatasetShards, counts: IntArray
    ) -> None:
        path = root / META_FOLDER / INDEX_NAME
        self.path = path
        self.index = SqliteIndex(path) if path.is_file() else None
        self._all_names = all_names
        self._names = names
        self._places = {name: at for at, name in enumerate(names)}
        self._shards = shards
        self._bounds: IntArray = np.concatenate(([0], np.cumsum(counts)))
        self._table: KeyTable | None = None

    def places(self, key: str) -> Iterator[tuple[int, int]]:
        """Shard and index of each sample of a key, proved by reading it.

        Raises:
            StoreError: the index is not of these shards.
        """
        if self.index is None or not self.index.has_samples:
            yield from self._scanned(key)
            return
        for row in self.index.samples_of(key):
            at = self._places.get(self._all_names[row.shard]) if 0 <= row.shard < len(self._all_names) else None
            if at is not None:
                self._verify(key, at, row.sample)
                yield at, row.sample

    def indices(self, at: int, keys: frozenset[str]) -> dict[int, str]:
        """The samples of some keys in a shard, index -> key; raises as `places`."""
        if self.index is None or not self.index.has_samples:
            return {index: key for index, key in enumerate(self._shards.keys(at)) if key in keys}
        found = {index: key for key in sorted(keys) for shard, index in self.places(key) if shard == at}
        # An index holds a key once. Where two shards have it, the later one's sample is what an exclude is for.
        if missing := keys - set(found.values()):
            found |= {index: key for index, key in enumerate(self._shards.keys(at)) if key in missing}
        return found

    def stale(self, what: str) -> StoreError:
        """The error of an index that is not of these shards."""
        return StoreError(f"{self.path}: {what}; it is not of these shards: prepare the dataset again, or remove it")

    def _scanned(self, key: str) -> Iterator[tuple[int, int]]:
        """By a table of the hashes of all keys, made when it is first needed by a pass over all headers."""
        if self._table is None:
            keys = (found for at in range(len(self._names)) for found in self._shards.keys(at))
            self._table = KeyTable(keys, int(self._bounds[-1]))
        for number in self._table.candidates(key):
            at = int(np.searchsorted(self._bounds, number, side="right")) - 1
            index = number - int(self._bounds[at])
            if self._shards.key(at, index) == key:
                yield at, index

    def _verify(self, key: str, at: int, index: int) -> None:
        try:
            found = self._shards.key(at, index)
        except (IndexError, InputError) as error:
            raise self.stale(f"tells of sample {index} of {self._names[at]}") from error
        if found != key:
            raise self.stale(f"has key {key!r} for sample {index} of {self._names[at]}, which is {found!r}")


class Numbering:
    """Sample numbers to shards and back. *Raw* numbers count the samples that are left out, *numbers* do not.

    With counts (3, 2) and raw sample 1 left out: numbers 0, 1, 2, 3 are raw 0, 2, 3, 4, and the bounds 0, 2, 4.

    Args:
        counts: (shards,) int64, samples of each shard.
        left_out: raw numbers, sorted, each once.

    Attributes:
        raw_bounds: (shards + 1,) int64, raw number of the first sample of each shard, and of all.
        bounds: the same in numbers.
    """

    def __init__(self, counts: IntArray, left_out: IntArray) -> None:
        self.raw_bounds: IntArray = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.left_out = left_out
        self._before = left_out - np.arange(len(left_out))
        self.bounds: IntArray = self.raw_bounds - np.searchsorted(left_out, self.raw_bounds)
        self.bounds.flags.writeable = False

    def places(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """For each number its shard, and its index in the shard with those that are left out; both (n,) int64."""
        if len(self._before):
            numbers = numbers + np.searchsorted(self._before, numbers, side="right")
        shards = np.searchsorted(self.raw_bounds, numbers, side="right") - 1
        return shards, numbers - self.raw_bounds[shards]

    def number(self, shard: int, index: int) -> int | None:
        """The number of a sample of a shard; None if it is left out."""
        raw = int(self.raw_bounds[shard]) + index
        at = int(np.searchsorted(self.left_out, raw))
        if at < len(self.left_out) and self.left_out[at] == raw:
            return None
        return raw - at
