"""The library fastokens: byte-level BPE and its relatives."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from headrace.prepare.backends.backend import Encoded, SpecialPolicy, installed_version
from headrace.prepare.backends.layout import UnsuitableError, read_layout, require_bpe
from headrace.prepare.backends.memory import CacheGuard, return_memory


class FastokensBackend:
    """Encodes whole batches; ids come as arrays.

    It works on threads of a pool of its own, of which ``RAYON_NUM_THREADS`` says how many: set it to 1 before the
    process uses any such library. (Set here where it is not, which comes too late where the pool runs already.)
    Its caches live in these threads; they end at about 400 MB, and loading it anew empties only a part.
    """

    name = "fastokens"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Load the library with a tokeniser.

        Raises:
            UnsuitableError: the library does not have what this tokeniser asks for.
            ImportError: the library is not installed.
        """
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import fastokens
        layout = read_layout(tokenizer_json)
        require_bpe(layout)
        self._library = fastokens
        self._json = layout.without(special_tokens=False).decode()
        self._literal = special == "literal"
        self._guard = CacheGuard()
        self._tokenizer = self._load()

    @property
    def version(self) -> str:
        """Of the library."""
        return installed_version(self.name)

    def encode(self, texts: list[str]) -> Encoded:
        """Encode each text by itself."""
        if self._tokenizer is None:
            self._tokenizer = self._load()
        ids, offsets = self._tokenizer.encode_batch_flat(
            texts, add_special_tokens=False, split_special_tokens=self._literal
        )
        ends = np.frombuffer(offsets, "<i8")
        encoded = Encoded(np.frombuffer(ids, "<u4"), ends[1:] - ends[:-1])
        if self._guard.is_full(sum(map(len, texts))):
            self._tokenizer = None
            self._guard.reset()
        return encoded

    def _load(self) -> Any:
        try:
            tokenizer = self._library.Tokenizer.from_json_str(self._json)
        except Exception as error:
            raise UnsuitableError(f"the library refuses it: {error}") from error
        return_memory()
        return tokenizer
