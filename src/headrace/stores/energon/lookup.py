"""`KeyLookup`, which finds samples of a dataset by key: in ``index.sqlite`` or, without it, in the shards."""

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
    """Finds samples by key in some shards of a dataset.

    Args:
        root: the folder of the dataset.
        all_names: names of all shards in the info file, in whose order the index numbers them.
        names: names of the shards to search, each once.
        shards: these shards.
        counts: (shards,) int64, their numbers of samples.
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
        """Yield shard and index of each sample with a key; each one is verified by reading it.

        Raises:
            StoreError: the index belongs to other shards.
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
        """Return the key of each sample with one of the keys in a shard, by index; raises as `places` does."""
        if self.index is None or not self.index.has_samples:
            return {index: key for index, key in enumerate(self._shards.keys(at)) if key in keys}
        found = {index: key for key in sorted(keys) for shard, index in self.places(key) if shard == at}
        # An index holds a key only once. If two shards have the key, an exclude means the sample of the later shard.
        if missing := keys - set(found.values()):
            found |= {index: key for index, key in enumerate(self._shards.keys(at)) if key in missing}
        return found

    def stale(self, what: str) -> StoreError:
        """Return the error for an index that belongs to other shards."""
        return StoreError(
            f"{self.path}: {what}; the index belongs to other shards: prepare the dataset again, or remove the index"
        )

    def _scanned(self, key: str) -> Iterator[tuple[int, int]]:
        """Find samples by a table of hashes of all keys, which takes one pass over all headers when first needed."""
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
            raise self.stale(f"names sample {index} of {self._names[at]}, which cannot be read") from error
        if found != key:
            raise self.stale(f"has the key {key!r} for sample {index} of {self._names[at]}, whose key is {found!r}")
