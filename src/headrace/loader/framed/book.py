"""How far each lane has come, by the marks that readers sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from headrace.errors import StateError
from headrace.plan.framed import Lanes, LaneState


class Book:
    """The state of lanes at any unit from the last one delivered on. O(frames read ahead) of memory."""

    def __init__(self, lanes: Lanes, states: Iterable[LaneState]) -> None:
        self._lanes = lanes
        self._marks = {state.lane: [state.at(state.first_unit)] for state in states}
        self._number = 0

    @property
    def lanes(self) -> list[int]:
        """Those it knows, rising."""
        return sorted(self._marks)

    def add(self, marks: Iterable[LaneState]) -> None:
        """Frames that were begun. The same one may come twice, from a worker that took the place of another."""
        for mark in marks:
            known = self._marks.setdefault(mark.lane, [])
            if not known or known[-1].frame < mark.frame:
                del known[: max(0, _at(known, self._lanes.next_unit(mark.lane, self._number)))]
                known.append(mark.at(mark.first_unit))

    def states(self, number: int, lanes: Iterable[int]) -> tuple[LaneState, ...]:
        """Some lanes after the first ``number`` units of the run.

        Raises:
            StateError: a lane is not known, or from a later unit on.
        """
        return tuple(self._state(lane, self._lanes.next_unit(lane, number)) for lane in lanes)

    def forget(self, number: int) -> None:
        """What is before the first ``number`` units is needed no more; a lane drops it with its next frame."""
        self._number = number

    def last_unit(self) -> int:
        """The highest number of a unit that is known to exist, -1 for none."""
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
            raise StateError(f"of lane {lane} no state is known at its unit {unit}: load the merged state of all ranks")
        return marks[at].at(unit)


def _at(marks: list[LaneState], unit: int) -> int:
    """The last mark that begins at a unit or before: of frames without units, the one that makes it."""
    return bisect_right(marks, unit, key=lambda mark: mark.first_unit) - 1
