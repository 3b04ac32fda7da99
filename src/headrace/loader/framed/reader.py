"""The reader's side: the units of a part, made by the lanes that this process or thread walks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from headrace.datasets import FramedRun
from headrace.encoders import FaultLog
from headrace.loader.framed.parts import Part
from headrace.loader.reading import pinned
from headrace.loader.spans import Batch
from headrace.plan import IntArray
from headrace.plan.framed import LaneState

if TYPE_CHECKING:
    from headrace.datasets.encoded import UnitReader


class Message(NamedTuple):
    """What a reader made of a part.

    Attributes:
        content: the samples of the units, None where a lane has ended; or the whole batch.
        num_units: how many of the units there are.
        marks: the states of lanes at frames that were begun for it.
        faults: of samples of these units, None where there are none.
    """

    content: list[Any] | Batch
    num_units: int
    marks: tuple[LaneState, ...]
    faults: FaultLog | None


class LaneReader:
    """Makes the messages of parts, in the order in which they come. Pickles, to be sent to a worker."""

    def __init__(self, run: FramedRun, states: Sequence[LaneState], *, pin: bool = False) -> None:
        self._run = run
        self._states = tuple(states)
        self._pin = pin
        self._reader: UnitReader | None = None

    def __call__(self, part: Part) -> Message:
        """The units of a part, and the batch where the part is the whole of it."""
        if part.states is not None:
            self._states, self._reader = part.states, None
        if self._reader is None:
            self._reader = self._run.reader(self._states)
        reader = self._reader
        reader.leave(part.leaves)
        content: list[Any] | Batch
        # The global generators are put aside once for units and batch.
        with reader.sources.pipeline:
            content = samples = reader.samples(part.numbers)
            if part.is_whole:
                batch = batch_of(reader, samples, part.numbers)
                content = pinned(batch) if self._pin else batch
        num_units = len(samples) - sum(sample is None for sample in samples)
        marks = tuple(reader.marks())
        if marks:
            # Whoever is asked for a unit is not asked for one before it again.
            reader.forget(int(part.numbers[0]))
        faults, reader.faults = reader.faults, FaultLog()
        return Message(content, num_units, marks, faults if faults.total else None)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LaneReader, pin=self._pin), (self._run, self._states)


def batch_of(reader: UnitReader, samples: Sequence[Any], numbers: IntArray) -> Batch:
    """The batch of some units, without those that there are not, and its ``unit_numbers``, (n,) int64."""
    there = [sample is not None for sample in samples]
    columns = reader.collate(samples)
    tensors = {name: _tensor(value) if isinstance(value, np.ndarray) else value for name, value in columns.items()}
    return {**tensors, "unit_numbers": torch.from_numpy(numbers[np.array(there, dtype=np.bool_)])}


def _tensor(values: np.ndarray[Any, Any]) -> torch.Tensor:
    # A batch is the caller's to change, and a constant cannot be written to.
    return torch.from_numpy(values if values.flags.writeable else values.copy())
