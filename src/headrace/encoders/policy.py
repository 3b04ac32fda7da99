"""What is done about a sample that cannot be made: raised, or another one in its place; counted in both cases."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal

import msgspec

from headrace.errors import ConfigError, HeadraceError, SampleError, SkipSample

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
