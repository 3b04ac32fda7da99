"""The search for poison: records that end every worker that comes to them.

If a task has ended `MAX_DEATHS` workers, its records are tried one at a time. Nothing is written meanwhile, and a
worker says before each record which it is, so that its death tells the record:

    task            ends three workers
    probe           a worker does one record after another, and ends at record 57
    probe, alone    two more workers do nothing but record 57, and end: it is poison
    probe           goes on behind record 57, to the end of the task
    task            is done without record 57

Each poison record costs three workers, however many records the task has. A task without such records is not touched
by all this. The search is not kept: if the process is killed, the next one that does the task searches again, and finds
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec

MAX_DEATHS: Final = 3
"""Workers that may end in a task, or at a record, before it is to blame: three in a row are not chance."""

MAX_POISON: Final = 100
"""The most poison records of a task that are searched for: each takes the time to start three workers."""

RecordPlace = tuple[int, int]
"""A record of a task: the number of its span, and its line in the span, both from 0."""


class AnyTask(Protocol):
    """An order for a worker. It is hashable, and msgspec can encode it."""

    @property
    def task_index(self) -> int:
        """Its place among the tasks of its phase."""

    @property
    def label(self) -> str:
        """What the task is about, for a message: ``a.jsonl, bytes 0 to 4,096``."""


class Poison(msgspec.Struct, frozen=True, array_like=True):
    """A record that is to be left out."""

    span: int
    line: int
    message: str
    """What became of the workers."""


@runtime_checkable
class RecordTask(AnyTask, Protocol):
    """A task whose records can be tried one at a time, and left out."""

    @property
    def most_poison(self) -> int:
        """How many poison records are searched for: with so many, the task fails in any case."""

    def probe(self, first: RecordPlace, *, is_alone: bool) -> AnyTask:
        """Return the order to do the records from ``first`` on, or this one alone, and to write nothing."""

    def without(self, poison: Sequence[Poison], *, is_cut: bool) -> AnyTask:
        """Return the order to do the task without these records; ``is_cut`` if it is to fail at the last of them."""


class At(msgspec.Struct, frozen=True, tag=True):
    """A worker says what it is about to do in a probe: a record, or reading the next ones from the file."""

    task_index: int
    span: int
    line: int
    is_reading: bool = False


class Ended(NamedTuple):
    """How a worker ended, in words."""

    worker: str
    how: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.worker} {self.how}{self.hint}"


class Search:
    """The search for poison in one task.

    Args:
        task: the task, which has ended several workers.
    """

    def __init__(self, task: RecordTask) -> None:
        self._task = task
        self._first: RecordPlace = (0, 0)
        self._poison: list[Poison] = []
        self._is_alone = False
        self._num_deaths = 0
        self._num_survived = 0
        self.at: At | None = None
        """What the worker of the current order said last."""
        self.is_over = False

    @property
    def order(self) -> AnyTask:
        """What is to be done next: a probe, or, when the search is over, the task."""
        if self.is_over:
            return self._task.without(self._poison, is_cut=len(self._poison) >= self._task.most_poison)
        self.at = None
        return self._task.probe(self._first, is_alone=self._is_alone)

    def blame(self, ended: Ended) -> str:
        """Take note that the worker of the current order has ended; return why no record is to blame, or nothing."""
        if self.at is None or self.at.is_reading:
            return "it ended before it came to a record" if self.at is None else "it was reading the file"
        if not self._is_alone:
            self._first, self._is_alone, self._num_deaths = (self.at.span, self.at.line), True, 0
        self._num_deaths += 1
        if self._num_deaths >= MAX_DEATHS:
            span, line = self._first
            message = f"the worker {ended.how}. It was the {MAX_DEATHS}rd worker that ended at this record"
            self._poison.append(Poison(span, line, message))
            self._first, self._is_alone = (span, line + 1), False
            self.is_over = len(self._poison) >= self._task.most_poison
        return ""

    def survive(self) -> str:
        """Take note that the worker came to the end of its order; return why no record is to blame, or nothing."""
        if not self._is_alone:
            self.is_over = True
            return ""
        self._is_alone = False
        self._num_survived += 1
        if self._num_survived >= MAX_DEATHS:
            return "workers ended at records that other workers did without harm"
        return ""
