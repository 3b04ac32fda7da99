"""What was carried into each frame, written down as a run goes: any unit is found again without a replay.

    word 0      frame << 24 | lane                  each word 64 bits, little-endian
    word 1      first_unit << 24 | bytes of the carry
    the carry   as in a saved state

16 bytes a frame, and what it carries on: a byte or two an item. A record that is cut off at the end is left out, and
one that stands twice, because the run went on from an earlier state, is the same both times.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

import numpy as np

from headrace.errors import ConfigError, StateError
from headrace.plan.framed.lanes import OLDEST, Lanes
from headrace.plan.framed.state import LaneState, carry_from_bytes, carry_to_bytes

_HEAD = struct.Struct("<QQ")
_LOW = (1 << 24) - 1


def journal_record(state: LaneState, lanes: Lanes) -> bytes:
    """The record of a frame that a lane begins.

    Raises:
        ConfigError: more than 2^24 lanes or bytes of carry, or 2^40 frames or units.
    """
    carry = carry_to_bytes(state, lanes) if state.carry else b""
    if max(state.lane, len(carry)) > _LOW or max(state.frame, state.first_unit) >> 40:
        raise ConfigError(
            f"frame {state.frame:,} of lane {state.lane:,} with {state.first_unit:,} units before it and "
            f"{len(carry):,} bytes of carry is too large for a journal"
        )
    return _HEAD.pack(state.frame << 24 | state.lane, state.first_unit << 24 | len(carry)) + carry


class Journal:
    """The records of a run, from their bytes. O(records) once, a look-up O(log frames).

    Raises:
        StateError: two records contradict each other, or are of other lanes.
    """

    def __init__(self, data: bytes, lanes: Lanes) -> None:
        self._lanes = lanes
        self._states: dict[int, list[tuple[int, int, bytes]]] = {}
        for lane, frame, first_unit, carry in _records(data):
            if lane >= lanes.num_lanes:
                raise StateError(f"the journal has a lane {lane}, and this run {lanes.num_lanes}")
            self._states.setdefault(lane, []).append((frame, first_unit, carry))
        for lane, records in self._states.items():
            kept = sorted(set(records))
            frames, firsts = [record[0] for record in kept], [record[1] for record in kept]
            if len(set(frames)) < len(frames) or firsts != sorted(firsts):
                raise StateError(f"the journal contradicts itself in lane {lane}: it is of more than one run")
            self._states[lane] = kept

    def unit(self, lane: int, unit: int) -> LaneState:
        """A state from which a unit is made again: the last recorded frame that begins at it or before.

        Raises:
            StateError: nothing so early was recorded of the lane.
        """
        records = self._states.get(lane, [])
        at = bisect_right(records, unit, key=lambda record: record[1]) - 1
        # Of frames without units the last one begins at the same unit, and it is the one that makes it.
        if at < 0:
            raise StateError(f"the journal has nothing of lane {lane} at its unit {unit} or before")
        return self._state(lane, at).at(unit)

    def frames(self, lane: int, unit: int) -> tuple[LaneState, int] | None:
        """The state from which a unit is made again, and the last frame that it can be of; None: its lane has ended.

        It is of one frame where each was recorded.

        Raises:
            StateError: nothing so early was recorded of the lane, or the unit had not been planned yet.
        """
        state = self.unit(lane, unit)
        frame, first_unit = self.reached(lane)
        if unit < first_unit:
            records = self._states[lane]
            return state, records[bisect_right(records, unit, key=lambda record: record[1])][0] - 1
        num_frames = self._lanes.num_frames(lane)
        if num_frames is not None and frame >= num_frames:
            return None
        raise StateError(f"the journal of lane {lane} ends before its unit {unit}, with frame {frame}: not planned yet")

    def reached(self, lane: int) -> tuple[int, int]:
        """The last frame that was recorded of a lane, and the units before it; 0 and 0 of one without records."""
        records = self._states.get(lane)
        return records[-1][:2] if records else (0, 0)

    def units_of(self, position: int) -> tuple[int, int | None]:
        """Between which units of its lane an item of a position is: the first, and the one after the last or None.

        Raises:
            StateError: nothing so early was recorded of the lane.
        """
        lane = int(self._lanes.lanes_of(np.array([position], dtype=np.int64))[0])
        number = position // self._lanes.num_lanes - self._lanes.begin(lane, 1)
        frame = 0 if number < 0 else 1 + number // self._lanes.frame_positions
        records = self._states.get(lane, [])
        first = bisect_right(records, frame, key=lambda record: record[0]) - 1
        after = bisect_right(records, frame + OLDEST, key=lambda record: record[0])
        if first < 0:
            raise StateError(f"the journal has nothing of lane {lane} at its frame {frame} or before")
        return records[first][1], records[after][1] if after < len(records) else None

    def _state(self, lane: int, at: int) -> LaneState:
        frame, first_unit, data = self._states[lane][at]
        carry = carry_from_bytes(data, self._lanes, lane, frame) if data else ()
        return LaneState(lane, frame, first_unit, first_unit, carry)


def whole_bytes(data: bytes) -> int:
    """How many of the bytes are whole records: what is behind them was cut off."""
    at = 0
    for *_, carry in _records(data):
        at += _HEAD.size + len(carry)
    return at


def _records(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    at = 0
    while at + _HEAD.size <= len(data):
        place, counts = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + (counts & _LOW)
        if end > len(data):
            break
        found.append((place & _LOW, place >> 24, counts >> 24, data[at + _HEAD.size : end]))
        at = end
    return found
