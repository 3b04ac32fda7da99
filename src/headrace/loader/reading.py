"""How a rank's spans are read: when asked for, ahead in threads, or ahead in worker processes; always in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import cycle
from queue import SimpleQueue
from threading import Thread
from typing import Literal

import msgspec
import torch

from headrace.datasets import Run, Sample
from headrace.errors import ConfigError
from headrace.loader.buffers import Buffers
from headrace.loader.spans import Batch, Span, read
from headrace.loader.workers import Workers


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where samples are read, and how far ahead.

    Token data is best read in threads of this process: handing tensors between processes costs many times the reading.
    Media, whose decoding holds the interpreter, are best read in worker processes.
    ``num_threads=0, num_workers=0`` reads when a batch is asked for.

    Attributes:
        num_threads: that read, if there are no workers.
        num_workers: processes of torch's ``DataLoader``.
        prefetch: spans kept ready, a thread or worker: about 4 MiB each, of media one micro-batch. None: 1 of threads,
            2 of workers.
        pin_memory: None pins when CUDA is there.
        start_method: how workers start; None forks where that is safe, which it is not with CUDA, communication between
            ranks or other threads, and else takes ``"forkserver"`` (``"spawn"`` where there is none): datasets and the
            functions in them then have to pickle, and a script needs ``if __name__ == "__main__"``.
        persistent_workers: whether workers stay for the next iteration of the loader, as long as it lives.
        timeout_s: how long a batch of a worker may take to come; then it is a WorkerError.
    """

    num_threads: int = 1
    num_workers: int = 0
    prefetch: int | None = None
    pin_memory: bool | None = None
    start_method: Literal["fork", "spawn", "forkserver"] | None = None
    persistent_workers: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Raise ConfigError for negative counts, and for a timeout that never comes."""
        if self.num_threads < 0 or self.num_workers < 0 or (self.prefetch is not None and self.prefetch < 1):
            raise ConfigError(
                f"num_threads and num_workers are at least 0 and prefetch at least 1, found {self.num_threads}, "
                f"{self.num_workers} and {self.prefetch}"
            )
        if not 0 < self.timeout_s < float("inf"):
            raise ConfigError(f"timeout_s is a number of seconds above 0, found {self.timeout_s}")


Filled = Iterator[tuple[Span, Batch]]


class Reader:
    """Reads the spans of one run, stream after stream; a new stream ends the one before."""

    def __init__(self, run: Run, reading: Reading) -> None:
        self._run = run
        self._reading = reading
        self._pin = torch.cuda.is_available() if reading.pin_memory is None else reading.pin_memory
        self._workers = Workers(run, reading, pin=self._pin) if reading.num_workers else None

    def filled(self, spans: Iterator[Span]) -> Filled:
        """Every span with its batch, in order."""
        if self._workers is not None:
            return self._workers.filled(spans)
        if self._reading.num_threads:
            return _in_threads(self._run, spans, self._reading, pin=self._pin)
        return _when_asked(self._run, spans, pin=self._pin)

    def close(self) -> None:
        """End worker processes; threads end with their stream."""
        if self._workers is not None:
            self._workers.close()


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
            if len(ahead) > reading.num_threads * (reading.prefetch or 1):
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
