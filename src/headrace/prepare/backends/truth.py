"""The library `tokenizers`: slow, and what every other backend is measured against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from headrace.prepare.backends.backend import Encoded, RefusedTextError, SpecialPolicy, installed_version
from headrace.prepare.backends.long_texts import PIECE_BYTES, TextCutter, most_bytes
from headrace.prepare.backends.memory import return_memory
from headrace.prepare.tokenizer import make_encoder


class TokenizersBackend:
    """Encodes with `tokenizers`, a few hundred kilobytes of text at a time.

    Memory: the library takes about 350 bytes a token until its ids are copied. Texts are therefore encoded in batches
    of 256 KiB, and a longer one in pieces where that changes no id (`long_texts`); else it is encoded whole.
    It uses threads of its own unless ``TOKENIZERS_PARALLELISM`` is ``false``.
    """

    name = "tokenizers"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._encoder = make_encoder(tokenizer_json)
        self._encoder.encode_special_tokens = special == "literal"
        self._json = tokenizer_json
        self._piece_bytes = piece_bytes
        self._cutter: TextCutter | None = None
        return_memory()  # the library leaves some 100 MB behind when it has read a large file

    @property
    def version(self) -> str:
        """Of the library."""
        return installed_version(self.name)

    def encode(self, texts: list[str]) -> Encoded:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """
        ids = []
        lengths = np.zeros(len(texts), np.int64)
        for pieces, owners in self._batches(texts):
            try:
                encodings = self._encoder.encode_batch_fast(pieces, add_special_tokens=False)
            except Exception as error:  # the library raises bare Exception, and does not say which text it was
                raise self._refused(pieces, owners) from error
            rows = [encoding.ids for encoding in encodings]
            sizes = np.fromiter(map(len, rows), np.int64, len(rows))
            np.add.at(lengths, owners, sizes)
            ids.append(np.fromiter(itertools.chain.from_iterable(rows), np.uint32, int(sizes.sum())))
        return Encoded(np.concatenate(ids) if ids else np.empty(0, np.uint32), lengths)

    def _batches(self, texts: list[str]) -> Iterator[tuple[list[str], list[int]]]:
        """Pieces of at most ``piece_bytes`` together, or one that is longer, and the number of each one's text."""
        pieces: list[str] = []
        owners: list[int] = []
        total = 0
        for number, text in enumerate(texts):
            for piece in [text] if most_bytes(text) <= 2 * self._piece_bytes else self._cut(text):
                size = most_bytes(piece)
                if pieces and total + size > self._piece_bytes:
                    yield pieces, owners
                    pieces, owners, total = [], [], 0
                pieces.append(piece)
                owners.append(number)
                total += size
        if pieces:
            yield pieces, owners

    def _cut(self, text: str) -> list[str]:
        if self._cutter is None:
            self._cutter = TextCutter(self._encoder, self._json, piece_bytes=self._piece_bytes)
        return self._cutter.cut(text)

    def _refused(self, pieces: list[str], owners: list[int]) -> Exception:
        for piece, owner in zip(pieces, owners, strict=True):
            try:
                self._encoder.encode_batch_fast([piece], add_special_tokens=False)
            except Exception as error:
                return RefusedTextError(str(error), owner)
        return RuntimeError("the library tokenizers refuses texts together that it takes one by one")
