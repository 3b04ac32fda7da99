"""Pieces to packs, within one window of documents or over all of them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray
from headrace.plan.next_fit import next_fit
from headrace.plan.packing.best_fit import Placement, place
from headrace.plan.packing.first_fit import first_fit
from headrace.plan.packing.lengths import Lengths
from headrace.plan.packing.options import Packing
from headrace.plan.packing.survey import Survey, units

Sizes = NDArray[np.integer[Any]]


class Arrangement(NamedTuple):
    """Packs as runs of pieces.

    ``order`` (pieces,): which piece is in each place, pack after pack; None: each in its own. ``bounds`` (packs + 1,)
    uint32: the first place of each pack. ``filled`` and ``squares``: sums over the packs of the units that are filled,
    and of their squares.
    """

    order: IntArray | None
    bounds: NDArray[np.uint32]
    filled: int
    squares: float


def arrange(sizes: Sizes, packing: Packing) -> Arrangement:
    """Pack pieces of these sizes, (pieces,) integers from 1 to the capacity, in the order of their arrival."""
    capacity = packing.capacity
    if packing.strategy == "greedy":
        firsts = next_fit(cast("IntArray", sizes), capacity)
        filled = np.add.reduceat(sizes, firsts[:-1], dtype=np.int64) if len(firsts) > 1 else np.zeros(0, dtype=np.int64)
        return Arrangement(None, firsts.astype(np.uint32), int(filled.sum()), _squares(filled))
    if packing.strategy == "first_fit":
        packs, room = first_fit(sizes, capacity)
        ends = np.cumsum(np.bincount(packs, minlength=len(room)))
        filled = capacity - room
        order = np.argsort(packs, kind="stable")
        return Arrangement(order, np.append(0, ends).astype(np.uint32), int(filled.sum()), _squares(filled))
    placement = place(np.bincount(sizes, minlength=capacity + 1))
    bounds = placement.bounds()
    by_length = np.argsort(-sizes, kind="stable")
    order = np.empty_like(by_length)
    at = 0
    for places in placement.places(bounds):
        order[places] = by_length[at : at + len(places)]
        at += len(places)
    return Arrangement(order, bounds, *filling(placement, capacity))


def _squares(filled: IntArray) -> float:
    """As a float, which no number of long packs overflows."""
    return float(np.square(filled, dtype=np.float64).sum())


def filling(placement: Placement, capacity: int) -> tuple[int, int]:
    """Sum of the filled units of all packs of a placement, and of their squares."""
    whole = placement.num_packs * capacity
    filled = whole - placement.room_left
    return filled, whole * capacity - 2 * capacity * placement.room_left + placement.room_left_squares


def by_length(lengths: Lengths, survey: Survey, packing: Packing) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Documents by the units of their own piece, longest first, equal ones in order; and where each size begins.

    A counting sort: (documents with a piece,) uint32 and (distinct sizes + 1,) uint32, prefix sums.
    """
    sizes = np.flatnonzero(survey.counts[1:])[::-1] + 1
    begins = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(survey.counts[sizes], out=begins[1:])
    # NumPy sorts 16-bit keys by radix, and there are rarely more sizes than these hold.
    class_of = np.full(packing.capacity + 1, len(sizes), dtype=np.uint16 if len(sizes) < 1 << 16 else np.uint32)
    class_of[sizes] = np.arange(len(sizes))
    found = np.empty(int(begins[-1]), dtype=np.uint32)
    heads = begins[:-1].copy()
    document = 0
    for chunk in lengths.chunks():
        classes = class_of[units(chunk.astype(np.int64, copy=False), packing)]
        counts = np.bincount(classes, minlength=len(sizes) + 1)[: len(sizes)]
        ends = np.cumsum(counts)
        num_pieces = int(ends[-1]) if len(ends) else 0
        # Documents without a piece are the last class, and left out.
        order = np.argsort(classes, kind="stable")[:num_pieces]
        ranks = np.arange(num_pieces, dtype=np.int64)
        ranks += np.repeat(heads - (ends - counts), counts)
        found[ranks] = order + document
        heads += counts
        document += len(chunk)
    return found, begins.astype(np.uint32)
