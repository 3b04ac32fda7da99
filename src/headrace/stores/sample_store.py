"""`SampleStore`, the interface that all stores of samples share, whatever their layout on disk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.stores.arguments import IntArray, sample_numbers
from headrace.stores.store import AnyStore, Problem


class RawSample(msgspec.Struct, frozen=True, gc=False):
    """One sample as it lies on disk.

    Attributes:
        key: name of the sample, unique in the store; folders are part of it (``"cats/0017"``).
        shard: the shard that holds the sample, relative to the store.
        index: number of the sample in that shard, counting excluded samples.
        parts: bytes of each part by name, in the order of the file (``{"jpg": b"...", "txt": b"..."}``).
    """

    key: str
    shard: str
    index: int
    parts: dict[str, bytes]


class PartPlace(NamedTuple):
    """Where the bytes of a part lie: in the range ``[offset, offset + size)`` of a file."""

    file: str
    offset: int
    size: int


class SampleStore(AnyStore):
    """Samples on disk, each with a key and named parts, addressed by number.

    Samples are numbered through all shards, in the order of the store. Opening costs at most O(1) a shard; samples are
    not read. A store is safe in threads and across a fork.
    """

    @property
    @abstractmethod
    def shards(self) -> tuple[str, ...]:
        """Names of the shards, relative to the store, in order. A shard that is listed twice appears twice."""

    @property
    @abstractmethod
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the samples ``[bounds[s], bounds[s + 1])``."""

    @abstractmethod
    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return samples by number, in the order of ``indices``. Training reads through this, with one call a batch.

        Args:
            indices: (n,) int64 in [0, len); samples that lie next to each other are read together.
            parts: names of the parts to read; None reads all. A sample may lack some of them.

        Raises:
            IndexError: there is no such sample.
            InputError: a sample is malformed; the message names shard, key and byte.
            StoreError: a file is missing, changed or cut short.
        """

    @abstractmethod
    def key(self, index: int) -> str:
        """Return the key of one sample; raises the same errors as ``read``."""

    @abstractmethod
    def find(self, key: str) -> int:
        """Return the number of the sample with a key, the first one if there are several.

        Raises:
            KeyError: there is none.
        """

    @abstractmethod
    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where each part of a sample lies, in the order of the file; raises the same errors as ``read``."""

    @abstractmethod
    def check(self) -> Iterator[Problem]:
        """Read everything and yield what is wrong."""

    def __len__(self) -> int:
        return int(self.shard_bounds[-1])

    def __getitem__(self, index: int) -> RawSample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[RawSample]:
        """Return the samples at ``indices``; negative ones count from the end. ``torch.utils.data`` calls this."""
        return self.read(sample_numbers(indices, len(self), self.path))

    def __repr__(self) -> str:
        return f"<{self.format} store {self.path!r}: {len(self):,} samples in {len(self.shards):,} shards>"
