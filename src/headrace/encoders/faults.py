"""Faults: samples that cannot be made, whether they are raised or replaced, and how they are counted and reported.

A report holds faults as JSON lines, one file for each rank.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headrace.config import Positive, check_fields
from headrace.errors import HeadraceError, InputError, OutputError, SampleError, SkipSample
from headrace.io import read_small

PROGRAMMING: Final = (
    SystemError,
    SyntaxError,
    ImportError,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
)
"""Errors that no other sample can resolve: the code is wrong, or memory has run out."""

KEPT: Final = 1000
"""The number of faults that a log keeps; more are only counted."""


UNBOUNDED: Final = 10_000
"""The bound used for a tolerance of 0, which means none, so that a run cannot continue for ever."""


class ErrorPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do about samples that cannot be made.

    Samples are replaced only for faults that their own bytes decide, since these are the same on every rank and at
    every time, see `is_of_sample`. All other errors are raised, whatever the policy says.

    Attributes:
        on_error: ``"raise"`` ends the run at the first fault; ``"substitute"`` uses another sample of the same source.
        tolerance: how many samples in a row may fail at one position before the fault is raised. It is counted for
            each position and hook, so that it does not depend on workers. ``failure_tolerance`` of a hook overrides it.
        on_fault: called with the error of each sample that another one is to replace, and its fault, before it is
            replaced. What it raises ends the run. None calls nothing.
        attempts: how often a sample is tried in all if a hook meets a time-out, a lost connection or the like, with a
            pause in between, before the error is raised. A hook that is not ``@stateless`` is not tried again.

    Raises:
        ConfigError: ``on_error`` is something else, or a number is below 1.

    Example:
        >>> from headrace.encoders import DefaultTaskEncoder, ErrorPolicy
        >>> policy = ErrorPolicy(on_error="substitute", tolerance=10)
        >>> media = headrace.MediaDataset.open("shards", "train")
        >>> dataset = headrace.datasets.EncodedDataset(media, DefaultTaskEncoder(), errors=policy)
        >>> len(dataset.faults.faults)
        0
    """

    on_error: Literal["raise", "substitute"] = "raise"
    tolerance: Positive = 100
    attempts: Positive = 5
    on_fault: Callable[[Exception, Fault], None] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def bound(self, hook_tolerance: int | None) -> int:
        """Return how many samples in a row may fail in a hook with this ``failure_tolerance``, or None without one.

        A ``failure_tolerance`` of 0, no bound, becomes 10,000.
        """
        return self.tolerance if hook_tolerance is None else hook_tolerance or UNBOUNDED


def is_of_sample(error: BaseException, *, stateless: bool) -> bool:
    """Whether the bytes of the sample decide that this error comes, so that it comes again wherever the sample is made.

    That holds for `SampleError` and `SkipSample`, and for errors of a hook that is ``stateless``. It does not hold for
    errors of a store or the machine (`StoreError`, `OSError`, time-outs), wrong code, and wrong configurations.
    """
    if isinstance(error, SampleError | SkipSample):
        return True
    if not isinstance(error, Exception) or isinstance(error, (HeadraceError, OSError, *PROGRAMMING)):
        return False
    return stateless


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One sample that could not be made.

    Attributes:
        source: the dataset.
        index: the number of the sample in the dataset.
        shard: the file that holds the sample; None if it is not known.
        key: the key of the sample; None if it is not known.
        address: the place in the source, within one epoch, that the sample was made for.
        attempt: 0 for the sample of that place, 1 for its first substitute, and so on.
        hook: the name of the hook that failed.
        kind: the class of the error.
        reason: the message of the error.
        position: the position in the run; None outside of a run.
        step: the global step in which the sample was delivered; None before that.
    """

    source: str
    index: int
    shard: str | None
    key: str | None
    address: int
    attempt: int
    hook: str
    kind: str
    reason: str
    position: int | None = None
    step: int | None = None


class FaultLog:
    """The faults of a process, batch or run. All are counted, and the first 1,000 are kept."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def total(self) -> int:
        """The number of faults so far."""
        return self.counts.total()

    def add(self, fault: Fault) -> None:
        """Count a fault by source, hook and kind, and keep it if there is room."""
        self.counts[fault.source, fault.hook, fault.kind] += 1
        if len(self.faults) < KEPT:
            self.faults.append(fault)

    def merge(self, other: FaultLog) -> None:
        """Add the faults of another log."""
        self.counts += other.counts
        self.faults = [*self.faults, *other.faults][:KEPT]

    def at_step(self, step: int) -> FaultLog:
        """Return a log of the same faults, with their step set."""
        found = FaultLog()
        found.counts = self.counts.copy()
        found.faults = [msgspec.structs.replace(fault, step=step) for fault in self.faults]
        return found

    def summary(self) -> dict[str, Any]:
        """Return ``{"total": int, "counts": [{"source", "hook", "kind", "count"}, ...]}``, most frequent first."""
        rows = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {
            "total": self.total,
            "counts": [
                {"source": source, "hook": hook, "kind": kind, "count": count} for (source, hook, kind), count in rows
            ],
        }

    def __repr__(self) -> str:
        return f"<FaultLog: {self.total:,} faults>"


class FaultReport:
    """A file of faults as JSON lines, one file for each rank. A run that resumes adds no fault that is in it already.

    A last line that was cut off by a kill is removed; its fault is written again.

    Raises:
        InputError: the file exists, and is not a report.
        OutputError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._known: set[object] = set()
        if self._path.exists():
            self._known = {_sign(fault) for fault in read_fault_report([self._path])}
            self._end_line()

    def add(self, faults: Iterable[Fault]) -> None:
        """Append the faults that are not in the file yet."""
        fresh = {sign: fault for fault in faults if (sign := _sign(fault)) not in self._known}
        if not fresh:
            return
        data = b"".join(msgspec.json.encode(fault) + b"\n" for fault in fresh.values())
        try:
            with self._path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise OutputError(f"{self._path}: the report of faults cannot be written: {error.strerror}") from error
        self._known.update(fresh)

    def _end_line(self) -> None:
        try:
            with self._path.open("r+b") as file:
                data = file.read()
                file.truncate(data.rfind(b"\n") + 1)
        except OSError as error:
            raise OutputError(f"{self._path}: the report of faults cannot be written: {error.strerror}") from error


def read_fault_report(paths: Iterable[str | os.PathLike[str]]) -> list[Fault]:
    """Return the faults in the reports of several ranks, each once, ordered by position.

    Raises:
        InputError: a file is missing, or a line is not a fault; the message names the line.
    """
    found: dict[object, Fault] = {}
    for path in paths:
        try:
            lines = read_small(Path(path)).split(b"\n")
        except OSError as error:
            raise InputError(f"{path}: the report of faults cannot be read: {error.strerror}") from error
        # A last line without an end was cut off.
        for number, line in enumerate(lines[:-1], 1):
            try:
                fault = msgspec.json.decode(line, type=Fault)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{path}: line {number}: this is not a fault of a report: {error}") from error
            found.setdefault(_sign(fault), fault)
    return sorted(found.values(), key=lambda one: (-1 if one.position is None else one.position, one.attempt))


def _sign(fault: Fault) -> object:
    """Return what identifies a fault: all that is the same when the fault comes again. The step may differ."""
    return fault.source, fault.position, fault.address, fault.attempt, fault.index, fault.hook, fault.kind
