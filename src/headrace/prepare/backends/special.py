"""Texts that hold an added token: found quickly, and sent to the reference tokeniser where the fast one is not proved.

A fast library for most texts, and the reference tokeniser for those that it is not proved for.
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

from headrace.prepare.backends.backend import Backend, EncodedTexts, RefusedTextError
from headrace.prepare.backends.layout import TokenizerParts, read_layout

COMMON = " etaoinshrdlucmfwygpbvkjxqzETAOINSHRDLUCMFWYGPBVKJXQZ\n.,0123456789-_()'\"=:;/*#>`<[]{}+&!?$\\%@^~|\t\r"
"""Characters from the most usual to the least; all others are taken for rarer."""


WhichAdded = Literal["added", "special", "ordinary"]
"""All added tokens; those marked as special; the others (of which some are mere runs of spaces)."""


class TokensByCharacter(NamedTuple):
    """Tokens that share a character: a text without it holds none of them."""

    character: str
    pattern: re.Pattern[str] | None
    """Finds any of them; none where there is only one."""

    prefix: str
    """What all of them begin with."""

    def is_in(self, text: str) -> bool:
        """Whether a text that has the character holds a token."""
        if self.pattern is None:
            return self.prefix in text
        # A long text is found faster than a regex finds it, a short one is not.
        return (len(self.prefix) < 4 or self.prefix in text) and self.pattern.search(text) is not None


class SpecialFinder:
    """Finds added tokens in texts.

    A text is searched for one rare character a group of tokens ("|" for ``<|endoftext|>`` and its likes) and for the
    tokens only where that is in it: some tenths of a microsecond for a text without any.

    What is found is a token's text, whatever stands beside it: a tokeniser may see none there (``single_word``), but it
    sees none elsewhere. A token that is looked for in the normalised text is looked for in both texts here.
    """

    def __init__(self, tokenizer_json: bytes, which: WhichAdded = "special") -> None:
        layout = read_layout(tokenizer_json)
        added = [token for token in layout.added if which == "added" or token.special == (which == "special")]
        self._normalize = _Normalizer(layout) if layout.normalizers and any(one.normalized for one in added) else None
        self._contents = {token.content for token in added}
        if self._normalize is not None:
            self._contents |= {self._normalize.apply(token.content) for token in added if token.normalized} - {""}
        self._groups = _grouped(self._contents)

    def find(self, texts: list[str]) -> NDArray[np.bool_]:
        """Which texts hold one: (number of texts,) bool."""
        found = np.zeros(len(texts), np.bool_)
        for group in self._groups:
            character = group.character
            # Nearly all texts are done with here.
            for number in [number for number, text in enumerate(texts) if character in text]:
                found[number] |= group.is_in(texts[number])
        if self._normalize is not None:
            for number, text in enumerate(texts):
                if not found[number] and not self._normalize.keeps(text):
                    found[number] = self._holds(self._normalize.apply(text))
        return found

    def which(self, text: str) -> str:
        """The token that comes first in the text, the longest of these; "" where there is none."""
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
    """The normaliser of a tokeniser, by itself."""

    def __init__(self, layout: TokenizerParts) -> None:
        # A tokeniser without a vocabulary: the library has no other way to read a normaliser from JSON.
        json = {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": layout.json["normalizer"],
            "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
        }
        self._normalizer = Tokenizer.from_str(msgspec.json.encode(json).decode()).normalizer
        self._keeps_ascii = all(step["type"] in ("NFC", "NFD", "NFKC", "NFKD") for step in layout.normalizers)

    def keeps(self, text: str) -> bool:
        """Whether the text is surely its own normal form."""
        return self._keeps_ascii and text.isascii()

    def apply(self, text: str) -> str:
        """The normal form of the text."""
        return str(self._normalizer.normalize_str(text))


def _grouped(contents: set[str]) -> list[TokensByCharacter]:
    """The fewest groups of rare characters, greedily."""
    # Where a token holds another, the shorter one is found wherever the longer one is.
    left = [
        content for content in sorted(contents, key=lambda one: (len(one), one)) if not _holds_other(content, contents)
    ]
    groups = []
    while left:
        counts = Counter(character for content in left for character in set(content))
        # Characters that are not usual ones come first, then the one that most tokens share.
        chosen = max(counts, key=lambda one: (_rarity(one) * counts[one], counts[one], one))
        members = [content for content in left if chosen in content]
        left = [content for content in left if chosen not in content]
        groups.append(
            TokensByCharacter(chosen, _any_of(set(members)) if len(members) > 1 else None, _shared_prefix(members))
        )
    return groups


def _holds_other(content: str, contents: set[str]) -> bool:
    # By the parts of the token, not by the other tokens: there may be as many of them as a vocabulary has.
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
    """Finds any of these texts, of those at a place the longest."""
    return re.compile(_alternatives(sorted(contents)))


def _alternatives(contents: list[str]) -> str:
    """A regex for any of these sorted texts, the longest first, that looks at each of their characters once.

    For example ``<(?:/s>|s>|unk>)`` for ``</s>``, ``<s>`` and ``<unk>``: a plain list would be tried one by one.
    """
    prefix = _shared_prefix(contents)
    rests = [content[len(prefix) :] for content in contents]
    if rests == [""]:
        return re.escape(prefix)
    branches = [_alternatives(list(group)) for _, group in itertools.groupby(filter(None, rests), lambda rest: rest[0])]
    optional = "?" if "" in rests else ""
    return f"{re.escape(prefix)}(?:{'|'.join(branches)}){optional}"


class RoutedBackend:
    """Sends the texts that hold an added token to the reference tokeniser, all others to a fast library."""

    def __init__(self, fast: Backend, reference: Callable[[], Backend], finder: SpecialFinder) -> None:
        self.name = fast.name
        self.num_routed = 0
        """Texts that went to the reference tokeniser so far."""
        self._fast = fast
        self._reference = reference
        self._finder = finder

    @property
    def version(self) -> str:
        """Of the fast library."""
        return self._fast.version

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library that it went to refuses one of them.
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
        # Token k of a part's text goes k behind the begin of that text.
        starts = np.cumsum(part.lengths) - part.lengths
        ids[np.arange(len(part.ids)) + np.repeat(begins[numbers] - starts, part.lengths)] = part.ids
    return EncodedTexts(ids, lengths)
