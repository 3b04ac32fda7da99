"""The interface of the tokeniser libraries, texts in, arrays of ids out; and the reference tokeniser, `tokenizers`.

It is slow, and every other library is compared with it.
"""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.samples.tokenizer import TokenizerFile

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
    """``tokenizers`` or ``fastokens``."""

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """


def installed_version(library: str) -> str:
    """The installed version of a library."""
    from importlib.metadata import version  # takes 10 ms, and workers never need it

    return version(library)


def return_memory() -> None:
    """Return freed memory to the system, if the C library has a call for that (glibc)."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


BATCH_BYTES = 1 << 18
"""Texts are encoded together up to this many bytes of UTF-8."""


def most_bytes(text: str) -> int:
    """An upper bound for the bytes of the text in UTF-8, without encoding it; it is rough unless the text is ASCII."""
    return len(text) if text.isascii() else 3 * len(text)


class TokenizersBackend(Backend):
    """The library `tokenizers`, which encodes a few hundred kilobytes of text at a time, or one longer text.

    The library needs about 350 bytes of memory for each token until its ids are copied. It starts threads unless
    ``TOKENIZERS_PARALLELISM`` is ``false``.
    """

    name = "tokenizers"

    def __init__(self, file: TokenizerFile, special: SpecialPolicy, *, batch_bytes: int = BATCH_BYTES) -> None:
        self._file = file
        self._literal = special == "literal"
        self._batch_bytes = batch_bytes
        file.encoder()
        return_memory()  # the library leaves some 100 MB of freed memory when it has read a large file

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """
        encoder = self._file.encoder(literal=self._literal)
        ids = []
        lengths = np.zeros(len(texts), np.int64)
        first = 0
        while first < len(texts):
            end, size = first + 1, most_bytes(texts[first])
            while end < len(texts) and (size := size + most_bytes(texts[end])) <= self._batch_bytes:
                end += 1
            try:
                encodings = encoder.encode_batch_fast(texts[first:end], add_special_tokens=False)
            except Exception as error:  # the library raises bare Exception, and does not say for which text
                raise _refused(encoder, texts, first, end) from error
            rows = [encoding.ids for encoding in encodings]
            lengths[first:end] = list(map(len, rows))
            ids.append(np.fromiter(itertools.chain.from_iterable(rows), np.uint32, int(lengths[first:end].sum())))
            first = end
        return EncodedTexts(np.concatenate(ids) if ids else np.empty(0, np.uint32), lengths)


def _refused(encoder: Tokenizer, texts: list[str], first: int, end: int) -> Exception:
    for index in range(first, end):
        try:
            encoder.encode_batch_fast([texts[index]], add_special_tokens=False)
        except Exception as error:
            return RefusedTextError(str(error), index)
    return RuntimeError("the library tokenizers refuses texts together that it accepts one by one")
