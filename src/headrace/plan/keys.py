"""Keys: every random choice of a run is a hash of who asks, never a draw from a shared generator.

A *key* is 64 bits. ``source_key`` hashes (seed, path of the source in the blend tree, purpose), ``epoch_keys`` adds
the epoch. Hashes and not sums: no two sources or epochs share a stream, and adding a source reseeds no other.

Keys and hashes are the one place of the plan that computes in uint64; what leaves it is int64.

Which sample stands in for one that cannot be made: a hash of who asks, so that every rank takes the same.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

IntArray = NDArray[np.int64]
KeyArray = NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """One 64-bit integer scrambled: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: KeyArray) -> KeyArray:
    """The same for each element of a (n,) uint64 array."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_M1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_M2)
    return values ^ (values >> np.uint64(31))


def source_key(seed: int, path: str, purpose: str) -> int:
    """64 bits for one source of a run. ``seed`` is any integer, ``path`` the source's place in the blend tree."""
    text = "\0".join((str(seed), path, purpose)).encode()
    return int.from_bytes(blake2b(text, digest_size=8, person=b"headrace").digest(), "little")


def derive(key: int, number: int) -> int:
    """A key for item ``number`` (an epoch, a window) under ``key``."""
    return mix(key ^ mix((number + GOLDEN) & _MASK))


def derive_array(keys: int | KeyArray, numbers: IntArray) -> KeyArray:
    """(n,) uint64: ``derive`` for each of ``numbers``, under one key or one each."""
    own = np.array(keys, dtype=np.uint64)
    return mix_array(own ^ mix_array(numbers.astype(np.uint64) + np.uint64(GOLDEN)))


def substitute_index(key: int, position: int, attempt: int, num_samples: int) -> int:
    """The sample to try at a position whose own, and whose first ``attempt - 1`` substitutes, cannot be made.

    It is uniform over all samples, to a part in 2^64 / num_samples, and may be one that was tried before. O(1).

    Args:
        key: 64 bits, of seed, source and epoch.
        position: of the sample, at least 0.
        attempt: 1 for the first substitute.
        num_samples: of the source.

    Raises:
        ConfigError: no samples, or an attempt below 1.
    """
    if num_samples < 1 or attempt < 1 or position < 0:
        raise ConfigError(
            f"attempt {attempt} at position {position} of {num_samples} samples: attempts count from 1, positions from"
            " 0, and there is at least one sample"
        )
    return derive(derive(key, position), attempt) * num_samples >> 64
