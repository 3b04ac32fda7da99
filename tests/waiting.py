"""Time for tests of what waits: it passes by events, so that no result depends on how busy the machine is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import media_texts
from headrace.loader.workers import pool
from headrace.loader.workers.pool import Wait
from headrace.loader.workers.server import ForkServer
from headrace.loader.workers.worker import State


def workers_now() -> set[Any]:
    """The workers of all loaders of this process that have not ended."""
    return {worker for one in list(pool._living) for worker in one.workers if worker.is_alive()}


def descendants() -> set[int]:
    """The processes that this one has started, and those that these have started, as long as they run."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                command = (entry / "cmdline").read_bytes()
                if state != "Z" and b"resource_tracker" not in command:
                    parents[int(entry.name)] = int(parent)
    found = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def waits_for_the_bad_sample(number: int = media_texts.BAD, *, only_for_it: bool = False) -> Wait | None:
    """The wait of a loader for a worker that is at a sample, when all else is done.

    It may be for the message before that one: a worker that holds its interpreter, or was stopped, keeps it back. With
    ``only_for_it`` all messages before were handed over.
    """
    for one in list(pool._living):
        if (wait := one._wait) is not None:
            first = one._next
            rows = [one._table.row(at) for at in range(one._num_workers)]
            awaited = rows.pop(wait.worker)
            if awaited.state is State.READING and awaited.sample == number:
                # Looked at last: only if the wait has lasted until now, what was sent first belongs to it.
                is_due = first == awaited.task and one._wait is wait
                is_all = all(row.state is State.WAITING for row in rows)
                return wait if is_all and (is_due or not only_for_it) else None
    return None


class Clock:
    """The clock of a loader with workers: it stands still while the loader waits for one that does its work.

    Args:
        runs_on: whether it runs on when the wait is over its limit: for a worker that does not even say where it is.
        flag: the file of `media_texts.Once`, before which the clock does not run: the worker says that it begins a
            sample before it touches the file, and one that ended in between would do it all again.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, runs_on: bool = False, flag: Path | None = None) -> None:
        self._now = self._last = monotonic()
        self._runs_on = runs_on
        self._flag = flag
        monkeypatch.setattr(pool, "monotonic", self)
        _wait_for_servers(monkeypatch)

    def __call__(self) -> float:
        """Seconds."""
        passed, self._last = monotonic() - self._last, monotonic()
        if all(one._wait is None for one in list(pool._living)):
            self._now += passed
        elif (wait := waits_for_the_bad_sample()) is not None and (self._runs_on or self._now < wait.until):
            self._now += 0.05 if self._flag is None or self._flag.exists() else 0.0
        return self._now


def clock_that(monkeypatch: pytest.MonkeyPatch, module: object, *, runs_when: Callable[[], bool]) -> None:
    """Have a module's clock run, by 0.05 s a look, while something is so."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.05 if runs_when() else 0.0
        return now

    monkeypatch.setattr(module, "monotonic", clock)
    _wait_for_servers(monkeypatch)


def _wait_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have servers of workers prove themselves in a minute, and not in a part of a short ``timeout_s``."""
    monkeypatch.setattr(pool, "ForkServer", lambda setup, limit_s: ForkServer(setup, max(60.0, limit_s)))
