"""How far each lane has come: all that a framed source keeps besides a position, some dozens of bytes a lane.

    version | num_lanes | frame_positions | number of states        varints (LEB128) but for the version, a byte
    lane | frame | first_unit | unit - first_unit | carry           for each state

    carry   0 and nothing, where there is none; else a mode, the number of items, and how far before the frame's begin,
            in positions of the lane, the first is; then
            1  the distance to each next one                2  the same, with the output after each
            3  a bit for each position from the first on
            4  how many outputs there are at most, and a bit for each of each position

What is carried on are numbers: the samples are read and encoded again. At most it is four frames, 512 bytes for 1,000
positions of one output each.

What was carried into each frame, written down as a run goes: any unit is found again without a replay.

    word 0      frame << 24 | lane                  each word 64 bits, little-endian
    word 1      first_unit << 24 | bytes of the carry
    the carry   as in a saved state

16 bytes a frame, and what it carries on: a byte or two an item. A record that is cut off at the end is left out, and
one that stands twice, because the run went on from an earlier state, is the same both times.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.errors import ConfigError, StateError
from headrace.plan.framed.lanes import OLDEST, Lanes
from headrace.plan.keys import IntArray

VERSION = 1
_GAPS, _OUTPUTS, _BITS, _WIDE = 1, 2, 3, 4


@dataclass(frozen=True)
class LaneState:
    """A lane that gives ``unit`` next, which is one of ``frame`` or of one after it.

    ``first_unit`` is how many units the lane had given before that frame; ``carry`` the (position, output) of each item
    that was carried on into it, rising.
    """

    lane: int
    frame: int = 0
    first_unit: int = 0
    unit: int = 0
    carry: tuple[tuple[int, int], ...] = ()

    def at(self, unit: int) -> LaneState:
        """The same lane where it gives another unit next, one not before the frame."""
        return replace(self, unit=unit)


def beginning(lanes: Lanes) -> tuple[LaneState, ...]:
    """All lanes before their first unit."""
    return tuple(LaneState(lane) for lane in range(lanes.num_lanes))


def states_to_bytes(states: Sequence[LaneState], lanes: Lanes) -> bytes:
    """The states in the order given."""
    data = bytearray([VERSION])
    for value in (lanes.num_lanes, lanes.frame_positions, len(states)):
        _put(data, value)
    for state in states:
        for value in (state.lane, state.frame, state.first_unit, state.unit - state.first_unit):
            _put(data, value)
        data += carry_to_bytes(state, lanes)
    return bytes(data)


def states_from_bytes(data: bytes, lanes: Lanes) -> tuple[LaneState, ...]:
    """Undoes ``states_to_bytes``.

    Raises:
        StateError: another version, other lanes, or damaged.
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
            f"the saved state is of {found[0]} lanes with frames of {found[1]} positions; this run has "
            f"{lanes.num_lanes} and {lanes.frame_positions}: restore them, or start a new run from position 0"
        )
    states = []
    for _ in range(source.number()):
        lane, frame, first_unit, ahead = (source.number() for _ in range(4))
        if lane >= lanes.num_lanes:
            raise StateError(f"the saved lanes are damaged: there is a lane {lane} of {lanes.num_lanes}")
        carry = source.carry(lanes, lane, frame)
        states.append(LaneState(lane, frame, first_unit, first_unit + ahead, carry))
    source.end()
    return tuple(states)


def states_to_dict(states: Sequence[LaneState], lanes: Lanes) -> dict[str, Any]:
    """The states as one dict that is safe for JSON, for ``Cursor.lanes``."""
    return {"version": VERSION, "states": b64encode(states_to_bytes(states, lanes)).decode()}


def states_from_dict(state: Mapping[str, Any], lanes: Lanes) -> tuple[LaneState, ...]:
    """Undoes ``states_to_dict``; raises StateError as ``states_from_bytes``, and for another dict."""
    if state.get("version") != VERSION or not isinstance(state.get("states"), str):
        raise StateError(f"these are no saved lanes of version {VERSION}: {sorted(state)}, {state.get('version')!r}")
    try:
        data = b64decode(state["states"], validate=True)
    except ValueError as error:
        raise StateError(f"the saved lanes are damaged: {error}") from error
    return states_from_bytes(data, lanes)


def lanes_in(state: Mapping[str, Any]) -> Lanes:
    """The lanes that a dict of ``states_to_dict`` is of, without length and key of their run; raises StateError: none.

    By them states can be merged and written again, as those hold numbers of positions in their lane.
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
    """The states of all lanes from those that the ranks saved after the first ``number`` units of the run.

    Where several ranks have a lane, the one that is further in its frames is taken: nobody has to encode more than one
    frame again.

    Raises:
        StateError: a lane is missing, or stands elsewhere: the parts are not all of them, or of different steps.
    """
    merged: dict[int, LaneState] = {}
    for state in (state for part in parts for state in part):
        wanted = lanes.next_unit(state.lane, number)
        if state.unit != wanted:
            raise StateError(
                f"lane {state.lane} stands at its unit {state.unit} in a saved state, and after {number:,} units of "
                f"the run it is at {wanted}: the files are of different steps"
            )
        known = merged.get(state.lane)
        if known is not None and known.frame == state.frame and known != state:
            raise StateError(f"two saved states differ in frame {state.frame} of lane {state.lane}")
        if known is None or known.frame < state.frame:
            merged[state.lane] = state
    if missing := sorted(set(range(lanes.num_lanes)) - merged.keys()):
        raise StateError(
            f"of {lanes.num_lanes} lanes {len(missing)} are in no saved state, the first is {missing[0]}: give the "
            "states of all ranks"
        )
    return tuple(merged[lane] for lane in range(lanes.num_lanes))


def carry_to_bytes(state: LaneState, lanes: Lanes) -> bytes:
    """What a lane carries on, in the shortest of the modes."""
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
    """Undoes ``carry_to_bytes``; raises StateError where the bytes are none."""
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
    """Reads from the front; whatever does not fit is damage."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise StateError(f"the saved lanes are damaged: they end at byte {len(self._data)}, in the middle of one")
        self._at += size
        return part

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if value >> 40:
                raise StateError(f"the saved lanes are damaged: a number before byte {self._at} is beyond 2^40")
            if byte < 128:
                return value

    def carry(self, lanes: Lanes, lane: int, frame: int) -> tuple[tuple[int, int], ...]:
        mode = self.take(1)[0]
        if mode == 0:
            return ()
        if mode not in (_GAPS, _OUTPUTS, _BITS, _WIDE):
            raise StateError(f"the saved lanes are damaged: what lane {lane} carries on has the mode {mode}")
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
            raise StateError(f"the saved lanes are damaged: lane {lane} carries on {len(numbers)} items of {count}")
        positions = lanes.at(lane, numbers)
        return tuple(zip(positions.tolist(), outputs, strict=True))

    def end(self) -> None:
        if self._at != len(self._data):
            raise StateError(f"the saved lanes are damaged: {len(self._data) - self._at} bytes are left over")


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
