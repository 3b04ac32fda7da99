"""Which lanes a rank has to walk, and what it costs where ranks share some."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.framed.lanes import Lanes
from headrace.plan.keys import IntArray
from headrace.plan.schedule import BatchSchedule
from headrace.plan.split import Share, micro_batches


def served_lanes(lanes: Lanes, schedule: BatchSchedule, share: Share, *, number: int) -> IntArray:
    """(n,) int64, rising: the lanes of a rank from unit ``number`` of the run on: what is left of that step, and the
    step after it. Every later step of the same size has no others than the latter.
    """
    _, begin, size, _ = schedule.locate(number)
    split = micro_batches(schedule, share, position=number, end=None, at_least=begin + size - number + 1)
    return np.unique(split.slots() % lanes.num_lanes)


class Serving(NamedTuple):
    """What a step of ``global_batch_size`` units costs a number of ranks.

    ``most_lanes`` and ``fewest_lanes`` of one rank; ``times_encoded``: how often a sample is encoded on average, 1.0
    where no two ranks have a lane in common.
    """

    num_lanes: int
    most_lanes: int
    fewest_lanes: int
    times_encoded: float

    def describe(self) -> str:
        """One line."""
        fewest = "" if self.most_lanes == self.fewest_lanes else f"{self.fewest_lanes} to "
        each = f"{fewest}{self.most_lanes}"
        line = f"{self.num_lanes} lanes, {each} a rank"
        if self.times_encoded == 1:
            return f"{line}; every sample is encoded once"
        return (
            f"{line}; every sample is encoded {self.times_encoded:.2f} times, since ranks times micro-batch do not "
            "divide the lanes: choose as many lanes as the global batch has units"
        )


def serving(lanes: Lanes, *, global_batch_size: int, world_size: int, micro_batch_size: int) -> Serving:
    """Of a step, for all ranks at once: O(global batch).

    Raises:
        ConfigError: the lanes do not divide the global batch, or a number is below 1.
    """
    if min(global_batch_size, world_size, micro_batch_size) < 1 or global_batch_size % lanes.num_lanes:
        raise ConfigError(
            f"{lanes.num_lanes} lanes, a global batch of {global_batch_size}, {world_size} ranks and micro-batches of "
            f"{micro_batch_size}: all are at least 1, and the lanes divide the global batch"
        )
    slots = np.arange(global_batch_size, dtype=np.int64)
    together = world_size * micro_batch_size
    full = global_batch_size // together * together
    left = max(1, global_batch_size - full)
    # Of L slots left, rank r has those from floor(rL/R) on: slot q is of the last rank that begins at it or before.
    ranks = np.where(
        slots < full,
        slots // micro_batch_size % world_size,
        ((slots - full + 1) * world_size - 1) // left,
    )
    pairs = np.unique(ranks * lanes.num_lanes + slots % lanes.num_lanes)
    counts = np.bincount(pairs // lanes.num_lanes, minlength=world_size)
    return Serving(lanes.num_lanes, int(counts.max()), int(counts.min()), len(pairs) / lanes.num_lanes)
