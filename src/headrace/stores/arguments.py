"""Shared types of stores, and checks of the arguments that their methods get."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headrace.config import nearest
from headrace.errors import ConfigError, StoreError
from headrace.io import AnyPath, path_at

IntArray = NDArray[np.int64]
TokenArray = NDArray[Any]
MAIN = "tokens"
"""A name that every store accepts for its main key, in addition to the key's own name."""

KeyList = list[str] | tuple[str, ...]
"""Several keys. Not ``Sequence[str]``, since a single ``str`` is one too."""


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype that a caller has named. Raises ConfigError if it is none."""
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype={dtype!r} is not a dtype: {error}") from error


def positions(values: ArrayLike, allowed: int, what: str) -> IntArray:
    """Return the values as (n,) int64, all of them in ``[0, allowed)``.

    Raises:
        TypeError: the values are not integers, or not one-dimensional.
        IndexError: a value is out of range; the message calls the values ``what``.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"{what} must be integers, not {array.dtype}")
        array = array.astype(np.int64)
    if array.ndim != 1:
        raise TypeError(f"{what} must be one-dimensional, not of shape {array.shape}")
    # Seen as unsigned integers, negative numbers are the greatest, so one pass finds both kinds of fault.
    if array.size and np.maximum.reduce(array.view(np.uint64)) >= allowed:
        wrong = array[(array < 0) | (array >= allowed)][0]
        raise IndexError(f"{what}: {wrong} is out of range; it must be at least 0 and less than {allowed}")
    return array


def document_number(index: int, num_documents: int, what: str = "document") -> int:
    """Return the number of the document, or of ``what`` else, at an index, which may count from the end.

    Raises:
        IndexError: the index is out of range.
    """
    number = operator.index(index)
    if number < 0:
        number += num_documents
    if not 0 <= number < num_documents:
        raise IndexError(f"{what} {index} is out of range; the store has {num_documents} {what}s")
    return number


def sample_numbers(indices: ArrayLike, num_samples: int, path: str) -> IntArray:
    """Return the numbers of the samples at indices, which may count from the end: (n,) int64 in [0, num_samples).

    Raises:
        TypeError: the indices are not integers, or not one-dimensional.
        IndexError: an index is out of range.
    """
    array = np.asarray(indices, dtype=np.int64 if np.size(indices) == 0 else None)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"indices must be integers in one dimension, not {array.dtype} of shape {array.shape}")
    wrong = (array < -num_samples) | (array >= num_samples)
    if wrong.any():
        raise IndexError(f"sample {array[wrong][0]} is out of range; {path} has {num_samples:,} samples")
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + num_samples, numbers)


def prefix_sums(counts: Sequence[int]) -> IntArray:
    """Return (counts + 1,) int64: 0, and the sum of all counts up to each."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def check_range(begin: int, end: int, num_tokens: int) -> None:
    """Raise IndexError unless ``0 <= begin <= end <= num_tokens``."""
    if not 0 <= begin <= end <= num_tokens:
        raise IndexError(f"tokens {begin} to {end} are out of range; the stream has {num_tokens} tokens")


def check_ranges(begins: IntArray, lengths: IntArray, num_tokens: int) -> None:
    """Raise IndexError if a range of ``lengths[i]`` tokens from ``begins[i]`` on is not within the stream."""
    outside = (begins < 0) | (lengths < 0) | (begins > num_tokens - lengths)
    if outside.any():
        wrong = int(np.argmax(outside))
        begin, end = int(begins[wrong]), int(begins[wrong]) + int(lengths[wrong])
        raise IndexError(f"tokens {begin} to {end} are out of range; the stream has {num_tokens} tokens")


def by_keys(
    read: Callable[[str], TokenArray], keys: str | KeyList | None, known: tuple[str, ...]
) -> TokenArray | dict[str, TokenArray]:
    """Return the result of ``read`` for one key, or a dict of results for several; ``known[0]`` is the main key.

    Raises:
        ConfigError: the store does not have a key.
    """
    if keys is None:
        return read(known[0])
    if isinstance(keys, str):
        return read(known_key(keys, known))
    return {key: read(known_key(key, known)) for key in keys}


def known_key(key: str, known: tuple[str, ...]) -> str:
    """Return the key of a name; ``"tokens"`` is another name of the first.

    Raises:
        ConfigError: the store does not have the key.
    """
    if key in known:
        return key
    if key == MAIN:
        return known[0]
    also = "" if MAIN in known else f" (or {MAIN!r} for the first)"
    near = nearest(key, known)
    raise ConfigError(f"the store has no key {key!r}{near}; its keys are {', '.join(map(repr, known))}{also}")


def not_parallel(path: str, key: str, difference: str) -> ConfigError:
    """Return the error for a key whose stream is read beside that of the main key, from which it differs."""
    return ConfigError(
        f"{path}: key {key!r} {difference}: the streams are not parallel; read them by document, or open the store with"
        f" key={key!r}"
    )


def read_only(array: TokenArray) -> TokenArray:
    """Make the array itself read-only and return it."""
    array.flags.writeable = False
    return array


def check_case(folder: str | AnyPath, names: Iterable[str], endings: str | tuple[str, ...]) -> None:
    """Raise StoreError if a file has one of these endings but for its case, as ``A.TAR``: it would be left out."""
    for name in names:
        if name.lower().endswith(endings) and not name.endswith(endings) and not name.startswith("."):
            raise StoreError(
                f"{folder}: the ending of {name!r} is not in lower case, so that the file would be left out: rename it"
                " or move it away"
            )


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise StoreError if a file cannot have this name, with or without a suffix: it is too long, or has a NUL byte."""
    name = os.fspath(path)
    if not isinstance(path_at(path), Path):
        return
    try:
        if not os.path.lexists(name):
            os.lstat(name + ".jsonl.idx")
    except ValueError as error:
        raise StoreError(f"{name[:200]!r}: not a valid file name: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise StoreError(f"{name[:80]}...: {len(name):,} characters are too many for a file name") from error
