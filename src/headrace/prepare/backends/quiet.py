"""Keeps what a library prints by itself off the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence() -> Iterator[None]:
    """Throw away what is written to the standard error stream of the process meanwhile.

    A panic in Rust prints a message of its own there before it becomes an exception, which says the same. Cost: some
    microseconds. Other threads are silent as well.
    """
    try:
        kept = os.dup(2)
    except OSError:  # the process has no such stream
        yield
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
        finally:
            os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
