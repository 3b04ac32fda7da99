"""The slots of a step: how ranks and micro-steps share them out, and which position each one takes.

A slot takes a *position*, and a position leads to a sample. Slots are numbered as positions are. Each slot takes the
position of its own number, unless the slots of a step are drawn (see `Draw`) or balanced (see `balance`).

Micro-step j of rank r of R takes the micro-batch at offset (j*R + r)*M of the step, as Megatron does. Where R*M does
not divide the step, the L slots left for the last micro-step are assigned as [floor(rL/R), floor((r+1)L/R)) to rank r.

    step of 11 slots, R = 2 ranks, M = 2     rank 0: [0 1] [4 5] [8]
                                             rank 1: [2 3] [6 7] [9 10]

After each micro-step the ranks together have taken a prefix of the slots. So the number of slots taken is the whole
state even in the middle of a step, and the rest of a step can be split anew over other ranks and micro-batches.

The positions of a blend follow a pattern that repeats (a b a b ...), which would bind each rank to some of
the sources. So in a blend, slot i of a step takes the position begin + pi(i), where pi is a permutation keyed by the
seed and the begin of the step:

    a step of 6 from 12 on     slots       12 13 14 15 16 17
                               positions   15 12 17 13 16 14

The permutation does not depend on ranks or micro-batches, and the step still consists of the same positions. So one
number, a count of slots, says how far a run has come.

Positions that belong together stay together: units of neighbouring positions change places as a whole.

    blocks of 4, a step of 10 from 6 on    units       6 7 | 8 9 10 11 | 12 13 14 15
                                           positions   8 9 10 11 | 6 7 | 12 13 14 15
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import numpy as np

from headrace.errors import StateError
from headrace.plan.bucketing import Bucketing
from headrace.plan.chaptered.chapters import ChapteredPlan, PlanChapter, parts_of
from headrace.plan.keys import IntArray, KeyArray, derive_array, source_key
from headrace.plan.nodes import Branch, ConcatNode, Inner, Leaf, LimitNode, Node
from headrace.plan.permutation import permute_each, unpermute_each
from headrace.plan.schedule import BatchSchedule


@dataclass(frozen=True)
class Share:
    """The part of a step that one rank takes: ``rank`` of ``world_size``, ``micro_batch_size`` samples at a time.

    With ``fills``, where fewer slots are left in a step than there are ranks, each rank takes one all the same: several
    ranks may take the same one.
    """

    rank: int
    world_size: int
    micro_batch_size: int
    fills: bool = False

    def divides(self, num_positions: int) -> bool:
        """Return whether every rank has only full micro-batches in a step of this many positions."""
        return num_positions % (self.world_size * self.micro_batch_size) == 0


@dataclass(frozen=True)
class MicroBatches:
    """Consecutive micro-batches of one rank; all arrays are (n,) int64.

    A micro-batch takes the slots ``[begin, begin + size)`` given by ``begins`` and ``sizes``; a size may be 0 in the
    last micro-step of an uneven step. ``steps`` is the step of each micro-batch. ``afters`` is how many slots of the
    run have been taken once all ranks have finished that micro-step.
    """

    begins: IntArray
    sizes: IntArray
    steps: IntArray
    afters: IntArray

    def __len__(self) -> int:
        return len(self.begins)

    def slots(self) -> IntArray:
        """Return (sum of sizes,) int64: the slots of all micro-batches, one after another."""
        ends = np.cumsum(self.sizes)
        within = np.arange(ends[-1] if len(self) else 0, dtype=np.int64)
        shift: IntArray = np.repeat(self.begins - (ends - self.sizes), self.sizes)
        return within + shift


def micro_batches(
    schedule: BatchSchedule, share: Share, *, position: int, end: int | None, at_least: int
) -> MicroBatches:
    """Return the micro-batches of a rank from ``position`` on: whole steps over at least ``at_least`` slots.

    ``position`` is how many slots have been taken. It may lie within a step, after any micro-step of any split.
    ``end`` is the length of the run, at which the micro-batches stop, or None.
    """
    parts: list[MicroBatches] = []
    target = position + at_least if end is None else min(position + at_least, end)
    while position < target:
        step, begin, size, num_equal = schedule.locate(position)
        num_steps = -(-(target - position) // size)
        if num_equal is not None:
            num_steps = min(num_steps, num_equal)
        if end is not None:
            num_steps = min(num_steps, (end - begin) // size)
        if begin == position and num_steps > 0:
            part = _steps(step, position, size, num_steps, share)
            position += num_steps * size
        else:
            stop = begin + size if end is None else min(begin + size, end)
            part = _steps(step, position, stop - position, 1, share)
            position = stop
        parts.append(part)
    columns = ("begins", "sizes", "steps", "afters")
    empty = np.empty(0, dtype=np.int64)
    return MicroBatches(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in columns))


def num_micro_batches(schedule: BatchSchedule, end: int, share: Share, begin: int = 0) -> int:
    """Return the number of micro-batches of one rank between two positions. O(pieces of the schedule).

    ``begin`` may lie within a step, whose rest is then divided anew.
    """
    together = share.world_size * share.micro_batch_size
    position, count = begin, 0
    while position < end:
        _, first, size, num_equal = schedule.locate(position)
        whole = (end - first) // size
        if position > first or not whole:
            stop = min(first + size, end)
            count += -(-(stop - position) // together)
            position = stop
            continue
        num_steps = whole if num_equal is None else min(whole, num_equal)
        count += num_steps * -(-size // together)
        position += num_steps * size
    return count


def uneven_bounds(num_slots: int, world_size: int) -> IntArray:
    """Return (world_size + 1,) int64: where the part of each rank begins in the last micro-step of an uneven step."""
    return np.arange(world_size + 1, dtype=np.int64) * num_slots // world_size


def taken_by(offset: int, size: int, world_size: int, micro_batch_size: int) -> tuple[int, int]:
    """Return the rank and the micro-step that take the slot at an offset in a step of ``size`` slots.

    If a run resumes in the middle of a step, offset and size count within the rest of that step.
    """
    together = world_size * micro_batch_size
    micro_step, within = divmod(offset, together)
    if (left := size - micro_step * together) >= together:
        return within // micro_batch_size, micro_step
    # The last rank whose part begins at the slot or before it: floor(r * left / ranks) <= within.
    return -(-(within + 1) * world_size // left) - 1, micro_step


def _steps(step: int, position: int, size: int, num_steps: int, share: Share) -> MicroBatches:
    """The micro-batches of a rank in ``num_steps`` equal steps of ``size`` slots from ``position`` on."""
    together = share.world_size * share.micro_batch_size
    full = size // together
    offsets = np.arange(full, dtype=np.int64) * together + share.rank * share.micro_batch_size
    sizes = np.full(full, share.micro_batch_size, dtype=np.int64)
    afters = (np.arange(full, dtype=np.int64) + 1) * together
    if left := size - full * together:
        low, high = uneven_bounds(left, share.world_size)[share.rank : share.rank + 2].tolist()
        offsets = np.append(offsets, full * together + low)
        sizes = np.append(sizes, max(high - low, int(share.fills)))
        afters = np.append(afters, size)
    begins = position + size * np.arange(num_steps, dtype=np.int64)[:, None]
    steps = np.arange(step, step + num_steps, dtype=np.int64)
    return MicroBatches(
        begins=(begins + offsets).ravel(),
        sizes=np.tile(sizes, num_steps),
        steps=np.repeat(steps, sizes.size),
        afters=(begins + afters).ravel(),
    )


@dataclass(frozen=True)
class Draw:
    """The permutation of the slots of every step of a run, a pure function; about 0.1 us a slot in bulk.

    ``length`` is the length of the run: its last step may be short. If a run was made longer after some slots of that
    short step had been taken, ``ends`` holds its earlier lengths, rising. The positions up to each of them were drawn
    among themselves, and so are the positions after the last one.
    """

    key: int
    schedule: BatchSchedule
    length: int | None
    unit: int = 1
    """How many neighbouring positions stay together."""
    counts_from_step: bool = False
    """True if units are counted from the begin of each step; otherwise they begin at multiples of their size."""
    ends: tuple[int, ...] = ()

    def positions(self, slots: IntArray) -> IntArray:
        """Return (n,) int64: the position that each slot takes."""
        parts = self._parts(slots)
        if self.unit == 1:
            within = slots - parts.begins[parts.rows]
            return parts.begins[parts.rows] + permute_each(within, parts.sizes, parts.keys, parts.rows)
        units = self._units(parts)
        rows = parts.rows
        # Count as if all units were whole: the short ones are filled up at their ends.
        filled = slots - parts.begins[rows]
        for place, missing in units.short:
            filled += missing[rows] * (filled >= ((place + 1) * self.unit - missing)[rows])
        places, within = np.divmod(filled, self.unit)
        numbers = permute_each(places, units.counts, parts.keys, rows)
        begins: IntArray = np.where(numbers == 0, parts.begins[rows], units.firsts[rows] + numbers * self.unit)
        return begins + within

    def slots(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: the slot that takes each position; undoes ``positions`` at the same cost."""
        parts = self._parts(positions)
        if self.unit == 1:
            within = positions - parts.begins[parts.rows]
            return parts.begins[parts.rows] + unpermute_each(within, parts.sizes, parts.keys, parts.rows)
        units = self._units(parts)
        rows = parts.rows
        numbers = (positions - units.firsts[rows]) // self.unit
        begins = np.where(numbers == 0, parts.begins[rows], units.firsts[rows] + numbers * self.unit)
        places = unpermute_each(numbers, units.counts, parts.keys, rows)
        slots = parts.begins[rows] + places * self.unit + (positions - begins)
        for place, missing in units.short:
            slots -= missing[rows] * (places > place[rows])
        return slots

    def saved_ends(self, position: int) -> tuple[int, ...]:
        """Return the ``ends`` that a state at a position must hold: lengths at which its step is or was cut short.

        The result is empty between two steps.
        """
        _, begin, size, _ = self.schedule.locate(position)
        ends = {end for end in self.ends if begin < end < begin + size}
        if self.length is not None and begin < position and self.length < begin + size:
            ends.add(self.length)
        return tuple(sorted(ends)) if begin < position else ()

    def resumed(self, position: int, ends: tuple[int, ...]) -> Draw:
        """Return the draw of a run that resumes at a position, with the ``ends`` that ``saved_ends`` returned.

        Raises:
            StateError: the run is now shorter and ends within a step that has been begun, or ``ends`` are damaged.
        """
        step, begin, size, _ = self.schedule.locate(position)
        if begin == position:
            return replace(self, ends=())
        if list(ends) != sorted(set(ends)) or not all(begin < end < begin + size for end in ends):
            raise StateError(
                f"the saved state is damaged: it holds drawn_to={list(ends)} at position {position:,}; these are "
                f"lengths within the step of that position, {begin:,} to {begin + size:,}, rising"
            )
        last = ends[-1] if ends else begin
        needed = last if position <= last else begin + size
        if self.length is not None and self.length < needed:
            raise StateError(
                f"the saved state was taken within step {step:,}, when the run had at least {needed:,} samples; this "
                f"run has {self.length:,} and ends within that step, so other samples of the step may have been fed: "
                "make the run as long as it was, or resume from a state between two steps"
            )
        return replace(self, ends=ends)

    def _parts(self, numbers: IntArray) -> _Parts:
        begins, ends = self.schedule.bounds(numbers)
        if self.length is not None:
            ends = np.minimum(ends, self.length)
        for end in self.ends:
            is_after = numbers >= end
            begins = np.where(is_after & (begins < end), end, begins)
            ends = np.where(~is_after & (ends > end), end, ends)
        firsts = np.flatnonzero(np.diff(begins, prepend=-1))
        rows = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(numbers)))
        begins = begins[firsts]
        return _Parts(begins, ends[firsts] - begins, derive_array(self.key, begins), rows)

    def _units(self, parts: _Parts) -> _Units:
        begins, sizes, unit = parts.begins, parts.sizes, self.unit
        firsts = begins if self.counts_from_step else begins - begins % unit
        counts = -(-(begins + sizes - firsts) // unit)
        rows = np.arange(len(begins))
        # How many positions the first and the last unit of each part lack, and the places that are drawn for them.
        missing = begins - firsts, firsts + counts * unit - (begins + sizes)
        places = [unpermute_each(number, counts, parts.keys, rows) for number in (np.zeros_like(counts), counts - 1)]
        is_first_ahead = places[0] < places[1]
        ahead, behind = np.minimum(*places), np.maximum(*places)
        lacks = np.where(is_first_ahead, *missing), np.where(is_first_ahead, *missing[::-1])
        is_one = counts == 1
        # A part of a single unit is short on both sides, but nothing in it moves.
        return _Units(firsts, counts, [(ahead, np.where(is_one, 0, lacks[0])), (behind, np.where(is_one, 0, lacks[1]))])


@dataclass(frozen=True)
class ChapterDraws:
    """The draws of the chapters of a run, each of which begins between two steps.

    ``begins`` are the first positions of the chapters, and ``draws`` their draws, of which some may be None.
    """

    begins: tuple[int, ...]
    draws: tuple[Draw | None, ...]

    def positions(self, slots: IntArray) -> IntArray:
        """See `Draw.positions`."""
        return self._each(slots, lambda draw, mine: draw.positions(mine))

    def slots(self, positions: IntArray) -> IntArray:
        """See `Draw.slots`."""
        return self._each(positions, lambda draw, mine: draw.slots(mine))

    def saved_ends(self, position: int) -> tuple[int, ...]:
        """See `Draw.saved_ends`."""
        draw = self.at(position)
        return () if draw is None else draw.saved_ends(position)

    def resumed(self, position: int, ends: tuple[int, ...]) -> ChapterDraws:
        """See `Draw.resumed`."""
        draws = list(self.draws)
        number = self._number(position)
        draw = draws[number]
        if draw is not None:
            draws[number] = draw.resumed(position, ends)
        elif ends:
            raise StateError(
                f"the saved state is damaged: it holds drawn_to={list(ends)} at position {position:,}, in a part of "
                "the run that draws no slots"
            )
        return replace(self, draws=tuple(draws))

    def at(self, position: int) -> Draw | None:
        """Return the draw of the chapter of a position, the end of a chapter being part of it."""
        return self.draws[self._number(position)]

    def _number(self, position: int) -> int:
        # A state at a border is between two steps, where draws do not matter.
        return max(bisect_left(self.begins, position) - 1, 0)

    def _each(self, numbers: IntArray, apply: Callable[[Draw, IntArray], IntArray]) -> IntArray:
        chapters = np.searchsorted(self.begins, numbers, side="right") - 1
        found = numbers.copy()
        for chapter in np.unique(chapters).tolist():
            draw = self.draws[chapter]
            if draw is not None:
                rows = chapters == chapter
                found[rows] = apply(draw, numbers[rows])
        return found


AnyDraw = Draw | ChapterDraws
"""How the slots of a run are drawn that was not changed, or was."""


class _Parts(NamedTuple):
    """The parts whose slots are drawn among themselves: (m,) ``begins``, ``sizes`` and ``keys``.

    ``rows`` is (n,), the part of each number.
    """

    begins: IntArray
    sizes: IntArray
    keys: KeyArray
    rows: IntArray


class _Units(NamedTuple):
    """The units of each part, (m,) int64: where the first one would begin if it were whole, and how many there are.

    ``short`` holds the places of the two units that may be short, in rising order, and how many positions each lacks.
    """

    firsts: IntArray
    counts: IntArray
    short: list[tuple[IntArray, IntArray]]


def draw_of(
    plan: ChapteredPlan, schedule: BatchSchedule, length: int | None, *, bucketing: Bucketing | None
) -> AnyDraw | None:
    """Return how the slots of a run are drawn, or None if each slot takes the position of its own number.

    Slots are not drawn if nothing is blended, if the sources are read in the order of their stores, or if a step is a
    single unit. Blocks of ``block_samples``, each from one source, stay together; they begin at multiples of their
    size. With bucketing its groups stay together, which are whole steps unless ``group_samples`` is set.
    """
    parts = parts_of(plan)
    found = [_draw_of(part, schedule, length if part is parts[-1] else None, bucketing) for part in parts]
    if len(found) == 1:
        return found[0]
    return ChapterDraws(tuple(part[0].begin for part in parts), tuple(found)) if any(found) else None


def _draw_of(
    part: Sequence[PlanChapter], schedule: BatchSchedule, length: int | None, bucketing: Bucketing | None
) -> Draw | None:
    order = part[0].order
    if not order.draws or not any(_blends(chapter.root) for chapter in part):
        return None
    if bucketing is not None and bucketing.group_samples is None:
        return None
    unit = bucketing.group_samples if bucketing is not None else homogeneous_samples(part)
    counts_from_step = bucketing is not None
    most = max(size for _, size in schedule.pieces)
    if most == 1 or (counts_from_step and unit is not None and most <= unit):
        return None
    return Draw(source_key(order.seed, "", "slots"), schedule, length, unit or 1, counts_from_step)


def draws(plan: ChapteredPlan) -> bool:
    """Return whether there is anything to draw: sources are blended, and are not read in the order of their stores."""
    return plan.order.draws and any(_blends(chapter.root) for chapter in plan.chapters)


def _blends(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return (isinstance(node, Branch) and len(node.children) > 1) or any(map(_blends, node.children))


def homogeneous_samples(chapters: Sequence[PlanChapter]) -> int | None:
    """Return the largest B such that positions k B to k B + B - 1 have one source for every k in some chapters.

    Returns None if no blend has ``block_samples`` above 1. Nodes around such a blend may cut its blocks:

        blocks of 16 in a blend by blocks of 32     16
        blocks of 16, then others from sample 24    8
        blocks of 16 in a blend sample by sample    1
    """
    if not any(_has_blocks(chapter.root) for chapter in chapters):
        return None
    # 0 stands for any number, as in gcd: all samples of a single source are its own.
    shifts = [chapter.begin - chapter.rank(chapter.root) for chapter in chapters]
    return gcd(*shifts, *(_together(chapter.root, chapter) for chapter in chapters)) or None


def _has_blocks(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return (isinstance(node, Branch) and node.block_samples > 1) or any(map(_has_blocks, node.children))


def _together(node: Node, chapter: PlanChapter) -> int:
    if isinstance(node, Leaf):
        return 0
    # A child counts from its own rank, which need not be where a block begins.
    ranks = [chapter.rank(child) for child in node.children]
    return gcd(*_borders(node, chapter), *ranks, *(_together(child, chapter) for child in node.children))


def _borders(node: Inner, chapter: PlanChapter) -> list[int]:
    """Return numbers of which each place is a multiple where another child, or another part of one, begins."""
    if isinstance(node, Branch):
        return [node.block_samples]
    if isinstance(node, ConcatNode):
        return [int(length) for length in node.lengths] if len(node.children) > 1 else []
    if isinstance(node, LimitNode):
        # If the child is a single source, a pass may begin anywhere.
        return [node.num_samples, node.child.num_samples or 0] if _together(node.child, chapter) else []
    return []  # a repeat begins where its child does
