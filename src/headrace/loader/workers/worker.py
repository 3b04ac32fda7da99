"""The code that runs in a worker, and the shared table that says what each worker is doing.

The table has one row of int64 for each worker: state, since when, number of the task, address of the sample, and what
it has counted. A worker only writes its row; the process that waits reads it, and knows what the numbers mean. The
shared memory has no name, so nothing of it is left when all processes are killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import takewhile
from pkgutil import resolve_name
from time import monotonic_ns, sleep
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from headrace.datasets.dataset import NO_SAMPLE, Tell
from headrace.encoders import Fault
from headrace.errors import ConfigError, WorkerError
from headrace.io.readers import reading_for
from headrace.loader.faults import SampleFailure
from headrace.loader.workers.messages import Channel, Message, WorkerMemory, mapped, shared_file

T = TypeVar("T")

_WIDTH: Final = 4
_STATE, _SINCE, _TASK, _SAMPLE = range(_WIDTH)


class State(IntEnum):
    """What a worker is doing, as in its row of the table."""

    STARTING = 0
    WAITING = 1
    READING = 2


class WorkerStatus(NamedTuple):
    """A row of the table. ``sample`` is the address of the sample being made, None where samples are read together."""

    state: State
    since_s: float
    task: int
    sample: int | None


class Table:
    """What each worker is doing and has counted, and the first task that is still wanted, in shared memory.

    Args:
        num_workers: the number of workers.
        num_counts: how many numbers a worker counts.
        descriptor: that of the table of another process.
    """

    def __init__(self, num_workers: int, num_counts: int, descriptor: int | None = None) -> None:
        self.shape = num_workers, num_counts
        num_bytes = 8 * (1 + num_workers * (_WIDTH + num_counts))
        self.descriptor = shared_file(num_bytes) if descriptor is None else descriptor
        cells = np.frombuffer(mapped(os.dup(self.descriptor), num_bytes), np.int64)
        self.first = cells[:1]
        """(1,): the number of the first task that is wanted; those before are of a stream that was left."""
        self._rows = cells[1:].reshape(num_workers, _WIDTH + num_counts)

    def write(self, worker: int, state: State, task: int) -> None:
        """Write that the worker is in another state; ``task`` is the one that it reads, or has read last."""
        self._rows[worker, _STATE:_WIDTH] = state, monotonic_ns(), task, NO_SAMPLE

    def mark(self, worker: int, address: int) -> None:
        """Write that the worker begins another sample of its task."""
        self._rows[worker, _SINCE] = monotonic_ns()
        self._rows[worker, _SAMPLE] = address

    def count(self, worker: int, counts: Sequence[int]) -> None:
        """Write what the worker has counted so far."""
        self._rows[worker, _WIDTH:] = counts

    def counts(self) -> list[int]:
        """Return the sums of what all workers have counted so far."""
        found: list[int] = self._rows[:, _WIDTH:].sum(axis=0).tolist()
        return found

    def clear(self) -> None:
        """Set all to the state before the start."""
        self._rows[:] = 0

    def row(self, worker: int) -> WorkerStatus:
        """Return what a worker wrote last. It may be writing, so the parts may be of two moments."""
        state, since, task, sample = self._rows[worker, :_WIDTH].tolist()
        since_s = (monotonic_ns() - since) / 1e9 if since else 0.0
        return WorkerStatus(State(state), since_s, task, None if sample == NO_SAMPLE else sample)


class TraceFile:
    """A file without a name, into which a worker that hangs writes its traceback."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = shared_file(0) if descriptor is None else descriptor

    def size(self) -> int:
        """Return the number of bytes written so far."""
        return os.fstat(self.descriptor).st_size

    def current_thread(self) -> str:
        """Return the traceback of the thread that the signal interrupted, innermost call first; empty if not known.

        It ends at the code of the worker itself, whose callers are of no interest.
        """
        text = os.pread(self.descriptor, 1 << 16, 0).decode(errors="replace")
        _, _, after = text.rpartition("Current thread")
        lines = [line for line in after.split("\n\n")[0].splitlines()[1:] if line.startswith("  File")]
        return "\n".join(takewhile(lambda line: __file__ not in line, lines))


_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 1.0


ReadTask = Callable[[T, Tell, WorkerMemory], Any]
"""Makes the message of a task."""


class RaisedError(NamedTuple):
    """An error that a worker raised: pickled, None if it does not pickle; as text; and its traceback as text.

    ``faults`` are the samples that are to blame. ``in_setup`` is whether the worker has raised it before its first
    sample, and so will for each of its tasks.
    """

    pickled: bytes | None
    text: str
    way: str
    faults: Sequence[Fault] = ()
    in_setup: bool = False

    def again(self) -> Exception:
        """Return the same error, with the worker's traceback as a note; a `SampleFailure` if samples are to blame."""
        if self.pickled is None:
            return WorkerError(f"{self.text}\n{self.way}")
        error: Exception = pickle.loads(self.pickled)
        error.add_note(self.way)
        return SampleFailure(error, self.faults) if self.faults else error


