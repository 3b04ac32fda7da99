"""Waits of a thread for a store: readers say when they wait, so that others can read meanwhile, and for how long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

Wait = contextlib.AbstractContextManager[None]


class _Waits(threading.local):
    """How long this thread has waited for stores, whether it waits now, and who is told."""

    seconds = 0.0
    is_now = False
    tell: Callable[[], Wait] | None = None


_WAITS: Final = _Waits()


def tell_of_waits(wait: Callable[[], Wait]) -> None:
    """Enter ``wait()`` around each wait of this thread for a store, so that others can read meanwhile."""
    _WAITS.tell = wait


def waited_s() -> float:
    """Return for how many seconds this thread has waited for stores so far; see `waiting`."""
    return _WAITS.seconds


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """The context in which a reader waits for an object store, or for what a cache keeps from slow disks.

    A wait within another one is a part of that.
    """
    if _WAITS.is_now:
        yield
        return
    tell = _WAITS.tell
    since = monotonic()
    _WAITS.is_now = True
    try:
        with contextlib.nullcontext() if tell is None else tell():
            yield
    finally:
        _WAITS.is_now = False
        _WAITS.seconds += monotonic() - since
