"""Which positions a run has given, when its ranks took so many slots together."""

from __future__ import annotations

import numpy as np

from headrace import Run
from headrace.plan import IntArray


def positions_of(run: Run, slots: IntArray) -> IntArray:
    """(n,) int64: the position that each slot takes, drawn or its own."""
    return slots if run.draw is None else run.draw.positions(slots)


def slots_of(run: Run, positions: IntArray) -> IntArray:
    """(n,) int64: the slots that take some positions, in any order."""
    return positions if run.draw is None else run.draw.slots(np.sort(positions))


def first_positions(run: Run, num_slots: int) -> list[int]:
    """The positions of the first slots, in order of their numbers."""
    return sorted(positions_of(run, np.arange(num_slots)).tolist())
