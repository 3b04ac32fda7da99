"""The saved state of lanes, and the journal of their frames, with their binary formats.

The state says how far each lane has come. It is all that a framed run saves beside its position, some dozens of bytes a
lane:

    version | num_lanes | frame_positions | number of states        a byte for the version, then varints (LEB128)
    lane | frame | first_unit | unit - first_unit | carry           for each state

    carry   a byte 0 if nothing is carried; else a mode, the number of items, and how far the first item is before the
            begin of the frame, in positions of the lane; then, by mode,
            1  the distance to each next item               2  the same, with the number of the output after each
            3  a bit for each position from the first on
            4  the most outputs of a position, and a bit for each output of each position

The carry holds only numbers; the samples are read and encoded again. It covers at most four frames: 512 bytes for 1,000
positions with one output each.

The journal records, while a run goes on, the state at the begin of each frame, so that any unit can be found again
without a replay of the run:

    word 0      frame << 24 | lane                  each word has 64 bits, little-endian
    word 1      first_unit << 24 | bytes of the carry
    the carry   as in a saved state

It takes 16 bytes a frame, and one or two bytes for each carried item. A record that is cut off at the end is ignored. A
record may occur twice, if the run was resumed from an earlier state; both are then the same.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import ConfigError, StateError
from headrace.plan.framed.lanes import OLDEST, Lanes, LaneState
from headrace.plan.keys import IntArray

VERSION = 1
_GAPS, _OUTPUTS, _BITS, _WIDE = 1, 2, 3, 4


def states_to_bytes(states: Sequence[LaneState], lanes: Lanes) -> bytes:
    """Return the states in the binary format above, in the order of ``states``."""
    data = bytearray([VERSION])
    for value in (lanes.num_lanes, lanes.frame_positions, len(states)):
        _put(data, value)
    for state in states:
        for value in (state.lane, state.frame, state.first_unit, state.unit - state.first_unit):
            _put(data, value)
        data += carry_to_bytes(state, lanes)
    return bytes(data)


def states_from_bytes(data: bytes, lanes: Lanes) -> tuple[LaneState, ...]:
    """Read the states back; undoes ``states_to_bytes``.

    Raises:
        StateError: the data have another version or other lanes, or are damaged.
    """
    if not data or data[0] != VERSION:
        raise StateError(
            f"the saved lanes have version {data[0] if data else None}; this Headrace reads version {VERSION}: use the "
            "version of Headrace that wrote them, or a newer one"
        )
    source = _Bytes(data, 1)
    found = source.number(), source.number()
    if found != (lanes.num_lanes, lanes.frame_positions):
        raise StateError(
            f"the saved state has {found[0]} lanes with frames of {found[1]} positions, but this run has "
            f"{lanes.num_lanes} lanes with frames of {lanes.frame_positions}: restore these numbers, or start a new "
            "run from position 0"
        )
    states = []
    for _ in range(source.number()):
        lane, frame, first_unit, ahead = (source.number() for _ in range(4))
        if lane >= lanes.num_lanes:
            raise StateError(f"the saved lanes are damaged: they hold lane {lane} of {lanes.num_lanes}")
        carry = source.carry(lanes, lane, frame)
        states.append(LaneState(lane, frame, first_unit, first_unit + ahead, carry))
    source.end()
    return tuple(states)


def states_to_dict(states: Sequence[LaneState], lanes: Lanes) -> dict[str, Any]:
    """Return the states as a JSON-safe dict, for ``Cursor.lanes``."""
    return {"version": VERSION, "states": b64encode(states_to_bytes(states, lanes)).decode()}


def states_from_dict(state: Mapping[str, Any], lanes: Lanes) -> tuple[LaneState, ...]:
    """Read the states back; undoes ``states_to_dict``.

    Raises:
        StateError: as ``states_from_bytes``, or the dict does not hold saved lanes.
    """
    if state.get("version") != VERSION or not isinstance(state.get("states"), str):
        raise StateError(
            f"these are not saved lanes of version {VERSION}: the fields are {sorted(state)}, and the version is "
            f"{state.get('version')!r}"
        )
    try:
        data = b64decode(state["states"], validate=True)
    except ValueError as error:
        raise StateError(f"the saved lanes are damaged: {error}") from error
    return states_from_bytes(data, lanes)


def lanes_in(state: Mapping[str, Any]) -> Lanes:
    """Return the lanes of a dict from ``states_to_dict``, without the length and the key of their run.

    They are enough to merge states and to write them again, since a saved carry counts positions within its lane.

    Raises:
        StateError: the dict does not hold saved lanes.
    """
    try:
        source = _Bytes(b64decode(state["states"], validate=True), 1)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the saved lanes are damaged: {type(error).__name__}: {error}") from error
    num_lanes, frame_positions = source.number(), source.number()
    if min(num_lanes, frame_positions) < 1:
        raise StateError(f"the saved lanes are damaged: {num_lanes} lanes with frames of {frame_positions} positions")
    return Lanes(num_lanes=num_lanes, frame_positions=frame_positions)


def merge_states(parts: Iterable[Iterable[LaneState]], lanes: Lanes, *, number: int) -> tuple[LaneState, ...]:
    """Return the states of all lanes from those that the ranks saved after the first ``number`` units of the run.

    If several ranks have a lane, the state in the latest frame is used, so that no more than one frame has to be
    encoded again.

    Raises:
        StateError: a lane is missing, since some parts are missing; or a lane is at another unit, since the parts were
            saved at different steps.
    """
    merged: dict[int, LaneState] = {}
    for state in (state for part in parts for state in part):
        wanted = lanes.next_unit(state.lane, number)
        if state.unit != wanted:
            raise StateError(
                f"lane {state.lane} is at its unit {state.unit} in a saved state, but after {number:,} units of the "
                f"run it must be at {wanted}: the files were saved at different steps"
            )
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
    """Return the carry of a lane in the shortest of the modes."""
    data = bytearray()
    if not state.carry:
        return b"\0"
    numbers = [position // lanes.num_lanes for position, _ in state.carry]
    outputs = [output for _, output in state.carry]
    width = 1 + max(outputs)
    plain = width == 1
    back = lanes.begin(state.lane, state.frame) - numbers[0]
    for before, number, output in zip([numbers[0], *numbers], numbers, outputs, strict=False):
        _put(data, number - before)
        if not plain:
            _put(data, output)
    mode = _GAPS if plain else _OUTPUTS
    if -(-back * width // 8) < len(data):
        bits = np.zeros(back * width, dtype=bool)
        bits[(np.array(numbers) - numbers[0]) * width + np.array(outputs)] = True
        mode, data = _BITS if plain else _WIDE, bytearray(np.packbits(bits).tobytes())
    head = bytearray([mode])
    for value in (len(numbers), back, *([width] if mode == _WIDE else [])):
        _put(head, value)
    return bytes(head + data)


def carry_from_bytes(data: bytes, lanes: Lanes, lane: int, frame: int) -> tuple[tuple[int, int], ...]:
    """Read a carry back; undoes ``carry_to_bytes``. Raises StateError for damaged bytes."""
    source = _Bytes(data, 0)
    carry = source.carry(lanes, lane, frame)
    source.end()
    return carry


def _put(data: bytearray, value: int) -> None:
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)


class _Bytes:
    """Reads bytes from the front and raises StateError where they do not fit the format."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise StateError(f"the saved lanes are damaged: they end too early, at byte {len(self._data)}")
        self._at += size
        return part

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if value >> 40:
                raise StateError(f"the saved lanes are damaged: the number before byte {self._at} is beyond 2^40")
            if byte < 128:
                return value

    def carry(self, lanes: Lanes, lane: int, frame: int) -> tuple[tuple[int, int], ...]:
        mode = self.take(1)[0]
        if mode == 0:
            return ()
        if mode not in (_GAPS, _OUTPUTS, _BITS, _WIDE):
            raise StateError(f"the saved lanes are damaged: the carry of lane {lane} has the unknown mode {mode}")
        count, back = self.number(), self.number()
        first = lanes.begin(lane, frame) - back
        outputs = [0] * count
        if mode in (_BITS, _WIDE):
            width = self.number() if mode == _WIDE else 1
            packed = np.frombuffer(self.take(-(-back * width // 8)), dtype=np.uint8)
            found = np.flatnonzero(np.unpackbits(packed, count=back * width))
            numbers: IntArray = first + found // max(1, width)
            outputs = (found % max(1, width)).tolist()
        else:
            gaps = []
            for item in range(count):
                gaps.append(self.number())
                outputs[item] = self.number() if mode == _OUTPUTS else 0
            numbers = first + np.cumsum(gaps, dtype=np.int64)
        if len(numbers) != count or not count or first < 0 or numbers[-1] >= first + back:
            raise StateError(
                f"the saved lanes are damaged: lane {lane} has {len(numbers)} carried items of {count}, or their "
                "positions are out of range"
            )
        positions = lanes.at(lane, numbers)
        return tuple(zip(positions.tolist(), outputs, strict=True))

    def end(self) -> None:
        if self._at != len(self._data):
            raise StateError(f"the saved lanes are damaged: {len(self._data) - self._at} bytes are left over")


_HEAD = struct.Struct("<QQ")
_LOW = (1 << 24) - 1


def journal_record(state: LaneState, lanes: Lanes) -> bytes:
    """Return the journal record of a frame that a lane begins.

    Raises:
        ConfigError: there are more than 2^24 lanes or bytes of carry, or more than 2^40 frames or units.
    """
    carry = carry_to_bytes(state, lanes) if state.carry else b""
    if max(state.lane, len(carry)) > _LOW or max(state.frame, state.first_unit) >> 40:
        raise ConfigError(
            f"frame {state.frame:,} of lane {state.lane:,}, with {state.first_unit:,} units before it and "
            f"{len(carry):,} bytes of carry, is too large for a journal: at most 2^24 lanes and bytes, and 2^40 frames "
            "and units"
        )
    return _HEAD.pack(state.frame << 24 | state.lane, state.first_unit << 24 | len(carry)) + carry


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
        carry = carry_from_bytes(data, self._lanes, lane, frame) if data else ()
        return LaneState(lane, frame, first_unit, first_unit, carry)


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
