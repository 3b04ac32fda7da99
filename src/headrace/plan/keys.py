"""Keys: every random choice of a run is a hash of what it is for, never a draw from a shared generator.

A *key* is 64 bits. ``source_key`` hashes (seed, path of the source in the blend tree, purpose), and ``derive`` adds a
number, such as the epoch. Keys are hashes and not sums of numbers: no two sources or epochs share a stream, and adding
a source does not reseed another one. Every rank computes the same choice, for example of the sample that replaces one
that cannot be made.

Keys and hashes are the only place in the plan that computes in uint64; its results are int64.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

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
    """Scramble one 64-bit integer with the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: KeyArray) -> KeyArray:
    """Apply ``mix`` to each element of a (n,) uint64 array."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_M1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_M2)
    return values ^ (values >> np.uint64(31))


def source_key(seed: int, path: str, purpose: str) -> int:
    """Return the 64-bit key of one source. ``seed`` is any integer, ``path`` the source's place in the blend tree."""
    text = "\0".join((str(seed), path, purpose)).encode()
    return int.from_bytes(blake2b(text, digest_size=8, person=b"headrace").digest(), "little")


def derive(key: int, *numbers: int) -> int:
    """Return the key of an item (an epoch, a window) under ``key``; with more numbers, that of one below it."""
    for number in numbers:
        key = mix(key ^ mix((number + GOLDEN) & _MASK))
    return key


class CallKey(NamedTuple):
    """The place of a call of the user's code: all that its random numbers depend on, apart from the function.

    Attributes:
        key: 64 bits, from seed, source and epoch.
        position: the position of the sample, or of the first of several; below 2^63.
        output: the number of the output of the sample.
        part: the number of the pack, if several begin with this output.
    """

    key: int
    position: int
    output: int = 0
    part: int = 0


def seed_of(place: CallKey, stage: int, number: int = 0) -> int:
    """Return 64 bits for a call of the function with number ``stage``; ``number`` counts the outputs of a generator."""
    outputs = ((place.output << 20) + place.part << 20) + number
    return derive(_stage_key(place.key, stage), place.position, outputs)


@lru_cache(maxsize=1024)
def _stage_key(key: int, stage: int) -> int:
    """Return the part of the seed that is the same for all samples of a source."""
    return derive(key, stage)


def derive_array(keys: int | KeyArray, numbers: IntArray) -> KeyArray:
    """Return (n,) uint64: ``derive`` for each of ``numbers``, under one key for all or a key for each."""
    own = np.array(keys, dtype=np.uint64)
    return mix_array(own ^ mix_array(numbers.astype(np.uint64) + np.uint64(GOLDEN)))


class EpochAddresses(NamedTuple):
    """Addresses: the number of a sample in the low ``num_bits``, bits of the key of its epoch above; never negative.

    Example:
        >>> addresses = EpochAddresses.of(1000)
        >>> joined = addresses.join(np.array([7]), np.array([1 << 63], np.uint64))
        >>> addresses.indices(joined).tolist(), addresses.keys(joined).tolist() == [1 << 63]
        ([7], True)
    """

    num_bits: int

    @classmethod
    def of(cls, num_samples: int) -> EpochAddresses:
        """Return the addresses of a source with so many samples."""
        return cls(max(1, (num_samples - 1).bit_length()))

    def join(self, indices: IntArray, keys: KeyArray | None) -> IntArray:
        """(n,) int64: addresses of samples by their numbers and the keys of their epochs; None is no epoch."""
        if keys is None:
            return indices
        shift = np.uint64(self.num_bits)
        return indices | ((np.asarray(keys, dtype=np.uint64) >> (shift + np.uint64(1))) << shift).astype(np.int64)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of samples."""
        return addresses & np.int64((1 << self.num_bits) - 1)

    def keys(self, addresses: IntArray) -> KeyArray | None:
        """(n,) uint64: the high bits of the keys, the others 0; None if no address has an epoch."""
        found = (addresses >> np.int64(self.num_bits)).astype(np.uint64) << np.uint64(self.num_bits + 1)
        return found if found.any() else None


def substitute_index(key: int, position: int, attempt: int, num_samples: int) -> int:
    """Return the sample to try if the sample at a position, and its first ``attempt - 1`` substitutes, cannot be made.

    It is uniform over all samples, to a part in 2^64 / num_samples, and may be one that was tried before. O(1).

    Args:
        key: 64 bits derived from seed, source and epoch.
        position: the position of the sample, at least 0.
        attempt: 1 for the first substitute.
        num_samples: the number of samples in the source.

    Raises:
        ConfigError: there are no samples, the attempt is below 1, or the position is below 0.
    """
    if num_samples < 1 or attempt < 1 or position < 0:
        raise ConfigError(
            f"attempt {attempt} at position {position} of {num_samples} samples: attempts count from 1, positions from"
            " 0, and a source has at least one sample"
        )
    return derive(key, position, attempt) * num_samples >> 64
