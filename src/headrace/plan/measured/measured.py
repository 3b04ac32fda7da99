"""Measured facts, and the units that follow from them.

`Facts` holds as arrays what was measured once of every sample. `Measured` makes units from them, which are the samples
of a leaf of the plan. Samples with none, one or several outputs, and sets of samples, are bitmaps.

`Outputs` maps the number of an output to its sample and back. Small counts are kept in unary, in a bitmap: a one for
each output, and a zero after the last one of each sample. This takes one bit a sample and one bit an output. From about
60 outputs a sample on, prefix sums of 64 bits a sample are smaller, and are kept instead.

    counts  2 0 1     bits  1 1 0 | 0 | 1 0     output 2 is bit 4, which two zeros precede: it is of sample 2

`Bits` is a set of samples as a bitmap with two small directories. It answers how many members are below i (rank), and
which sample is member number k (select).

    bits    0 1 1 0 1 0 0 1 ...                rank(4) = 2      two members are below 4
    blocks  of 512 bits: members before it     select(2) = 4    member number 2 is 4
            in its superblock, 16 bits each
    supers  of 65,536 bits: members before it, 64 bits each

It takes 1 bit a sample and 3.2 % more. Source: rank and select directories as in Jacobson, "Space-efficient static
trees and graphs" (FOCS 1989), with a binary search within a superblock instead of his last table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.arithmetic import check_numbers
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.measured.grouping import Grouping, Groups
from headrace.plan.nodes import Leaf
from headrace.plan.packing import Packing, PackPlan, plan_packs

WORD, BLOCK, SUPER = 64, 512, 1 << 16
_BLOCK_WORDS = BLOCK // WORD
_SUPER_BLOCKS = SUPER // BLOCK
_QUERIES = 1 << 15
"""How many queries are answered at a time, so that eight words for each stay in the CPU's cache."""


