"""How a rank's spans are read: when asked for, ahead in threads, or ahead in worker processes; always in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import cycle
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal

import msgspec
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from headrace.datasets import Run, Sample
from headrace.errors import ConfigError
from headrace.loader.buffers import Buffers
from headrace.loader.spans import Batch, Span, read


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where samples are read, and how far ahead.

    Token data is best read in threads of this process: handing tensors between processes costs many times the reading.
    ``num_threads=0, num_workers=0`` reads when a batch is asked for. ``prefetch`` is the number of spans (about 4 MiB
    each) kept ready, a thread or worker. ``pin_memory`` None pins when CUDA is there. ``start_method`` is how worker
    processes start (``"fork"``, ``"spawn"``, ``"forkserver"``; None: Python's default).
    """

    num_threads: int = 1
    num_workers: int = 0
    prefetch: int = 1
    pin_memory: bool | None = None
    start_method: Literal["fork", "spawn", "forkserver"] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for negative counts."""
        if self.num_threads < 0 or self.num_workers < 0 or self.prefetch < 1:
            raise ConfigError(
                f"num_threads and num_workers are at least 0 and prefetch at least 1, found {self.num_threads}, "
                f"{self.num_workers} and {self.prefetch}"
            )


Filled = Iterator[tuple[Span, Batch]]


def filled(run: Run, spans: Iterator[Span], reading: Reading) -> Filled:
    """Every span with its batch, in order."""
    pin = torch.cuda.is_available() if reading.pin_memory is None else reading.pin_memory
    if reading.num_workers:
        return _in_workers(run, spans, reading, pin=pin)
    if reading.num_threads:
        return _in_threads(run, spans, reading, pin=pin)
    return _when_asked(run, spans, pin=pin)


def _when_asked(run: Run, spans: Iterator[Span], *, pin: bool) -> Filled:
    buffers = Buffers(run.fields)
    for span in spans:
        batch = read(run, span, _memory(run, buffers, span))
        yield span, _pinned(batch) if pin else batch


class _Thread:
    """Reads spans in the order in which they are sent."""

    def __init__(self, run: Run, *, pin: bool) -> None:
        self._sent: SimpleQueue[tuple[Span, Sample | None] | None] = SimpleQueue()
        self._done: SimpleQueue[Batch | BaseException] = SimpleQueue()
        self._thread = Thread(target=self._work, args=(run, pin), name="headrace-read", daemon=True)
        self._thread.start()

    def send(self, span: Span, out: Sample | None) -> None:
        self._sent.put((span, out))

    def receive(self) -> Batch:
        batch = self._done.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def stop(self) -> None:
        while not self._sent.empty():
            self._sent.get()
        self._sent.put(None)
        self._thread.join()

    def _work(self, run: Run, pin: bool) -> None:
        while (task := self._sent.get()) is not None:
            try:
                batch = read(run, *task)
                self._done.put(_pinned(batch) if pin else batch)
            except BaseException as error:  # raised again where the batch is received
                self._done.put(error)
            # Neither the task nor its batch may live on in this thread: their memory would not be used again.
            del task
            batch = None  # type: ignore[assignment]


def _in_threads(run: Run, spans: Iterator[Span], reading: Reading, *, pin: bool) -> Filled:
    buffers = Buffers(run.fields)
    threads = [_Thread(run, pin=pin) for _ in range(reading.num_threads)]
    ahead: deque[tuple[Span, _Thread]] = deque()
    try:
        # Each thread answers in order, and the threads take turns, so the answers are in order. A span is sent before
        # another is handed over: the threads read while the training loop has the batches.
        for thread in cycle(threads):
            later = next(spans, None)
            if later is None:
                break
            thread.send(later, _memory(run, buffers, later))
            ahead.append((later, thread))
            if len(ahead) > reading.num_threads * reading.prefetch:
                span, first = ahead.popleft()
                yield span, first.receive()
        for span, first in ahead:
            yield span, first.receive()
    finally:
        for thread in threads:
            thread.stop()


def _memory(run: Run, buffers: Buffers, span: Span) -> Sample | None:
    """Arrays to read a span into; None for records, whose shapes are known when they are read."""
    return None if run.is_ragged else buffers.take(len(span.located.positions))


def _pinned(batch: Batch) -> Batch:
    return {name: v.pin_memory() if isinstance(v, torch.Tensor) else v for name, v in batch.items()}


def _in_workers(run: Run, spans: Iterator[Span], reading: Reading, *, pin: bool) -> Filled:
    order = _SpanSampler(spans)
    loader: DataLoader[Batch] = DataLoader(
        _SpanReader(run),
        sampler=order,
        batch_size=None,
        collate_fn=_as_is,
        num_workers=reading.num_workers,
        prefetch_factor=reading.prefetch,
        pin_memory=pin,
        multiprocessing_context=reading.start_method,
    )
    for batch in loader:
        yield order.sent.popleft(), batch


class _SpanSampler(Sampler[Span]):
    """Hands spans to the DataLoader, which returns their batches in the same order."""

    def __init__(self, spans: Iterator[Span]) -> None:
        self.sent: deque[Span] = deque()
        self._spans = spans

    def __iter__(self) -> Iterator[Span]:
        for span in self._spans:
            self.sent.append(span)
            yield span


class _SpanReader(Dataset[Batch]):
    """The worker's side: a span in, its rows out."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, span: Span) -> Batch:
        return read(self._run, span)


def _as_is(batch: Any) -> Any:
    return batch
