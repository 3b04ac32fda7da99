"""Looks at every value of a key: bools that are none, and ids outside of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from headrace.stores.faults import Faults
from headrace.stores.store import IntArray, Problem, TokenArray

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
