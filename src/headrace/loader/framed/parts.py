"""The micro-batches of one rank of a framed run, cut into parts that are each made by one reader.

    4 lanes, micro-batches of 2, 2 readers     lanes 0 1 -> reader 0, lanes 2 3 -> reader 1
    4 lanes, micro-batches of 4, 2 readers     lanes 0 1 -> reader 0, lanes 2 3 -> reader 1, two parts each

Threads and workers get the parts strictly in turn. If a part is not for the reader whose turn it is, that reader gets
an empty part first. Most runs need none of these, since every step has the same slots, and the number of its parts is
that of the readers or a multiple of it.

`LaneReader` is the side of the reader: it makes the units of a part from the lanes that its process or thread has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import gcd
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from headrace.datasets import FramedRun
from headrace.datasets.dataset import StageTimes, Tell
from headrace.encoders import FaultLog
from headrace.loader.faults import blaming
from headrace.loader.reading import as_tensors, pinned
from headrace.loader.spans import Batch
from headrace.plan import BatchSchedule, IntArray, MicroBatches, Share, micro_batches
from headrace.plan.framed import Lanes, LaneState

if TYPE_CHECKING:
    from headrace.datasets.encoded import UnitReader
    from headrace.loader.workers.messages import WorkerMemory

_PLAN_UNITS = 1024
"""Units that are planned at a time, for each rank."""


class BatchPart(NamedTuple):
    """The units of one micro-batch that one reader makes.

    Attributes:
        numbers: (n,) int64: the numbers of the units in the run, rising; empty to pass a turn, or for an empty batch.
        is_whole: whether these are all units of the micro-batch, so that the reader makes the batch.
        step: the global step.
        after: the position after the micro-batch, in its last part; None in all other parts.
        states: the states of all lanes that may be needed, in the first part of each reader; None in later parts.
        leaves: (n,) int64: lanes that the reader does not need again, because the rest of a step was assigned to the
            ranks in another way than whole steps are. Sent once to each reader.
    """

    numbers: IntArray
    is_whole: bool
    step: int
    after: int | None
    states: tuple[LaneState, ...] | None
    leaves: IntArray


def coming_steps(schedule: BatchSchedule, share: Share, position: int) -> list[MicroBatches]:
    """Return a rank's micro-batches of one whole step of each size from a position on, and of the rest of a step there.

    Together they have every slot within a step that this rank can get, even if the run has no end.
    """
    step, begin, _, _ = schedule.locate(position)
    whole = [step + (position > begin), *(first for first, _ in schedule.pieces if first > step)]
    begins = [schedule.begin(first) for first in whole]
    if position > begin:
        begins.append(position)
    return [micro_batches(schedule, share, position=first, end=None, at_least=1) for first in begins]


def lanes_of(steps: Sequence[MicroBatches], lanes: Lanes) -> IntArray:
    """Return (n,) int64, rising: the lanes that have a unit in these steps."""
    numbers = [np.zeros(0, dtype=np.int64), *(planned.slots() for planned in steps)]
    return np.unique(np.concatenate(numbers) % lanes.num_lanes)


def readers_of(steps: Sequence[MicroBatches], lanes: Lanes, num_readers: int) -> IntArray:
    """Return (num_lanes,) int64: the reader of each lane that occurs in these steps, -1 for all others.

    Whole micro-batches go to the readers in turn if that divides evenly; otherwise equal parts of each micro-batch do.
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
) -> Iterator[BatchPart]:
    """Yield all parts of a rank from ``position`` on; part n is for reader ``n % num_readers``."""
    steps = coming_steps(schedule, share, position)
    readers = readers_of(steps, lanes, num_readers)
    first_step, begin, _, _ = schedule.locate(position)
    none = np.zeros(0, dtype=np.int64)
    leaving = none if begin == position else np.setdiff1d(lanes_of(steps[-1:], lanes), lanes_of(steps[:-1], lanes))
    turn = num_leaving_sent = 0
    while True:
        planned = micro_batches(schedule, share, position=position, end=end, at_least=_PLAN_UNITS * share.world_size)
        if not len(planned):
            return
        columns = (planned.begins, planned.sizes, planned.steps, planned.afters)
        for begin, size, step, position in zip(*(column.tolist() for column in columns), strict=True):
            numbers = np.arange(begin, begin + size, dtype=np.int64)
            taken_by = readers[numbers % lanes.num_lanes]
            # A micro-batch without units is made by the reader whose turn it is.
            left = set(taken_by.tolist()) or {turn % num_readers}
            is_cut = len(left) > 1
            while left:
                reader = turn % num_readers
                is_mine = reader in left
                left.discard(reader)
                is_leaving_sent = step > first_step and num_leaving_sent < num_readers
                num_leaving_sent += is_leaving_sent
                yield BatchPart(
                    numbers=numbers[taken_by == reader],
                    is_whole=is_mine and not is_cut,
                    step=step,
                    after=None if left else position,
                    states=states if turn < num_readers else None,
                    leaves=leaving if is_leaving_sent else none,
                )
                turn += 1


class PartMessage(NamedTuple):
    """What a reader returns for a part.

    Attributes:
        content: the samples of the units, with None where a lane has ended; or the whole batch.
        num_units: the number of units that exist.
        marks: the states of lanes at the frames that were begun for this part.
        faults: the faults of the samples of these units; None if there are none.
        times: how long each stage took.
    """

    content: list[Any] | Batch
    num_units: int
    marks: tuple[LaneState, ...]
    faults: FaultLog | None
    times: StageTimes


class LaneReader:
    """Makes the messages of parts, in the order in which they come. It can be pickled and sent to a worker."""

    def __init__(self, run: FramedRun, states: Sequence[LaneState], *, pin: bool = False) -> None:
        self._run = run
        self._states = tuple(states)
        self._pin = pin
        self._reader: UnitReader | None = None

    def __call__(self, part: BatchPart, tell: Tell | None = None, memory: WorkerMemory | None = None) -> PartMessage:
        """Return the units of a part, or the batch if the part is all of it. They do not lie in ``memory``.

        Raises:
            SampleFailure: samples could not be made.
        """
        if part.states is not None:
            self._states, self._reader = part.states, None
        if self._reader is None:
            self._reader = self._run.reader(self._states, tell)
        reader = self._reader
        reader.leave(part.leaves)
        begin = perf_counter()
        content: list[Any] | Batch
        # Entered here, so that the global random generators are saved once for units and batch.
        with blaming(reader.watch), reader.sources.pipeline:
            content = samples = reader.samples(part.numbers)
            made = perf_counter()
            if part.is_whole:
                batch = batch_of(reader, samples, part.numbers)
                content = pinned(batch) if self._pin else batch
        times = reader.watch.take_times(made - begin, perf_counter() - made)
        num_units = len(samples) - sum(sample is None for sample in samples)
        marks = tuple(reader.marks())
        faults, reader.faults = reader.faults, FaultLog()
        return PartMessage(content, num_units, marks, faults if faults.total else None, times)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LaneReader, pin=self._pin), (self._run, self._states)


def batch_of(reader: UnitReader, samples: Sequence[Any], numbers: IntArray) -> Batch:
    """Return the batch of the units that exist, with their ``unit_numbers``, (n,) int64."""
    exists = [sample is not None for sample in samples]
    return {
        **as_tensors(reader.collate(samples)),
        "unit_numbers": torch.from_numpy(numbers[np.array(exists, dtype=np.bool_)]),
    }
