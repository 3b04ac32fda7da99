"""Documents as arrays: all tokens in a row and the length of each document, key by key, and what travels beside them.

Documents as two arrays: all tokens in a row, and the length of each document. Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def keep_rows(tokens: NDArray[Any], lengths: IntArray, keep: NDArray[np.bool_]) -> NDArray[Any]:
    """The tokens of the documents where ``keep`` (n,) is true, in order. Runs of kept documents are copied at once."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])))).reshape(-1, 2)
    pieces = [tokens[ends[first] : ends[last]] for first, last in edges]
    return np.concatenate(pieces) if pieces else tokens[:0]


def total_lengths(rows: Sequence[tuple[NDArray[Any], IntArray]]) -> IntArray:
    """(n,) tokens of each document in all keys together, from the tokens and lengths of each key."""
    total = rows[0][1].astype(np.int64)
    for _, lengths in rows[1:]:
        total += lengths
    return total


def take_rows(tokens: NDArray[Any], lengths: IntArray, rows: IntArray) -> NDArray[Any]:
    """The tokens of documents ``rows`` (m,), in that order. About 0.3 us a document besides the copy."""
    size = tokens.dtype.itemsize
    ends = np.cumsum(lengths) * size
    begins = ends - lengths * size
    view = np.ascontiguousarray(tokens).view(np.uint8).data
    spans = zip(begins[rows].tolist(), ends[rows].tolist(), strict=True)
    return np.frombuffer(b"".join([view[begin:end] for begin, end in spans]), tokens.dtype)


def add_ends(
    ids: NDArray[np.uint32], lengths: IntArray, *, bos: int | None, eod: int | None, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], IntArray]:
    """Put a token before and one after each document that has tokens, and convert to ``dtype``.

    Returns the (m,) tokens and the (n,) lengths: for ids ``a b | c``, lengths 2 0 1 and eod ``e``: ``a b e c e``,
    3 0 2.
    """
    if bos is None and eod is None:
        return ids.astype(dtype), lengths
    is_full = lengths > 0
    longer = lengths + is_full * ((bos is not None) + (eod is not None))
    ends = np.cumsum(longer)
    tokens = np.empty(int(ends[-1]) if len(ends) else 0, dtype)
    is_text = np.ones(len(tokens), np.bool_)
    if eod is not None:
        at = ends[is_full] - 1
        tokens[at] = eod
        is_text[at] = False
    if bos is not None:
        at = (ends - longer)[is_full]
        tokens[at] = bos
        is_text[at] = False
    tokens[is_text] = ids
    return tokens, longer


Kind = Literal["ids", "mask", "positions", "value", "domain"]

Row = tuple[NDArray[Any], IntArray]
"""Of one column the values of n documents one after another, and their (n,) lengths."""

Rows = Sequence[Row]
"""One for each column."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """One of them."""

    key: str
    """As the store calls it."""

    dtype: str
    kind: Kind = "ids"
    """``ids`` are counted as tokens, ``mask`` are ones where a token is trained; ``positions`` are numbered through the
    shard when that is written; ``value`` is anything else. ``domain``, the last one where there is one, is the number
    of the document's domain, which is not stored but says where the others are."""

    parallel_to: str = ""
    """The key of ids whose values it has one for one."""


DOMAIN = Column("", "<i4", "domain")


def stored(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Those that are keys of the store."""
    return tuple(column for column in columns if column.kind != "domain")


def num_ids(columns: Sequence[Column], rows: Rows) -> IntArray:
    """(n,) ids of each document, all keys together; zeros where no key holds ids."""
    total = np.zeros(len(rows[0][1]), np.int64)
    for column, (_, lengths) in zip(columns, rows, strict=True):
        if column.kind == "ids":
            total += lengths
    return total


def num_values(columns: Sequence[Column], rows: Rows) -> IntArray:
    """(n,) values of each document, all keys of the store together."""
    total = np.zeros(len(rows[0][1]), np.int64)
    for column, (_, lengths) in zip(columns, rows, strict=True):
        if column.kind != "domain":
            total += lengths
    return total
