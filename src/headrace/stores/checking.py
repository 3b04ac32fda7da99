"""Checks that all stores share: values out of range, and files whose checksums differ from the manifest's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import AnyPath, FileSum, file_sum
from headrace.stores.store import IntArray, Problem, TokenArray
from headrace.stores.written import OutputShard

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


def vocab_of(
    key: str, dtype: np.dtype[Any], main: str, vouched: OutputShard | None, vocab_size: int | None
) -> int | None:
    """Return the vocabulary to which the ids of a key are compared; None if its values are not known to be ids.

    The main key has ids unless a manifest says otherwise, and so has each key of integers of which a manifest says so.
    """
    info = None if vouched is None else vouched.keys.get(key)
    has_ids = key == main if info is None else info.ids and (key == main or dtype.kind in "iu")
    return vocab_size if has_ids else None


def check_values(
    path: str,
    dtype: np.dtype[Any],
    read: Callable[[int, int], TokenArray],
    total: int,
    find: Callable[[IntArray], IntArray],
    vocab_size: int | None,
) -> Iterator[Problem]:
    """Yield the first wrong value in each document of one key: bools other than 0 and 1, ids out of the vocabulary.

    All values are read once, unless no value of the dtype can be wrong.

    Args:
        path: path of the file, for the message.
        dtype: dtype of the values.
        read: returns the (end - begin,) values from ``begin`` to ``end``.
        total: number of values.
        find: returns the documents that hold some values, by their numbers.
        vocab_size: ids must be below it; None if the values are not ids, or if all ids are allowed.
    """
    if vocab_size is not None and dtype.kind not in "iu":
        yield Problem(path=path, place="", message=f"{dtype.name} numbers are not token ids")
        vocab_size = None
    if dtype.kind == "b":
        name, limit, what = "byte", 2, "is not a bool, 0 or 1"
    elif vocab_size is not None:
        name, limit, what = "id", vocab_size, f"is outside the vocabulary, 0 to {vocab_size - 1}"
    else:
        return
    faults = Faults(path, f"documents with such {name}s")
    last = -1
    for begin in range(0, total, _VALUES_AT_ONCE):
        values = read(begin, min(begin + _VALUES_AT_ONCE, total))
        values = values.view("u1") if dtype.kind == "b" else values
        wrong = np.flatnonzero((values < 0) | (values >= limit))
        documents, firsts = np.unique(find(wrong + begin), return_index=True)
        # A document that began in the previous block may have been named there.
        for at in faults.to_name(documents != last):
            place = f"document {documents[at]}, value {begin + wrong[firsts[at]]} of the stream"
            yield Problem(path=path, place=place, message=f"{name} {values[wrong[firsts[at]]]} {what}")
        last = int(documents[-1]) if len(documents) else last
    yield from faults.rest()


def check_file(
    path: str | AnyPath, listed: FileSum, *, holds: Callable[[int, int], str] = lambda begin, end: ""
) -> Iterator[Problem]:
    """Compare size and hashes of a file with those that a manifest lists, and name each block that differs. One pass.

    Args:
        path: the file.
        listed: the size and the hashes that it should have.
        holds: returns what the bytes ``begin`` to ``end`` hold, in words, for the message.
    """
    file, path = path, str(path)
    try:
        found = file_sum(file, block_bytes=listed.block_bytes)
    except StoreError as error:
        yield Problem.of(path, error)
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
