"""Finds texts that hold an added token.

`RoutedBackend` sends such texts to the reference tokeniser, if the fast library is not proved for them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

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


class TokensByCharacter(NamedTuple):
    """Tokens that share a character: a text without this character holds none of them."""

    character: str
    pattern: re.Pattern[str] | None
    """Finds any of the tokens; None if there is only one."""

    prefix: str
    """The beginning that all of the tokens share."""

    def is_in(self, text: str) -> bool:
        """Whether a text that contains the character holds one of the tokens."""
        if self.pattern is None:
            return self.prefix in text
        # For a long prefix, a plain search is faster than the regex; for a short one it is not.
        return (len(self.prefix) < 4 or self.prefix in text) and self.pattern.search(text) is not None


class SpecialFinder:
    """Finds added tokens in texts.

    A text is first searched for one rare character of each group of tokens (``|`` for ``<|endoftext|>`` and the like),
    and for the tokens only if it contains that character. A text without any takes some tenths of a microsecond.

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
        self._groups = _grouped(self._contents)

    def find(self, texts: list[str]) -> NDArray[np.bool_]:
        """(number of texts,) bool: which texts hold an added token."""
        found = np.zeros(len(texts), np.bool_)
        for group in self._groups:
            character = group.character
            # Nearly all texts fail this first check.
            for number in [number for number, text in enumerate(texts) if character in text]:
                found[number] |= group.is_in(texts[number])
        if self._normalize is not None:
            for number, text in enumerate(texts):
                if not found[number] and not self._normalize.keeps(text):
                    found[number] = self._holds(self._normalize.apply(text))
        return found

    def which(self, text: str) -> str:
        """The token that comes first in the text, and among several at that place the longest; "" if there is none."""
        for candidate in (text, self._normalize.apply(text) if self._normalize is not None else ""):
            if found := self._all.search(candidate):
                return str(found[0])
        return ""

    def _holds(self, text: str) -> bool:
        return any(group.is_in(text) for group in self._groups)

    @functools.cached_property
    def _all(self) -> re.Pattern[str]:
        return _any_of(self._contents) if self._contents else re.compile("(?!)")


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


def _grouped(contents: set[str]) -> list[TokensByCharacter]:
    """Groups of tokens that share a rare character, as few as a greedy search finds."""
    # If a token contains another, the shorter one is found wherever the longer one is, so only the shorter is kept.
    left = [
        content for content in sorted(contents, key=lambda one: (len(one), one)) if not _holds_other(content, contents)
    ]
    groups = []
    while left:
        counts = Counter(character for content in left for character in set(content))
        # Rare characters, and those that many tokens share, come first.
        chosen = max(counts, key=lambda one: (_rarity(one) * counts[one], counts[one], one))
        members = [content for content in left if chosen in content]
        left = [content for content in left if chosen not in content]
        groups.append(
            TokensByCharacter(chosen, _any_of(set(members)) if len(members) > 1 else None, _shared_prefix(members))
        )
    return groups


def _holds_other(content: str, contents: set[str]) -> bool:
    # This goes through the parts of the token, not through the other tokens, which may be as many as a vocabulary has.
    size = len(content)
    return any(
        content[begin:end] in contents
        for begin in range(size)
        for end in range(begin + 1, size + 1)
        if end - begin < size
    )


def _rarity(character: str) -> int:
    return COMMON.index(character) + 1 if character in COMMON else 2 * len(COMMON)


def _shared_prefix(contents: list[str]) -> str:
    first, last = min(contents), max(contents)
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]


def _any_of(contents: set[str]) -> re.Pattern[str]:
    """A regex that finds any of these texts, and at each place the longest."""
    return re.compile(_alternatives(sorted(contents)))


def _alternatives(contents: list[str]) -> str:
    """A regex for any of these sorted texts that prefers the longest and shares their beginnings.

    For ``</s>``, ``<s>`` and ``<unk>`` it is ``<(?:/s>|s>|unk>)``; a plain list of alternatives would be tried one by
    one.
    """
    prefix = _shared_prefix(contents)
    rests = [content[len(prefix) :] for content in contents]
    if rests == [""]:
        return re.escape(prefix)
    branches = [_alternatives(list(group)) for _, group in itertools.groupby(filter(None, rests), lambda rest: rest[0])]
    optional = "?" if "" in rests else ""
    return f"{re.escape(prefix)}(?:{'|'.join(branches)}){optional}"


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
