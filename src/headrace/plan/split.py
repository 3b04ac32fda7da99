"""The split of a step's slots over data-parallel ranks and micro-steps.

Micro-step j of rank r of R takes the micro-batch at offset (j*R + r)*M of the step, as Megatron does. Where R*M does
not divide the step, the L slots left for the last micro-step are assigned as [floor(rL/R), floor((r+1)L/R)) to rank r.

    step of 11 slots, R = 2 ranks, M = 2     rank 0: [0 1] [4 5] [8]
                                             rank 1: [2 3] [6 7] [9 10]

After each micro-step the ranks together have taken a prefix of the slots. So the number of slots taken is the whole
state even in the middle of a step, and the rest of a step can be split anew over other ranks and micro-batches.

Slots are numbered as positions are. Each slot takes the position of its own number, unless the slots of a step are
drawn (see `slots`) or balanced (see `balance`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.plan.keys import IntArray
from headrace.plan.schedule import BatchSchedule


@dataclass(frozen=True)
class Share:
    """The part of a step that one rank takes: ``rank`` of ``world_size``, ``micro_batch_size`` samples at a time."""

    rank: int
    world_size: int
    micro_batch_size: int

    def divides(self, num_positions: int) -> bool:
        """Return whether every rank has only full micro-batches in a step of this many positions."""
        return num_positions % (self.world_size * self.micro_batch_size) == 0


@dataclass(frozen=True)
class MicroBatches:
    """Consecutive micro-batches of one rank; all arrays are (n,) int64.

    A micro-batch takes the slots ``[begin, begin + size)`` given by ``begins`` and ``sizes``; a size may be 0 in the
    last micro-step of an uneven step. ``steps`` is the step of each micro-batch. ``afters`` is how many slots of the
    run have been taken once all ranks have finished that micro-step.
    """

    begins: IntArray
    sizes: IntArray
    steps: IntArray
    afters: IntArray

    def __len__(self) -> int:
        return len(self.begins)

    def slots(self) -> IntArray:
        """Return (sum of sizes,) int64: the slots of all micro-batches, one after another."""
        ends = np.cumsum(self.sizes)
        within = np.arange(ends[-1] if len(self) else 0, dtype=np.int64)
        shift: IntArray = np.repeat(self.begins - (ends - self.sizes), self.sizes)
        return within + shift


def micro_batches(
    schedule: BatchSchedule, share: Share, *, position: int, end: int | None, at_least: int
) -> MicroBatches:
    """Return the micro-batches of a rank from ``position`` on: whole steps over at least ``at_least`` slots.

    ``position`` is how many slots have been taken. It may lie within a step, after any micro-step of any split.
    ``end`` is the length of the run, at which the micro-batches stop, or None.
    """
    parts: list[MicroBatches] = []
    target = position + at_least if end is None else min(position + at_least, end)
    while position < target:
        step, begin, size, num_equal = schedule.locate(position)
        num_steps = -(-(target - position) // size)
        if num_equal is not None:
            num_steps = min(num_steps, num_equal)
        if end is not None:
            num_steps = min(num_steps, (end - begin) // size)
        if begin == position and num_steps > 0:
            part = _steps(step, position, size, num_steps, share)
            position += num_steps * size
        else:
            stop = begin + size if end is None else min(begin + size, end)
            part = _steps(step, position, stop - position, 1, share)
            position = stop
        parts.append(part)
    columns = ("begins", "sizes", "steps", "afters")
    empty = np.empty(0, dtype=np.int64)
    return MicroBatches(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in columns))


def uneven_bounds(num_slots: int, world_size: int) -> IntArray:
    """Return (world_size + 1,) int64: where the part of each rank begins in the last micro-step of an uneven step."""
    return np.arange(world_size + 1, dtype=np.int64) * num_slots // world_size


def taken_by(offset: int, size: int, world_size: int, micro_batch_size: int) -> tuple[int, int]:
    """Return the rank and the micro-step that take the slot at an offset in a step of ``size`` slots.

    If a run resumes in the middle of a step, offset and size count within the rest of that step.
    """
    together = world_size * micro_batch_size
    micro_step, within = divmod(offset, together)
    if (left := size - micro_step * together) >= together:
        return within // micro_batch_size, micro_step
    # The last rank whose part begins at the slot or before it: floor(r * left / ranks) <= within.
    return -(-(within + 1) * world_size // left) - 1, micro_step


def _steps(step: int, position: int, size: int, num_steps: int, share: Share) -> MicroBatches:
    """The micro-batches of a rank in ``num_steps`` equal steps of ``size`` slots from ``position`` on."""
    together = share.world_size * share.micro_batch_size
    full = size // together
    offsets = np.arange(full, dtype=np.int64) * together + share.rank * share.micro_batch_size
    sizes = np.full(full, share.micro_batch_size, dtype=np.int64)
    afters = (np.arange(full, dtype=np.int64) + 1) * together
    if left := size - full * together:
        low, high = uneven_bounds(left, share.world_size)[share.rank : share.rank + 2].tolist()
        offsets = np.append(offsets, full * together + low)
        sizes = np.append(sizes, high - low)
        afters = np.append(afters, size)
    begins = position + size * np.arange(num_steps, dtype=np.int64)[:, None]
    steps = np.arange(step, step + num_steps, dtype=np.int64)
    return MicroBatches(
        begins=(begins + offsets).ravel(),
        sizes=np.tile(sizes, num_steps),
        steps=np.repeat(steps, sizes.size),
        afters=(begins + afters).ravel(),
    )
