"""Finds texts that hold an added token.

`RoutedBackend` sends such texts to the reference tokeniser, if the fast library is not proved for them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.preparing.backends.reference import Backend, EncodedTexts, RefusedTextError
from headrace.samples.tokenizer import TokenizerFile, TokenizerParts

COMMON = " etaoinshrdlucmfwygpbvkjxqzETAOINSHRDLUCMFWYGPBVKJXQZ\n.,0123456789-_()'\"=:;/*#>`<[]{}+&!?$\\%@^~|\t\r"
"""Characters from the most usual to the least usual; all others count as rarer."""


WhichAdded = Literal["added", "special", "ordinary"]
"""All added tokens; only those marked as special; only the others (such as runs of spaces)."""


class SpecialFinder:
    """Finds added tokens in texts.

    A text is first searched for the rarest character of each token (``|`` for ``<|endoftext|>`` and the like), and for
    the tokens only if it contains one of these. A text without any takes some tenths of a microsecond.

    The finder finds the text of a token whatever stands beside it. The tokeniser may ignore it at such a place
    (``single_word``), but never finds a token that the finder misses. Tokens that the tokeniser searches for in the
    normalised text are searched for in both texts.
    """

    def __init__(self, file: TokenizerFile, which: WhichAdded = "special") -> None:
        layout = file.parts
        added = [token for token in layout.added if which == "added" or token.special == (which == "special")]
        self._normalize = _Normalizer(layout) if layout.normalizers and any(one.normalized for one in added) else None
        self._contents = {token.content for token in added}
        if self._normalize is not None:
            self._contents |= {self._normalize.apply(token.content) for token in added if token.normalized} - {""}
        self._rare = {max(content, key=_rarity) for content in self._contents}
        self._pattern = re.compile(_alternatives(sorted(self._contents)) if self._contents else "(?!)")

    def find(self, texts: list[str]) -> NDArray[np.bool_]:
        """(number of texts,) bool: which texts hold an added token."""
        found = np.zeros(len(texts), np.bool_)
        # Nearly all texts fail this first check.
        for number in {number for one in self._rare for number, text in enumerate(texts) if one in text}:
            found[number] = self._pattern.search(texts[number]) is not None
        if self._normalize is not None:
            for number, text in enumerate(texts):
                if not found[number] and not self._normalize.keeps(text):
                    found[number] = self._pattern.search(self._normalize.apply(text)) is not None
        return found

    def which(self, text: str) -> str:
        """The token that comes first in the text, and among several at that place the longest; "" if there is none."""
        for candidate in (text, self._normalize.apply(text) if self._normalize is not None else ""):
            if found := self._pattern.search(candidate):
                return str(found[0])
        return ""


class _Normalizer:
    """The normaliser of a tokeniser, without the rest of it."""

    def __init__(self, layout: TokenizerParts) -> None:
        # The library can read a normaliser from JSON only as part of a tokeniser, here one without a vocabulary.
        json = {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": layout.json["normalizer"],
            "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
        }
        self._normalizer = Tokenizer.from_str(msgspec.json.encode(json).decode()).normalizer
        self._keeps_ascii = all(step["type"] in ("NFC", "NFD", "NFKC", "NFKD") for step in layout.normalizers)

    def keeps(self, text: str) -> bool:
        """Whether normalising certainly leaves the text as it is."""
        return self._keeps_ascii and text.isascii()

    def apply(self, text: str) -> str:
        """Normalise the text."""
        return str(self._normalizer.normalize_str(text))


def _rarity(character: str) -> int:
    return COMMON.index(character) + 1 if character in COMMON else 2 * len(COMMON)


def _alternatives(contents: list[str]) -> str:
    """A regex for any of these sorted texts that prefers the longest and shares their beginnings.

    For ``</s>``, ``<s>`` and ``<unk>`` it is ``<(?:/s>|s>|unk>)``; a plain list of alternatives would be tried one by
    one.
    """
    first, last = contents[0], contents[-1]
    shared = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    rests = [content[shared:] for content in contents]
    if rests == [""]:
        return re.escape(first)
    branches = [_alternatives(list(group)) for _, group in itertools.groupby(filter(None, rests), lambda rest: rest[0])]
    optional = "?" if "" in rests else ""
    return f"{re.escape(first[:shared])}(?:{'|'.join(branches)}){optional}"


class RoutedBackend:
    """Sends texts that hold an added token to the reference tokeniser, and all others to a fast library."""

    def __init__(self, fast: Backend, reference: Callable[[], Backend], finder: SpecialFinder) -> None:
        self.name = fast.name
        self.num_routed = 0
        """Texts that went to the reference tokeniser so far."""
        self._fast = fast
        self._reference = reference
        self._finder = finder

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library that a text was sent to refuses it.
        """
        is_routed = self._finder.find(texts)
        if not is_routed.any():
            return self._fast.encode(texts)
        self.num_routed += int(np.count_nonzero(is_routed))
        places = [np.flatnonzero(is_routed), np.flatnonzero(~is_routed)]
        parts = [
            _encode_some(backend, texts, numbers)
            for backend, numbers in zip((self._reference(), self._fast), places, strict=True)
        ]
        return _interleave(parts, places, len(texts))


def _encode_some(backend: Backend, texts: list[str], numbers: NDArray[np.int64]) -> EncodedTexts:
    try:
        return backend.encode([texts[number] for number in numbers])
    except RefusedTextError as error:
        raise RefusedTextError(str(error), int(numbers[error.index])) from error


def _interleave(parts: list[EncodedTexts], places: list[NDArray[np.int64]], num_texts: int) -> EncodedTexts:
    lengths = np.zeros(num_texts, np.int64)
    for part, numbers in zip(parts, places, strict=True):
        lengths[numbers] = part.lengths
    begins = np.cumsum(lengths) - lengths
    ids = np.empty(int(lengths.sum()), np.uint32)
    for part, numbers in zip(parts, places, strict=True):
        # Token k of a text goes k places after the begin of that text.
        starts = np.cumsum(part.lengths) - part.lengths
        ids[np.arange(len(part.ids)) + np.repeat(begins[numbers] - starts, part.lengths)] = part.ids
    return EncodedTexts(ids, lengths)
