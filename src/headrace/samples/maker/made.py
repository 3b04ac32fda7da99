"""What a block of records became: arrays by key, what was left out and why, and sums that must balance."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.samples.masking.results import Dropped, Refused

IntArray = NDArray[np.int64]


class Ragged(NamedTuple):
    """One key of all documents."""

    values: NDArray[Any]
    """(sum of lengths,) in the dtype of the key."""

    lengths: IntArray
    """(number of documents,)."""


class TokenSums(msgspec.Struct, kw_only=True):
    """Tokens of one key of ids. All that were made are kept, or cut off, or dropped by a reason."""

    made: int = 0
    kept: int = 0
    truncated: int = 0
    dropped: dict[str, int] = {}


class MakerCounts(msgspec.Struct, kw_only=True):
    """Sums over records. Those of bad records are not among the tokens."""

    records: int = 0
    kept: int = 0
    dropped: dict[str, int] = {}
    bad: int = 0
    documents: int = 0
    """More than ``kept`` where an unstable template splits records."""

    tokens: dict[str, TokenSums] = {}
    """By key of ids."""

    supervised: int = 0
    """Trained tokens of all masks that were kept."""

    eos: int = 0
    bos: int = 0
    """Tokens that were added at the ends; they are among those made."""

    notes: dict[str, int] = {}
    """What was counted only: ``straddling_tokens``, ``split_records``, ``truncated_records``, what a policy allowed."""

    def add(self, more: MakerCounts) -> None:
        """Add the sums of another block."""
        for name in ("records", "kept", "bad", "documents", "supervised", "eos", "bos"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        for reason, number in more.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + number
        for note, number in more.notes.items():
            self.notes[note] = self.notes.get(note, 0) + number
        for key, theirs in more.tokens.items():
            ours = self.tokens.setdefault(key, TokenSums())
            ours.made += theirs.made
            ours.kept += theirs.kept
            ours.truncated += theirs.truncated
            for reason, number in theirs.dropped.items():
                ours.dropped[reason] = ours.dropped.get(reason, 0) + number

    def balance(self) -> None:
        """Compare what was counted on different ways.

        Raises:
            HeadraceError: records or tokens are missing, or too many.
        """
        _equal(
            "records, and those kept, dropped and bad", self.records, self.kept + sum(self.dropped.values()) + self.bad
        )
        for key, sums in self.tokens.items():
            accounted = sums.kept + sums.truncated + sum(sums.dropped.values())
            _equal(f"tokens of {key!r} made, and those kept, truncated and dropped", sums.made, accounted)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The m documents of a block, in the order of its records."""

    records: IntArray
    """(m,) number of each document's record in the block."""

    arrays: dict[str, Ragged]
    """By the name that the store gives the key."""

    domains: list[str] | None
    """(m,) value of ``domain_key``; None where there is none."""

    dropped: list[Dropped]
    bad: list[Refused]
    """Records that gave no document: number in the block, and why."""

    counts: MakerCounts

    def __len__(self) -> int:
        return len(self.records)


def gather(rows: Sequence[Mapping[str, NDArray[Any] | int]], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Ragged]:
    """The arrays of each key of all documents in a row. A key that is a number in one document is one in all."""
    arrays = {}
    for key, dtype in dtypes.items():
        column: list[Any] = [row[key] for row in rows]
        if not column or isinstance(column[0], int):
            arrays[key] = Ragged(np.array(column, dtype), np.ones(len(column), np.int64))
        else:
            values = np.concatenate(column).astype(dtype, copy=False)
            arrays[key] = Ragged(values, np.fromiter(map(len, column), np.int64, len(column)))
    return arrays


def counted(counts: Counter[str]) -> dict[str, int]:
    """The counts that are not 0, by name."""
    return {name: number for name, number in sorted(counts.items()) if number}


def _equal(what: str, left: int, right: int) -> None:
    if left != right:
        raise HeadraceError(
            f"the ledger does not balance: {what}: {left:,} and {right:,}. Nothing was written. This is a defect of "
            "Headrace or of this machine: please report it."
        )
