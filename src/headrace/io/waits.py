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
    tell: Callable[[bool], Wait] | None = None


_WAITS: Final = _Waits()


def tell_of_waits(wait: Callable[[bool], Wait]) -> None:
    """Enter ``wait(for_more)`` around each wait of this thread for a store, so that others can read meanwhile."""
    _WAITS.tell = wait


def waited_s() -> float:
    """Return for how many seconds this thread has waited for stores so far; see `waiting`."""
    return _WAITS.seconds


@contextlib.contextmanager
def waiting(*, for_more: bool = True) -> Iterator[None]:
    """The context in which a reader waits for an object store, or for what a cache keeps from slow disks.

    A wait within another one is a part of that.

    Args:
        for_more: whether more could be asked for meanwhile, so that another thread had better begin to.
    """
    if _WAITS.is_now:
        yield
        return
    tell = _WAITS.tell
    since = monotonic()
    _WAITS.is_now = True
    try:
        with contextlib.nullcontext() if tell is None else tell(for_more):
            yield
    finally:
        _WAITS.is_now = False
        _WAITS.seconds += monotonic() - since
