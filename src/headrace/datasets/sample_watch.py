"""`SampleWatch`: what a reader knows about the samples that it makes, and what it learns while it makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.plan import IntArray

if TYPE_CHECKING:
    from headrace.encoders import Fault
    from headrace.samples.media.batch import BatchBlocks

NO_SAMPLE: Final = -1
"""Stands in the place of an address when no sample is being made."""

Tell = Callable[[int], None]
"""Called with the address of each sample before it is made, so that a sample that hangs or kills the process has a
name, and with `NO_SAMPLE` when the last one is made."""


class SampleWatch:
    """Goes with the samples that a reader makes: it says which one is being made, and collects the faults.

    The reader hands it to ``samples`` of a run or dataset, which hands it on. It is used by one thread at a time.

    Args:
        tell: called before each sample.
        blocks: memory for the images of the samples, which only their batch will refer to; None decodes each image into
            memory of its own.

    Attributes:
        row: which of the samples is being made.
        faults: the faults of the samples so far, in the order in which they were met, but for those that were taken.
        fatal: the faults that led to the error that was raised; empty if no sample was to blame.
    """

    def __init__(self, *, tell: Tell | None = None, blocks: BatchBlocks | None = None) -> None:
        self.blocks = blocks
        self.row = 0
        self.faults: list[Fault] = []
        self.fatal: tuple[Fault, ...] = ()
        self._positions: IntArray | None = None
        self._tell = tell
        self._rows: list[int] = []

    def begin(self, positions: IntArray) -> None:
        """Note that the samples at these positions of the run, (n,) int64, are made next."""
        self._positions, self.row = positions, 0

    @property
    def position(self) -> int | None:
        """The position of the sample that is being made; None if it is not known."""
        return None if self._positions is None else int(self._positions[self.row])

    def make(self, addresses: IntArray, makers: Sequence[Callable[[], Any]], rows: IntArray | None = None) -> list[Any]:
        """Return what the makers of the samples at some addresses make, one by one.

        ``rows`` are those of the samples among all whose positions are known; None counts from 0.
        """
        samples = []
        numbers = range(len(addresses)) if rows is None else rows.tolist()
        for self.row, address, make in zip(numbers, addresses.tolist(), makers, strict=True):
            if self._tell is not None:
                self._tell(address)
            samples.append(make())
        if self._tell is not None:
            self._tell(NO_SAMPLE)
        return samples

    def take(self) -> list[tuple[int, Fault]]:
        """Return the faults so far, each with the row of its sample, and forget them."""
        found = list(zip(self._rows, self.faults, strict=True))
        self.faults, self._rows = [], []
        return found

    def add(self, fault: Fault) -> Fault:
        """Collect a fault of the sample that is being made. Returns it with the position of the sample."""
        placed = msgspec.structs.replace(fault, position=self.position)
        self.faults.append(placed)
        self._rows.append(self.row)
        return placed
