"""The samples that could not be made, counted when the batch is delivered that they belong to.

    reader (thread, worker)   Fault: shard, key, position  --> beside the batch, or on the error that ends the run
    loader                    step --> Loader.faults, Loader.ledger(), the report

What was read ahead is not counted before its turn, and what is read again after a lost worker is counted once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from headrace.encoders import Fault, FaultLog, FaultReport
from headrace.errors import ConfigError
from headrace.io import check_local
from headrace.loader.spans import Batch, BatchSpan


class Given(NamedTuple):
    """A micro-batch; the position after it; its samples or units; what failed in them, None where nothing did."""

    batch: Batch
    after: int
    num_samples: int
    faults: FaultLog | None


class FeedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """What one loader has handed over since it was made.

    Attributes:
        delivered: samples; of a `FramedRun` units.
        substituted: how many samples another one stands in for, by ``"DecodeError in read"``; of packs also those that
            are left out of theirs.
    """

    delivered: int
    substituted: dict[str, int]

    @property
    def num_substituted(self) -> int:
        """Of all reasons."""
        return sum(self.substituted.values())

    @property
    def as_they_are(self) -> int:
        """Samples that are those of the order."""
        return self.delivered - self.num_substituted


class FaultCounter:
    """Counts what one loader hands over, and writes each fault as a line, if there is a path.

    Raises:
        InputError: the report is something else.
        OutputError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.faults = FaultLog()
        self._delivered = 0
        self._substituted: Counter[str] = Counter()
        self._report = None if path is None else FaultReport(path)

    def add(self, num_samples: int, faults: FaultLog | None, step: int) -> None:
        """A micro-batch of a step is handed over."""
        self._delivered += num_samples
        if faults is not None:
            self._count(faults.at_step(step))
            self._substituted.update(f"{one.kind} in {one.hook}" for one in faults.faults if one.attempt == 0)

    def failed(self, faults: Sequence[Fault], step: int | None) -> None:
        """A sample ends the run."""
        log = FaultLog()
        for fault in faults:
            log.add(fault)
        self._count(log if step is None else log.at_step(step))

    def _count(self, log: FaultLog) -> None:
        self.faults.merge(log)
        if self._report is not None:
            self._report.add(log.faults)

    def ledger(self) -> FeedLedger:
        """So far."""
        return FeedLedger(delivered=self._delivered, substituted=dict(sorted(self._substituted.items())))


def report_path(
    path: str | os.PathLike[str] | None,
    rank: int,
    world_size: int,
    *,
    what: str = "fault_report",
    instead: str = "faults-{rank}.jsonl",
) -> str | None:
    """The file of a rank. Raises ConfigError for one file of several ranks."""
    check_local(path)
    if path is None:
        return None
    name = os.fspath(path)
    if world_size > 1 and "{rank}" not in name:
        raise ConfigError(f"{name}: {world_size} ranks would write one {what}: give {instead!r}")
    return name.replace("{rank}", str(rank))


def shared_out(faults: Sequence[Fault], span: BatchSpan) -> list[FaultLog | None]:
    """Those of each micro-batch of a span."""
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
    """Some logs as one, None where all are."""
    found: FaultLog | None = None
    for log in logs:
        if log is not None:
            found = found or FaultLog()
            found.merge(log)
    return found
