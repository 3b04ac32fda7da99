"""Best-fit decreasing over the histogram of the lengths: exact, and whole groups of documents at once.

Documents go longest first, each into the fullest pack that has room for it; of packs with the same room the one that
came to it first is taken. Documents of equal length are interchangeable here, and so are packs of equal room, so what
happens to many of them is one *event*: ``packs`` neighbouring packs take ``each`` documents of the same length.

    room 10, documents 7 7 7 3 3 2     7: packs 0, 1, 2 take 1 each        (room 3 is left)
                                       3: packs 0, 1 take 1 each           (they are full)
                                       2: pack 2 takes 1                   (room 1 is left)

A pack with room s takes floor(s / l) documents of length l in a row: s was the least room that is enough, so what is
left, if it is enough too, is the least again. The cost lies in the distinct lengths, a few events for each, about half
a microsecond an event.

Source: best-fit decreasing as in "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830) and TRL's ``bfd``,
whose packs, and order of packs, these are.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray

Queue = deque[tuple[int, int, int]]
_SPREAD = 1 << 16
"""Documents that are sent to their places together."""


class Placement(NamedTuple):
    """What happened, in order. All arrays are (events,) int64.

    The documents, longest first and in their own order among equals, are handed out one event after another: event e
    gives ``each[e]`` documents to every one of the ``packs[e]`` packs from ``first[e]`` on, which hold ``before[e]``
    documents each by then.
    """

    num_packs: int
    first: IntArray
    packs: IntArray
    each: IntArray
    before: IntArray
    room_left: int
    """Sum of the room left in all packs."""
    room_left_squares: int
    """Sum of its squares, for the deviation."""

    def bounds(self) -> NDArray[np.uint32]:
        """(num_packs + 1,): prefix sums of the documents in each pack."""
        steps = np.zeros(self.num_packs + 2, dtype=np.int64)
        np.add.at(steps, self.first + 1, self.each)
        np.add.at(steps, self.first + self.packs + 1, -self.each)
        np.cumsum(steps, out=steps)
        np.cumsum(steps, out=steps)
        return steps[:-1].astype(np.uint32)

    def places(self, bounds: NDArray[np.uint32]) -> Iterator[IntArray]:
        """For the documents in the order in which they are handed out, some at a time: their places, pack after pack.

        Place p belongs to the pack that has ``bounds[pack] <= p < bounds[pack + 1]``.
        """
        ends = np.cumsum(self.packs * self.each)
        begins = ends - self.packs * self.each
        total = int(ends[-1]) if len(ends) else 0
        for low in range(0, total, _SPREAD):
            high = min(low + _SPREAD, total)
            one = int(np.searchsorted(ends, low, side="right"))
            end = int(np.searchsorted(begins, high, side="left"))
            counts = np.minimum(ends[one:end], high) - np.maximum(begins[one:end], low)
            each = np.repeat(self.each[one:end], counts)
            number = np.arange(low, high, dtype=np.int64) - np.repeat(begins[one:end], counts)
            shift = number // each
            # number - shift * each is the how-manieth of its event in its pack.
            number -= shift * each
            shift += np.repeat(self.first[one:end], counts)
            number += bounds[shift]
            number += np.repeat(self.before[one:end], counts)
            yield number


class _Rooms:
    """Packs by the room that is left in them, in runs of neighbours that hold the same lengths.

    A run is (first pack, packs, documents in each). Among packs of the same room the first that came is the first out.
    """

    def __init__(self) -> None:
        self.runs: dict[int, Queue] = {}
        # Bit s is set where some pack has room s: the least room that is enough is one shift away.
        self._bits = 0

    def put(self, room: int, run: tuple[int, int, int]) -> None:
        if room:
            self.runs.setdefault(room, deque()).append(run)
            self._bits |= 1 << room

    def least(self, length: int) -> int:
        """The least room of at least ``length``, 0 if there is none."""
        enough = self._bits >> length
        return length + (enough & -enough).bit_length() - 1 if enough else 0

    def close(self, room: int) -> None:
        """Forget a room that no pack has any more."""
        del self.runs[room]
        self._bits &= ~(1 << room)


def place(counts: IntArray) -> Placement:
    """Best-fit decreasing of ``counts[l]`` documents of each length l = 0 .. capacity into packs of that capacity.

    O(events), a few for each distinct length. Documents of length 0 are not placed.
    """
    capacity = len(counts) - 1
    rooms = _Rooms()
    events = array("q")
    num_packs = 0
    lengths = np.flatnonzero(counts[1:])[::-1] + 1
    for length, count in zip(lengths.tolist(), counts[lengths].tolist(), strict=True):
        left = count
        while left and (room := rooms.least(length)):
            left = _fill(rooms, room, length, left, events)
        each = capacity // length
        for packs, documents in ((left // each, each), (1, left % each)):
            if packs and documents:
                events.extend((num_packs, packs, documents, 0))
                rooms.put(capacity - documents * length, (num_packs, packs, documents))
                num_packs += packs
    columns = np.frombuffer(events, dtype=np.int64).reshape(-1, 4).T
    left_over = [(room, packs) for room, runs in rooms.runs.items() for _, packs, _ in runs]
    return Placement(
        num_packs=num_packs,
        first=columns[0].copy(),
        packs=columns[1].copy(),
        each=columns[2].copy(),
        before=columns[3].copy(),
        room_left=sum(room * packs for room, packs in left_over),
        room_left_squares=sum(room * room * packs for room, packs in left_over),
    )


def _fill(rooms: _Rooms, room: int, length: int, left: int, events: array[int]) -> int:
    """Hand documents of a length to the packs with this room, in turn; returns how many documents are left."""
    runs = rooms.runs[room]
    each = room // length
    while runs and left:
        first, packs, before = runs.popleft()
        # The last documents of a length may be too few for one pack's room: that pack keeps more of it.
        documents, taken = (each, min(packs, left // each)) if left >= each else (left, 1)
        if taken < packs:
            runs.appendleft((first + taken, packs - taken, before))
        events.extend((first, taken, documents, before))
        rooms.put(room - documents * length, (first, taken, before + documents))
        left -= taken * documents
    if not runs:
        rooms.close(room)
    return left
