"""Lengths of documents, read in chunks, and the first pass over them.

A planner never holds all lengths at once. The first pass counts the pieces to pack by size, and what is not packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import xxhash

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.packing.options import MAX_DOCUMENTS, Packing

CHUNK = 1 << 16
"""Documents in a chunk: few enough for the CPU's caches, many enough for NumPy to be fast."""


class Lengths(Protocol):
    """The lengths of the documents of a source, as a planner needs them."""

    def __len__(self) -> int:
        """Return the number of documents."""

    def chunks(self) -> Iterator[IntArray]:
        """Yield the lengths of all documents in order, as arrays of integers. May be called more than once."""

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Return where (n,) documents begin in the stream of all tokens, and their lengths; both (n,) int64."""


class ArrayLengths:
    """Lengths in an array, (num_documents,) integers.

    Example:
        >>> lengths = headrace.plan.packing.ArrayLengths(np.array([3, 4, 2]))
        >>> begins, own = lengths.spans(np.array([1, 2]))
        >>> begins.tolist(), own.tolist()
        ([3, 7], [4, 2])
    """

    def __init__(self, lengths: IntArray) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def chunks(self) -> Iterator[IntArray]:
        """Yield views of the array, ``CHUNK`` documents each."""
        for first in range(0, len(self._lengths), CHUNK):
            yield self._lengths[first : first + CHUNK]

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Return begins and lengths of some documents; the first call makes prefix sums of 8 bytes a document."""
        return self._begins[documents], self._lengths[documents].astype(np.int64, copy=False)

    @cached_property
    def _begins(self) -> IntArray:
        ends = np.cumsum(self._lengths, dtype=np.int64)
        ends -= self._lengths.astype(np.int64, copy=False)
        return ends


@dataclass
class LengthSurvey:
    """Sums over all documents of a source; ``of`` makes one.

    A document has *full pieces* of ``seq_len`` tokens if over-long documents are split, and at most one *own piece* of
    at most ``seq_len`` tokens: the rest of a split document, what is left of a truncated one, or the whole document.
    """

    num_documents: int = 0
    counts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(capacity + 1,) int64: the number of own pieces of each size in units; at 0, documents without an own piece."""
    num_full: int = 0
    """The number of full pieces."""
    long_documents: list[IntArray] = field(default_factory=list)
    """Documents with full pieces, chunk by chunk."""
    long_pieces: list[IntArray] = field(default_factory=list)
    """How many full pieces each of ``long_documents`` has."""
    empty: int = 0
    over_long: int = 0
    first_over_long: tuple[int, int] = (-1, 0)
    longest: int = 0
    raw_tokens: int = 0
    over_long_tokens: int = 0
    remainder_tokens: int = 0
    digest: str = ""
    """xxh3_128 of the lengths as little-endian int64."""

    @classmethod
    def of(cls, lengths: Lengths, packing: Packing) -> LengthSurvey:
        """Make a survey in one pass over the lengths.

        Raises:
            ConfigError: there are too many documents, or over-long ones although ``over_long`` is ``"error"``.
        """
        self = cls(counts=np.zeros(packing.capacity + 1, dtype=np.int64))
        hasher = xxhash.xxh3_128()
        for chunk in lengths.chunks():
            hasher.update(np.ascontiguousarray(chunk, dtype="<i8").data)
            self._add(chunk.astype(np.int64, copy=False), packing)
        self.digest = hasher.hexdigest()
        if self.num_documents + self.num_full > MAX_DOCUMENTS:
            raise ConfigError(
                f"the source has {self.num_documents:,} documents and {self.num_full:,} full pieces of split ones; a "
                f"plan of packs holds at most {MAX_DOCUMENTS:,} of both together: open the shards as several sources "
                "of a blend"
            )
        if self.over_long and packing.over_long == "error" and not packing.cuts:
            document, length = self.first_over_long
            raise ConfigError(
                f"{self.over_long:,} of {self.num_documents:,} documents are longer than seq_len="
                f"{packing.seq_len:,}: the first is document {document:,} with {length:,} tokens, and the longest has "
                f"{self.longest:,}. Choose what happens to them with over_long='split', 'truncate_right', "
                "'truncate_left' or 'drop', or increase seq_len"
            )
        return self

    def _add(self, lengths: IntArray, packing: Packing) -> None:
        size = packing.seq_len
        if len(lengths) == 0:
            return
        if int(lengths.min()) < 0:
            raise ConfigError(f"a document has {int(lengths.min())} tokens; lengths must be at least 0")
        longest = int(lengths.max())
        self.longest = max(self.longest, longest)
        self.raw_tokens += int(lengths.sum())
        self.empty += len(lengths) - int(np.count_nonzero(lengths))
        if longest > size:
            over = np.flatnonzero(lengths > size)
            if not self.over_long:
                self.first_over_long = (self.num_documents + int(over[0]), int(lengths[over[0]]))
            self.over_long += len(over)
            self.over_long_tokens += int(lengths[over].sum())
            self.remainder_tokens += int((lengths[over] % size).sum())
        if packing.splits and longest >= size:
            full = np.flatnonzero(lengths >= size)
            self.long_documents.append(full + self.num_documents)
            self.long_pieces.append(lengths[full] // size)
            self.num_full += int(self.long_pieces[-1].sum())
        self.counts += np.bincount(units(lengths, packing), minlength=len(self.counts))
        self.num_documents += len(lengths)


def own_lengths(lengths: IntArray, packing: Packing) -> IntArray:
    """Return (n,) int64: the number of tokens in each document's own piece, 0 if it has none."""
    size = packing.seq_len
    if packing.splits:
        return lengths % size
    if packing.over_long == "drop":
        return np.where(lengths > size, 0, lengths)
    return np.minimum(lengths, size)


def units(lengths: IntArray, packing: Packing) -> IntArray:
    """Return (n,) int64: the room that each document's own piece needs, in units of ``segment_multiple`` tokens."""
    own = own_lengths(lengths, packing)
    multiple = packing.segment_multiple
    return own if multiple == 1 else -(-own // multiple)


def own_begins(lengths: IntArray, packing: Packing) -> IntArray:
    """Return (n,) int64: the token of the document at which its own piece begins."""
    size = packing.seq_len
    if packing.splits:
        return lengths - lengths % size
    if packing.over_long == "truncate_left":
        return np.maximum(lengths - size, 0)
    return np.zeros_like(lengths)


def pieces_in_order(lengths: Lengths, packing: Packing) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield all pieces in the order of the documents, as arrays of numbers and sizes in units, some at a time.

    A document's own piece has the number of the document; the f-th full piece of all has the number of documents plus
    f.
    """
    document, full = 0, len(lengths)
    for chunk in lengths.chunks():
        documents = np.arange(document, document + len(chunk), dtype=np.int64)
        document += len(chunk)
        own = units(chunk.astype(np.int64, copy=False), packing)
        if not packing.splits or int(chunk.max(initial=0)) < packing.seq_len:
            has = own > 0
            yield documents[has], own[has]
            continue
        fulls = chunk.astype(np.int64, copy=False) // packing.seq_len
        counts = fulls + (own > 0)
        ends = np.cumsum(counts)
        numbers = np.repeat(documents, counts)
        sizes = np.repeat(own, counts)
        is_full = np.ones(len(numbers), dtype=bool)
        is_full[ends[own > 0] - 1] = False
        num_full = int(np.count_nonzero(is_full))
        numbers[is_full] = np.arange(full, full + num_full)
        sizes[is_full] = packing.capacity
        full += num_full
        yield numbers, sizes
