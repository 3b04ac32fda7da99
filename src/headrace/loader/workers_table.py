"""What each worker is doing, in memory that it shares with the process that waits for it.

One row of int64 a worker: state, since when, number of the task, address of the sample. A worker writes its row and
looks nothing up; who waits reads it, and knows what the numbers mean. The memory has no name: nothing is left of it
when all processes are killed.
"""

from __future__ import annotations

import os
import tempfile
from enum import IntEnum
from itertools import takewhile
from multiprocessing.context import BaseContext
from multiprocessing.reduction import DupFd
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from headrace.datasets.watched import NO_SAMPLE

_WIDTH: Final = 4
_STATE, _SINCE, _TASK, _SAMPLE = range(_WIDTH)


class State(IntEnum):
    """What a worker does."""

    STARTING = 0
    WAITING = 1
    READING = 2


class Row(NamedTuple):
    """One worker: ``sample`` is the address of the sample being made, None where they are read together."""

    state: State
    since_s: float
    task: int
    sample: int | None


class Table:
    """One row a worker, and the number of the stream that is being read. Goes to workers when they are started."""

    def __init__(self, context: BaseContext, num_workers: int) -> None:
        self._stream = num_workers * _WIDTH
        self._cells: Any = context.RawArray("q", self._stream + 1)

    @property
    def stream(self) -> int:
        """The stream whose tasks are wanted; those of older ones need not be read."""
        return int(self._cells[self._stream])

    @stream.setter
    def stream(self, number: int) -> None:
        self._cells[self._stream] = number

    def write(self, worker: int, state: State, task: int) -> None:
        """The worker has come to another state; ``task`` is the one that it reads, or read last."""
        cells, begin = self._cells, worker * _WIDTH
        cells[begin + _SAMPLE] = NO_SAMPLE
        cells[begin + _TASK] = task
        cells[begin + _SINCE] = monotonic_ns()
        cells[begin + _STATE] = state

    def mark(self, worker: int, address: int) -> None:
        """The worker goes on to another sample of its task."""
        cells, begin = self._cells, worker * _WIDTH
        cells[begin + _SINCE] = monotonic_ns()
        cells[begin + _SAMPLE] = address

    def row(self, worker: int) -> Row:
        """What a worker wrote last. As it may be writing, the parts may be of two moments."""
        state, since, task, sample = self._cells[worker * _WIDTH : (worker + 1) * _WIDTH]
        since_s = (monotonic_ns() - since) / 1e9 if since else 0.0
        return Row(State(state), since_s, task, None if sample == NO_SAMPLE else sample)


class TraceFile:
    """A file without a name, into which a worker that hangs writes where it is. Open until ``close``."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._number = os.dup(file.fileno())

    def __getstate__(self) -> Any:
        return DupFd(self._number)

    def __setstate__(self, number: Any) -> None:
        self._number = number.detach()

    def fileno(self) -> int:
        """The descriptor, for `faulthandler`."""
        return self._number

    def size(self) -> int:
        """Bytes written."""
        return os.fstat(self._number).st_size

    def current_thread(self) -> str:
        """Where the thread was that the signal met, the innermost call first; empty where that is not known.

        As far as the reading goes: how the worker came to it is of no use.
        """
        text = os.pread(self._number, 1 << 16, 0).decode(errors="replace")
        _, _, after = text.rpartition("Current thread")
        lines = [line for line in after.split("\n\n")[0].splitlines()[1:] if line.startswith("  File")]
        return "\n".join(takewhile(lambda line: "workers_side.py" not in line, lines))

    def close(self) -> None:
        """Give the file up, in this process."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)
