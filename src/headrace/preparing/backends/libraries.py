"""The fast libraries gigatoken and fastokens, as backends; and the loading of any library by its name."""

from __future__ import annotations

import importlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from headrace.preparing.backends.reference import (
    Backend,
    CacheGuard,
    EncodedTexts,
    SpecialPolicy,
    return_memory,
)
from headrace.preparing.backends.special import RoutedBackend, SpecialFinder
from headrace.preparing.backends.tokenizer import (
    UnsuitableError,
    is_plain,
    require_bpe,
    require_byte_level,
    require_bytes,
)
from headrace.samples.tokenizer import TokenizerFile, TokenizerParts


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

    def __init__(self, file: TokenizerFile, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library lacks a feature that this tokeniser needs.
            ImportError: the library is not installed.
        """
        self._library = _import(self.name)
        layout = file.parts
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

    def __init__(self, file: TokenizerFile, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library lacks a feature that this tokeniser needs.
            ImportError: the library is not installed.
        """
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        self._library = _import(self.name)
        layout = file.parts
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


REFERENCE = "tokenizers"

CANDIDATES: dict[str, Callable[[TokenizerFile, SpecialPolicy], Backend]] = {
    "fastokens": FastokensBackend,
    "gigatoken": GigatokenBackend,
}
"""The fast libraries in the order in which they are tried: the fastest first, and among equally fast ones the one with
the newer Unicode."""

BACKENDS = ("auto", REFERENCE, *CANDIDATES)
"""The names that a user may choose."""

MAX_ADDED = 2_000
"""The most added tokens that are probed."""


def load_backend(name: str, file: TokenizerFile, special: SpecialPolicy, reference: Callable[[], Backend]) -> Backend:
    """Load the library of this name. Texts for which it is not proved go to the reference tokeniser.

    Raises:
        UnsuitableError: it lacks a feature that the tokeniser needs.
        ImportError: it is not installed.
    """
    if name == REFERENCE:
        return reference()
    fast = CANDIDATES[name](file, special)
    if not routes(file.parts, special):
        return fast
    ordinary_only = special == "literal" and is_plain(file.parts, literal=True)
    return RoutedBackend(fast, reference, SpecialFinder(file, "ordinary" if ordinary_only else "added"))


def routes(layout: TokenizerParts, special: SpecialPolicy) -> str:
    """Why texts with an added token must not go to a fast library; "" if they may."""
    if not is_plain(layout, literal=special == "literal"):
        return "some look beside them, or at normalised text, or overlap with others"
    if len(layout.added) > MAX_ADDED:
        return f"there are {len(layout.added):,} of them, more than are probed"
    return ""
