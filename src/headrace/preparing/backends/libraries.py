"""The fast libraries gigatoken, fastokens and tiktoken, as backends; and the loading of any library by its name.

gigatoken and fastokens encode byte-level BPE and some related models; tiktoken encodes byte-level BPE whose merges
define ranks.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.preparing.backends.backend import (
    Backend,
    CacheGuard,
    EncodedTexts,
    SpecialPolicy,
    return_memory,
)
from headrace.preparing.backends.layout import (
    TokenizerParts,
    UnsuitableError,
    byte_characters,
    is_plain,
    read_layout,
    regexes,
    require_bpe,
    require_byte_level,
    require_bytes,
)
from headrace.preparing.backends.reference import TokenizersBackend
from headrace.preparing.backends.special import RoutedBackend, SpecialFinder


def _import(name: str) -> ModuleType:
    """Import a library without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


class _CachingBackend(Backend, ABC):
    """A library whose cache of words grows; the library is loaded again when the cache is large (`CacheGuard`)."""

    def __init__(self) -> None:
        self._guard = CacheGuard()
        self._tokenizer = self._load()

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself."""
        if self._tokenizer is None:
            self._tokenizer = self._load()
        encoded = self._encode(self._tokenizer, texts)
        if self._guard.is_full(sum(map(len, texts))):
            self._tokenizer = None
            self._guard.reset()
        return encoded

    def _load(self) -> Any:
        try:
            tokenizer = self._parse()
        except Exception as error:
            raise UnsuitableError(f"the library refuses it: {error}") from error
        return_memory()
        return tokenizer

    @abstractmethod
    def _parse(self) -> Any:
        """Make the library's tokeniser; it may raise anything."""

    @abstractmethod
    def _encode(self, tokenizer: Any, texts: list[str]) -> EncodedTexts:
        """Encode with the library's tokeniser. What is returned is a copy, or holds none of the library's memory."""


class GigatokenBackend(_CachingBackend):
    """The library gigatoken, which encodes whole batches on the calling thread and returns arrays."""

    name = "gigatoken"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library lacks a feature that this tokeniser needs.
            ImportError: the library is not installed.
        """
        self._library = _import(self.name)
        layout = read_layout(tokenizer_json)
        if layout.model.get("byte_fallback"):
            require_bpe(layout)
            require_bytes(layout, {f"<0x{byte:02X}>": byte for byte in range(256)})
        else:
            require_byte_level(layout)
        # The library has no option to read special tokens as ordinary text, so they are removed from its tokeniser.
        self._json = layout.without(special_tokens=special == "literal")
        super().__init__()

    def _parse(self) -> Any:
        return self._library.Tokenizer.from_json(self._json)

    def _encode(self, tokenizer: Any, texts: list[str]) -> EncodedTexts:
        if not texts:
            return EncodedTexts(np.empty(0, np.uint32), np.empty(0, np.int64))
        layout = tokenizer.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        # The library may return rows of a larger buffer.
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return EncodedTexts(np.array(ids, np.uint32), np.diff(offsets))


class FastokensBackend(_CachingBackend):
    """The library fastokens, which encodes whole batches and returns arrays.

    It encodes on a thread pool, whose size is ``RAYON_NUM_THREADS``: set it to 1 before the process uses any such
    library. (It is set here if it is not set, which has no effect if the pool is running already.) Its caches live in
    these threads. They stop growing at about 400 MB, and loading the library again empties only a part of them.
    """

    name = "fastokens"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library lacks a feature that this tokeniser needs.
            ImportError: the library is not installed.
        """
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        self._library = _import(self.name)
        layout = read_layout(tokenizer_json)
        require_bpe(layout)
        self._json = layout.without(special_tokens=False).decode()
        self._literal = special == "literal"
        super().__init__()

    def _parse(self) -> Any:
        return self._library.Tokenizer.from_json_str(self._json)

    def _encode(self, tokenizer: Any, texts: list[str]) -> EncodedTexts:
        ids, offsets = tokenizer.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=self._literal)
        ends = np.frombuffer(offsets, "<i8")
        return EncodedTexts(np.frombuffer(ids, "<u4"), ends[1:] - ends[:-1])


class TiktokenBackend(Backend):
    """The library tiktoken, which encodes text by text and returns arrays.

    It is loaded without added tokens, so a text that holds one must go to the reference tokeniser (`RoutedBackend`).
    """

    name = "tiktoken"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library lacks a feature that this tokeniser needs.
            ImportError: the library is not installed.
        """
        tiktoken = _import(self.name)
        layout = read_layout(tokenizer_json)
        require_byte_level(layout)
        _require_only_pattern(layout)
        ranks, self._ids = _ranks(layout)
        try:
            encoding = tiktoken.Encoding(
                "headrace", pat_str=regexes(layout)[0], mergeable_ranks=ranks, special_tokens={}
            )
        except Exception as error:
            raise UnsuitableError(f"the library refuses it: {error}") from error
        self._encode: Any = encoding.encode_to_numpy
        return_memory()

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself."""
        rows = [self._encode(text, disallowed_special=()) for text in texts]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return EncodedTexts(self._ids[np.concatenate(rows)] if rows else np.empty(0, np.uint32), lengths)


