"""Which pack each document goes into: by best fit, by first fit, or by next fit.

Best-fit decreasing works on the histogram of the lengths: it is exact, but for whole groups of documents at once.
Documents are placed longest first, each into the fullest pack that has room for it. Among packs with the same room, the
one that reached this room first is taken. Documents of equal length are interchangeable here, and so are packs of equal
room, so many placements are one *event*: ``packs`` neighbouring packs take ``each`` documents of the same length.

    room 10, documents 7 7 7 3 3 2     7: packs 0, 1, 2 take 1 each        (room 3 is left)
                                       3: packs 0, 1 take 1 each           (they are full)
                                       2: pack 2 takes 1                   (room 1 is left)

A pack with room s takes floor(s / l) documents of length l in a row: s was the least room that is enough, so if the
rest is enough too, it is again the least. A pack with the most documents that it may have takes no more, whatever its
room. The cost depends on the number of distinct lengths, with a few events for each length and about half a microsecond
an event.

Source: best-fit decreasing as in "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830) and TRL's ``bfd``;
the packs and their order are the same as TRL's.

First-fit and next-fit pack in the order of arrival. First-fit puts each piece into the first pack that has room for it.
Next-fit fills one pack at a time and begins a new one when the next document does not fit.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.packing.lengths import CHUNK

Queue = deque[tuple[int, int, int]]
_SPREAD = 1 << 16
"""How many documents are assigned to their places at a time."""


class Placement(NamedTuple):
    """The events of a packing, in order. All arrays are (num_events,) int64.

    The documents, longest first and in the order of the store among equals, are distributed event by event: event e
    puts ``each[e]`` documents into each of the ``packs[e]`` packs from ``first[e]`` on, each of which already holds
    ``before[e]`` documents.
    """

    num_packs: int
    first: IntArray
    packs: IntArray
    each: IntArray
    before: IntArray
    room_left: int
    """The sum of the room left in all packs."""

    def bounds(self) -> NDArray[np.uint32]:
        """Return (num_packs + 1,) uint32: prefix sums of the number of documents in each pack."""
        steps = np.zeros(self.num_packs + 2, dtype=np.int64)
        np.add.at(steps, self.first + 1, self.each)
        np.add.at(steps, self.first + self.packs + 1, -self.each)
        np.cumsum(steps, out=steps)
        np.cumsum(steps, out=steps)
        return steps[:-1].astype(np.uint32)

    def places(self, bounds: NDArray[np.uint32]) -> Iterator[IntArray]:
        """Yield the places of the documents, in the order in which they are distributed, some documents at a time.

        Places count pack after pack: place p belongs to the pack with ``bounds[pack] <= p < bounds[pack + 1]``.
        """
        ends = np.cumsum(self.packs * self.each)
        begins = ends - self.packs * self.each
        total = int(ends[-1]) if len(ends) else 0
        for low in range(0, total, _SPREAD):
            high = min(low + _SPREAD, total)
            first_event = int(np.searchsorted(ends, low, side="right"))
            end_event = int(np.searchsorted(begins, high, side="left"))
            counts = np.minimum(ends[first_event:end_event], high) - np.maximum(begins[first_event:end_event], low)
            each = np.repeat(self.each[first_event:end_event], counts)
            number = np.arange(low, high, dtype=np.int64) - np.repeat(begins[first_event:end_event], counts)
            shift = number // each
            # number - shift * each counts the documents of this event within their pack.
            number -= shift * each
            shift += np.repeat(self.first[first_event:end_event], counts)
            number += bounds[shift]
            number += np.repeat(self.before[first_event:end_event], counts)
            yield number


class _Rooms:
    """Packs by the room that is left in them, in runs of neighbours that hold the same lengths.

    A run is (first pack, number of packs, documents in each). Packs with the same room are taken first in, first out.
    ``closed`` are the (room, packs) of runs that have room, but hold ``most_pieces`` documents; 0 is no such limit.
    """

    def __init__(self, most_pieces: int) -> None:
        self.runs: dict[int, Queue] = {}
        self.most_pieces = most_pieces
        self.closed: list[tuple[int, int]] = []
        # Bit s is set if some pack has room s, so that one shift finds the least room that is enough.
        self._bits = 0

    def put(self, room: int, run: tuple[int, int, int]) -> None:
        if room and run[2] == self.most_pieces:
            self.closed.append((room, run[1]))
        elif room:
            self.runs.setdefault(room, deque()).append(run)
            self._bits |= 1 << room

    def least(self, length: int) -> int:
        """The least room in any pack that is at least ``length``, or 0 if there is none."""
        enough = self._bits >> length
        return length + (enough & -enough).bit_length() - 1 if enough else 0

    def close(self, room: int) -> None:
        """Remove a room that no pack has any more."""
        del self.runs[room]
        self._bits &= ~(1 << room)


def place(counts: IntArray, most_pieces: int = 0) -> Placement:
    """Place ``counts[l]`` documents of each length l = 0 .. capacity into packs of that capacity, best-fit decreasing.

    A pack holds at most ``most_pieces`` documents, if this is not 0. O(events), with a few events for each distinct
    length. Documents of length 0 are not placed.
    """
    capacity = len(counts) - 1
    rooms = _Rooms(most_pieces)
    events = array("q")
    num_packs = 0
    lengths = np.flatnonzero(counts[1:])[::-1] + 1
    for length, count in zip(lengths.tolist(), counts[lengths].tolist(), strict=True):
        left = count
        while left and (room := rooms.least(length)):
            left = _fill(rooms, room, length, left, events)
        each = min(capacity // length, rooms.most_pieces or capacity)
        for packs, documents in ((left // each, each), (1, left % each)):
            if packs and documents:
                events.extend((num_packs, packs, documents, 0))
                rooms.put(capacity - documents * length, (num_packs, packs, documents))
                num_packs += packs
    columns = np.frombuffer(events, dtype=np.int64).reshape(-1, 4).T
    left_over = [(room, packs) for room, runs in rooms.runs.items() for _, packs, _ in runs] + rooms.closed
    return Placement(
        num_packs=num_packs,
        first=columns[0].copy(),
        packs=columns[1].copy(),
        each=columns[2].copy(),
        before=columns[3].copy(),
        room_left=sum(room * packs for room, packs in left_over),
    )


def _fill(rooms: _Rooms, room: int, length: int, left: int, events: array[int]) -> int:
    """Put documents of one length into the packs with this room, in turn; return how many documents are left."""
    runs = rooms.runs[room]
    each = room // length
    while runs and left:
        first, packs, before = runs.popleft()
        if rooms.most_pieces:
            each = min(room // length, rooms.most_pieces - before)
        # The last documents of a length may be too few to fill the room of one pack, which then keeps more room.
        documents, taken = (each, min(packs, left // each)) if left >= each else (left, 1)
        if taken < packs:
            runs.appendleft((first + taken, packs - taken, before))
        events.extend((first, taken, documents, before))
        rooms.put(room - documents * length, (first, taken, before + documents))
        left -= taken * documents
    if not runs:
        rooms.close(room)
    return left


def first_fit(
    sizes: NDArray[np.integer[Any]], capacity: int, most_pieces: int = 0
) -> tuple[NDArray[np.uint32], IntArray]:
    """Return the pack of each piece, (num_pieces,) uint32, and the room left in each pack, (num_packs,) int64.

    A pack holds at most ``most_pieces`` pieces, if this is not 0; after that the tree says that it has no room.

    A binary tree over the packs holds the most room below each node. The first pack with room is found by walking down
    the tree: O(log packs) a piece, 1 to 3 us. The tree doubles when it is full.
    """
    width = 1024
    # Packs that are not open yet have all their room, so the next new pack is found like any other.
    most = array("q", [capacity]) * (2 * width)
    num_packs = 0
    chosen = array("I")
    held, closed = Counter[int](), dict[int, int]()
    for first in range(0, len(sizes), CHUNK):
        for size in sizes[first : first + CHUNK].tolist():
            if most[1] < size:
                most = _doubled(most, width, capacity)
                width *= 2
            node = 1
            while node < width:
                node *= 2
                if most[node] < size:
                    node += 1
            pack = node - width
            if pack == num_packs:
                num_packs += 1
            chosen.append(pack)
            most[node] -= size
            if most_pieces:
                held[pack] += 1
                if held[pack] == most_pieces:
                    closed[pack], most[node] = most[node], 0
            while node > 1:
                node //= 2
                left, right = most[2 * node], most[2 * node + 1]
                larger = left if left > right else right
                if most[node] == larger:
                    break
                most[node] = larger
    room = np.array(most[width : width + num_packs], dtype=np.int64)
    room[list(closed)] = list(closed.values())
    return np.frombuffer(chosen, dtype=np.uint32), room


def _doubled(most: array[int], width: int, capacity: int) -> array[int]:
    """The tree over twice as many packs: each level is twice as wide, and its new half has all its room."""
    wider = array("q", [capacity]) * (4 * width)
    level = 1
    while level <= width:
        wider[2 * level : 3 * level] = most[level : 2 * level]
        level *= 2
    return wider


_CHUNK = 16_384
"""Documents in a chunk: few enough that their sums stay in the CPU's cache, and that few are processed twice."""


