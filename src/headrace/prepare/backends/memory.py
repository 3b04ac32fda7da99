"""Keeps the caches of the fast libraries, which grow with every new word, within a worker's memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

GROWTH_BYTES = 96 << 20
"""What a library's caches may add to the process before it is loaded anew."""

LOOK_EVERY_CHARACTERS = 4 << 20
"""Characters of text between two looks."""

BLIND_CHARACTERS = 256 << 20
"""Characters of text after which it is loaded anew where the size of the process cannot be seen."""


class CacheGuard:
    """Says when a library should be loaded anew.

    Words of whole languages fit (1.4 GB of English and code: 40 MB of growth after the first 150 MB); texts in which
    hardly a word comes twice add 10 bytes a character, and cost a load (0.1 s) every ten million characters.
    """

    def __init__(self) -> None:
        self._unseen = 0
        self._limit: int | None = None

    def is_full(self, num_characters: int) -> bool:
        """Whether the caches have grown too far, after as many more characters."""
        self._unseen += num_characters
        if self._limit is None:
            self._limit = resident_bytes() + GROWTH_BYTES
        if self._unseen < LOOK_EVERY_CHARACTERS:
            return False
        size = resident_bytes()
        if size == 0:
            return self._unseen >= BLIND_CHARACTERS
        self._unseen = 0
        return size > self._limit

    def reset(self) -> None:
        """Begin anew: the library was thrown away."""
        self._unseen = 0
        self._limit = None
        gc.collect()
        return_memory()


def resident_bytes() -> int:
    """What the process holds in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def return_memory() -> None:
    """Give freed memory back to the system, where the C library has a call for it (glibc)."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
