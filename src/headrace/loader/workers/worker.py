"""The code that runs in a worker, and the shared table that says what each worker is doing.

The table has one row of int64 for each worker: state, since when, number of the task, address of the sample. A worker
only writes its row; the process that waits reads it, and knows what the numbers mean. The shared memory has no name, so
nothing of it is left when all processes are killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from itertools import takewhile
from multiprocessing import forkserver, parent_process
from multiprocessing.context import BaseContext
from multiprocessing.reduction import DupFd
from pkgutil import resolve_name
from time import monotonic_ns, sleep
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch.utils.data import Dataset

from headrace.datasets.dataset import NO_SAMPLE, Tell
from headrace.encoders import Fault
from headrace.errors import ConfigError, WorkerError
from headrace.io.readers import reading_for
from headrace.loader.faults import SampleFailure
from headrace.loader.workers.blocks import MessageMemory, Offer, WorkerBlocks
from headrace.loader.workers.messages import dumped
from headrace.loader.workers.user_globals import Globals

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
    """A row for each worker, and the number of the stream that is being read. Sent to workers when they start.

    Each worker also has a row of ``num_counts`` numbers that it counts.
    """

    def __init__(self, context: BaseContext, num_workers: int, num_counts: int) -> None:
        self._stream = num_workers * _WIDTH
        self._num_counts = num_counts
        self._cells: Any = context.RawArray("q", self._stream + 1 + num_workers * num_counts)

    @property
    def stream(self) -> int:
        """The number of the stream that is being read. Tasks of older streams need not be read."""
        return int(self._cells[self._stream])

    @stream.setter
    def stream(self, number: int) -> None:
        self._cells[self._stream] = number

    def write(self, worker: int, state: State, task: int) -> None:
        """Write that the worker is in another state; ``task`` is the one that it reads, or has read last."""
        cells, begin = self._cells, worker * _WIDTH
        cells[begin + _SAMPLE] = NO_SAMPLE
        cells[begin + _TASK] = task
        cells[begin + _SINCE] = monotonic_ns()
        cells[begin + _STATE] = state

    def mark(self, worker: int, address: int) -> None:
        """Write that the worker begins another sample of its task."""
        cells, begin = self._cells, worker * _WIDTH
        cells[begin + _SINCE] = monotonic_ns()
        cells[begin + _SAMPLE] = address

    def count(self, worker: int, counts: Sequence[int]) -> None:
        """Write what the worker has counted so far."""
        begin = self._stream + 1 + worker * self._num_counts
        self._cells[begin : begin + self._num_counts] = counts

    def counts(self) -> list[int]:
        """Return the sums of what all workers have counted so far."""
        cells = self._cells[self._stream + 1 :]
        return [sum(cells[at :: self._num_counts]) for at in range(self._num_counts)]

    def row(self, worker: int) -> WorkerStatus:
        """Return what a worker wrote last. It may be writing, so the parts may be of two moments."""
        state, since, task, sample = self._cells[worker * _WIDTH : (worker + 1) * _WIDTH]
        since_s = (monotonic_ns() - since) / 1e9 if since else 0.0
        return WorkerStatus(State(state), since_s, task, None if sample == NO_SAMPLE else sample)


class TraceFile:
    """A file without a name, into which a worker that hangs writes its traceback. Open until ``close``."""

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
        """Return the number of bytes written so far."""
        return os.fstat(self._number).st_size

    def current_thread(self) -> str:
        """Return the traceback of the thread that the signal interrupted, innermost call first; empty if not known.

        It ends at the code of the worker itself, whose callers are of no interest.
        """
        text = os.pread(self._number, 1 << 16, 0).decode(errors="replace")
        _, _, after = text.rpartition("Current thread")
        lines = [line for line in after.split("\n\n")[0].splitlines()[1:] if line.startswith("  File")]
        return "\n".join(takewhile(lambda line: __file__ not in line, lines))

    def close(self) -> None:
        """Close the file in this process."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 1.0


ReadTask = Callable[[T, Tell, MessageMemory], Any]
"""Makes the message of a task."""


class Sent(NamedTuple):
    """A task that was sent to a worker, with its stream and its number in the stream."""

    stream: int
    number: int
    task: Any


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


class LostMessage(NamedTuple):
    """Stands for a message whose shared memory cannot be opened, because its worker has ended."""

    text: str


