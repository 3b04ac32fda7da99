"""Which position each slot of a step takes, where the slots of a step are drawn.

Ranks and micro-steps share out the *slots* of a step (see `split`); a slot takes a *position*, and a position leads to
a sample. The positions of a blend have a pattern that repeats (a b a b ...), which would bind each rank to some of the
sources. So of a blend, slot i of a step takes the position begin + pi(i), where pi is a permutation keyed by the seed
and the begin of the step:

    a step of 6 from 12 on     slots       12 13 14 15 16 17
                               positions   15 12 17 13 16 14

It knows nothing of ranks and micro-batches, and which positions make the step stays as it is. Slots are numbered as
positions are, so that one number says how far a run has come: it counts slots.

What belongs together stays together: units of neighbouring positions change places as wholes.

    blocks of 4, a step of 10 from 6 on    units       6 7 | 8 9 10 11 | 12 13 14 15
                                           positions   8 9 10 11 | 6 7 | 12 13 14 15
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.errors import StateError
from headrace.plan.bucketing import Bucketing
from headrace.plan.keys import IntArray, KeyArray, derive_array, source_key
from headrace.plan.nodes import Branch, Leaf, Node
from headrace.plan.permutation import permute_each, unpermute_each
from headrace.plan.schedule import BatchSchedule
from headrace.plan.tree import Plan


@dataclass(frozen=True)
class Draw:
    """The permutation of slots of every step of a run; pure, computed for any slot alone, about 0.1 us each in bulk.

    ``length`` is that of the run: its last step may be short. Where a run was made longer within a step of which some
    slots had been given, ``ends`` are its lengths before, rising: the positions up to each were drawn among themselves,
    and so are those after the last.
    """

    key: int
    schedule: BatchSchedule
    length: int | None
    unit: int = 1
    """Neighbouring positions that stay together."""
    counts_from_step: bool = False
    """Whether units begin where steps do; else at the multiples of their size, in the whole run."""
    ends: tuple[int, ...] = ()

    def positions(self, slots: IntArray) -> IntArray:
        """(n,) int64: the position that each slot takes."""
        parts = self._parts(slots)
        if self.unit == 1:
            within = slots - parts.begins[parts.rows]
            return parts.begins[parts.rows] + permute_each(within, parts.sizes, parts.keys, parts.rows)
        units = self._units(parts)
        rows = parts.rows
        # In whole units: the short ones are filled up at their ends.
        filled = slots - parts.begins[rows]
        for place, missing in units.short:
            filled += missing[rows] * (filled >= ((place + 1) * self.unit - missing)[rows])
        places, within = np.divmod(filled, self.unit)
        numbers = permute_each(places, units.counts, parts.keys, rows)
        begins: IntArray = np.where(numbers == 0, parts.begins[rows], units.firsts[rows] + numbers * self.unit)
        return begins + within

    def slots(self, positions: IntArray) -> IntArray:
        """(n,) int64: the slot that takes each position; undoes ``positions`` at the same cost."""
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
        """What a state at a position must hold besides it: ``ends`` of its step, where that is short or was."""
        _, begin, size, _ = self.schedule.locate(position)
        ends = {end for end in self.ends if begin < end < begin + size}
        if self.length is not None and begin < position and self.length < begin + size:
            ends.add(self.length)
        return tuple(sorted(ends)) if begin < position else ()

    def resumed(self, position: int, ends: tuple[int, ...]) -> Draw:
        """The draw of a run that goes on at a position from what ``saved_ends`` gave.

        Raises:
            StateError: the run has been made shorter, and ends within the step of which slots were given; damage.
        """
        step, begin, size, _ = self.schedule.locate(position)
        if begin == position:
            return replace(self, ends=())
        if list(ends) != sorted(set(ends)) or not all(begin < end < begin + size for end in ends):
            raise StateError(f"the saved state is damaged: at position {position:,} it says drawn_to={list(ends)}")
        last = ends[-1] if ends else begin
        needed = last if position <= last else begin + size
        if self.length is not None and self.length < needed:
            raise StateError(
                f"the saved state was taken within step {step:,}, when the run had at least {needed:,} samples; this "
                f"one has {self.length:,} and ends within that step, of whose samples others may have been given: "
                "make it as long as it was, or go on from a state between two steps"
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
        # How much the first and the last unit of each part lack, and the places that are drawn for them.
        missing = begins - firsts, firsts + counts * unit - (begins + sizes)
        places = [unpermute_each(number, counts, parts.keys, rows) for number in (np.zeros_like(counts), counts - 1)]
        is_first_ahead = places[0] < places[1]
        ahead, behind = np.minimum(*places), np.maximum(*places)
        lacks = np.where(is_first_ahead, *missing), np.where(is_first_ahead, *missing[::-1])
        is_one = counts == 1
        # A part that is one unit lacks on both sides, and nothing of it moves.
        return _Units(firsts, counts, [(ahead, np.where(is_one, 0, lacks[0])), (behind, np.where(is_one, 0, lacks[1]))])


class _Parts(NamedTuple):
    """What is drawn among itself: (m,) ``begins``, ``sizes`` and ``keys``; and (n,) ``rows``, whose each number is."""

    begins: IntArray
    sizes: IntArray
    keys: KeyArray
    rows: IntArray


class _Units(NamedTuple):
    """Of each part: where its first unit would begin if it were whole, and how many it has, (m,) int64.

    ``short``: the places of the two that may be short, the one ahead first, and how many positions they lack.
    """

    firsts: IntArray
    counts: IntArray
    short: list[tuple[IntArray, IntArray]]


def draw_of(
    plan: Plan,
    schedule: BatchSchedule,
    length: int | None,
    *,
    block_samples: int | None,
    bucketing: Bucketing | None,
) -> Draw | None:
    """How the slots of a run are drawn; None where each takes the position of its own number.

    That is so where nothing is blended, of sources in the order of their stores, and where a step is one unit.
    ``block_samples`` are of one source each, and begin at their multiples. With bucketing the groups stay together,
    which are whole steps if nothing else is said.
    """
    if not draws(plan):
        return None
    if bucketing is not None and bucketing.group_samples is None:
        return None
    unit = bucketing.group_samples if bucketing is not None else block_samples
    counts_from_step = bucketing is not None
    most = max(size for _, size in schedule.pieces)
    if most == 1 or (counts_from_step and unit is not None and most <= unit):
        return None
    return Draw(source_key(plan.order.seed, "", "slots"), schedule, length, unit or 1, counts_from_step)


def draws(plan: Plan) -> bool:
    """Whether there is anything to draw: the sources of a blend alternate, and not in the order of their stores."""
    return plan.order.kind != "none" and _blends(plan.root)


def _blends(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return (isinstance(node, Branch) and len(node.children) > 1) or any(map(_blends, node.children))