def next_fit(lengths: IntArray, seq_len: int, most_pieces: int = 0) -> IntArray:
    """Return (num_packs + 1,) int64: the first document of each pack, and the number of documents at the end.

    A pack holds at most ``most_pieces`` documents, if this is not 0.

    ``lengths`` is (n,) int64, each in [0, seq_len]. A document without tokens joins the current pack. Every pack has
    tokens: if no document has any there are no packs, and the result is ``[n]``.

    For example, documents of 3, 2, 0, 2 and 2 tokens in packs of 6 are packed as (3, 2, 0) and (2, 2), and the result
    is ``[0, 3, 5]``.

    Takes about 30 ns of CPU a document and 30 ns a pack, and the memory of the result and of one chunk of documents.

    Raises:
        ConfigError: ``seq_len`` is below 1, or a length is below 0 or above ``seq_len``; the message names the
            document.
    """
    if seq_len < 1:
        raise ConfigError(f"seq_len is at least 1, found {seq_len}")
    if not lengths.any():
        return np.array([len(lengths)], dtype=np.int64)
    firsts = [np.zeros(1, dtype=np.int64)]
    begin, size = 0, _CHUNK
    while True:
        chunk = lengths[begin : begin + size]
        after = _chain(chunk, seq_len, begin, most_pieces)
        firsts.append(after + begin)
        if begin + len(chunk) == len(lengths):
            break
        # The end of the chunk cuts a pack. The next chunk begins with that pack, and is longer if the pack fills it.
        begin, size = (begin + int(after[-1]), _CHUNK) if len(after) else (begin, 2 * size)
    return np.concatenate([*firsts, np.array([len(lengths)], dtype=np.int64)])


def _chain(lengths: IntArray, seq_len: int, begin: int, most_pieces: int) -> IntArray:
    """(k,) int64: where in a chunk each pack but the first begins; ``begin`` documents come before the chunk."""
    if lengths.min() < 0 or lengths.max() > seq_len:
        wrong = int(np.flatnonzero((lengths < 0) | (lengths > seq_len))[0])
        raise ConfigError(
            f"document {begin + wrong} has {lengths[wrong]:,} tokens; allowed are 0 to {seq_len:,}: split, truncate"
            " or drop longer documents, or increase seq_len"
        )
    sums = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=sums[1:])
    # For each document, the first one that does not fit into a pack beginning with it. Following these from pack to
    # pack takes one Python step a pack, and an array of the standard library is the fastest to index one by one.
    ends = np.searchsorted(sums, sums[:-1] + seq_len, side="right") - 1
    if most_pieces:
        ends = np.minimum(ends, np.arange(len(lengths)) + most_pieces)
    after = array("q", ends.tobytes())
    chain = []
    at = after[0]
    while at < len(lengths):
        chain.append(at)
        at = after[at]
    return np.array(chain, dtype=np.int64)
