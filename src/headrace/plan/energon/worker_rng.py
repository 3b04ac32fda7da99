"""The random numbers of an Energon worker: torch's CPU generator, replayed without torch.

Torch seeds the Mersenne twister as NumPy's RandomState does, and uses one 32-bit word for each of these draws:

    randperm(n)         element i is swapped with i + word % (n - i), for i from 0 on
    randint(0, n)       word % n, for n < 2^28
    rand(1), float32    the low 24 bits of the word, divided by 2^24

Sums of float32 are computed in float64 and rounded one by one, as in ``torch.cumsum``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import sha1

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray

_WORDS = 1 << 12
_LONG_DRAW = 1 << 28
"""For ranges of at least this size, torch draws two words, the high one first."""

_MANY = ((1 << 32) - 1) // 20
"""For permutations of at least this many elements, torch draws 64 bits an element."""


def worker_seed(worker: int, seed_offset: int = 0) -> int:
    """Return the seed of a worker from its number among all workers of the run: the last four bytes of a SHA-1."""
    return int.from_bytes(sha1(f"{worker},{seed_offset}".encode(), usedforsecurity=False).digest()[-4:], "big")


def seed_from_args(*args: object) -> int:
    """Return the seed for user code from its arguments as text: the first four bytes of a SHA-1."""
    text = "|".join(map(str, args))
    return int.from_bytes(sha1(text.encode(), usedforsecurity=False).digest()[:4], "big")


class WorkerRng:
    """A stream of draws. Every part of a worker's pipeline has its own, all with the same seed.

    Example:
        >>> rng = headrace.plan.energon.WorkerRng(1)
        >>> sorted(rng.permutation(4)), 0 <= rng.below(10) < 10
        ([0, 1, 2, 3], True)
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.RandomState(seed)
        self._words: list[int] = []

    def permutation(self, length: int) -> list[int]:
        """Return 0 to length - 1 in a drawn order. About 0.2 us an element.

        Raises:
            ConfigError: there are so many elements that torch would draw them in another way.
        """
        if length >= _MANY:
            raise ConfigError(
                f"an epoch has {length:,} slices; Energon's order can be replayed for fewer than {_MANY:,}"
            )
        num_swaps = max(0, length - 1)
        own: IntArray = np.arange(num_swaps, dtype=np.int64)
        words = np.array([self._word() for _ in range(num_swaps)], dtype=np.int64)
        elements = list(range(length))
        for i, place in enumerate((own + words % (length - own)).tolist()):
            elements[i], elements[place] = elements[place], elements[i]
        return elements

    def below(self, number: int) -> int:
        """Draw one of 0 to number - 1."""
        if number < _LONG_DRAW:
            return self._word() % number
        high = self._word()
        return (high << 32 | self._word()) % number

    def choose(self, sums: Sequence[float]) -> int:
        """Choose an index in proportion to weights, whose `running_sums` are passed; a single one needs no draw."""
        if len(sums) == 1:
            return 0
        drawn = np.float32(self._word() & 0xFFFFFF) / np.float32(1 << 24)
        return bisect_right(sums, float(drawn * np.float32(sums[-1])))

    def _word(self) -> int:
        if not self._words:
            self._words = self._rng.randint(0, 1 << 32, size=_WORDS, dtype=np.uint32).tolist()
            self._words.reverse()
        return self._words.pop()


def running_sums(weights: Sequence[float]) -> list[float]:
    """Return the running sums of weights for `WorkerRng.choose`: float32 values as Python floats."""
    narrow = np.array(weights, dtype=np.float32)
    sums: list[float] = np.cumsum(narrow, dtype=np.float64).astype(np.float32).tolist()
    return sums
