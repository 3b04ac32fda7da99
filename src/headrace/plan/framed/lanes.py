"""Lanes and frames: which positions a lane takes, and which units of a run it makes.

    3 lanes     lane 0   positions 0 3 6 9 ...     makes the units 0 3 6 9 ... of the run
                lane 1             1 4 7 10 ...                    1 4 7 10 ...
                lane 2             2 5 8 11 ...                    2 5 8 11 ...

The number of lanes belongs to the recipe and divides the global batch, so that a slot of the batch always belongs to
the same lane, for any number of ranks. Lanes do not depend on each other.

The positions of a blend follow a pattern that repeats, which would bind each lane to some of the sources. So in a
blend, positions are divided into groups with one position for each lane, and the lane of each position is drawn:

    3 lanes     groups  0 1 2 | 3 4 5 | 6 7 8        lane 0: 1 5 6 ...    lane 1: 0 3 8 ...    lane 2: 2 4 7 ...

All frames have the same number of positions, except the first of each lane. It is shorter, by a different number in
each lane; otherwise all lanes would need a new frame at the same moment.

`serving` returns what it costs if ranks share lanes. A `Lane` is walked frame by frame, from a state on, and `Walk`
finds the units of a run in all of its lanes. `LaneHistory` keeps the states that they came through.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.config import check_fields
from headrace.errors import ConfigError, HeadraceError, StateError
from headrace.plan.framed.forms import Count, Find, Formed, Frame, FramedForm, FrameTotals, Items, choose
from headrace.plan.keys import GOLDEN, IntArray, derive, derive_array, source_key
from headrace.plan.permutation import permute_each, unpermute_each
from headrace.plan.schedule import BatchSchedule

FRAMED_FORMAT = 2
"""Version of the algorithms behind lanes, frames and forms. A change to any unit raises it.

