"""The saved state of lanes, and the journal of their frames: records of the same form.

A record says where a frame of a lane begins, so that its units can be made again from there. The state has the record
of the frame in which the next unit of each lane is; which unit that is follows from the position of the run. The
journal has, while a run goes on, one for each frame that a lane begins, so that any unit can be found again without a
replay of the run.

    word 0      frame << 24 | lane                  each word has 64 bits, little-endian
    word 1      first_unit << 24 | bytes of the carry
    the carry   nothing if no item is carried; else numbers as varints (LEB128), then the places of the items

A record takes 16 bytes, and one or two bytes for each carried item. One that is cut off at the end of a journal is
ignored. One may occur twice there, if the run was resumed from an earlier state; both are then the same.

The carry holds only numbers; the samples are read and encoded again. It covers at most four frames: 512 bytes for 1,000
positions with one output each. The place of an item is the number of its position in the lane, from that of the first
item on, times the most outputs of a position, plus the number of its output:

    2 * most outputs + form | number of items | how far the first item is before the begin of the frame | places
    form    0   the distance of each place from the one before, as varints
            1   a bit for each place up to the begin of the frame, if that is shorter
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headrace.errors import ConfigError, StateError
from headrace.plan.cursor import SavedLanes
from headrace.plan.framed.lanes import OLDEST, Lanes, LaneState

_HEAD = struct.Struct("<QQ")
_LOW = (1 << 24) - 1
_MOST = 1 << 40


def journal_record(state: LaneState, lanes: Lanes) -> bytes:
    """Return the record of the frame that a lane begins, or is in.

    Raises:
        ConfigError: there are more than 2^24 lanes or bytes of carry, or more than 2^40 frames or units.
    """
    carry = carry_to_bytes(state, lanes)
    if max(state.lane, len(carry)) > _LOW or max(state.frame, state.first_unit) >= _MOST:
        raise ConfigError(
            f"frame {state.frame:,} of lane {state.lane:,}, with {state.first_unit:,} units before it and "
            f"{len(carry):,} bytes of carry, is too large for a record: at most 2^24 lanes and bytes, and 2^40 frames "
            "and units"
        )
    return _HEAD.pack(state.frame << 24 | state.lane, state.first_unit << 24 | len(carry)) + carry


def saved_lanes(states: Sequence[LaneState], lanes: Lanes) -> SavedLanes:
    """Return the states as a cursor holds them."""
    return SavedLanes(lanes.num_lanes, lanes.frame_positions, b"".join(journal_record(one, lanes) for one in states))


def read_lanes(saved: SavedLanes, lanes: Lanes, number: int) -> tuple[LaneState, ...]:
    """Return the states after the first ``number`` units of the run; undoes `saved_lanes`.

    Raises:
        StateError: they are those of other lanes, or are damaged.
    """
    if (saved.num_lanes, saved.frame_positions) != (lanes.num_lanes, lanes.frame_positions):
        raise StateError(
            f"the saved state has {saved.num_lanes} lanes with frames of {saved.frame_positions} positions, but this "
            f"run has {lanes.num_lanes} lanes with frames of {lanes.frame_positions}: restore these numbers, or start "
            "a new run from position 0"
        )
    states = []
    for lane, frame, first_unit, carry in _records(saved.states):
        unit = lanes.next_unit(lane, number)
        if lane >= lanes.num_lanes or first_unit > unit:
            raise StateError(
                f"the saved lanes are damaged: they hold lane {lane} of {lanes.num_lanes}, in a frame that begins with "
                f"unit {first_unit}, and after {number:,} units of the run its next unit is {unit}"
            )
        states.append(LaneState(lane, frame, first_unit, unit, carry_from_bytes(carry, lanes, lane, frame)))
    if (whole := whole_bytes(saved.states)) < len(saved.states):
        raise StateError(f"the saved lanes are damaged: they end within a record, which begins at byte {whole}")
    return tuple(states)


def merge_states(parts: Iterable[Iterable[LaneState]], lanes: Lanes) -> tuple[LaneState, ...]:
    """Return the states of all lanes from those that the ranks saved after the same unit of the run.

    If several ranks have a lane, the state in the latest frame is used, so that no more than one frame has to be
    encoded again.

    Raises:
        StateError: a lane is missing, since some parts are missing.
    """
    merged: dict[int, LaneState] = {}
    for state in (state for part in parts for state in part):
        known = merged.get(state.lane)
        if known is not None and known.frame == state.frame and known != state:
            raise StateError(f"two saved states differ in frame {state.frame} of lane {state.lane}")
        if known is None or known.frame < state.frame:
            merged[state.lane] = state
    if missing := sorted(set(range(lanes.num_lanes)) - merged.keys()):
        raise StateError(
            f"{len(missing)} of {lanes.num_lanes} lanes are in no saved state, the first is lane {missing[0]}: pass "
            "the states of all ranks"
        )
    return tuple(merged[lane] for lane in range(lanes.num_lanes))


def carry_to_bytes(state: LaneState, lanes: Lanes) -> bytes:
    """Return the carry of a lane, in the shorter of its two forms."""
    if not state.carry:
        return b""
    first = state.carry[0][0] // lanes.num_lanes
    back = lanes.begin(state.lane, state.frame) - first
    width = 1 + max(output for _, output in state.carry)
    places = [(position // lanes.num_lanes - first) * width + output for position, output in state.carry]
    data = bytearray()
    for before, place in zip([0, *places], places, strict=False):
        _put(data, place - before)
    if is_bits := -(-back * width // 8) < len(data):
        bits = np.zeros(back * width, dtype=bool)
        bits[places] = True
        data = bytearray(np.packbits(bits).tobytes())
    head = bytearray()
    for value in (2 * width + is_bits, len(places), back):
        _put(head, value)
    return bytes(head + data)


def carry_from_bytes(data: bytes, lanes: Lanes, lane: int, frame: int) -> tuple[tuple[int, int], ...]:
    """Read a carry back; undoes ``carry_to_bytes``. Raises StateError for damaged bytes."""
    if not data:
        return ()
    numbers = _numbers(data)
    (kind, _), (count, _), (back, end) = (next(numbers, (0, len(data))) for _ in range(3))
    width, is_bits = divmod(kind, 2)
    first = lanes.begin(lane, frame) - back
    if is_bits:
        places = np.flatnonzero(np.unpackbits(np.frombuffer(data[end:], np.uint8)))
    else:
        places = np.cumsum([gap for gap, _ in numbers], dtype=np.int64)
    if len(places) != count or not count or first < 0 or int(places[-1]) >= back * width:
        raise StateError(
            f"the saved lanes are damaged: lane {lane} has {len(places)} carried items of {count}, or their positions "
            "are out of range"
        )
    positions = lanes.at(lane, first + places // width)
    return tuple(zip(positions.tolist(), (places % width).tolist(), strict=True))


def _put(data: bytearray, value: int) -> None:
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)


def _numbers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the varints of some bytes, each with the place behind it. Raises StateError where they are none."""
    value = shift = 0
    for end, byte in enumerate(data, start=1):
        value |= (byte & 127) << shift
        shift += 7
        if value >= _MOST:
            break
        if byte < 128:
            yield value, end
            value = shift = 0
    if shift:
        raise StateError(f"the saved lanes are damaged: a number of their {len(data)} bytes is beyond 2^40, or cut off")


