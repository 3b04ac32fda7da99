"""A store of samples without those that are known to be bad."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.stores.arguments import positions, sample_numbers
from headrace.stores.energon.numbering import Numbering
from headrace.stores.sample_store import PartPlace, RawSample, SampleStore
from headrace.stores.store import Problem
from headrace.stores.types import IntArray


class QuarantinedStore(SampleStore):
    """The samples of a store that are not left out, numbered without gaps. Reading costs what it costs there.

    What is left out is part of the fingerprint: a run that goes on after a change is told so.

    Args:
        inner: the store.
        left_out: (n,) int64, numbers of its samples, rising, each once.

    Raises:
        StoreError: nothing is left.
    """

    def __init__(self, inner: SampleStore, left_out: IntArray) -> None:
        self.inner = inner
        self.path = inner.path
        self.left_out = left_out
        self._numbering = Numbering(np.diff(inner.shard_bounds), left_out)
        if not len(self):
            raise StoreError(f"{self.path}: all of its {len(inner):,} samples are left out as bad; nothing is there")

    @property
    def format(self) -> str:  # type: ignore[override]
        """That of the store."""
        return self.inner.format

    @property
    def num_left_out(self) -> int:
        """Samples that are left out."""
        return len(self.left_out)

    @property
    def shards(self) -> tuple[str, ...]:
        """Those of the store."""
        return self.inner.shards

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64, without the samples that are left out."""
        return self._numbering.bounds

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of the store."""
        return self.inner.files

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of that of the store, and of what is left out."""
        hasher = xxhash.xxh3_128(self.inner.fingerprint.encode())
        hasher.update(self.left_out.tobytes())
        return hasher.hexdigest()

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """See `SampleStore.read`."""
        return self.inner.read(self._inner(positions(indices, len(self), f"{self.path}: sample numbers")), parts)

    def key(self, index: int) -> str:
        """The key of a sample."""
        return self.inner.key(self._one(index))

    def find(self, key: str) -> int:
        """The number of the sample of a key; KeyError where the first of that key is left out."""
        number = self.inner.find(key)
        shard = int(np.searchsorted(self.inner.shard_bounds, number, side="right")) - 1
        found = self._numbering.number(shard, number - int(self.inner.shard_bounds[shard]))
        if found is None:
            raise KeyError(f"{self.path}: sample {key!r} is left out as bad")
        return found

    def places(self, index: int) -> dict[str, PartPlace]:
        """Where each part of a sample lies."""
        return self.inner.places(self._one(index))

    def check(self) -> Iterator[Problem]:
        """Check the store, with the samples that are left out."""
        return self.inner.check()

    def close(self) -> None:
        """Let go of the files."""
        self.inner.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self.left_out)

    def _inner(self, numbers: IntArray) -> IntArray:
        shards, indices = self._numbering.places(numbers)
        return self.inner.shard_bounds[shards] + indices

    def _one(self, index: int) -> int:
        return int(self._inner(sample_numbers([index], len(self), self.path))[0])
