"""What a document of a run consists of: the keys that are stored, and what travels beside them on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.prepare.ragged import IntArray

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
