"""Server-sent events: searches and checks with their progress, and news of files that grow.

A stream ends, and what it does ends with it, when the page is left, or when the server is ``ending``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final

import anyio
import msgspec
from anyio import to_thread

from headrace.errors import HeadraceError
from headrace.inspect.figures import safe_text, writable

POLL_S: Final = 1.0
"""How often files are looked at, to see whether they have grown."""

_PAUSE_S: Final = 0.1
_END: Final = object()


def event(kind: str, value: Any) -> bytes:
    """Return one event, with a value as JSON; line breaks of data cannot end it."""
    return (
        b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(writable(msgspec.to_builtins(value))) + b"\n\n"
    )


async def searching(found: Generator[Any, None, None], ending: Event) -> AsyncIterator[bytes]:
    """Yield what a search finds, as events that are called after their structs."""
    # A step that goes on in its thread when the page is left has to end before the search can be closed.
    searching = Lock()

    def step() -> Any:
        with searching:
            return next(found, _END)

    try:
        while not ending.is_set() and (one := await to_thread.run_sync(step)) is not _END:
            yield event(type(one).__name__, one)
    except HeadraceError as error:
        yield event("failed", {"message": safe_text(str(error))})
    finally:
        with searching:
            found.close()


class _Left(Exception):  # noqa: N818 - not an error: nobody waits for the answer any more
    """The page was left, and what was done for it ends."""


async def checking(check: Callable[..., Any], ending: Event) -> AsyncIterator[bytes]:
    """Yield how far a check is, and then its verdict; it ends between two of its reports when the page is left."""
    told: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    left = Event()
    last_s = 0.0

    def on_progress(
        phase: str, done: float = 0, total: float | None = None, *, text: str = "", speeds: object = None
    ) -> None:
        nonlocal last_s
        if left.is_set():
            raise _Left
        if time.monotonic() - last_s >= _PAUSE_S:
            last_s = time.monotonic()
            told.put(("progress", {"phase": phase, "done": done, "total": total, "text": text}))

    def work() -> None:
        try:
            verdict = check(on_progress=on_progress)
            lines = [safe_text(line) for line in (*verdict.fault_lines(), *verdict.lines())]
            told.put(("verdict", {"ok": verdict.ok, "lines": lines}))
        except _Left:
            pass
        except (HeadraceError, OSError) as error:
            told.put(("failed", {"message": safe_text(str(error))}))
        finally:
            told.put(("end", None))

    # Daemon: a check of a large shard says how far it is only every second, and the server does not wait for it.
    Thread(target=work, name="headrace-ui-check", daemon=True).start()
    try:
        while not ending.is_set():
            while not told.empty():
                kind, value = told.get()
                if kind == "end":
                    return
                yield event(kind, value)
            await anyio.sleep(_PAUSE_S)
    finally:
        left.set()


async def growing(files: Callable[[], Sequence[str]], ending: Event) -> AsyncIterator[bytes]:
    """Yield an event whenever one of some files has changed; comments in between keep the connection."""
    before = await to_thread.run_sync(_sizes, files)
    yield event("ready", {})
    while True:
        for _ in range(max(1, round(POLL_S / _PAUSE_S))):
            await anyio.sleep(min(POLL_S, _PAUSE_S))
            if ending.is_set():
                return
        now = await to_thread.run_sync(_sizes, files)
        if now != before:
            before = now
            yield event("grown", {})
        else:
            yield b": nothing new\n\n"


def _sizes(files: Callable[[], Sequence[str]]) -> list[tuple[str, int, int]]:
    found = []
    for file in files():
        try:
            status = Path(file).stat()
        except OSError:
            continue
        found.append((file, status.st_size, status.st_mtime_ns))
    return found
