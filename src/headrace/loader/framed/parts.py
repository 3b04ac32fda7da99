"""The micro-batches of one rank cut into parts, each of which one reader makes: a lane is always of the same reader.

    4 lanes, micro-batches of 2, 2 readers     lanes 0 1 -> reader 0, lanes 2 3 -> reader 1
    4 lanes, micro-batches of 4, 2 readers     lanes 0 1 -> reader 0, lanes 2 3 -> reader 1, two parts each

Whoever carries the parts deals them to the readers in turn, so that where it is another reader's turn an empty part
goes out first. In most runs there are none: a step has the same slots each time, and as many parts as readers, or a
multiple of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from headrace.plan import BatchSchedule, IntArray, MicroBatches, Share, micro_batches
from headrace.plan.framed import Lanes, LaneState

_PLAN_UNITS = 1024
"""Units planned at a time."""


class Part(NamedTuple):
    """Units of one micro-batch that one reader makes.

    Attributes:
        numbers: (n,) int64: the units, by their numbers in the run, rising; none to pass a turn, or of an empty batch.
        is_whole: whether they are all of the micro-batch, and the reader makes the batch.
        step: the global step.
        after: the position once the micro-batch is taken, in its last part; None in all others.
        states: of all lanes that may come, in the first part of each reader; None: go on.
        leaves: (n,) int64: lanes that come no more, since what was left of a step was dealt in another way than whole
            steps are. Told once to each reader.
    """

    numbers: IntArray
    is_whole: bool
    step: int
    after: int | None
    states: tuple[LaneState, ...] | None
    leaves: IntArray


def coming_steps(schedule: BatchSchedule, share: Share, position: int) -> list[MicroBatches]:
    """A rank's micro-batches of one whole step of each size from a position on, and of what is left of a step there.

    Between them they have all slots of a rank that may come, were the run to go on without an end.
    """
    step, begin, _, _ = schedule.locate(position)
    whole = [step + (position > begin), *(first for first, _ in schedule.pieces if first > step)]
    begins = [schedule.begin(first) for first in whole]
    if position > begin:
        begins.append(position)
    return [micro_batches(schedule, share, position=first, end=None, at_least=1) for first in begins]


def lanes_of(steps: Sequence[MicroBatches], lanes: Lanes) -> IntArray:
    """(n,) int64, rising: the lanes that have a unit in some steps."""
    numbers = [np.zeros(0, dtype=np.int64), *(planned.slots() for planned in steps)]
    return np.unique(np.concatenate(numbers) % lanes.num_lanes)


def readers_of(steps: Sequence[MicroBatches], lanes: Lanes, num_readers: int) -> IntArray:
    """(num_lanes,) int64: the reader of each lane that occurs in some steps, -1 for all others.

    Whole micro-batches go to the readers in turn where that comes out even, else equal parts of each do.
    """
    readers = np.full(lanes.num_lanes, -1, dtype=np.int64)
    for planned in steps:
        fresh: list[list[int]] = []
        for begin, size in zip(planned.begins.tolist(), planned.sizes.tolist(), strict=True):
            known = {lane for found in fresh for lane in found}
            found = dict.fromkeys(number % lanes.num_lanes for number in range(begin, begin + size))
            fresh.append([lane for lane in found if readers[lane] < 0 and lane not in known])
        fresh = [found for found in fresh if found]
        if not fresh:
            continue
        cuts = min(max(map(len, fresh)), num_readers // gcd(len(fresh), num_readers))
        pieces = [piece for found in fresh for piece in np.array_split(np.array(found, dtype=np.int64), cuts)]
        for turn, piece in enumerate(pieces):
            readers[piece] = turn % num_readers
    return readers


def parts(
    schedule: BatchSchedule,
    lanes: Lanes,
    share: Share,
    states: tuple[LaneState, ...],
    *,
    position: int,
    end: int | None,
    num_readers: int,
) -> Iterator[Part]:
    """All parts of a rank from ``position`` on, part n for reader ``n % num_readers``."""
    steps = coming_steps(schedule, share, position)
    readers = readers_of(steps, lanes, num_readers)
    first_step, begin, _, _ = schedule.locate(position)
    none = np.zeros(0, dtype=np.int64)
    leaving = none if begin == position else np.setdiff1d(lanes_of(steps[-1:], lanes), lanes_of(steps[:-1], lanes))
    turn = num_told = 0
    while True:
        planned = micro_batches(schedule, share, position=position, end=end, at_least=_PLAN_UNITS * share.world_size)
        if not len(planned):
            return
        columns = (planned.begins, planned.sizes, planned.steps, planned.afters)
        for begin, size, step, position in zip(*(column.tolist() for column in columns), strict=True):
            numbers = np.arange(begin, begin + size, dtype=np.int64)
            taken_by = readers[numbers % lanes.num_lanes]
            # A micro-batch without units is made by whoever comes next.
            left = set(taken_by.tolist()) or {turn % num_readers}
            is_cut = len(left) > 1
            while left:
                reader = turn % num_readers
                is_mine = reader in left
                left.discard(reader)
                is_told = step > first_step and num_told < num_readers
                num_told += is_told
                yield Part(
                    numbers=numbers[taken_by == reader],
                    is_whole=is_mine and not is_cut,
                    step=step,
                    after=None if left else position,
                    states=states if turn < num_readers else None,
                    leaves=leaving if is_told else none,
                )
                turn += 1