@dataclass(kw_only=True)
class WorkerSetup:
    """What each worker has from its start.

    Attributes:
        read: makes the message of a task; it also gets the function that it must tell of each sample, and memory that
            large arrays of the message may lie in.
        num_workers: the number of workers.
        table: where the worker writes what it is doing.
        trace: where it writes, on SIGUSR1, the line that it is at.
        init: called once in the worker. It may return a function that needs a worker which has been set up.
        words: describes a task in words, without reading anything.
        counts: returns what this process has counted so far, see `Table.count`; None counts nothing.
        seed: worker n seeds the global generators of random numbers with ``seed + n``.
    """

    read: ReadTask[Any]
    num_workers: int
    table: Table
    trace: TraceFile
    init: Callable[[], Any] | str | None
    words: Callable[[Any], str]
    counts: Callable[[], Sequence[int]] | None
    seed: int

    def serve(self, end: socket.socket, number: int, parent: int, *, dies_with_parent: bool) -> None:
        """Do the tasks that come, until the loader closes its end. Called in the worker.

        Args:
            end: the worker's end of its socket.
            number: how many workers were started before this one; it is in the place of ``number % num_workers``.
            parent: the id of the process that started it.
            dies_with_parent: whether the kernel kills the worker, in any state, when the *thread* that started it ends.
        """
        channel, memory = Channel(end), WorkerMemory()
        _follow(parent, dies_with_parent=dies_with_parent)
        worker = number % self.num_workers
        failed = self.start(worker, number)
        while True:
            try:
                received = channel.receive()
                if received is not None:
                    task_number, task, offer = pickle.loads(received[0])
                    memory.begin(offer)
                    message, descriptors = self._made(worker, failed, task_number, task, memory)
                    channel.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL), descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)
            except (EOFError, ConnectionError):
                return

    def start(self, worker: int, number: int) -> RaisedError | None:
        """Set up the worker. An error is returned: so that it comes back with its type, it is each task's message."""
        torch.set_num_threads(1)
        seed = (self.seed + number) % 2**63
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 -- hooks may draw from it
        torch.manual_seed(seed)
        # Torch has no public name for what its `get_worker_info` returns.
        info: dict[str, Any] = {"id": worker, "num_workers": self.num_workers, "seed": seed, "dataset": None}
        torch_worker._worker_info = torch_worker.WorkerInfo(**info)
        if hasattr(faulthandler, "register"):
            # The handler is written in C, and works while other code holds the interpreter.
            faulthandler.register(signal.SIGUSR1, file=self.trace.descriptor, all_threads=True, chain=False)
        # Objects of the program must not be collected in a fork: a process group would wait for threads that do not
        # exist here.
        gc.freeze()
        failed = None
        try:
            if self.init is not None:
                then = (_function(self.init) if isinstance(self.init, str) else self.init)()
                if callable(then):
                    then()
        except Exception as error:
            failed = _failed(error, worker)._replace(in_setup=True)
        self.table.write(worker, State.WAITING, -1)
        return failed

    def _made(
        self, worker: int, failed: RaisedError | None, number: int, task: Any, memory: WorkerMemory
    ) -> tuple[Message, list[int]]:
        table = self.table
        table.write(worker, State.READING, number)
        made: Any = failed
        try:
            if made is None and number >= table.first[0]:
                with reading_for(partial(self.words, task)):
                    made = self.read(task, partial(table.mark, worker), memory)
            found = Message.of(number, made, memory)
        except Exception as error:
            found = Message.of(number, _failed(error, worker), memory)
        if self.counts is not None:
            table.count(worker, self.counts())
        table.write(worker, State.WAITING, number)
        return found


def _function(name: str) -> Any:
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"worker_init={name!r} was not found in the worker: {error}; write module:function"
        ) from error


def _follow(parent: int, *, dies_with_parent: bool) -> None:
    """End this worker when the process that started it ends."""
    if dies_with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_end_with, args=(parent,), name="headrace-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        sleep(_LOOK_S)
    os._exit(1)


def _failed(error: Exception, worker: int) -> RaisedError:
    faults: Sequence[Fault] = ()
    if isinstance(error, SampleFailure):
        faults = error.faults
        error = error.error
    way = f"in worker {worker}:\n{''.join(traceback.format_exception(error))}"
    text = f"{type(error).__name__}: {error}"
    try:
        pickled = pickle.dumps(error)
        # Some errors can be pickled, but not unpickled.
        pickle.loads(pickled)
    except Exception:
        return RaisedError(None, text, way)
    return RaisedError(pickled, text, way, faults)
