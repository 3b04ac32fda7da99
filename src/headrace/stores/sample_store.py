"""`SampleStore`, the interface that all stores of samples share, and `Numbering`, which leaves samples out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

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


class Numbering:
    """Converts sample numbers to shards and back. *Raw* numbers include the samples that are left out, numbers do not.

    For example, with counts (3, 2) and raw sample 1 left out, the numbers 0, 1, 2, 3 are raw 0, 2, 3, 4, and the bounds
    are 0, 2, 4.

    Args:
        counts: (shards,) int64, number of samples in each shard.
        left_out: raw numbers of the samples that are left out, sorted, without repeats.

    Attributes:
        raw_bounds: (shards + 1,) int64, raw number of the first sample of each shard, and the total.
        bounds: the same, without the samples that are left out.
    """

    def __init__(self, counts: IntArray, left_out: IntArray) -> None:
        self.raw_bounds: IntArray = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.left_out = left_out
        self._before = left_out - np.arange(len(left_out))
        self.bounds: IntArray = self.raw_bounds - np.searchsorted(left_out, self.raw_bounds)
        self.bounds.flags.writeable = False

    def places(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return for each number its shard, and its index in the shard counting samples left out; both (n,) int64."""
        if len(self._before):
            numbers = numbers + np.searchsorted(self._before, numbers, side="right")
        shards = np.searchsorted(self.raw_bounds, numbers, side="right") - 1
        return shards, numbers - self.raw_bounds[shards]

    def number(self, shard: int, index: int) -> int | None:
        """Return the number of a sample of a shard; None if it is left out."""
        raw = int(self.raw_bounds[shard]) + index
        at = int(np.searchsorted(self.left_out, raw))
        if at < len(self.left_out) and self.left_out[at] == raw:
            return None
        return raw - at