class _Pickled:
    """A message that the worker has pickled itself, so that a failure to pickle is an error of the task.

    In the thread that feeds the queue, a failure would be a line on stderr and a message that never comes. The message
    is unpickled as soon as it is received, so that shared memory is freed even for messages that nobody reads.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._data,)


def _received(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except (OSError, EOFError) as error:
        return LostMessage(f"{type(error).__name__}: {error}")


class WorkerSetup(Dataset[Any]):
    """The object that is sent to each worker at its start. For torch it is a dataset, whose items are messages.

    Args:
        read: makes the message of a task; it also gets the function that it must tell of each sample, and memory that
            large arrays of the message may lie in.
        table: where the worker writes what it is doing.
        trace: where it writes, on SIGUSR1, the line that it is at.
        named: the globals that ``read`` names, with their values in the program.
        init: called once in the worker, before the globals are compared.
        words: describes a task in words, without reading anything.
        counts: returns what this process has counted so far, see `Table.count`; None counts nothing.
        parent: the id of the process that waits; None if a server starts the workers.
        ends_with: how a worker notices that this process has ended. With ``"signal"`` the kernel kills the worker in
            any state, but also when the *thread* that started it ends; with ``"poll"`` the worker looks now and then.
    """

    def __init__(
        self,
        read: ReadTask[Any],
        table: Table,
        trace: TraceFile,
        *,
        named: Globals,
        init: Callable[[], Any] | str | None,
        words: Callable[[Any], str],
        counts: Callable[[], Sequence[int]] | None,
        parent: int | None,
        ends_with: str,
    ) -> None:
        self._read = read
        self._table = table
        self._trace = trace
        self._named = named
        self._init = init
        self._words = words
        self._counts = counts
        self._parent = parent
        self._ends_with = ends_with
        self._worker = 0
        self._blocks: tuple[int, WorkerBlocks] = (-1, WorkerBlocks())
        self._failed: RaisedError | None = None

    def start(self, worker: int) -> None:
        """Set up the worker; called once in it, with its number."""
        self._worker = worker
        self._follow_parent()
        # The other strategy of torch makes names in /dev/shm, which stay when all processes are killed.
        if sys.platform == "linux":
            torch.multiprocessing.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
        if hasattr(faulthandler, "register"):
            # The handler is written in C, and works while other code holds the interpreter.
            faulthandler.register(signal.SIGUSR1, file=self._trace.fileno(), all_threads=True, chain=False)
        # Objects of the program must not be collected in a fork: a process group would wait for threads that do not
        # exist here.
        gc.freeze()
        try:
            self._set_up()
        except Exception as error:
            # Torch would lose the type of the error, so it is returned as the message of each task.
            self._failed = _failed(error, worker)._replace(in_setup=True)
        self._table.write(worker, State.WAITING, -1)

    def _set_up(self) -> None:
        """Raise ConfigError if the user's code would make other samples here; and what ``init`` raises.

        ``init`` may return a function that sets globals of each worker: these may differ, but not those that were wrong
        before.
        """
        then = None
        if self._init is not None:
            then = (_function(self._init) if isinstance(self._init, str) else self._init)()
        lines = self._named.differences()
        if callable(then):
            then()
            lines = lines and self._named.differences()
        if lines:
            listed = "\n  ".join(lines)
            raise ConfigError(
                f"worker {self._worker} would make other samples than the program: globals that the code of its samples"
                f" names differ\n  {listed}\nA worker that starts anew has what importing its modules sets, but not"
                " what the program set while it ran. Set it in each worker with Reading(worker_init=FUNCTION), or pass"
                " it to the encoder when that is made. If a global changes no sample, name it in"
                " Reading(differing_globals=[NAME])"
            )

    def _follow_parent(self) -> None:
        parent = os.getppid()
        if self._parent is not None and parent != self._parent:
            os._exit(1)
        _leave_server()
        if self._ends_with == "signal" and sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        threading.Thread(target=_end_with, args=(parent,), name="headrace-parent", daemon=True).start()

    def __getitem__(self, sent: tuple[int, int, Any, Offer]) -> tuple[int, int, Any]:
        stream, number, task, offer = sent
        worker, table = self._worker, self._table
        if table.stream != stream:
            return worker, number, None
        if self._blocks[0] != stream:
            self._blocks = stream, WorkerBlocks()
        memory = MessageMemory(self._blocks[1], offer)
        table.write(worker, State.READING, number)
        message: Any
        try:
            if self._failed is None:
                with reading_for(partial(self._words, task)):
                    message = _Pickled(dumped(self._read(task, partial(table.mark, worker), memory)))
            else:
                message = self._failed
        except Exception as error:
            message = _failed(error, worker)
        if self._counts is not None:
            table.count(worker, self._counts())
        table.write(worker, State.WAITING, number)
        return worker, number, message


def _function(name: str) -> Any:
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"worker_init={name!r} was not found in the worker: {error}; write module:function"
        ) from error


def _end_with(process: int) -> None:
    """End this worker when the process that waits ends, also if a fork server is between them and no signal comes."""
    parent = parent_process()
    while os.getppid() == process and (parent is None or parent.is_alive()):
        sleep(_LOOK_S)
    os._exit(1)


def _leave_server() -> None:
    """Close the worker's end of the fork server's pipe, so that the server ends with the process that waits.

    The server ends when no process has the other end of a pipe open, but passes that end to all workers, for children
    of theirs. So workers would keep the server alive, and the server the workers.
    """
    server = getattr(forkserver, "_forkserver", None)
    held = getattr(server, "_forkserver_alive_fd", None)
    if held is not None:
        server._forkserver_alive_fd = None  # type: ignore[union-attr]
        os.close(held)


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
