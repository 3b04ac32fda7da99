"""Faults: samples that could not be made, counted when their batch is delivered.

    reader (thread, worker)   Fault: shard, key, position  --> `SpanRows`, or `SampleFailure`, which ends the run
    loader                    adds the step                --> Loader.faults, Loader.ledger(), the report

A sample that was read ahead is not counted before its turn, and one that is read again after a lost worker is counted
once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import msgspec

from headrace.datasets.dataset import SampleWatch, StageTimes
from headrace.encoders import Fault, FaultLog, FaultReport
from headrace.errors import ConfigError
from headrace.io import check_local
from headrace.loader.spans import Batch, BatchSpan, FileTime
from headrace.plan import IntArray

T = TypeVar("T")


class SampleFailure(Exception):  # noqa: N818 -- it never leaves the library: a loader raises ``error``
    """A reader met ``error``, since samples could not be made. ``faults`` are those samples."""

    def __init__(self, error: Exception, faults: Sequence[Fault]) -> None:
        super().__init__(error, faults)
        self.error = error
        self.faults = faults


@contextmanager
def blaming(watch: SampleWatch) -> Iterator[None]:
    """Raise a `SampleFailure` for an error within the context if samples are to blame for it."""
    try:
        yield
    except Exception as error:
        if watch.fatal:
            raise SampleFailure(error, watch.fatal) from None
        raise


def original_errors(
    stream: Iterator[T], tell: Callable[[Exception, Sequence[Fault]], None] | None = None
) -> Iterator[T]:
    """Yield what a stream yields. For a `SampleFailure` raise the original error, after ``tell`` was called with it."""
    # As the interpreter ends, names of modules are None, and a generator that was left open is closed only then.
    failed = SampleFailure
    try:
        yield from stream
        return
    except failed as failure:
        error = failure.error
        if tell is not None:
            tell(error, failure.faults)
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame, and the cycle would keep worker processes alive


class HandOver(NamedTuple):
    """What is known of micro-batches that were read and handed over together; see `headrace.loader.metrics`.

    Attributes:
        times: how long the reader took.
        sources: (n,) int64: the source of each sample; None where it is not known.
        timed: the time of one of the files, if it was read alone.
    """

    times: StageTimes
    sources: IntArray | None = None
    timed: FileTime | None = None


class Given(NamedTuple):
    """A micro-batch, the position after it, the number of its samples or units, and their faults, None without any.

    The first one of those that were handed over together has the `HandOver`.
    """

    batch: Batch
    after: int
    num_samples: int
    faults: FaultLog | None
    handed: HandOver | None = None


class FeedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples one loader has yielded since it was made, and how many of them were replaced.

    Attributes:
        delivered: the number of samples; for a `FramedRun`, of units.
        substituted: the number of samples that were replaced by others, by reason, such as ``"DecodeError in read"``.
            For packs also the samples that were left out of theirs.
    """

    delivered: int
    substituted: dict[str, int]

    @property
    def num_substituted(self) -> int:
        """The number of samples that were replaced, for any reason."""
        return sum(self.substituted.values())


class FaultCounter:
    """Counts what one loader yields, and writes each fault to a report as a line, if it has a path.

    Raises:
        InputError: the file at the path is not such a report.
        OutputError: the report cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.faults = FaultLog()
        self.num_delivered = 0
        self._substituted: Counter[str] = Counter()
        self._report = None if path is None else FaultReport(path)

    def add(self, num_samples: int, faults: FaultLog | None, step: int) -> None:
        """Count a micro-batch that is about to be yielded."""
        self.num_delivered += num_samples
        if faults is not None:
            self._count(faults.at_step(step))
            self._substituted.update(f"{one.kind} in {one.hook}" for one in faults.faults if one.attempt == 0)

    def failed(self, faults: Sequence[Fault], step: int | None) -> None:
        """Count the faults of a sample that ends the run; ``step`` is None where it is not known."""
        log = FaultLog()
        for fault in faults:
            log.add(fault)
        self._count(log if step is None else log.at_step(step))

    def _count(self, log: FaultLog) -> None:
        self.faults.merge(log)
        if self._report is not None:
            self._report.add(log.faults)

    def ledger(self) -> FeedLedger:
        """Return the counts so far."""
        return FeedLedger(delivered=self.num_delivered, substituted=dict(sorted(self._substituted.items())))


def report_path(
    path: str | os.PathLike[str] | None,
    rank: int,
    world_size: int,
    *,
    what: str = "fault_report",
    instead: str = "faults-{rank}.jsonl",
) -> str | None:
    """Return the path with ``{rank}`` replaced. Raise ConfigError if several ranks would write the same file."""
    check_local(path)
    if path is None:
        return None
    name = os.fspath(path)
    if world_size > 1 and "{rank}" not in name:
        raise ConfigError(f"{name}: {world_size} ranks would write the same {what}: name it like {instead!r}")
    return name.replace("{rank}", str(rank))


def shared_out(faults: Sequence[Fault], span: BatchSpan) -> list[FaultLog | None]:
    """Divide the faults of a span among its micro-batches, by their positions."""
    found: list[FaultLog | None] = [None] * len(span.sizes)
    if not faults:
        return found
    owners = [number for number, size in enumerate(span.sizes) for _ in range(size)]
    of_position = dict(zip(span.located.positions.tolist(), owners, strict=True))
    for fault in faults:
        number = of_position.get(fault.position, 0) if fault.position is not None else 0
        log = found[number]
        if log is None:
            log = found[number] = FaultLog()
        log.add(fault)
    return found


def merged(logs: Iterable[FaultLog | None]) -> FaultLog | None:
    """Merge logs into one; None if all of them are."""
    found: FaultLog | None = None
    for log in logs:
        if log is not None:
            found = found or FaultLog()
            found.merge(log)
    return found
