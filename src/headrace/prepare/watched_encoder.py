"""A library that encodes for a recipe, in front of the makers of samples: what they hand it is sampled and proved."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.prepare import documents
from headrace.prepare.backends import ProvedEncoder, RefusedTextError


class WatchedEncoder:
    """A `TextEncoder` of the room ``samples``, watched by the truth.

    Which texts are compared is told by their own hash, so that it depends on nothing around them.
    """

    def __init__(self, proved: ProvedEncoder, sample_key: int) -> None:
        self._proved = proved
        self._seed = sample_key & (2**64 - 1)

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All ids of all texts in a row, and the number of tokens of each.

        Raises:
            InputError: the truth refuses a text.
            MismatchError: the library is not equal to the truth.
        """
        hashes = (xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), self._seed) for text in texts)
        sampled = np.fromiter(hashes, np.uint64, len(texts)) % np.uint64(documents.SAMPLE_ONE_IN) == 0
        try:
            encoded = self._proved.encode(texts, sampled)
        except RefusedTextError as error:
            raise InputError(f"the tokeniser refuses the text: {error}; found {texts[error.index][:60]!r}") from error
        return encoded.ids, encoded.lengths
