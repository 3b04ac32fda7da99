"""Worker processes that read spans: torch's ``DataLoader``, with the plan as its sampler.

It hands batches back in the order of the spans, whichever worker was faster. What a worker raises comes back as it is,
of its own type; a worker that is gone or silent is a `WorkerError`. What was delivered is counted by the loader:
workers have no state.
"""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing import active_children, get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from headrace.datasets import Run
from headrace.errors import ConfigError, StateError, WorkerError
from headrace.loader.spans import Batch, Span, read

if TYPE_CHECKING:
    from headrace.loader.reading import Reading


_FEEDER = "QueueFeederThread"

_TURN_S = 5.0
"""How soon a worker that is gone is noticed, where the system does not tell at once."""


_END = object()


class _Failed(NamedTuple):
    """What a worker raised, pickled, None where it does not pickle; and in words, as it was and with its way there."""

    pickled: bytes | None
    text: str
    way: str


class Workers:
    """The worker processes of one loader. They start with the first span, and stay if they are persistent.

    One stream of spans is read at a time: a new one ends the one before.
    """

    def __init__(self, run: Run, reading: Reading, *, pin: bool) -> None:
        self._run = run
        self._reading = reading
        self._pin = pin
        self._order = _SpanSampler()
        self._loader: DataLoader[Batch] | None = None
        self._processes: list[BaseProcess] = []
        self._stream = 0

    def filled(self, spans: Iterator[Span]) -> Iterator[tuple[Span, Batch]]:
        """Every span with its batch, in order.

        Raises:
            WorkerError: a worker process ended, or gave nothing for ``timeout_s``; names process and samples.
            ConfigError: the run does not pickle, and has to.
        """
        self._stream += 1
        mine = self._stream
        sent = self._order.begin(spans)
        batches = self._start()
        count = 0
        try:
            while True:
                if mine != self._stream:
                    raise StateError("these samples are read no more: the loader was iterated anew")
                batch = self._next(batches, sent, count)
                if batch is _END:
                    break
                span = sent.popleft()
                count += 1
                if isinstance(batch, _Failed):
                    raise _again(batch)
                yield span, batch
        except WorkerError:
            # Gone with all that was read ahead: whoever iterates again gets new workers.
            batches = iter(())
            self.close()
            raise
        finally:
            if not self._reading.persistent_workers and mine == self._stream:
                batches = iter(())
                self.close()

    def close(self) -> None:
        """End the processes; the next stream starts new ones."""
        self._loader = None
        self._processes = []

    def _next(self, batches: Iterator[Any], sent: deque[Span], count: int) -> Any:
        """Waits in short turns, since after each of them torch looks whether all workers live."""
        deadline = monotonic() + self._reading.timeout_s
        while True:
            try:
                return next(batches, _END)
            except RuntimeError as error:  # torch's own: those of samples come as values
                text = str(error)
            if "timed out" not in text or monotonic() >= deadline:
                # The other workers end when nobody has them any more, and an error keeps what its frames have.
                del batches
                raise self._lost(sent[0], count, text)

    def _start(self) -> Iterator[Any]:
        if self._loader is None:
            self._loader = DataLoader(
                _SpanReader(self._run),
                sampler=self._order,
                batch_size=None,
                collate_fn=_as_is,
                num_workers=self._reading.num_workers,
                prefetch_factor=self._reading.prefetch or 2,
                pin_memory=self._pin,
                timeout=min(_TURN_S, self._reading.timeout_s),
                persistent_workers=self._reading.persistent_workers,
                multiprocessing_context=self._context(),
            )
        before = set(active_children())
        try:
            with warnings.catch_warnings():
                # That it does not pickle is said below.
                warnings.filterwarnings("ignore", message="Got pickle error")
                batches = iter(self._loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise ConfigError(
                f"the run cannot be sent to worker processes that start anew: {error}; make functions of a module out "
                "of lambdas and inner functions, or say start_method='fork'"
            ) from error
        except RuntimeError as error:
            had = self._processes
            self.close()
            if not had:
                raise WorkerError(f"worker processes cannot be started: {error}") from error
            # Workers of the stream before of which one has died, or is busy yet, are given up.
            return self._start()
        # Those of a persistent loader were there already.
        self._processes += [process for process in active_children() if process not in before]
        return batches

    def _context(self) -> BaseContext:
        name = self._reading.start_method or safe_start_method()
        context = get_context(name)
        if name == "forkserver":
            # The server imports torch once, and each worker is a copy of it.
            context.set_forkserver_preload([__package__])
        return context

    def _lost(self, span: Span, count: int, text: str) -> WorkerError:
        """What is known of a worker that does not answer. Workers have their turns one after another."""
        positions = span.located.positions
        some = f"samples at positions {positions[0]:,} to {positions[-1]:,}" if len(positions) else "no samples"
        number = count % self._reading.num_workers
        waited = f"while worker {number} of {self._reading.num_workers} read {some} of step {span.steps[0]:,}"
        ended = [process for process in self._processes if not process.is_alive()]
        if ended:
            return WorkerError(f"{', '.join(map(_how, ended))} {waited}: {text}")
        return WorkerError(
            f"nothing came for {self._reading.timeout_s:g} s {waited}: {text}; raise timeout_s if samples take so long"
        )


def safe_start_method() -> str:
    """``"fork"`` where this process has nothing that a fork breaks, else a server that forks, or a fresh process.

    Broken are CUDA, communication between ranks, and locks that other threads hold; those that feed the queues of other
    worker processes hold none that matter.
    """
    methods = get_all_start_methods()
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and one.name != _FEEDER]
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    busy = has_cuda or (dist.is_available() and dist.is_initialized())
    if "fork" in methods and sys.platform != "darwin" and not busy and not others:
        return "fork"
    return "forkserver" if "forkserver" in methods else "spawn"


def _how(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"worker process {process.pid} was killed by {signal.Signals(-code).name}"
    return f"worker process {process.pid} ended with exit code {code}"


def _again(failed: _Failed) -> Exception:
    if failed.pickled is None:
        return WorkerError(f"{failed.text}\n{failed.way}")
    error: Exception = pickle.loads(failed.pickled)
    error.add_note(failed.way)
    return error


class _SpanSampler(Sampler[Span]):
    """Hands the spans of the newest stream to the DataLoader, which returns their batches in the same order."""

    def __init__(self) -> None:
        self._sent: deque[Span] = deque()
        self._spans: Iterator[Span] = iter(())

    def begin(self, spans: Iterator[Span]) -> deque[Span]:
        """The spans that are on their way, first the one whose batch comes next."""
        self._spans = spans
        self._sent = deque()
        return self._sent

    def __iter__(self) -> Iterator[Span]:
        sent = self._sent
        for span in self._spans:
            sent.append(span)
            yield span


class _SpanReader(Dataset[Any]):
    """The worker's side: a span in, its rows out."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, span: Span) -> Batch | _Failed:
        try:
            return read(self._run, span)
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> _Failed:
    info = get_worker_info()
    way = f"in worker {'?' if info is None else info.id}:\n{''.join(traceback.format_exception(error))}"
    text = f"{type(error).__name__}: {error}"
    try:
        pickled = pickle.dumps(error)
        # Some errors pickle, and cannot be made again.
        pickle.loads(pickled)
    except Exception:
        return _Failed(None, text, way)
    return _Failed(pickled, text, way)


def _as_is(batch: Any) -> Any:
    return batch
