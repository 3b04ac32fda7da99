"""Checks that all stores share: values out of range, and files whose checksums differ from the manifest's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import FileSum, file_sum
from headrace.stores.store import IntArray, Problem, TokenArray

MAX_NAMED: Final = 20
"""How many faults of one kind in one file are named one by one; the rest are counted."""


class Faults:
    """Names the first ``MAX_NAMED`` faults of one kind, and counts the rest."""

    def __init__(self, path: str, kind: str) -> None:
        self._path = path
        self._kind = kind
        self._count = 0

    def to_name(self, wrong: NDArray[np.bool_]) -> list[int]:
        """Count the faults, and return the positions of those that are still to be named."""
        room = max(0, MAX_NAMED - self._count)
        self._count += int(np.count_nonzero(wrong))
        return [int(at) for at in np.flatnonzero(wrong)[:room]]

    def rest(self) -> Iterator[Problem]:
        """Yield a problem that says how many faults were not named, if there are any."""
        if self._count > MAX_NAMED:
            yield Problem(path=self._path, place="", message=f"{self._count - MAX_NAMED} more {self._kind} at fault")


_VALUES_AT_ONCE = 1 << 20


def check_values(
    path: str,
    dtype: np.dtype[np.generic],
    read: Callable[[int, int], TokenArray],
    bounds: IntArray,
    vocab_size: int | None,
) -> Iterator[Problem]:
    """Yield the first wrong value in each document of one key: bools other than 0 and 1, ids out of the vocabulary.

    All values are read once, unless no value of the dtype can be wrong.

    Args:
        path: path of the file, for the message.
        dtype: dtype of the values.
        read: returns the (end - begin,) values from ``begin`` to ``end``.
        bounds: (documents + 1,) int64, where documents begin.
        vocab_size: ids must be below it; None if the values are not ids, or if all ids are allowed.
    """
    if vocab_size is not None and dtype.kind not in "iu":
        yield Problem(path=path, place="", message=f"{dtype.name} numbers are not token ids")
        vocab_size = None
    if dtype.kind == "b":
        yield from _outside(path, lambda begin, end: read(begin, end).view("u1"), bounds, 2, "byte")
    elif vocab_size is not None:
        yield from _outside(path, read, bounds, vocab_size, "id")


def _outside(
    path: str, read: Callable[[int, int], TokenArray], bounds: IntArray, limit: int, name: str
) -> Iterator[Problem]:
    """Yield values outside ``[0, limit)``."""
    what = "is not a bool, 0 or 1" if name == "byte" else f"is outside the vocabulary, 0 to {limit - 1}"
    faults = Faults(path, f"documents with such {name}s")
    last = -1
    total = int(bounds[-1])
    for begin in range(0, total, _VALUES_AT_ONCE):
        values = read(begin, min(begin + _VALUES_AT_ONCE, total))
        wrong = np.flatnonzero((values < 0) | (values >= limit))
        documents, firsts = np.unique(np.searchsorted(bounds, wrong + begin, side="right") - 1, return_index=True)
        # A document that began in the previous block may have been named there.
        for at in faults.to_name(documents != last):
            place = f"document {documents[at]}, value {begin + wrong[firsts[at]]} of the stream"
            yield Problem(path=path, place=place, message=f"{name} {values[wrong[firsts[at]]]} {what}")
        last = int(documents[-1]) if len(documents) else last
    yield from faults.rest()


def check_file(
    path: str | Path, listed: FileSum, *, holds: Callable[[int, int], str] = lambda begin, end: ""
) -> Iterator[Problem]:
    """Compare size and hashes of a file with those that a manifest lists, and name each block that differs. One pass.

    Args:
        path: the file.
        listed: the size and the hashes that it should have.
        holds: returns what the bytes ``begin`` to ``end`` hold, in words, for the message.
    """
    path = str(path)
    try:
        found = file_sum(path, block_bytes=listed.block_bytes)
    except StoreError as error:
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))
        return
    if found.size != listed.size:
        message = f"the manifest says {listed.size} bytes, the file has {found.size}"
        yield Problem(path=path, place="", message=message)
        return
    if found.xxh3_128 == listed.xxh3_128:
        return
    is_named = False
    for block, (actual, expected) in enumerate(zip(found.xxh3_64, listed.xxh3_64, strict=True)):
        if actual != expected:
            is_named = True
            begin = block * found.block_bytes
            end = min(begin + found.block_bytes, found.size)
            message = f"the bytes were changed: xxh3_64 is {actual}, the manifest says {expected}{holds(begin, end)}"
            yield Problem(path=path, place=f"bytes {begin} to {end}", message=message)
    if not is_named:
        message = f"xxh3_128 is {found.xxh3_128}, the manifest says {listed.xxh3_128}, but each block agrees"
        yield Problem(path=path, place="", message=message)
