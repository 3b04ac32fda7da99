"""The fast library fastokens as a backend, and the loading of any library by its name."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable

import numpy as np

from headrace.preparing.backends.reference import Backend, EncodedTexts, SpecialPolicy, return_memory
from headrace.preparing.backends.special import RoutedBackend, SpecialFinder
from headrace.preparing.backends.tokenizer import UnsuitableError, is_plain, require_bpe
from headrace.samples.tokenizer import TokenizerFile, TokenizerParts


class FastokensBackend(Backend):
    """The library fastokens, which encodes whole batches and returns arrays.

    It encodes on threads of its own, as many as ``FASTOKENS_BPE_THREADS``, each with a cache of words; it also contains
    Rayon, whose pool has ``RAYON_NUM_THREADS``. Set both to 1 before the process uses any such library. (They are set
    here if they are not set, which has no effect if the threads are running already.) The caches stop growing at about
    400 MB.
    """

    name = "fastokens"

    def __init__(self, file: TokenizerFile, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library lacks a feature that this tokeniser needs.
            ImportError: the library is not installed.
        """
        for name in ("FASTOKENS_BPE_THREADS", "RAYON_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = importlib.import_module(self.name)
        layout = file.parts
        require_bpe(layout)
        self._literal = special == "literal"
        try:
            self._tokenizer = library.Tokenizer.from_json_str(layout.for_texts().decode())
        except Exception as error:
            raise UnsuitableError(f"the library refuses it: {error}") from error
        return_memory()

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself."""
        ids, offsets = self._tokenizer.encode_batch_flat(
            texts, add_special_tokens=False, split_special_tokens=self._literal
        )
        ends = np.frombuffer(offsets, "<i8")
        return EncodedTexts(np.frombuffer(ids, "<u4"), ends[1:] - ends[:-1])


REFERENCE = "tokenizers"

CANDIDATES: dict[str, Callable[[TokenizerFile, SpecialPolicy], Backend]] = {
    "fastokens": FastokensBackend,
}
"""The fast libraries in the order in which they are tried."""

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
