"""The draws of torch's CPU generator, replayed without torch.

Torch seeds the Mersenne twister as NumPy's RandomState does, and uses its 32-bit words for these draws:

    randperm(n)         element i is swapped with another one, for i from 0 on:
                        n < 2^32 / 20   with i + word % (n - i), one from i on
                        else            with (two words, the high one first) % (i + 1), one up to i
    randint(0, n)       word % n; from n = 2^28 on, (two words) % n
    rand(1), float32    the low 24 bits of the word, divided by 2^24

Sums of float32 are computed in float64 and rounded one by one, as in ``torch.cumsum``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.megatron.kernels import compiled, is_loaded, swap_kernel

MANY = ((1 << 32) - 1) // 20
"""For permutations of at least this many elements, torch draws 64 bits for each."""

_WORDS = 1 << 12
_LONG_DRAW = 1 << 28
"""For ranges of at least this size, torch draws two words, the high one first."""

_CHUNK = 1 << 18
_LONG_ENOUGH_TO_IMPORT = 1 << 20
"""From this many elements on, the compiled loop is worth the import of numba."""


def torch_randperm(length: int, seed: int) -> IntArray:
    """Return (length,) int64: ``torch.randperm(length, generator=torch.Generator().manual_seed(seed))``.

    About 10 ns an element with numba, 40 from 2^32 / 20 elements on, and 150 in plain Python.

    Raises:
        ConfigError: the seed is not from 0 to 2^32 - 1.
    """
    if not 0 <= seed < 1 << 32:
        raise ConfigError(f"seed is {seed}; allowed is 0 to 2^32 - 1")
    rng = np.random.RandomState(seed)
    array = np.arange(length, dtype=np.int64)
    num_swaps = length if length >= MANY else max(0, length - 1)
    kernel = compiled(swap_kernel) if length >= _LONG_ENOUGH_TO_IMPORT or is_loaded() else None
    if kernel is not None:
        for first in range(0, num_swaps, _CHUNK):
            kernel(array, first, _places(rng, length, first, min(_CHUNK, num_swaps - first)))
        return array
    plain = array.tolist()
    for first in range(0, num_swaps, _CHUNK):
        _swapped(plain, first, _places(rng, length, first, min(_CHUNK, num_swaps - first)))
    return np.array(plain, dtype=np.int64)


def _places(rng: np.random.RandomState, length: int, first: int, count: int) -> IntArray:
    """(count,) int64: the place with which each of the elements from ``first`` on is swapped."""
    if length < MANY:
        return _places_of(rng.randint(0, 1 << 32, size=count, dtype=np.uint32).astype(np.uint64), length, first)
    own = np.arange(first, first + count, dtype=np.uint64)
    pairs = rng.randint(0, 1 << 32, size=(count, 2), dtype=np.uint32).astype(np.uint64)
    return (((pairs[:, 0] << np.uint64(32)) | pairs[:, 1]) % (own + np.uint64(1))).astype(np.int64)


def _places_of(words: KeyArray, length: int, first: int) -> IntArray:
    """The same for fewer than `MANY` elements, from one word for each."""
    own = np.arange(first, first + len(words), dtype=np.uint64)
    return (own + words % (np.uint64(length) - own)).astype(np.int64)


def _swapped(elements: list[int], first: int, places: IntArray) -> list[int]:
    for i, place in enumerate(places.tolist(), start=first):
        elements[i], elements[place] = elements[place], elements[i]
    return elements


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
        if length >= MANY:
            raise ConfigError(
                f"an epoch has {length:,} slices; Energon's order can be replayed for fewer than {MANY:,}"
            )
        words = np.array([self._word() for _ in range(length - 1)], dtype=np.uint64)
        return _swapped(list(range(length)), 0, _places_of(words, length, 0))

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
