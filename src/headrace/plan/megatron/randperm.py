"""``torch.randperm`` on the CPU, replayed without torch: the order of Megatron's cyclic sampler.

torch seeds the Mersenne twister as NumPy's RandomState does, and swaps element i with another one, for i from 0 on:

    fewer than 2^32 / 20 elements    one of those from i on: i + (a 32-bit word modulo their number)
    more                             one of those up to i: a 64-bit number, its high word first, modulo i + 1
"""

from __future__ import annotations

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.kernels import compiled, is_loaded, swap_kernel

MANY = ((1 << 32) - 1) // 20
"""Elements from which on torch draws 64 bits for each."""

_CHUNK = 1 << 18
_LONG_ENOUGH_TO_IMPORT = 1 << 20
"""Elements from which on the compiled loop is worth the import of numba."""


def torch_randperm(length: int, seed: int) -> IntArray:
    """(length,) int64: ``torch.randperm(length, generator=torch.Generator().manual_seed(seed))``.

    About 10 ns an element with numba, 40 from 2^32 / 20 elements on, and 150 in plain Python.

    Raises:
        ConfigError: the seed is not in 0 to 2^32 - 1.
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
        places = _places(rng, length, first, min(_CHUNK, num_swaps - first)).tolist()
        for i, place in enumerate(places, start=first):
            plain[i], plain[place] = plain[place], plain[i]
    return np.array(plain, dtype=np.int64)


def _places(rng: np.random.RandomState, length: int, first: int, count: int) -> IntArray:
    """(count,) int64: the place that each of the elements from ``first`` on is swapped with."""
    own = np.arange(first, first + count, dtype=np.uint64)
    if length < MANY:
        words = rng.randint(0, 1 << 32, size=count, dtype=np.uint32).astype(np.uint64)
        return (own + words % (np.uint64(length) - own)).astype(np.int64)
    pairs = rng.randint(0, 1 << 32, size=(count, 2), dtype=np.uint32).astype(np.uint64)
    return (((pairs[:, 0] << np.uint64(32)) | pairs[:, 1]) % (own + np.uint64(1))).astype(np.int64)