def _require_only_pattern(layout: TokenizerParts) -> None:
    if layout.normalizers:
        raise UnsuitableError(f"its normaliser {layout.normalizers[0]['type']}")
    if layout.pre_tokenizers[-1].get("add_prefix_space"):
        raise UnsuitableError("its pre-tokeniser puts a space before each text")
    if len(regexes(layout)) > 1:
        raise UnsuitableError(f"its pre-tokeniser splits by {len(regexes(layout))} patterns, one after another")


def _ranks(layout: TokenizerParts) -> tuple[dict[bytes, int], NDArray[np.uint32]]:
    """The rank of each token in the library, and the id in the vocabulary for each rank.

    In the library, ranks are the ids that it returns, and also the order of merges. All merges that make the same token
    must therefore follow one another.
    """
    to_byte = byte_characters()
    vocabulary: dict[str, int] = layout.model["vocab"]
    ranks = {bytes([byte]): byte for byte in range(256)}
    ids = [0] * 256
    for character, byte in to_byte.items():
        ids[byte] = vocabulary[character]
    last = ""
    for merge in layout.model["merges"]:
        first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
        token = first + second
        if token == last:
            continue
        last = token
        if token not in vocabulary:
            raise UnsuitableError(f"the merge of {first!r} and {second!r} gives no token of its vocabulary")
        content = _as_bytes(token, to_byte)
        if content in ranks:
            raise UnsuitableError(f"its merges make {token!r} at two places: ranks cannot follow them")
        ranks[content] = len(ids)
        ids.append(vocabulary[token])
    if layout.model.get("ignore_merges"):
        _require_whole_words(layout, ranks)
    else:
        _require_reachable(layout, ranks)
    return ranks, np.asarray(ids, np.uint32)


def _as_bytes(token: str, to_byte: dict[str, int]) -> bytes:
    try:
        return bytes([to_byte[character] for character in token])
    except KeyError:
        raise UnsuitableError(f"its token {token!r} is not written in bytes") from None


def _require_whole_words(layout: TokenizerParts, ranks: dict[bytes, int]) -> None:
    """Refuse tokens without a rank: with ``ignore_merges``, a word that is a token becomes that token."""
    to_byte = byte_characters()
    words = layout.model["vocab"].keys() - {token.content for token in layout.added}
    unranked = [word for word in words if _as_bytes(word, to_byte) not in ranks]
    if unranked:
        raise UnsuitableError(f"no merge makes its token {min(unranked)!r}, which whole words become (ignore_merges)")


def _require_reachable(layout: TokenizerParts, ranks: dict[bytes, int]) -> None:
    """Refuse tokens that the merges do not make: in the library, a word that is a token always becomes that token."""
    to_byte = byte_characters()
    plain = {"version": "1.0", "added_tokens": [], "model": layout.model}
    encoder = Tokenizer.from_str(msgspec.json.encode(plain).decode())
    ranked = [
        token
        for token in layout.model["vocab"]
        if all(character in to_byte for character in token) and _as_bytes(token, to_byte) in ranks
    ]
    for token, encoding in zip(ranked, encoder.encode_batch_fast(ranked, add_special_tokens=False), strict=True):
        if len(encoding.ids) != 1:
            raise UnsuitableError(f"its merges do not make the token {token!r} of its own text")


REFERENCE = "tokenizers"

CANDIDATES: dict[str, Callable[[bytes, SpecialPolicy], Backend]] = {
    "fastokens": FastokensBackend,
    "gigatoken": GigatokenBackend,
    "tiktoken": TiktokenBackend,
}
"""The fast libraries in the order in which they are tried: the fastest first, and among equally fast ones the one with
the newer Unicode."""

BACKENDS = ("auto", REFERENCE, *CANDIDATES)
"""The names that a user may choose."""

MAX_ADDED = 2_000
"""The most added tokens that are probed."""


def load_backend(name: str, tokenizer_json: bytes, special: SpecialPolicy) -> Backend:
    """Load the library of this name. Texts for which it is not proved go to the reference tokeniser.

    Raises:
        UnsuitableError: it lacks a feature that the tokeniser needs.
        ImportError: it is not installed.
    """
    reference = functools.cache(lambda: TokenizersBackend(tokenizer_json, special))
    return load_with(name, tokenizer_json, special, reference)


def load_with(name: str, tokenizer_json: bytes, special: SpecialPolicy, reference: Callable[[], Backend]) -> Backend:
    """Load the library of this name as `load_backend` does, with a reference tokeniser that is shared."""
    if name == REFERENCE:
        return reference()
    fast = CANDIDATES[name](tokenizer_json, special)
    layout = read_layout(tokenizer_json)
    if not routes(name, layout, special):
        return fast
    ordinary_only = special == "literal" and is_plain(layout, literal=True)
    return RoutedBackend(fast, reference, SpecialFinder(tokenizer_json, "ordinary" if ordinary_only else "added"))


def routes(name: str, layout: TokenizerParts, special: SpecialPolicy) -> str:
    """Why texts with an added token must not go to this library; "" if they may."""
    literal = special == "literal"
    known = [token for token in layout.added if not (literal and token.special)]
    if not is_plain(layout, literal=literal):
        return "some look beside them, or at normalised text, or overlap with others"
    if name == "tiktoken" and known:
        return "tiktoken does not look for the longest of them"
    if len(layout.added) > MAX_ADDED:
        return f"there are {len(layout.added):,} of them, more than are probed"
    return ""
