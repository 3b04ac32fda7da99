"""How the threads of this library end: before the interpreter does.

A thread that comes back from C++ when the interpreter has begun to end is unwound by it, through functions that do not
allow that, and the program aborts ("terminate called without an active exception"). Torch is such C++ code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from threading import Thread
from time import monotonic
from typing import Final

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
