"""What the checks of all stores share: many faults of one kind, values out of range, files compared with their sums.

Looks at every value of a key: bools that are none, and ids outside of the vocabulary.

Compares a file with the sums that a manifest lists.
"""

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
"""Faults of one kind in one file that are named one by one; the rest is counted."""


class Faults:
    """Names the first ``MAX_NAMED`` faults of one kind, and counts the rest."""

    def __init__(self, path: str, kind: str) -> None:
        self._path = path
        self._kind = kind
        self._count = 0

    def to_name(self, wrong: NDArray[np.bool_]) -> list[int]:
        """Where the faults are that are still to be named."""
        room = max(0, MAX_NAMED - self._count)
        self._count += int(np.count_nonzero(wrong))
        return [int(at) for at in np.flatnonzero(wrong)[:room]]

    def rest(self) -> Iterator[Problem]:
        """How many were not named."""
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
    """Faults of the values of one key, the first in each document; one pass where there is something to look at.

    Args:
        path: of the file, for the message.
        dtype: of the values.
        read: (end - begin,) values from ``begin`` to ``end``.
        bounds: (documents + 1,) int64, where documents begin.
        vocab_size: ids are to be below it; None: the values are no ids, or any are allowed.
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
    """Values outside ``[0, limit)``."""
    what = "is no bool, which is 0 or 1" if name == "byte" else f"is outside of the vocabulary, 0 to {limit - 1}"
    faults = Faults(path, f"documents with such {name}s")
    last = -1
    total = int(bounds[-1])
    for begin in range(0, total, _VALUES_AT_ONCE):
        values = read(begin, min(begin + _VALUES_AT_ONCE, total))
        wrong = np.flatnonzero((values < 0) | (values >= limit))
        of = np.searchsorted(bounds, wrong + begin, side="right") - 1
        documents, firsts = np.unique(of, return_index=True)
        # A document that goes on from the block before was named there.
        for at in faults.to_name(documents != last):
            place = f"document {documents[at]}, value {begin + wrong[firsts[at]]} of the stream"
            yield Problem(path=path, place=place, message=f"{name} {values[wrong[firsts[at]]]} {what}")
        last = int(documents[-1]) if len(documents) else last
    yield from faults.rest()


def check_file(
    path: str | Path, listed: FileSum, *, holds: Callable[[int, int], str] = lambda begin, end: ""
) -> Iterator[Problem]:
    """Size and hashes of a file against its listed sums; each 16 MiB block that differs is named. One pass.

    Args:
        path: the file.
        listed: what it should have.
        holds: what the bytes ``begin`` to ``end`` of it hold, in words, for the message.
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
    for block, (has, says) in enumerate(zip(found.xxh3_64, listed.xxh3_64, strict=True)):
        if has != says:
            is_named = True
            begin = block * found.block_bytes
            end = min(begin + found.block_bytes, found.size)
            message = f"the bytes were changed: xxh3_64 is {has}, the manifest says {says}{holds(begin, end)}"
            yield Problem(path=path, place=f"bytes {begin} to {end}", message=message)
    if not is_named:
        message = f"xxh3_128 is {found.xxh3_128}, the manifest says {listed.xxh3_128}, yet each block agrees"
        yield Problem(path=path, place="", message=message)
