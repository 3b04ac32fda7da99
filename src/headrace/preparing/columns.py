"""Documents as arrays: for each column the values of all documents in a row, and the length of each. Pure NumPy.

A `Column` is a key of the store, such as ids or a mask, or the domain of each document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def keep_rows(tokens: NDArray[Any], lengths: IntArray, keep: NDArray[np.bool_]) -> NDArray[Any]:
    """The tokens of the documents where ``keep`` (n,) is True, in order. Adjacent documents are copied together."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])))).reshape(-1, 2)
    pieces = [tokens[ends[first] : ends[last]] for first, last in edges]
    return np.concatenate(pieces) if pieces else tokens[:0]


def count_ones(values: NDArray[Any], lengths: IntArray) -> IntArray:
    """(n,) the number of values of each document that are not 0."""
    sums = np.concatenate(([0], np.cumsum(values != 0)))
    ends = np.cumsum(lengths)
    found: IntArray = sums[ends] - sums[ends - lengths]
    return found


def total_lengths(lengths: Iterable[IntArray], num_documents: int) -> IntArray:
    """(n,) the lengths of n documents in several columns together, from their (n,) lengths in each."""
    return sum(lengths, np.zeros(num_documents, np.int64))


def add_ends(
    ids: NDArray[np.uint32], lengths: IntArray, *, bos: int | None, eod: int | None, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], IntArray]:
    """Put ``bos`` before and ``eod`` after each document that has tokens, and convert to ``dtype``; None adds nothing.

    A document that begins with ``bos`` already gets no second one.

    Returns the (m,) tokens and the (n,) lengths. For the ids ``a b | | c`` with lengths 2 0 1, and eod ``e``, it
    returns ``a b e c e`` and 3 0 2.
    """
    if bos is None and eod is None:
        return ids.astype(dtype), lengths
    is_full = lengths > 0
    lacks_bos = lacks(ids, lengths, bos)
    longer = lengths + lacks_bos + is_full * (eod is not None)
    ends = np.cumsum(longer)
    tokens = np.empty(int(ends[-1]) if len(ends) else 0, dtype)
    is_text = np.ones(len(tokens), np.bool_)
    if eod is not None:
        at = ends[is_full] - 1
        tokens[at] = eod
        is_text[at] = False
    if bos is not None:
        at = (ends - longer)[lacks_bos]
        tokens[at] = bos
        is_text[at] = False
    tokens[is_text] = ids
    return tokens, longer


def lacks(ids: NDArray[np.uint32], lengths: IntArray, bos: int | None) -> NDArray[np.bool_]:
    """(n,) whether each document has tokens and does not begin with ``bos``; all False for None."""
    found = np.zeros(len(lengths), np.bool_)
    if bos is not None:
        is_full = lengths > 0
        found[is_full] = ids[(np.cumsum(lengths) - lengths)[is_full]] != bos
    return found


Kind = Literal["ids", "mask", "positions", "value", "domain"]

Row = tuple[NDArray[Any], IntArray]
"""One column: the values of n documents in a row, and their (n,) lengths."""

Rows = Sequence[Row]
"""A `Row` for each column."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of the documents: a key of the store, or the domain."""

    key: str
    """Its name in the store."""

    dtype: str
    kind: Kind = "ids"
    """``ids`` are counted as tokens. ``mask`` is 1 where a token is trained. ``positions`` are numbered through the
    shard when it is written. ``value`` is anything else. ``domain`` is the number of the document's domain; it comes
    last, and is not stored, but decides into which store the other columns go."""

    parallel_to: str = ""
    """The key of ids to which this column has one value for each id."""


DOMAIN = Column("", "<i4", "domain")


def stored(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns that are keys of the store: all but the domain."""
    return tuple(column for column in columns if column.kind != "domain")
