"""A fast tokeniser that is wrong now and then, for this process and, by `FOR_WORKERS`, for its workers."""

from __future__ import annotations

import numpy as np

from headrace.preparing import documents
from headrace.preparing.backends import libraries
from headrace.preparing.backends.reference import EncodedTexts, SpecialPolicy, TokenizersBackend
from headrace.samples.tokenizer import TokenizerFile

NAME = "fastokens"
MISTAKE = "mistake"
FOR_WORKERS = "import wrong_tokeniser\n\nwrong_tokeniser.install()\n"
"""Content of a ``sitecustomize.py``, which Python imports when it starts."""


class Wrong:
    """The truth, but for the last id of texts that hold a word."""

    name = NAME
    version = "0"

    def __init__(self, file: TokenizerFile, special: SpecialPolicy) -> None:
        self._truth = TokenizersBackend(file, special)

    def encode(self, texts: list[str]) -> EncodedTexts:
        encoded = self._truth.encode(texts)
        ids = np.array(encoded.ids)
        for end, text in zip(np.cumsum(encoded.lengths).tolist(), texts, strict=True):
            if MISTAKE in text:
                ids[end - 1] ^= 1
        return EncodedTexts(ids, encoded.lengths)


def install() -> None:
    """Put it in the place of the true one, and prove one document in eight."""
    libraries.CANDIDATES[NAME] = Wrong
    documents.SAMPLE_ONE_IN = 8