It is 1 where lanes take positions in turn, and 2 where positions are drawn.
"""

OLDEST = 4
"""An item is delivered in its own frame or at most this many frames later."""


class Lanes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the positions of a run are assigned to lanes and frames; part of its recipe.

    ``num_lanes`` divides every global batch. ``frame_positions`` is the number of positions in a frame.
    ``num_positions`` is the length of the run in positions, or None for an endless run. With a ``key``, positions are
    drawn; with None, lanes take them in turn.

    Raises:
        ConfigError: a number is below 1.

    Example:
        >>> lanes = headrace.plan.framed.Lanes(num_lanes=3, frame_positions=4)
        >>> lanes.positions(1, 0).tolist(), lanes.positions(1, 1).tolist()
        ([1, 4], [7, 10, 13, 16])
    """

    num_lanes: int
    frame_positions: int
    num_positions: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a number below 1."""
        check_fields(self)
        for name in ("num_lanes", "frame_positions", "num_positions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")

    @classmethod
    def of(
        cls,
        schedule: BatchSchedule,
        *,
        frame_positions: int,
        num_lanes: int | None = None,
        num_positions: int | None = None,
        key: int | None = None,
    ) -> Lanes:
        """Return lanes for a schedule of global batches.

        By default there are as many lanes as the greatest common divisor of the batch sizes. With a single lane the
        ``key`` is ignored, since that lane takes all positions.

        Raises:
            ConfigError: ``num_lanes`` does not divide every global batch, or a number is below 1.
        """
        together = gcd(*(size for _, size in schedule.pieces))
        if num_lanes is not None and (num_lanes < 1 or together % num_lanes):
            sizes = sorted({size for _, size in schedule.pieces})
            raise ConfigError(
                f"num_lanes is {num_lanes}, and the global batches are {sizes}: a slot of the batch must always belong "
                f"to the same lane, so num_lanes must divide {together}"
            )
        number = together if num_lanes is None else num_lanes
        return cls(
            num_lanes=number,
            frame_positions=frame_positions,
            num_positions=num_positions,
            key=key if number > 1 else None,
        )

    @property
    def format(self) -> int:
        """The version of the algorithms that these lanes use."""
        return 1 if self.key is None else FRAMED_FORMAT

    def positions(self, lane: int, frame: int) -> IntArray:
        """Return (n,) int64: the positions of a frame of a lane, rising; the last frame of a finite run may have fewer.

        Raises:
            ConfigError: there is no such lane or frame.
        """
        length = self.lane_positions(lane)
        begin, end = self.begin(lane, frame), self.begin(lane, frame + 1)
        if frame < 0 or (length is not None and begin >= length):
            raise ConfigError(f"lane {lane} has {self.num_frames(lane)} frames, numbered from 0; found {frame}")
        number = np.arange(begin, end if length is None else min(end, length), dtype=np.int64)
        return self.at(lane, number)

    def at(self, lane: int, numbers: IntArray) -> IntArray:
        """Return (n,) int64: the positions of a lane with these numbers in it; rising numbers have rising positions."""
        begins = numbers * self.num_lanes
        if self.key is None:
            return begins + lane
        keys, lengths = derive_array(self.key, numbers), self._group_sizes(numbers)
        lanes = np.full_like(numbers, lane)
        # If the last group is short, the last lanes take no position of it.
        return begins + np.where(lanes < lengths, permute_each(np.minimum(lanes, lengths - 1), lengths, keys), lanes)

    def lanes_of(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: the lane that takes each position."""
        numbers, within = np.divmod(positions, self.num_lanes)
        if self.key is None:
            return within
        return unpermute_each(within, self._group_sizes(numbers), derive_array(self.key, numbers))

    def lane_of(self, position: int) -> int:
        """Return the lane that takes one position."""
        return int(self.lanes_of(np.array([position], dtype=np.int64))[0])

    def _group_sizes(self, numbers: IntArray) -> IntArray:
        """The number of positions in each group; groups beyond the end count as whole."""
        if self.num_positions is None:
            return np.full_like(numbers, self.num_lanes)
        left = self.num_positions - numbers * self.num_lanes
        return np.where((left > 0) & (left < self.num_lanes), left, self.num_lanes)

    def frames_of(self, lane: int, positions: IntArray) -> IntArray:
        """Return (n,) int64: the frame of each of some positions of a lane."""
        first = self.begin(lane, 1)
        number = positions // self.num_lanes
        return np.where(number < first, 0, 1 + (number - first) // self.frame_positions)

    def num_frames(self, lane: int) -> int | None:
        """Return how many frames a lane has, or None for an endless run."""
        length = self.lane_positions(lane)
        if length is None:
            return None
        after = length - self.begin(lane, 1)
        return int(length > 0) + max(0, -(-after // self.frame_positions))

    def lane_positions(self, lane: int) -> int | None:
        """Return how many positions a lane takes in all, or None for an endless run.

        Raises:
            ConfigError: there is no such lane.
        """
        if not 0 <= lane < self.num_lanes:
            raise ConfigError(f"there are {self.num_lanes} lanes, numbered from 0; found {lane}")
        if self.num_positions is None:
            return None
        return max(0, self.num_positions - lane + self.num_lanes - 1) // self.num_lanes

    def is_last(self, lane: int, frame: int) -> bool:
        """Return whether a frame is the last of a lane, or behind it."""
        length = self.lane_positions(lane)
        return length is not None and self.begin(lane, frame + 1) >= length

    def frame_behind(self, lane: int, position: int) -> int:
        """Return the first frame of a lane that begins at or behind a position, a multiple of the number of lanes."""
        number = position // self.num_lanes - self.begin(lane, 1)
        return 0 if not position else 1 + max(0, -(-number // self.frame_positions))

    def reached(self, states: Sequence[LaneState]) -> int:
        """Return the first position beyond all frames that some lanes have begun; 0 at the beginning of the run."""
        begun = [self.begin(state.lane, state.frame + 1) for state in states if state.frame or state.unit]
        return self.num_lanes * max(begin for begin in begun) if begun else 0

    def next_unit(self, lane: int, number: int) -> int:
        """Return the first unit of a lane after the first ``number`` units of the run."""
        return (number - lane + self.num_lanes - 1) // self.num_lanes

    def begin(self, lane: int, frame: int) -> int:
        """Return how many positions of the lane come before a frame.

        Multiples of the golden ratio spread the lengths of the first frames evenly over the lanes.
        """
        if frame <= 0:
            return 0
        shorter = ((lane * GOLDEN) & 0xFFFF_FFFF_FFFF_FFFF) * self.frame_positions >> 64
        return self.frame_positions * frame - shorter


def lanes_key(seed: int) -> int:
    """Return the key with which positions are drawn for lanes, in a run with this seed."""
    return source_key(seed, "", "lanes")


class Serving(NamedTuple):
    """How the lanes are shared by the ranks of a run.

    ``most_lanes`` and ``fewest_lanes`` are the most and fewest lanes that a rank walks. ``times_encoded`` is how often
    a sample is encoded on average: 1.0 if no two ranks have a lane in common.
    """

    num_lanes: int
    most_lanes: int
    fewest_lanes: int
    times_encoded: float

    def describe(self) -> str:
        """Return one line that says how many lanes a rank walks, and whether samples are encoded more than once."""
        fewest = "" if self.most_lanes == self.fewest_lanes else f"{self.fewest_lanes} to "
        each = f"{fewest}{self.most_lanes}"
        line = f"{self.num_lanes} lanes, {each} a rank"
        if self.times_encoded == 1:
            return f"{line}; every sample is encoded once"
        return (
            f"{line}; every sample is encoded {self.times_encoded:.2f} times on average, because ranks times "
            "micro-batch size do not divide the lanes: choose as many lanes as the global batch has units"
        )


def serving(lanes: Lanes, *, global_batch_size: int, world_size: int, micro_batch_size: int) -> Serving:
    """Return how lanes are shared in a step, computed for all ranks at once. O(global batch size).

    Raises:
        ConfigError: the number of lanes does not divide the global batch, or a number is below 1.
    """
    if min(global_batch_size, world_size, micro_batch_size) < 1 or global_batch_size % lanes.num_lanes:
        raise ConfigError(
            f"there are {lanes.num_lanes} lanes, a global batch of {global_batch_size}, {world_size} ranks and "
            f"micro-batches of {micro_batch_size}: all numbers must be at least 1, and the lanes must divide the "
            "global batch"
        )
    slots = np.arange(global_batch_size, dtype=np.int64)
    together = world_size * micro_batch_size
    full = global_batch_size // together * together
    left = max(1, global_batch_size - full)
    # Of L slots left, rank r has those from floor(rL/R) on: a slot belongs to the last rank beginning at or before it.
    ranks = np.where(
        slots < full,
        slots // micro_batch_size % world_size,
        ((slots - full + 1) * world_size - 1) // left,
    )
    pairs = np.unique(ranks * lanes.num_lanes + slots % lanes.num_lanes)
    counts = np.bincount(pairs // lanes.num_lanes, minlength=world_size)
    return Serving(lanes.num_lanes, int(counts.max()), int(counts.min()), len(pairs) / lanes.num_lanes)


@dataclass(frozen=True)
class Framing:
    """Everything that decides the units of a run, on any rank: lanes, form and seed.

    A lane that finds no item at ``most_empty_positions`` of its positions in a row raises an error, so that a run does
    not search for ever if a filter accepts nothing. ``count`` says how many units each choice of the form becomes; None
    is one.

    Example:
        >>> framed = headrace.plan.framed
        >>> lanes = framed.Lanes(num_lanes=2, frame_positions=64)
        >>> framing = framed.Framing(lanes, headrace.Packing(seq_len=512), seed=1)
    """

    lanes: Lanes
    form: FramedForm
    seed: int = 0
    most_empty_positions: int = 100_000
    count: Count | None = None

    def key_of(self, lane: int) -> int:
        """Return the key of everything that is drawn in a lane."""
        return derive(source_key(self.seed, "", "frames"), lane)


@dataclass(frozen=True)
class LaneState:
    """The state of a lane whose next unit is ``unit``, which is formed in ``frame`` or in a later one.

    ``first_unit`` is how many units the lane has before that frame. ``carry`` holds the (position, output) of each item
    that is carried into the frame, rising.
    """

    lane: int
    frame: int = 0
    first_unit: int = 0
    unit: int = 0
    carry: tuple[tuple[int, int], ...] = ()

    def at(self, unit: int) -> LaneState:
        """Return the state of the same lane with another next unit, which must not be before the frame."""
        return replace(self, unit=unit)


def beginning(lanes: Lanes) -> tuple[LaneState, ...]:
    """Return the states of all lanes at the beginning of a run."""
    return tuple(LaneState(lane) for lane in range(lanes.num_lanes))


class Unit(NamedTuple):
    """Unit ``unit`` of a lane, formed in ``frame``, with its items in order.

    If several units have the same items, ``part`` is the number of this one among them, from 0.
    """

    lane: int
    unit: int
    frame: int
    items: Items
    part: int = 0


def plan_frame(
    form: FramedForm, lanes: Lanes, frame: Frame, carry: Items, found: Items, count: Count | None = None
) -> Formed:
    """Form the units of a frame from the ``carry`` of the frame before and the items ``found`` in this one.

    With ``count``, each choice of the form becomes as many units of the same items as it returns.

    Raises:
        HeadraceError: the form puts an item into two units, or keeps one that is due. This is a defect of the form.
    """
    items = carry.followed_by(found)
    ages = frame.number - lanes.frames_of(frame.lane, items.positions)
    is_due = (ages >= OLDEST) | frame.is_last
    units: Sequence[IntArray] = choose(form, items, is_due, frame)
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *units]).astype(np.int64)
    num_items = items.num_items
    times = np.bincount(rows, minlength=num_items)
    if len(times) > num_items or bool((times > 1).any()) or bool((times == 0)[is_due].any()):
        raise HeadraceError(
            f"{type(form).__name__} makes {len(units)} units of {num_items} items in frame {frame.number} of "
            f"lane {frame.lane}, but an item is in several units, or an item that is due is in none. This is a defect "
            "of Headrace: please report it"
        )
    parts = np.zeros(len(units), dtype=np.int64)
    if count is not None and len(units):
        counts = np.array(count(items, units), dtype=np.int64)
        parts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        units = [unit for unit, number in zip(units, counts.tolist(), strict=True) for _ in range(number)]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *units]).astype(np.int64)
    offsets = np.append(0, np.cumsum([len(unit) for unit in units])).astype(np.int64)
    return Formed(items, rows, offsets, parts, items.take(np.flatnonzero(times == 0)))


@dataclass
class Lane:
    """A lane that is walked from a state on, with ``find`` returning the items at positions.

    ``find`` is called once for each frame, in order. After a saved state, it is first called once for the positions of
    the carried items. ``marks`` holds the state that it began with and those after each frame that it planned since;
    whoever takes them may empty it.
    """

    framing: Framing
    find: Find
    state_at_first: LaneState
    figures: FrameTotals = field(default_factory=FrameTotals)

    def __post_init__(self) -> None:
        self._opened = self._next = self.state_at_first.at(self.state_at_first.first_unit)
        self.marks = [self._next]
        self._key = self.framing.key_of(self.state_at_first.lane)
        self._formed: Formed | None = None
        self._num_empty = 0

    def unit(self, number: int) -> Unit | None:
        """Return unit ``number`` of the lane, or None if the lane has ended before it.

        Raises:
            StateError: the unit belongs to an earlier frame, or the encoder no longer makes the carried items.
            ConfigError: nothing was found at more than ``most_empty_positions`` positions in a row.
        """
        while True:
            if self._formed is not None:
                opened = self._opened
                if number < opened.first_unit:
                    raise StateError(
                        f"lane {opened.lane} is in frame {opened.frame}, which begins with its unit "
                        f"{opened.first_unit}, and cannot go back to unit {number}: resume from a saved state"
                    )
                if number < self._next.first_unit:
                    at = number - opened.first_unit
                    part = int(self._formed.parts[at])
                    return Unit(opened.lane, number, opened.frame, self._formed.unit(at), part)
            if not self._advance():
                return None

    def _advance(self) -> bool:
        """Plan the next frame; return False if there is none."""
        mark, lanes = self._next, self.framing.lanes
        num_frames = lanes.num_frames(mark.lane)
        if num_frames is not None and mark.frame >= num_frames:
            return False
        carry = self._formed.carry if self._formed is not None else self._found_again(mark)
        positions = lanes.positions(mark.lane, mark.frame)
        found = self.find(positions)
        found.check(positions)
        self._num_empty = 0 if found.num_items else self._num_empty + len(positions)
        if self._num_empty > self.framing.most_empty_positions:
            raise ConfigError(
                f"{self._num_empty:,} samples of lane {mark.lane} in a row have no output, up to position "
                f"{positions[-1]:,}: check what the encoder skips, or increase most_empty_positions"
            )
        frame = Frame(
            lane=mark.lane,
            number=mark.frame,
            first_unit=mark.first_unit,
            key=self._key,
            is_last=mark.frame + 1 == num_frames,
        )
        self._formed = plan_frame(self.framing.form, lanes, frame, carry, found, self.framing.count)
        self.figures.add(self._formed)
        first_unit = mark.first_unit + self._formed.num_units
        pairs = tuple(self._formed.carry.pairs)
        self._opened, self._next = mark, LaneState(mark.lane, mark.frame + 1, first_unit, first_unit, pairs)
        self.marks.append(self._next)
        return True

    def _found_again(self, mark: LaneState) -> Items:
        if not mark.carry:
            return Items.none()
        positions = np.unique(np.array([position for position, _ in mark.carry], dtype=np.int64))
        found = self.find(positions)
        found.check(positions)
        rows = {pair: row for row, pair in enumerate(found.pairs)}
        if missing := [pair for pair in mark.carry if pair not in rows]:
            position, output = missing[0]
            raise StateError(
                f"lane {mark.lane} carries output {output} of position {position:,} into frame {mark.frame}, but the "
                "encoder no longer makes it: an encoder must always make the same outputs from the same sample"
            )
        return found.take(np.array([rows[pair] for pair in mark.carry], dtype=np.int64))


class Walk:
    """The units of a run by their numbers, from saved states of its lanes.

    A lane is walked only when one of its units is asked for. So each rank walks only the lanes whose units it needs,
    for any number of ranks.
    """

    def __init__(self, framing: Framing, find: Find, states: Sequence[LaneState]) -> None:
        self.framing = framing
        self._find = find
        self._states = {state.lane: state for state in states}
        self.lanes: dict[int, Lane] = {}
        self.figures = FrameTotals()

    def unit(self, number: int) -> Unit | None:
        """Return the unit with this number in the run; None if it is after the end of its lane.

        Raises:
            StateError: no state of the lane was passed, or the unit is before it.
        """
        unit, lane = divmod(number, self.framing.lanes.num_lanes)
        if lane not in self.lanes:
            if lane not in self._states:
                raise StateError(
                    f"there is no state of lane {lane} among the {len(self._states)} that were loaded: load the merged "
                    "state of all ranks"
                )
            self.lanes[lane] = Lane(self.framing, self._find, self._states[lane], self.figures)
        return self.lanes[lane].unit(unit)


class LaneHistory:
    """The states of lanes, from the last unit that was delivered on. Takes O(frames read ahead) memory.

    ``number`` is how many units of the run were delivered. States before these may be dropped; each lane does so at its
    next frame.
    """

    def __init__(self, lanes: Lanes, states: Iterable[LaneState], number: int = 0) -> None:
        self._lanes = lanes
        self._marks = {state.lane: [state.at(state.first_unit)] for state in states}
        self.number = number

    @property
    def lanes(self) -> list[int]:
        """The lanes whose states are known, in rising order."""
        return sorted(self._marks)

    def add(self, marks: Iterable[LaneState]) -> None:
        """Add frames that were begun. The same one may come twice, from a worker that replaced another."""
        for mark in marks:
            known = self._marks.setdefault(mark.lane, [])
            if not known or known[-1].frame < mark.frame:
                del known[: max(0, _at(known, self._lanes.next_unit(mark.lane, self.number)))]
                known.append(mark.at(mark.first_unit))

    def states(self, number: int, lanes: Iterable[int]) -> tuple[LaneState, ...]:
        """Return the states of some lanes after the first ``number`` units of the run.

        Raises:
            StateError: a lane is not known, or only from a later unit on.
        """
        return tuple(self._state(lane, self._lanes.next_unit(lane, number)) for lane in lanes)

    def last_unit(self) -> int:
        """Return the highest number of a unit that is known to exist, or -1."""
        lasts = [
            (marks[-1].first_unit - 1) * self._lanes.num_lanes + lane
            for lane, marks in self._marks.items()
            if marks[-1].first_unit
        ]
        return max(lasts, default=-1)

    def _state(self, lane: int, unit: int) -> LaneState:
        marks = self._marks.get(lane, [])
        at = _at(marks, unit)
        if at < 0:
            raise StateError(
                f"the state of lane {lane} at its unit {unit} is not known: load the merged state of all ranks"
            )
        return marks[at].at(unit)


def _at(marks: list[LaneState], unit: int) -> int:
    """Return the index of the last mark that begins at a unit or before. Of frames without units, the last counts."""
    return bisect_right(marks, unit, key=lambda mark: mark.first_unit) - 1
