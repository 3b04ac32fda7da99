"""The random choices of fill in the middle: a function of a key, so that no sample depends on those read before it."""

from __future__ import annotations

from typing import Protocol

from headrace.plan.keys import derive

_BITS = 53


class Draws(Protocol):
    """The choices for one sample, in the order in which they are asked for."""

    def chance(self, rate: float) -> bool:
        """True with this probability."""

    def cuts(self, length: int) -> tuple[int, int]:
        """Two independent numbers of [0, length], each equally likely, in any order."""


class KeyedDraws:
    """Choice k is a hash of (key, k): the same for whoever asks, in whatever process and after whatever else.

    Megatron draws from one ``RandomState`` a dataset object: what a sample becomes depends there on how many items
    the process has read before.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._number = 0

    def chance(self, rate: float) -> bool:
        """True with this probability, exactly never at 0 and always at 1."""
        return self._next() >> (64 - _BITS) < int(rate * (1 << _BITS))

    def cuts(self, length: int) -> tuple[int, int]:
        """Two numbers of [0, length]."""
        # The high part of a product instead of a remainder: no number is likelier than another by more than 2^-64.
        return (self._next() * (length + 1)) >> 64, (self._next() * (length + 1)) >> 64

    def _next(self) -> int:
        self._number += 1
        return derive(self._key, self._number)
