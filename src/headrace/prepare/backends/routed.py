"""A fast library for most texts, and the truth for those that it is not proved for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.prepare.backends.backend import Backend, Encoded, RefusedTextError
from headrace.prepare.backends.special import SpecialFinder


class RoutedBackend:
    """Sends the texts that hold an added token to the truth, all others to a fast library."""

    def __init__(self, fast: Backend, truth: Callable[[], Backend], finder: SpecialFinder) -> None:
        self.name = fast.name
        self.num_routed = 0
        """Texts that went to the truth so far."""
        self._fast = fast
        self._truth = truth
        self._finder = finder

    @property
    def version(self) -> str:
        """Of the fast library."""
        return self._fast.version

    def encode(self, texts: list[str]) -> Encoded:
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
            for backend, numbers in zip((self._truth(), self._fast), places, strict=True)
        ]
        return _interleave(parts, places, len(texts))


def _encode_some(backend: Backend, texts: list[str], numbers: NDArray[np.int64]) -> Encoded:
    try:
        return backend.encode([texts[number] for number in numbers])
    except RefusedTextError as error:
        raise RefusedTextError(str(error), int(numbers[error.index])) from error


def _interleave(parts: list[Encoded], places: list[NDArray[np.int64]], num_texts: int) -> Encoded:
    lengths = np.zeros(num_texts, np.int64)
    for part, numbers in zip(parts, places, strict=True):
        lengths[numbers] = part.lengths
    begins = np.cumsum(lengths) - lengths
    ids = np.empty(int(lengths.sum()), np.uint32)
    for part, numbers in zip(parts, places, strict=True):
        # Token k of a part's text goes k behind the begin of that text.
        starts = np.cumsum(part.lengths) - part.lengths
        ids[np.arange(len(part.ids)) + np.repeat(begins[numbers] - starts, part.lengths)] = part.ids
    return Encoded(ids, lengths)
