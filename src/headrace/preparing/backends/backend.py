"""The common interface of the tokeniser libraries: texts in, arrays of ids out.

`CacheGuard` limits the memory that their caches take.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SpecialPolicy = Literal["encode", "literal", "error"]
"""What becomes of the text of a special token inside a document: the token (``encode``), ordinary text (``literal``),
or a bad record (``error``)."""


class EncodedTexts(NamedTuple):
    """The ids of several texts."""

    ids: NDArray[np.uint32]
    """(sum of lengths,) the ids of all texts, one text after another."""

    lengths: NDArray[np.int64]
    """(number of texts,) the number of tokens of each text."""


class RefusedTextError(Exception):
    """The tokeniser refuses a text: ``index`` is its index in the list, the message is the library's."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class Backend(Protocol):
    """One library, loaded with one tokeniser. It does not pad, truncate, or add tokens around a text.

    A backend belongs to one process, and encodes only on the calling thread.
    """

    name: str
    """``tokenizers``, ``gigatoken`` or ``fastokens``."""

    @property
    def version(self) -> str:
        """The version of the library."""
        return installed_version(self.name)

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """


def installed_version(library: str) -> str:
    """The installed version of a library."""
    from importlib.metadata import version  # takes 10 ms, and workers never need it

    return version(library)


GROWTH_BYTES = 96 << 20
"""Bytes by which a library's caches may enlarge the process before the library is loaded again."""

LOOK_EVERY_CHARACTERS = 4 << 20
"""Characters of text between two checks of the size."""

BLIND_CHARACTERS = 256 << 20
"""Characters of text after which the library is loaded again if the size of the process is not known."""


class CacheGuard:
    """Tells when a library should be loaded again, because its caches, which grow with every new word, are too large.

    The words of whole languages fit into the limit: for 1.4 GB of English and code, the caches grow by 40 MB after the
    first 150 MB of text. Texts in which hardly a word occurs twice add 10 bytes for each character, so that the library
    is loaded again (0.1 s) every ten million characters.
    """

    def __init__(self) -> None:
        self._unseen = 0
        self._limit: int | None = None

    def is_full(self, num_characters: int) -> bool:
        """Whether the caches have grown too large, after ``num_characters`` more were encoded."""
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
        """Start over, after the library was released."""
        self._unseen = 0
        self._limit = None
        gc.collect()
        return_memory()


def resident_bytes() -> int:
    """Resident memory of the process; 0 if the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def return_memory() -> None:
    """Return freed memory to the system, if the C library has a call for that (glibc)."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
