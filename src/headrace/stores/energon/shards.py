"""The shards of a dataset, whatever is in each: tars, or stores of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.io import Reader
from headrace.stores.energon.documents import DocumentShards
from headrace.stores.sample_store import PartPlace, RawSample
from headrace.stores.store import Problem
from headrace.stores.tar.compressed import SUFFIXES, check_uncompressed
from headrace.stores.tar.index import index_path
from headrace.stores.tar.indexing import shard_indexes
from headrace.stores.tar.shards import TarShards
from headrace.stores.types import IntArray


class DatasetShards:
    """Samples by shard and number in the shard. Nothing is opened before it is read.

    Args:
        root: the folder that the names are relative to.
        names: of the shards, each once.
        counts: (shards,) int64, the number of samples of each.
        using: the reader.
        hidden: take ``dir/.hid`` as a sample.
        make_missing: make the index of a tar that has none, and keep it in the cache.

    Raises:
        InputError: a shard is compressed; says how to unpack it.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        counts: IntArray,
        *,
        using: Reader,
        hidden: bool,
        make_missing: bool,
    ) -> None:
        for name in names:
            if name.endswith(SUFFIXES):  # which Energon's prepare takes, and its reader does not
                check_uncompressed(str(root / name))
        self._root = root
        self._names = names
        self._counts = counts
        self._hidden = hidden
        self._made: dict[int, str | IntArray] = {}
        self.is_tar = np.array([name.endswith(".tar") for name in names], np.bool_)
        self._all_tars = bool(self.is_tar.all())
        # Both kinds keep the numbers of the shards; what is not theirs is never asked for.
        self.tars = TarShards(
            root, names, counts, using=using, hidden=hidden, index=self._index if make_missing else None
        )
        self._documents = DocumentShards(root, names, counts, using=using)

    @property
    def files(self) -> tuple[Path, ...]:
        """The tars, each followed by its index, and the files of the other stores."""
        found: list[Path] = []
        for shard, name in enumerate(self._names):
            if self.is_tar[shard]:
                found += [self._root / name, index_path(self._root / name)]
            else:
                found += self._documents.store(shard).files
        return tuple(found)

    def read(self, shards: IntArray, indices: IntArray, parts: Collection[str] | None) -> list[RawSample]:
        """The samples ``indices`` of ``shards``, in the order asked for; see `SampleStore.read`."""
        if self._all_tars:
            return self.tars.read(shards, indices, parts)
        found: list[RawSample | None] = [None] * len(shards)
        for kind, tar in ((self.tars, True), (self._documents, False)):
            slots = np.flatnonzero(self.is_tar[shards] == tar)
            for slot, sample in zip(slots.tolist(), kind.read(shards[slots], indices[slots], parts), strict=True):
                found[slot] = sample
        return [sample for sample in found if sample is not None]

    def key(self, shard: int, index: int) -> str:
        """The key of a sample."""
        if self.is_tar[shard]:
            return self.tars.key(shard, index)
        return self.read(np.array([shard]), np.array([index]), ())[0].key

    def keys(self, shard: int) -> list[str]:
        """The keys of a shard; of a tar by a pass over its headers."""
        return self.tars.keys(shard) if self.is_tar[shard] else list(map(str, range(int(self._counts[shard]))))

    def places(self, shard: int, index: int) -> dict[str, PartPlace]:
        """Where the parts of a sample lie; what is made of a document lies nowhere."""
        return self.tars.places(shard, index) if self.is_tar[shard] else {}

    def offsets(self, shard: int) -> IntArray:
        """(samples + 1,) int64: the index of a tar."""
        return self.tars.offsets(shard)

    def facts(self, shard: int) -> tuple[Any, ...]:
        """What tells the content of a shard from another. O(1)."""
        if not self.is_tar[shard]:
            return (self._documents.store(shard).fingerprint,)
        offsets = self.tars.offsets(shard)
        middle = len(offsets) // 2
        size = (self._root / self._names[shard]).stat().st_size
        return size, len(offsets), int(offsets[0]), int(offsets[middle]), int(offsets[-1])

    def check(self, shard: int) -> Iterator[Problem]:
        """Read a shard and yield what is wrong."""
        yield from self.tars.check(shard) if self.is_tar[shard] else self._documents.check(shard)

    def close(self) -> None:
        """Let go of the files."""
        self.tars.close()
        self._documents.close()

    def _index(self, shard: int) -> str | IntArray:
        if (made := self._made.get(shard)) is not None:
            return made
        path = self._root / self._names[shard]
        place = index_path(path)
        if place.exists() or not path.exists():
            return str(place)
        self._made[shard] = shard_indexes([str(path)], where="cache", hidden=self._hidden, skip=False)[0].place
        return self._made[shard]
