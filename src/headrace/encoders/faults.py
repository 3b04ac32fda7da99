"""What is done about a sample that cannot be made: raised, skipped or replaced, counted, placed in the run, reported.

Reports of faults: JSON lines, one file a rank.

Where in the run the sample is that a thread makes, told by whoever knows it to whoever meets a fault.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, SampleError, SkipSample
from headrace.plan import IntArray

PROGRAMMING: Final = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
)
"""Errors that no other sample makes good: the code is wrong, or the machine is full."""

KEPT: Final = 1000
"""Faults that a log keeps one by one; more are only counted."""


UNBOUNDED: Final = 10_000
"""What a tolerance of 0, no bound, comes to: nothing goes on for ever."""


class ErrorPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do about samples that cannot be made.

    Only faults that the bytes of a sample decide are made good, since they are the same on every rank and at every
    time: `is_of_sample`. All others are raised, whatever the policy.

    Attributes:
        on_error: ``"raise"`` ends the run at the first; ``"substitute"`` takes another sample of the same source.
        tolerance: how many samples in a row may fail at one position before it is an error after all. Counted position
            by position and hook, so that it does not depend on workers; ``failure_tolerance`` of a hook goes before it.
        attempts: how often in all a sample is made where a hook meets a time-out, a lost connection or the like,
            waiting in between; then that is raised. Not where a hook is not ``@stateless``.
    """

    on_error: Literal["raise", "substitute"] = "raise"
    tolerance: int = 100
    attempts: int = 5

    def __post_init__(self) -> None:
        """Raise ConfigError for another policy, or a tolerance or number of attempts below 1."""
        if self.on_error not in ("raise", "substitute"):
            raise ConfigError(f"on_error is {self.on_error!r}; it is 'raise' or 'substitute'")
        if self.tolerance < 1:
            raise ConfigError(f"tolerance is {self.tolerance}; it is at least 1; on_error='raise' tolerates nothing")
        if self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}; it is at least 1, which tries nothing again")

    def bound(self, hook_tolerance: int | None) -> int:
        """How many in a row may fail in a hook that says so much of itself, or nothing (None); 0 is 10,000."""
        return self.tolerance if hook_tolerance is None else hook_tolerance or UNBOUNDED


def is_of_sample(error: BaseException, *, stateless: bool) -> bool:
    """Whether the bytes of a sample decide that this error comes, so that it comes again wherever it is made.

    That is so of `SampleError` and `SkipSample`, and of what a hook raises that is ``stateless``. It is not so of wrong
    code, of what a store or the machine raises (`StoreError`, `OSError`, time-outs), nor of a configuration.
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
        index: the number of the sample in it.
        shard: the file that holds it, None where that is not known.
        key: its key, None where that is not known.
        address: the place that it was made for, as the source counts, in one epoch.
        attempt: 0 for the sample of that place, 1 for its first substitute.
        hook: in which it failed.
        kind: class of the error.
        reason: what it says.
        position: of the run, None where it was made outside of one.
        step: the global step in which it was delivered, None before that.
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
    """Faults, of one process, batch or run: all counted, the first 1,000 kept."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def total(self) -> int:
        """Faults so far."""
        return self.counts.total()

    def add(self, fault: Fault) -> None:
        """Count one, by source, hook and kind."""
        self.counts[fault.source, fault.hook, fault.kind] += 1
        if len(self.faults) < KEPT:
            self.faults.append(fault)

    def merge(self, other: FaultLog) -> None:
        """Take over those of another log."""
        self.counts += other.counts
        self.faults = [*self.faults, *other.faults][:KEPT]

    def at_step(self, step: int) -> FaultLog:
        """The same faults, of a step."""
        found = FaultLog()
        found.counts = self.counts.copy()
        found.faults = [msgspec.structs.replace(fault, step=step) for fault in self.faults]
        return found

    def summary(self) -> dict[str, Any]:
        """JSON-safe: the total, and (source, hook, kind, count), most frequent first."""
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
    """Faults as JSON lines, appended one by one. A run that goes on, from wherever, adds none that is there already.

    Each rank has a file of its own. A line that a kill has cut short is left out, and written again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._known: set[object] = set()
        if self._path.exists():
            self._known = {_sign(fault) for fault in read_fault_report([self._path])}
            self._end_line()

    def add(self, faults: Iterable[Fault]) -> None:
        """Append those that are not there."""
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
    """The faults in the reports of some ranks, each once, by position.

    Raises:
        InputError: a file is missing, or is something else; names the line.
    """
    found: dict[object, Fault] = {}
    for path in paths:
        try:
            lines = Path(path).read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(f"{path}: the report of faults cannot be read: {error.strerror}") from error
        # What is behind the last end of a line was cut short.
        for number, line in enumerate(lines[:-1], 1):
            try:
                fault = msgspec.json.decode(line, type=Fault)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{path}: line {number}: no fault of a report: {error}") from error
            found.setdefault(_sign(fault), fault)
    return sorted(found.values(), key=lambda one: (-1 if one.position is None else one.position, one.attempt))


def _sign(fault: Fault) -> object:
    """What tells a fault from others: it is the same whenever it is met again, but for the step that it is read for."""
    return fault.source, fault.position, fault.address, fault.attempt, fault.index, fault.hook, fault.kind


Error = TypeVar("Error", bound=Exception)

_FAULTS = "headrace_faults"


class _Here(threading.local):
    positions: IntArray | None = None
    row = 0
    found: list[Fault] | None = None


_here = _Here()


@contextmanager
def collecting() -> Iterator[list[Fault]]:
    """The faults that this thread meets within, in the order in which it meets them."""
    found: list[Fault] = []
    before, _here.found = _here.found, found
    try:
        yield found
    finally:
        _here.found = before


@contextmanager
def at_positions(positions: IntArray) -> Iterator[None]:
    """Samples of these positions of the run are made by this thread, the first one first; `at_row` says which."""
    before = _here.positions, _here.row
    _here.positions, _here.row = positions, 0
    try:
        yield
    finally:
        _here.positions, _here.row = before


def at_row(row: int) -> None:
    """The sample that comes next, by its number among those of `at_positions`."""
    _here.row = row


def position_here() -> int | None:
    """The position of the sample that this thread makes, where that is known."""
    positions = _here.positions
    return int(positions[_here.row]) if positions is not None and _here.row < len(positions) else None


def placed(fault: Fault) -> Fault:
    """A fault with the position of the sample that is made, where that is known; it is collected."""
    position = position_here()
    if position is not None:
        fault = msgspec.structs.replace(fault, position=position)
    if _here.found is not None:
        _here.found.append(fault)
    return fault


def carrying(error: Error, faults: Sequence[Fault]) -> Error:
    """The error, which carries the faults that it comes of, out of threads and worker processes too."""
    setattr(error, _FAULTS, tuple(faults))
    return error


def carried(error: Exception) -> tuple[Fault, ...]:
    """The faults that an error comes of."""
    found: tuple[Fault, ...] = getattr(error, _FAULTS, ())
    return found
