"""The face that every store of samples shares, whatever its layout on disk: named parts as bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import msgspec

from headrace.stores.arguments import IntArray
from headrace.stores.store import Problem


class RawSample(msgspec.Struct, frozen=True, gc=False):
    """One sample as it lies on disk.

    Attributes:
        key: its name, unique in the store; folders are part of it (``"cats/0017"``).
        shard: the shard that holds it, relative to the store.
        index: its number in that shard, excluded samples counted.
        parts: name of the part -> its bytes, in the order of the file (``{"jpg": b"...", "txt": b"..."}``).
    """

    key: str
    shard: str
    index: int
    parts: dict[str, bytes]


class PartPlace(NamedTuple):
    """Where the bytes of a part lie: a file, and the range ``[offset, offset + size)`` in it."""

    file: str
    offset: int
    size: int


class SampleStore(ABC):
    """Samples on disk, each with a key and named parts, addressed by number.

    Samples are numbered through the shards in the order of the store. Opening costs O(1) a shard at most; samples are
    not read. Safe in threads and across a fork; pickles as what it takes to open it again.
    """

    format: ClassVar[str]
    """Name of the layout, as ``headrace info`` prints it."""

    path: str
    """What was opened, as the user wrote it."""

    @property
    @abstractmethod
    def shards(self) -> tuple[str, ...]:
        """Names of the shards, relative to the store, in order; one that is listed twice is there twice."""

    @property
    @abstractmethod
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the samples ``[bounds[s], bounds[s + 1])``."""

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """All files of the store."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest that tells this content from another, wherever the files lie. O(1) a shard."""

    @abstractmethod
    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """The samples of some numbers, in the order asked for: the read path of training, one call a batch.

        Args:
            indices: (n,) int64 in [0, len); neighbours are read together.
            parts: names of the parts wanted, others are not read; None reads all. A sample may lack some of them.

        Raises:
            IndexError: no such sample.
            InputError: a sample is malformed; names shard, key and byte.
            StoreError: a file is missing, changed or cut short.
        """

    @abstractmethod
    def key(self, index: int) -> str:
        """The key of one sample; raises as ``read``."""

    @abstractmethod
    def find(self, key: str) -> int:
        """The number of the sample of a key, the first of several.

        Raises:
            KeyError: there is none.
        """

    @abstractmethod
    def places(self, index: int) -> dict[str, PartPlace]:
        """Where each part of a sample lies, in the order of the file; raises as ``read``."""

    @abstractmethod
    def check(self) -> Iterator[Problem]:
        """Read everything and yield what is wrong."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files. Samples handed out stay valid."""

    def __len__(self) -> int:
        return int(self.shard_bounds[-1])

    def __getitem__(self, index: int) -> RawSample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[RawSample]:
        """The samples at ``indices``, negative ones from the end; what ``torch.utils.data`` calls where it exists."""
        from headrace.stores.arguments import sample_numbers

        return self.read(sample_numbers(indices, len(self), self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.format} store {self.path!r}: {len(self):,} samples in {len(self.shards):,} shards>"
