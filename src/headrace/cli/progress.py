"""Progress of long runs on standard error: a bar for each phase on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TextIO

from headrace.inspect.figures import duration, short

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

BAR_EVERY_S = 0.2
PLAIN_EVERY_S = 30.0
_NO_SPEEDS: Mapping[str, float] = {}


class _Phase(NamedTuple):
    """The first update of a phase. Speeds count from there, since an earlier run may have done a part of the work."""

    name: str
    begin_s: float
    done: float
    amounts: Mapping[str, float]

    def pace(self, now: float, done: float, total: float | None, speeds: Mapping[str, float]) -> list[str]:
        """Return the speed in each unit since the phase began, and how long the rest will take, as far as known."""
        took_s, done_here = now - self.begin_s, done - self.done
        if took_s <= 0:
            return []
        rates = {unit: (amount - self.amounts.get(unit, 0)) / took_s for unit, amount in speeds.items()}
        words = [f"{short(rate)}{unit}/s" for unit, rate in rates.items() if rate > 0]
        if total and done_here > 0:
            words.append(f"{duration((total - done) / done_here * took_s)} left")
        return words


class ProgressBar:
    """Shows the latest `update`; used as a context manager it removes its bars at the end.

    On a terminal each phase has a bar, which rich draws without a thread, so that the process can be forked meanwhile.
    Elsewhere a plain line is written every ``PLAIN_EVERY_S`` seconds, so that short runs write nothing.

    Args:
        quiet: show no progress.
        stream: where to write; standard error by default.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
        self._begin_s = self._shown_s = time.monotonic()
        self._phase: _Phase | None = None
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._begin_s

    def update(
        self,
        phase: str,
        done: float = 0,
        total: float | None = None,
        *,
        text: str = "",
        speeds: Mapping[str, float] = _NO_SPEEDS,
    ) -> None:
        """Record how far a phase is, and show it if the last line or drawing is old enough.

        Args:
            phase: its name.
            done: the amount that is done, in any unit.
            total: the whole amount in the same unit; None if it is unknown.
            text: text to show beside the bar.
            speeds: for each unit the amount so far, since the run or the phase began: ``{"B": 2_000}``.
        """
        if self._quiet:
            return
        now = time.monotonic()
        before = self._phase
        begins = before is None or before.name != phase
        current = self._phase = _Phase(phase, now, done, dict(speeds)) if before is None or begins else before
        if before is not None and begins:
            self._finish(before.name)
        every_s = BAR_EVERY_S if self._is_terminal else PLAIN_EVERY_S
        if now - self._shown_s < every_s and not (begins and self._is_terminal):
            return
        self._shown_s = now
        words = [*([text] if text else []), *current.pace(now, done, total, speeds)]
        if self._is_terminal:
            self._draw(phase, done, total, "  ".join(words))
        else:
            share = f" {done / total:6.1%}" if total else ""
            self._stream.write("  ".join([phase + share, *words]) + "\n")
            self._stream.flush()

    def note(self, message: str) -> None:
        """Print a line that stays above the bars; it is printed even if ``quiet`` is set."""
        if self._bars is None:
            self._stream.write(message + "\n")
            self._stream.flush()
        else:
            self._bars.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def notice(self, message: str) -> None:
        """Print what a user should know, unless ``quiet`` is set."""
        if not self._quiet:
            self.note(f"note: {message}")

    def _draw(self, phase: str, done: float, total: float | None, text: str) -> None:
        if self._bars is None:
            self._bars = _bars(self._stream)
            self._bars.start()
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=None, text="")
        share = f"{done / total:6.1%}  " if total else ""
        self._bars.update(self._tasks[phase], completed=done, total=total or None, text=share + text)
        self._bars.refresh()

    def _finish(self, phase: str) -> None:
        """Show a phase as done once the next one has begun."""
        if self._bars is not None and phase in self._tasks:
            self._bars.update(self._tasks[phase], completed=1, total=1, text="done")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _bars(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(file=stream, highlight=False),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
