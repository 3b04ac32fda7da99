"""Lengths of documents, some at a time: a plan never holds them all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

import numpy as np

from headrace.plan.keys import IntArray

CHUNK = 1 << 16
"""Documents looked at together: few enough for the caches, many enough for NumPy."""


class Lengths(Protocol):
    """What a planner asks of a source of documents."""

    def __len__(self) -> int:
        """Number of documents."""

    def chunks(self) -> Iterator[IntArray]:
        """The lengths of all documents in order, as arrays of integers; may be called again."""

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Two (n,) int64: where some documents begin in the stream of all tokens, and their lengths."""


class ArrayLengths:
    """Lengths that lie in an array: (num_documents,) of integers."""

    def __init__(self, lengths: IntArray) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def chunks(self) -> Iterator[IntArray]:
        """Views, ``CHUNK`` documents each."""
        for first in range(0, len(self._lengths), CHUNK):
            yield self._lengths[first : first + CHUNK]

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Begins and lengths of some documents; the first call makes prefix sums of 8 bytes a document."""
        return self._begins[documents], self._lengths[documents].astype(np.int64, copy=False)

    @cached_property
    def _begins(self) -> IntArray:
        ends = np.cumsum(self._lengths, dtype=np.int64)
        ends -= self._lengths.astype(np.int64, copy=False)
        return ends
