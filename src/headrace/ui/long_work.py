"""Searches and checks, which take longer than a page: each step is a part of the page, sent when it is there.

    views.search, inspect.check --> steps: progress, hits, a verdict, a failure --> the template, as it goes on

Of several reports of progress the style sheet shows the last. When the page is left, or the server ends, no further
step is asked for, and what is done for the page ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import Event, Thread
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError

TELL_EVERY_S: Final = 0.5


class CannotGoOn(NamedTuple):
    """Why the work cannot go on."""

    message: str


class CheckProgress(NamedTuple):
    """How far a check is; ``total`` is None where that is not known."""

    phase: str
    done: float = 0
    total: float | None = None
    text: str = ""


def told(steps: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Yield steps of some work; an error is the last one."""
    try:
        yield from steps
    except (HeadraceError, OSError) as error:
        yield CannotGoOn(str(error))


class _Left(Exception):  # noqa: N818 - not an error: nobody waits for the answer any more
    """The page was left, and what was done for it ends."""


def checking(check: Callable[..., Any]) -> Generator[Any, None, None]:
    """Yield how far a check is, twice a second, and then its verdict.

    When the generator is closed, the check ends with its next report.

    Raises:
        Exception: what the check raises.
    """
    left, found = Event(), list[Any]()
    latest = CheckProgress("checking")

    def on_progress(
        phase: str, done: float = 0, total: float | None = None, *, text: str = "", speeds: object = None
    ) -> None:
        nonlocal latest
        if left.is_set():
            raise _Left
        latest = CheckProgress(phase, done, total, text)

    def work() -> None:
        try:
            found.append(check(on_progress=on_progress))
        except Exception as error:
            found.append(error)

    # Daemon: a check of a large shard says how far it is only every second, and the server does not wait for it.
    thread = Thread(target=work, name="headrace-ui-check", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(TELL_EVERY_S)
            yield latest
        [verdict] = found
        if isinstance(verdict, Exception):
            raise verdict
        yield verdict
    finally:
        left.set()