class Journal:
    """The journal of a run, from its bytes. O(records) to read; a lookup is O(log frames).

    Raises:
        StateError: two records contradict each other, or a record belongs to a lane that the run does not have.
    """

    def __init__(self, data: bytes, lanes: Lanes) -> None:
        self._lanes = lanes
        self._states: dict[int, list[tuple[int, int, bytes]]] = {}
        for lane, frame, first_unit, carry in _records(data):
            if lane >= lanes.num_lanes:
                raise StateError(f"the journal has a record of lane {lane}, but this run has {lanes.num_lanes} lanes")
            self._states.setdefault(lane, []).append((frame, first_unit, carry))
        for lane, records in self._states.items():
            kept = sorted(set(records))
            frames, firsts = [record[0] for record in kept], [record[1] for record in kept]
            if len(set(frames)) < len(frames) or firsts != sorted(firsts):
                raise StateError(f"the journal contradicts itself in lane {lane}: it comes from more than one run")
            self._states[lane] = kept

    def unit(self, lane: int, unit: int) -> LaneState:
        """Return a state from which a unit can be made again: the last recorded frame that begins at or before it.

        Raises:
            StateError: the lane has no record so early.
        """
        records = self._states.get(lane, [])
        at = bisect_right(records, unit, key=lambda record: record[1]) - 1
        # Frames without units begin at the same unit as the frame that makes it, which is the last of them.
        if at < 0:
            raise StateError(f"the journal has no record of lane {lane} at its unit {unit} or before")
        return self._state(lane, at).at(unit)

    def frames(self, lane: int, unit: int) -> tuple[LaneState, int] | None:
        """Return the state from which a unit can be made again, and the last frame that can hold the unit.

        If every frame was recorded, this is the frame of the state. Returns None if the lane ends before the unit.

        Raises:
            StateError: the lane has no record so early, or the unit had not been planned yet.
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
        """Return the last recorded frame of a lane and the number of units before it; (0, 0) without records."""
        records = self._states.get(lane)
        return records[-1][:2] if records else (0, 0)

    def units_of(self, position: int) -> tuple[int, int | None]:
        """Return the range of units, of its lane, that can hold an item of a position.

        The range is the first unit, and the one after the last or None if that is not recorded.

        Raises:
            StateError: the lane has no record so early.
        """
        lane = self._lanes.lane_of(position)
        number = position // self._lanes.num_lanes - self._lanes.begin(lane, 1)
        frame = 0 if number < 0 else 1 + number // self._lanes.frame_positions
        records = self._states.get(lane, [])
        first = bisect_right(records, frame, key=lambda record: record[0]) - 1
        after = bisect_right(records, frame + OLDEST, key=lambda record: record[0])
        if first < 0:
            raise StateError(f"the journal has no record of lane {lane} at its frame {frame} or before")
        return records[first][1], records[after][1] if after < len(records) else None

    def _state(self, lane: int, at: int) -> LaneState:
        frame, first_unit, data = self._states[lane][at]
        return LaneState(lane, frame, first_unit, first_unit, carry_from_bytes(data, self._lanes, lane, frame))


def whole_bytes(data: bytes) -> int:
    """Return how many of the bytes are whole records; the rest was cut off while writing."""
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
