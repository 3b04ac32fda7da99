"""Which documents of a piece the run keeps, once it is known what came before: no duplicates, and not too many."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.prepare.columns import Column, Rows, num_ids
from headrace.prepare.ledger import DUPLICATE, MAX_RECORDS, LeftOut
from headrace.prepare.piece import Piece
from headrace.prepare.ragged import IntArray, keep_rows

BoolArray = NDArray[np.bool_]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The choice, for n documents in the order of the input."""

    keep: BoolArray
    """(n,)"""

    reasons: dict[str, BoolArray]
    """(n,) for each reason, which documents are left out for it; no document for two."""

    num_records: int
    """Records of which something is kept; 0 where nobody counts them."""

    @property
    def is_all(self) -> bool:
        """Whether all are kept."""
        return bool(self.keep.all())

    def reason_of(self, document: int) -> str:
        """Why a document is left out."""
        return next(reason for reason, which in self.reasons.items() if which[document])

    def left_out(self, piece: Piece, columns: Sequence[Column], rows: Rows) -> list[LeftOut]:
        """What is left out, in numbers. ``rows`` are in the order of the piece."""
        found = []
        for reason, which in self.reasons.items():
            if not which.any():
                continue
            if "rows" in piece.arrays:
                which = which[piece.arrays["rows"]]
            keys: dict[str, int] = {}
            supervised = 0
            for column, (values, lengths) in zip(columns, rows, strict=True):
                if column.kind == "ids":
                    keys[column.key] = int(lengths[which].sum())
                elif column.kind == "mask":
                    supervised += int(np.count_nonzero(keep_rows(values, lengths, which)))
            found.append(
                LeftOut(
                    reason=reason,
                    documents=int(np.count_nonzero(which)),
                    empty=int(np.count_nonzero(num_ids(columns, rows)[which] == 0)),
                    tokens=sum(keys.values()),
                    keys=keys,
                    supervised=supervised,
                )
            )
        return found


def choose(piece: Piece, is_new: BoolArray | None, room: int | None) -> Chosen:
    """Keep what is new (n,), and of that the first ``room`` records; None sets no limit."""
    keep = np.ones(piece.info.num_documents, np.bool_) if is_new is None else is_new
    reasons: dict[str, BoolArray] = {}
    if is_new is not None:
        reasons[DUPLICATE] = ~is_new
    if room is None:
        return Chosen(keep=keep, reasons=reasons, num_records=0)
    records = record_numbers(piece)
    kept_records = np.unique(records[keep])
    last = kept_records[room - 1] if 0 < room <= len(kept_records) else len(records) if room > 0 else -1
    is_over = keep & (records > last)
    reasons[MAX_RECORDS] = is_over
    return Chosen(keep=keep & ~is_over, reasons=reasons, num_records=min(len(kept_records), max(room, 0)))


def record_numbers(piece: Piece) -> IntArray:
    """(n,) for each document in the order of the input the number of its record in the piece, ascending.

    Those of one record have the same line of the same span.
    """
    lines = piece.arrays.get("lines", np.zeros(0, np.int64))
    is_first = np.ones(len(lines), np.bool_)
    is_first[1:] = lines[1:] != lines[:-1]
    begins = np.cumsum([0, *(span.kept for span in piece.info.spans)])[:-1]
    is_first[begins[begins < len(lines)]] = True
    return np.cumsum(is_first) - 1