def _swar(words: KeyArray) -> NDArray[np.uint8]:
    """The number of ones in each word, by adding ever wider fields (NumPy has a function for it from 2.0 on)."""
    words = words - ((words >> np.uint64(1)) & np.uint64(0x5555555555555555))
    words = (words & np.uint64(0x3333333333333333)) + ((words >> np.uint64(2)) & np.uint64(0x3333333333333333))
    words = (words + (words >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((words * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


_ones: Callable[[KeyArray], NDArray[np.uint8]] = getattr(np, "bitwise_count", _swar)


class Bits:
    """A set of samples: which of ``num_bits`` samples are members.

    It is made in one pass from an array of booleans, or from an iterable of such chunks. Queries are (n,) int64 and
    take about 0.2 us each in bulk.

    Example:
        >>> bits = headrace.plan.measured.Bits(np.array([False, True, True, False, True]))
        >>> bits.rank(np.array([4])).tolist(), bits.select(np.array([2])).tolist()
        ([2], [4])
    """

    def __init__(self, chunks: NDArray[np.bool_] | Iterable[NDArray[np.bool_]]) -> None:
        self.num_bits, packed = _packed([chunks] if isinstance(chunks, np.ndarray) else chunks)
        num_blocks = self.num_bits // BLOCK + 1
        words = np.zeros(num_blocks * _BLOCK_WORDS, dtype=np.uint64)
        words.view(np.uint8)[: len(packed)] = packed
        self._words = words.astype("<u8", copy=False).reshape(num_blocks, _BLOCK_WORDS)
        ends = np.cumsum(_ones(self._words).sum(axis=1, dtype=np.int64))
        before = np.append(0, ends)
        self.num_ones = int(before[-1])
        self._supers: IntArray = before[:-1][::_SUPER_BLOCKS].copy()
        self._blocks = (before[:-1] - np.repeat(self._supers, _SUPER_BLOCKS)[:num_blocks]).astype(np.uint16)

    @property
    def num_bytes(self) -> int:
        """The size of the bitmap and its directories in bytes."""
        return self._words.nbytes + self._blocks.nbytes + self._supers.nbytes

    def __len__(self) -> int:
        return self.num_bits

    def contains(self, indices: IntArray) -> NDArray[np.bool_]:
        """Return (n,) bool: whether each of ``indices`` is a member.

        Raises:
            ConfigError: an index is outside 0 to ``num_bits`` - 1.
        """
        check_numbers(indices, self.num_bits, "samples")
        words = self._words.reshape(-1)[indices >> 6] >> (indices & 63).astype(np.uint64)
        found: NDArray[np.bool_] = (words & np.uint64(1)).astype(np.bool_)
        return found

    def rank(self, indices: IntArray) -> IntArray:
        """Return (n,) int64: how many members are below each of ``indices``, which run from 0 to ``num_bits``. O(1)."""
        check_numbers(indices, self.num_bits + 1, "bounds")
        return _by_chunk(self._rank, indices)

    def select(self, ranks: IntArray, *, member: bool = True) -> IntArray:
        """Return (n,) int64: the member with each of these ranks, or with ``member=False`` the non-member.

        This takes a binary search among the superblocks, of which there are 1,500 for 10^8 bits, then one among 128
        blocks, and the rest is O(1).
        """
        count = self.num_ones if member else self.num_bits - self.num_ones
        check_numbers(ranks, count, "members" if member else "others")
        return _by_chunk(lambda some: self._select(some, member=member), ranks)

    def _rank(self, indices: IntArray) -> IntArray:
        blocks = indices >> 9
        within = (indices & (BLOCK - 1))[:, None] - WORD * np.arange(_BLOCK_WORDS, dtype=np.int64)
        # A shift by 64 is undefined, so whole words get their mask separately.
        kept = np.clip(within, 0, WORD)
        masks = (np.uint64(1) << np.minimum(kept, 63).astype(np.uint64)) - np.uint64(1)
        masks[kept == WORD] = np.uint64(0xFFFFFFFFFFFFFFFF)
        counts = _ones(self._words[blocks] & masks).sum(axis=1, dtype=np.int64)
        found: IntArray = self._supers[blocks >> 7] + self._blocks[blocks] + counts
        return found

    def _select(self, ranks: IntArray, *, member: bool) -> IntArray:
        supers = self._supers if member else SUPER * np.arange(len(self._supers), dtype=np.int64) - self._supers
        chosen = np.searchsorted(supers, ranks, side="right") - 1
        left = ranks - supers[chosen]
        blocks = chosen * _SUPER_BLOCKS
        for step in (64, 32, 16, 8, 4, 2, 1):
            ahead = np.minimum(blocks + step, len(self._blocks) - 1)
            before = self._blocks[ahead].astype(np.int64)
            if not member:
                before = BLOCK * (ahead - chosen * _SUPER_BLOCKS) - before
            # ``ahead`` stops at the last block, which is where the search ends if not too many members precede it.
            blocks = np.where(before <= left, ahead, blocks)
        before = self._blocks[blocks].astype(np.int64)
        left -= before if member else BLOCK * (blocks - chosen * _SUPER_BLOCKS) - before
        words = self._words[blocks] if member else ~self._words[blocks]
        ends = np.cumsum(_ones(words), axis=1, dtype=np.int64)
        number = (ends <= left[:, None]).sum(axis=1)
        rows = np.arange(len(ranks))
        left -= np.where(number > 0, ends[rows, np.maximum(number - 1, 0)], 0)
        found: IntArray = BLOCK * blocks + WORD * number + _select_in_word(words[rows, number], left)
        return found


def _select_in_word(words: KeyArray, ranks: IntArray) -> IntArray:
    """(n,) int64: the place of the one with the given rank in each word, by bisecting the word."""
    found = np.zeros_like(ranks)
    left = ranks.copy()
    for width in (32, 16, 8, 4, 2, 1):
        low = (words >> found.astype(np.uint64)) & np.uint64((1 << width) - 1)
        counts = _ones(low).astype(np.int64)
        above = left >= counts
        left -= np.where(above, counts, 0)
        found += np.where(above, width, 0)
    return found


def _packed(chunks: Iterable[NDArray[np.bool_]]) -> tuple[int, NDArray[np.uint8]]:
    """The number of bits, and the bits packed into bytes, the first bit lowest.

    Bits that do not fill a byte are kept for the next chunk.
    """
    parts: list[NDArray[np.uint8]] = []
    left = np.zeros(0, dtype=bool)
    num_bits = 0
    for chunk in chunks:
        if chunk.dtype != np.bool_ or chunk.ndim != 1:
            raise ConfigError(f"members are {chunk.dtype} of shape {chunk.shape}; expected (num_samples,) bool")
        num_bits += len(chunk)
        joined = np.concatenate([left, chunk]) if len(left) else chunk
        whole = len(joined) & ~7
        parts.append(np.packbits(joined[:whole], bitorder="little"))
        left = joined[whole:]
    parts.append(np.packbits(left, bitorder="little"))
    return num_bits, np.concatenate(parts)


def _by_chunk(apply: Callable[[IntArray], IntArray], values: IntArray) -> IntArray:
    if len(values) <= _QUERIES:
        return apply(values)
    found = np.empty_like(values)
    for first in range(0, len(values), _QUERIES):
        found[first : first + _QUERIES] = apply(values[first : first + _QUERIES])
    return found


_CHUNK = 1 << 20


class Outputs:
    """The outputs of samples; ``counts`` says how many each has, (num_samples,) integers of at least 0.

    Raises:
        ConfigError: the counts are not such integers.

    Example:
        >>> outputs = headrace.plan.measured.Outputs(np.array([2, 0, 1]))
        >>> samples, numbers = outputs.locate(np.arange(outputs.num_outputs))
        >>> samples.tolist(), numbers.tolist()
        ([0, 0, 2], [0, 1, 0])
    """

    def __init__(self, counts: NDArray[np.integer[Any]]) -> None:
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts.size and int(counts.min()) < 0):
            raise ConfigError(
                f"the counts of outputs are {counts.dtype} of shape {counts.shape}"
                f"{f', the smallest is {counts.min()}' if counts.size else ''}; expected (num_samples,) integers of at "
                "least 0"
            )
        self.num_samples = len(counts)
        self.num_outputs = int(counts.sum(dtype=np.int64))
        self._bits: Bits | None = None
        self._begins: IntArray = np.zeros(0, dtype=np.int64)
        if self.num_outputs + self.num_samples < 62 * self.num_samples:
            self._bits = Bits(_unary(counts))
        else:
            self._begins = np.zeros(self.num_samples + 1, dtype=np.int64)
            np.cumsum(counts, out=self._begins[1:])

    @property
    def num_bytes(self) -> int:
        """The size in bytes of the bitmap or the prefix sums."""
        if self._bits is not None:
            return self._bits.num_bytes
        return self._begins.nbytes

    def begins(self, samples: IntArray) -> IntArray:
        """Return (n,) int64: the first output of each sample; for ``num_samples``, the number of all outputs."""
        check_numbers(samples, self.num_samples + 1, "bounds of samples")
        if self._bits is None:
            return self._begins[samples]
        found = np.zeros_like(samples)
        later = samples > 0
        # The zero at the end of sample i - 1 has i - 1 zeros before it; all other bits before it are outputs.
        found[later] = self._bits.select(samples[later] - 1, member=False) - (samples[later] - 1)
        return found

    def locate(self, outputs: IntArray) -> tuple[IntArray, IntArray]:
        """Return for (n,) int64 outputs their samples, and their numbers within the samples; both (n,) int64."""
        check_numbers(outputs, self.num_outputs, "outputs")
        if self._bits is not None:
            samples = self._bits.select(outputs) - outputs
        else:
            samples = np.searchsorted(self._begins, outputs, side="right").astype(np.int64) - 1
        return samples, outputs - self.begins(samples)


def _unary(counts: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.bool_]]:
    for first in range(0, len(counts), _CHUNK):
        ends = np.cumsum(counts[first : first + _CHUNK].astype(np.int64) + 1)
        bits = np.ones(int(ends[-1]), dtype=bool)
        bits[ends - 1] = False
        yield bits


Integers = NDArray[np.integer[Any]]


class Facts:
    """The measured facts of ``num_samples`` samples; a fact that was not measured is None.

    ``is_good`` is (num_samples,) bool: samples that are not good are left out; by default all are good. ``num_outputs``
    is (num_samples,) integers of at least 0; by default every sample has one output. ``lengths``, integers of at least
    0, and ``groups``, any integers, have a row for each output, in the order of the samples, including those that are
    not good.

    An *item* is an output of a good sample; items are numbered in the order of the samples. Only bitmaps are kept of
    ``is_good`` and ``num_outputs``.

    Raises:
        ConfigError: an array has another dtype or length, or there is no item.

    Example:
        >>> facts = headrace.plan.measured.Facts(3, is_good=np.array([True, False, True]))
        >>> samples, outputs = facts.locate(np.arange(facts.num_items))
        >>> samples.tolist()
        [0, 2]
    """

    def __init__(
        self,
        num_samples: int,
        *,
        is_good: NDArray[np.bool_] | None = None,
        num_outputs: Integers | None = None,
        lengths: Integers | None = None,
        groups: Integers | None = None,
    ) -> None:
        self.num_samples = num_samples
        _check("is_good", is_good, num_samples, "b")
        _check("num_outputs", num_outputs, num_samples, "iu")
        self.outputs = None if num_outputs is None else Outputs(num_outputs)
        self.num_outputs = num_samples if self.outputs is None else self.outputs.num_outputs
        _check("lengths", lengths, self.num_outputs, "iu")
        _check("groups", groups, self.num_outputs, "iu")
        rows = is_good
        if is_good is not None and num_outputs is not None:
            rows = np.repeat(is_good, num_outputs)
        self.kept = None if rows is None or bool(rows.all()) else Bits(rows)
        self.num_items = self.num_outputs if self.kept is None else self.kept.num_ones
        if not self.num_items:
            raise ConfigError(
                f"none of the {num_samples:,} samples is good and has an output: check what the filter leaves out"
            )
        self.lengths = lengths if lengths is None or self.kept is None else lengths[rows]
        self.groups = groups if groups is None or self.kept is None else groups[rows]

    @property
    def num_bytes(self) -> int:
        """The size in bytes of what is kept, without lengths and groups."""
        return (self.kept.num_bytes if self.kept else 0) + (self.outputs.num_bytes if self.outputs else 0)

    def locate(self, items: IntArray) -> tuple[IntArray, IntArray]:
        """Return for (n,) int64 items their samples, and the numbers of the outputs within them; both (n,) int64.

        Raises:
            ConfigError: there is no such item.
        """
        check_numbers(items, self.num_items, "items")
        outputs = items if self.kept is None else self.kept.select(items)
        return self.outputs.locate(outputs) if self.outputs is not None else (outputs, np.zeros_like(outputs))

    def items(self, sample: int) -> IntArray:
        """Return (k,) int64: the items of a sample, none if it is left out. Undoes ``locate``.

        Raises:
            ConfigError: there is no such sample.
        """
        check_numbers(sample, self.num_samples, "samples")
        ends = np.array([sample, sample + 1], dtype=np.int64)
        if self.outputs is not None:
            ends = self.outputs.begins(ends)
        if self.kept is not None:
            ends = self.kept.rank(ends)
        return np.arange(ends[0], ends[1], dtype=np.int64)


def _check(name: str, values: NDArray[Any] | None, num_rows: int, kinds: str) -> None:
    if values is not None and (values.shape != (num_rows,) or values.dtype.kind not in kinds):
        what = "booleans" if kinds == "b" else "integers"
        raise ConfigError(f"{name} is {values.dtype} of shape {values.shape}; expected ({num_rows:,},) {what}")


class Members(NamedTuple):
    """The outputs of samples that make up some units; unit i has the rows from ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` is (num_units + 1,) int64. ``samples`` are the samples of the dataset and ``outputs`` the numbers of the
    outputs within them, both (num_rows,) int64. For packs ``begins`` and ``lengths``, (num_rows,) int64, say which
    tokens of the output are in the pack; otherwise they are None.
    """

    offsets: IntArray
    samples: IntArray
    outputs: IntArray
    begins: IntArray | None = None
    lengths: IntArray | None = None


class Measured:
    """Units over facts: the items themselves, groups of them, or packs of them.

        samples --- is_good ---> num_outputs ---> items ---> Grouping | Packing | each by itself ---> units

    ``num_units`` is the same in every epoch, so that units are the samples of a leaf, and a run over them needs no
    state but its position.

    Raises:
        ConfigError: the facts lack the groups or lengths that ``form`` needs, or there is no unit.

    Example:
        >>> facts = headrace.plan.measured.Facts(4, lengths=np.array([3, 4, 2, 5]))
        >>> measured = headrace.plan.measured.Measured(facts, form=headrace.Packing(seq_len=8))
        >>> measured.num_units, measured.members(np.array([0])).samples.tolist()
        (2, [3, 0])
    """

    def __init__(self, facts: Facts, *, form: Grouping | Packing | None = None) -> None:
        self.facts = facts
        self.form = form
        self._groups: Groups | None = None
        self._packs: PackPlan | None = None
        self.num_units = facts.num_items
        if isinstance(form, Grouping):
            if facts.groups is None:
                raise ConfigError("each unit must have items of one group, but the facts have no groups: measure them")
            self._groups = Groups(facts.groups, form)
            self.num_units = self._groups.num_units
        elif form is not None:
            if facts.lengths is None:
                raise ConfigError("the samples are to be packed, but the facts have no lengths: measure them")
            self._packs = plan_packs(facts.lengths.astype(np.int64, copy=False), form)
            self.num_units = len(self._packs)
            if not self.num_units:
                raise ConfigError(f"the {facts.num_items:,} items make no pack, since they have no tokens")

    @property
    def groups(self) -> Groups | None:
        """The units as groups, or None if ``form`` is not a ``Grouping``."""
        return self._groups

    @property
    def packs(self) -> PackPlan | None:
        """The plan of the packs with its ledger, or None if ``form`` is not a ``Packing``."""
        return self._packs

    def leaf(self, path: str) -> Leaf:
        """Return the units as a source of a plan, whose samples they are."""
        return Leaf(path, self.num_units)

    def members(self, units: IntArray, keys: KeyArray | None = None) -> Members:
        """Return what (n,) int64 units are made of.

        ``keys``, (n,) uint64, are those of a ``Lookup``; they matter if the members of units differ by epoch
        (``regroup``, ``repack``).

        Raises:
            ConfigError: there is no such unit.
        """
        check_numbers(units, self.num_units, "units")
        if self._packs is not None:
            found = self._packs.items(units, keys if self._packs.packing.repack else None)
            samples, outputs = self.facts.locate(found.documents)
            return Members(found.offsets, samples, outputs, found.begins, found.lengths)
        if self._groups is not None:
            offsets, items = self._groups.items(units, keys)
            return Members(offsets, *self.facts.locate(items))
        return Members(np.arange(len(units) + 1, dtype=np.int64), *self.facts.locate(units))

    def units(self, sample: int, keys: KeyArray | None = None) -> IntArray:
        """Return (k,) int64, rising: the units that hold any part of a sample.

        ``keys`` is (1,) uint64, the key of the epoch. This is a closed form for single items, one pass over the items
        for groups, and one pass over all packs for packs.
        """
        items = self.facts.items(sample)
        if self._groups is not None:
            none = np.zeros(0, dtype=np.int64)
            return np.unique(np.concatenate([none, *(self._groups.units(item, keys) for item in items.tolist())]))
        if self._packs is None:
            return items
        found = []
        for first in range(0, self.num_units, _PACKS):
            packs = np.arange(first, min(first + _PACKS, self.num_units), dtype=np.int64)
            repeated = keys[np.zeros_like(packs)] if keys is not None and self._packs.packing.repack else None
            offsets, documents = self._packs.items(packs, repeated)[:2]
            rows = np.flatnonzero(np.isin(documents, items))
            found.append(packs[np.searchsorted(offsets, rows, side="right") - 1])
        return np.unique(np.concatenate(found))


_PACKS = 1 << 16
"""How many packs ``Measured.units`` searches at a time."""
