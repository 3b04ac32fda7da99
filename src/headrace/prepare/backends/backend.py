"""The face of every tokeniser that `prepare` can run: texts in, ids as arrays out."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SpecialPolicy = Literal["encode", "literal", "error"]
"""What the text of a special token inside a document becomes: the token; ordinary text; a bad record."""


class Encoded(NamedTuple):
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

    def encode(self, texts: list[str]) -> Encoded:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """


def installed_version(library: str) -> str:
    """The version of a library, as it is installed."""
    from importlib.metadata import version  # 10 ms that workers, which never ask, are spared

    return version(library)
