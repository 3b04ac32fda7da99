"""Types that all of this room shares, and what the methods of all stores do with their arguments before they read.

Types and names that all of this room shares.
"""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, StoreError

IntArray = NDArray[np.int64]
TokenArray = NDArray[Any]
MAIN = "tokens"
"""What the main key of every store is called, besides its own name."""

KeyList = list[str] | tuple[str, ...]
"""Several keys. Not ``Sequence[str]``, which a single ``str`` is, too."""


def positions(values: ArrayLike, allowed: int, what: str) -> IntArray:
    """(n,) int64 of values that all lie in ``[0, allowed)``.

    Raises:
        TypeError: not integers, or not one-dimensional.
        IndexError: a value out of range, named with ``what``.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"{what} must be integers, not {array.dtype}")
        array = array.astype(np.int64)
    if array.ndim != 1:
        raise TypeError(f"{what} must be one-dimensional, not of shape {array.shape}")
    # As unsigned numbers the negative ones are the greatest: one pass finds both kinds of fault.
    if array.size and np.maximum.reduce(array.view(np.uint64)) >= allowed:
        wrong = array[(array < 0) | (array >= allowed)][0]
        raise IndexError(f"{what}: {wrong} is out of range; {allowed} are allowed, from 0 on")
    return array


def document_number(index: int, num_documents: int) -> int:
    """The document meant by an index, which may count from the end.

    Raises:
        IndexError: out of range.
    """
    number = operator.index(index)
    if number < 0:
        number += num_documents
    if not 0 <= number < num_documents:
        raise IndexError(f"document {index} is out of range; the store has {num_documents} documents")
    return number


def sample_numbers(indices: ArrayLike, num_samples: int, path: str) -> IntArray:
    """(n,) int64 in [0, num_samples): samples meant by indices, which may count from the end.

    Raises:
        TypeError: not integers, or not one-dimensional.
        IndexError: out of range.
    """
    array = np.asarray(indices, dtype=np.int64 if np.size(indices) == 0 else None)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"indices must be integers in one dimension, not {array.dtype} of shape {array.shape}")
    wrong = (array < -num_samples) | (array >= num_samples)
    if wrong.any():
        raise IndexError(f"sample {array[wrong][0]} is out of range; {path} has {num_samples:,} samples")
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + num_samples, numbers)


def check_range(begin: int, end: int, num_tokens: int) -> None:
    """Raise IndexError unless ``0 <= begin <= end <= num_tokens``."""
    if not 0 <= begin <= end <= num_tokens:
        raise IndexError(f"tokens {begin} to {end} are out of range; the stream has {num_tokens} tokens")


def check_ranges(begins: IntArray, lengths: IntArray, num_tokens: int) -> None:
    """Raise IndexError unless every range of ``lengths[i]`` tokens from ``begins[i]`` on is within the stream."""
    outside = (begins < 0) | (lengths < 0) | (begins > num_tokens - lengths)
    if outside.any():
        wrong = int(np.argmax(outside))
        begin, end = int(begins[wrong]), int(begins[wrong]) + int(lengths[wrong])
        raise IndexError(f"tokens {begin} to {end} are out of range; the stream has {num_tokens} tokens")


def by_keys(
    read: Callable[[str], TokenArray], keys: str | KeyList | None, known: tuple[str, ...]
) -> TokenArray | dict[str, TokenArray]:
    """What ``read`` gives for one key, or a dict of it for several; the first of ``known`` is the main one.

    Raises:
        ConfigError: a key that the store does not have.
    """
    if keys is None:
        return read(known[0])
    if isinstance(keys, str):
        return read(known_key(keys, known))
    return {key: read(known_key(key, known)) for key in keys}


def known_key(key: str, known: tuple[str, ...]) -> str:
    """The key meant by a name, which may be ``"tokens"`` for the first.

    Raises:
        ConfigError: there is none.
    """
    if key in known:
        return key
    if key == MAIN:
        return known[0]
    also = "" if MAIN in known else f" (or {MAIN!r} for the first)"
    raise ConfigError(f"the store has no key {key!r}; its keys are {', '.join(map(repr, known))}{also}")


def read_only(array: TokenArray) -> TokenArray:
    """The array itself, which can no longer be written to."""
    array.flags.writeable = False
    return array


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise StoreError where no file can have the name, nor one of its suffixes: too long, or with a byte 0."""
    name = os.fspath(path)
    try:
        if not os.path.lexists(name):
            os.lstat(name + ".jsonl.idx")
    except ValueError as error:
        raise StoreError(f"{name[:200]!r}: no name of a file: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise StoreError(f"{name[:80]}...: {len(name):,} characters are too long for the name of a file") from error
