"""Walking along a lane, frame by frame, from a state on, and finding the units of a run in all of its lanes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError, StateError
from headrace.plan.framed.forms import Count, Find, Formed, Frame, FramedForm, Items, lane_key, plan_frame
from headrace.plan.framed.lanes import Lanes
from headrace.plan.keys import IntArray, source_key


@dataclass(frozen=True)
class Framing:
    """Everything that decides the units of a run, on any rank: lanes, form and seed.

    A lane that finds no item at ``most_empty_positions`` of its positions in a row raises an error, so that a run does
    not search for ever if a filter accepts nothing. ``count`` says how many units each choice of the form becomes; None
    is one.

    Example:
        >>> framed = headrace.plan.framed
        >>> lanes = framed.Lanes(num_lanes=2, frame_positions=64)
        >>> framing = framed.Framing(lanes, framed.BestFit(max_length=512), seed=1)
    """

    lanes: Lanes
    form: FramedForm
    seed: int = 0
    most_empty_positions: int = 100_000
    count: Count | None = None

    @property
    def key(self) -> int:
        """The key of everything that is drawn."""
        return source_key(self.seed, "", "frames")


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


@dataclass
class FrameTotals:
    """Totals over the frames so far, for a report: sums, and the maximum ``most_carried``."""

    num_frames: int = 0
    num_units: int = 0
    num_items: int = 0
    num_tokens: int = 0
    carried: int = 0
    most_carried: int = 0

    def add(self, formed: Formed) -> None:
        """Add the figures of a frame."""
        carried = formed.carry.num_items
        self.num_frames += 1
        self.num_units += formed.num_units
        self.num_items += formed.items.num_items - carried
        self.num_tokens += _tokens(formed.items) - _tokens(formed.carry)
        self.carried += carried
        self.most_carried = max(self.most_carried, carried)

    def fill(self, max_length: int) -> float:
        """Return the share of the room in packs of ``max_length`` tokens that holds tokens, 0.0 without units."""
        return self.num_tokens / (self.num_units * max_length) if self.num_units else 0.0

    def describe(self, max_length: int | None = None) -> str:
        """Return one line; with the length of packs, it says how full they are."""
        fill = "" if max_length is None else f", {100 * self.fill(max_length):.2f} % full"
        return (
            f"{self.num_frames:,} frames: {self.num_items:,} items in {self.num_units:,} units{fill}; "
            f"{self.carried / max(1, self.num_frames):,.0f} carried on, at most {self.most_carried:,}"
        )


def _tokens(items: Items) -> int:
    return 0 if items.lengths is None else int(items.lengths.sum())


@dataclass
class Lane:
    """A lane that is walked from a state on, with ``find`` returning the items at positions.

    ``find`` is called once for each frame, in order. After a saved state, it is first called once for the positions of
    the carried items. ``marks`` holds the states at the borders of the frames that may still be needed.
    """

    framing: Framing
    find: Find
    state_at_first: LaneState
    figures: FrameTotals = field(default_factory=FrameTotals)

    def __post_init__(self) -> None:
        self.marks = [self.state_at_first.at(self.state_at_first.first_unit)]
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
                opened = self.marks[-2]
                if number < opened.first_unit:
                    raise StateError(
                        f"lane {opened.lane} is in frame {opened.frame}, which begins with its unit "
                        f"{opened.first_unit}, and cannot go back to unit {number}: resume from a saved state"
                    )
                if number < self.marks[-1].first_unit:
                    at = number - opened.first_unit
                    part = int(self._formed.parts[at])
                    return Unit(opened.lane, number, opened.frame, self._formed.unit(at), part)
            if not self._advance():
                return None

    def state(self, number: int) -> LaneState:
        """Return the state of the lane before unit ``number``, in the last frame that begins at this unit or before it.

        Raises:
            StateError: the unit is before the first state that is kept.
        """
        at = bisect_right(self.marks, number, key=lambda mark: mark.first_unit) - 1
        if at < 0:
            raise StateError(
                f"the states of lane {self.marks[0].lane} are kept from its unit {self.marks[0].first_unit} on; found "
                f"{number}"
            )
        return self.marks[at].at(number)

    def forget(self, number: int) -> None:
        """Forget the states of the frames before that of unit ``number``, whose units have been delivered."""
        at = bisect_right(self.marks, number, key=lambda mark: mark.first_unit) - 1
        # The last two marks are the borders of the current frame; ``unit`` needs the first of them.
        del self.marks[: max(0, min(at, len(self.marks) - 2))]

    def _advance(self) -> bool:
        """Plan the next frame; return False if there is none."""
        mark, lanes = self.marks[-1], self.framing.lanes
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
            key=lane_key(self.framing.key, mark.lane),
            is_last=mark.frame + 1 == num_frames,
        )
        self._formed = plan_frame(self.framing.form, lanes, frame, carry, found, self.framing.count)
        self.figures.add(self._formed)
        first_unit = mark.first_unit + self._formed.num_units
        carried = self._formed.carry
        pairs = tuple(zip(carried.positions.tolist(), carried.outputs.tolist(), strict=True))
        self.marks.append(LaneState(mark.lane, mark.frame + 1, first_unit, first_unit, pairs))
        return True

    def _found_again(self, mark: LaneState) -> Items:
        if not mark.carry:
            return Items.none()
        positions = np.unique(np.array([position for position, _ in mark.carry], dtype=np.int64))
        found = self.find(positions)
        found.check(positions)
        rows = {
            pair: row for row, pair in enumerate(zip(found.positions.tolist(), found.outputs.tolist(), strict=True))
        }
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

    def units(self, numbers: IntArray) -> list[Unit | None]:
        """Return the units with these numbers in the run, (n,) int64; None for those after the end of their lane.

        Raises:
            StateError: no state of the lane was passed, or the unit is before it.
        """
        return [self._unit(number) for number in numbers.tolist()]

    def states(self, number: int, served: Collection[int]) -> tuple[LaneState, ...]:
        """Return the states of the ``served`` lanes, and of those walked so far, after ``number`` units of the run.

        These are the states of one rank; ``merge_states`` combines those of all ranks.
        """
        chosen = sorted({*served, *self.lanes})
        return tuple(self._state(lane, self.framing.lanes.next_unit(lane, number)) for lane in chosen)

    def forget(self, number: int) -> None:
        """Forget the states before the first ``number`` units of the run, which have been delivered."""
        for lane, walked in self.lanes.items():
            walked.forget(self.framing.lanes.next_unit(lane, number))

    def _unit(self, number: int) -> Unit | None:
        unit, lane = divmod(number, self.framing.lanes.num_lanes)
        if lane not in self.lanes:
            self.lanes[lane] = Lane(self.framing, self._find, self._known(lane), self.figures)
        return self.lanes[lane].unit(unit)

    def _state(self, lane: int, unit: int) -> LaneState:
        if lane in self.lanes:
            return self.lanes[lane].state(unit)
        return self._known(lane).at(unit)

    def _known(self, lane: int) -> LaneState:
        if lane not in self._states:
            raise StateError(
                f"there is no state of lane {lane} among the {len(self._states)} that were loaded: load the merged "
                "state of all ranks"
            )
        return self._states[lane]
