"""The library gigatoken: byte-level BPE, and BPE with byte fallback as of Llama 2."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from headrace.prepare.backends.backend import Encoded, SpecialPolicy, installed_version
from headrace.prepare.backends.layout import Layout, UnsuitableError, read_layout, require_bpe, require_byte_level
from headrace.prepare.backends.memory import CacheGuard, return_memory


class GigatokenBackend:
    """Encodes whole batches on the calling thread; ids come as arrays.

    Its cache of words has no bound, so the library is loaded anew when it has grown (`CacheGuard`).
    """

    name = "gigatoken"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library does not have what this tokeniser asks for.
            ImportError: the library is not installed.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import gigatoken
        layout = read_layout(tokenizer_json)
        _require(layout)
        self._library = gigatoken
        # Special tokens that are ordinary text are no tokens at all to it: it has no such option.
        self._json = layout.without(special_tokens=special == "literal")
        self._guard = CacheGuard()
        self._tokenizer = self._load()

    @property
    def version(self) -> str:
        """Of the library."""
        return installed_version(self.name)

    def encode(self, texts: list[str]) -> Encoded:
        """Encode each text by itself."""
        if not texts:
            return Encoded(np.empty(0, np.uint32), np.empty(0, np.int64))
        if self._tokenizer is None:
            self._tokenizer = self._load()
        layout = self._tokenizer.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        # The library may hand out rows of a larger buffer.
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        encoded = Encoded(np.array(ids, np.uint32), np.diff(offsets))
        if self._guard.is_full(sum(map(len, texts))):
            del layout, ids
            self._tokenizer = None
            self._guard.reset()
        return encoded

    def _load(self) -> Any:
        try:
            tokenizer = self._library.Tokenizer.from_json(self._json)
        except Exception as error:
            raise UnsuitableError(f"the library refuses it: {error}") from error
        return_memory()
        return tokenizer


def _require(layout: Layout) -> None:
    if not layout.model.get("byte_fallback"):
        require_byte_level(layout)
        return
    require_bpe(layout)
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in layout.model["vocab"]]
    if missing:
        raise UnsuitableError(f"its vocabulary lacks the byte <0x{missing[0]:02X}> and {len(missing) - 1} others")
