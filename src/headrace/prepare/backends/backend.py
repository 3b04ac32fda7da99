"""The face of every tokeniser that `prepare` can run, texts in, ids as arrays out; and a bound for its caches.

Keeps the caches of the fast libraries, which grow with every new word, within a worker's memory.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SpecialPolicy = Literal["encode", "literal", "error"]
"""What the text of a special token inside a document becomes: the token; ordinary text; a bad record."""


class EncodedTexts(NamedTuple):
    """Texts as ids."""

    ids: NDArray[np.uint32]
    """(sum of lengths,) the ids of all texts, one text after another."""

    lengths: NDArray[np.int64]
    """(number of texts,) tokens of each."""


class RefusedTextError(Exception):
    """The tokeniser refuses a text: ``index`` is its number in the list, the message what the library said."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class Backend(Protocol):
    """One library, loaded with one tokeniser. No padding, no truncation, no tokens added around a text.

    A backend lives in one process and encodes on the calling thread alone.
    """

    name: str
    """``tokenizers``, ``gigatoken``, ``fastokens`` or ``tiktoken``."""

    @property
    def version(self) -> str:
        """Of the library."""

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """


def installed_version(library: str) -> str:
    """The version of a library, as it is installed."""
    from importlib.metadata import version  # 10 ms that workers, which never ask, are spared

    return version(library)


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
