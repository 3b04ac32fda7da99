"""How the threads of this library end: before the interpreter does.

A thread that comes back from C++ when the interpreter has begun to end is unwound by it, through functions that do not
allow that, and the program aborts ("terminate called without an active exception"). Torch is such C++ code.

Waits of a thread for a store: readers say when they wait, so that others can read meanwhile, and for how long.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Thread
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


_POLITE_S: Final = 1.0
_INTERRUPTED_S: Final = 5.0
_AGAIN_S: Final = 0.1


def end_threads(threads: Iterable[Thread]) -> None:
    """Wait at the end of a program until threads have ended that were told to; those that still work are interrupted.

    What is interrupted is their Python code, by SystemExit, of which threads say nothing. One that is in a call of C
    gets it afterwards. None is waited for longer than some seconds.
    """
    waiting = join_threads(list(threads), _POLITE_S)
    until = monotonic() + _INTERRUPTED_S
    while waiting and monotonic() < until:
        for thread in waiting:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        waiting = join_threads(waiting, _AGAIN_S)


def join_threads(threads: Sequence[Thread], limit_s: float) -> list[Thread]:
    """Wait for threads, for some seconds in all, and return those that still run."""
    until = monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - monotonic()))
    return [thread for thread in threads if thread.is_alive()]
