"""A block of records and what became of it: arrays by key, records dropped or bad, and sums that must balance."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, InputError
from headrace.samples.maker.sequences import MadeSequence, RecordCounts
from headrace.samples.maker.shapes import Document
from headrace.samples.masking.results import Dropped, DroppedError, Refused
from headrace.samples.recipe.recipe import StoreKey

IntArray = NDArray[np.int64]


class Ragged(NamedTuple):
    """The values of one key of all documents."""

    values: NDArray[Any]
    """(sum of lengths,) in the dtype of the key."""

    lengths: IntArray
    """(number of documents,)."""


class TokenSums(msgspec.Struct, kw_only=True):
    """Counts of the tokens of one key of ids: those made are either kept, cut off, or dropped for a reason."""

    made: int = 0
    kept: int = 0
    truncated: int = 0
    dropped: dict[str, int] = {}


class MakerCounts(msgspec.Struct, kw_only=True):
    """Counts over records. Tokens of bad records are not included."""

    records: int = 0
    kept: int = 0
    dropped: dict[str, int] = {}
    bad: int = 0
    documents: int = 0
    """More than ``kept`` if an unstable template splits records."""

    tokens: dict[str, TokenSums] = {}
    """By key of ids."""

    supervised: int = 0
    """Trained tokens in all masks that were kept."""

    eos: int = 0
    bos: int = 0
    """Tokens that were added at the ends; they count as made."""

    with_special_tokens: int = 0
    """Records whose texts hold special tokens, also those that are dropped or bad."""

    notes: dict[str, int] = {}
    """Counts of what became of records that are kept: ``straddling_tokens``, ``split_records``, ``truncated_records``,
    ``dropped_samples`` of split records, what a policy allowed.
    """

    def balance(self) -> None:
        """Compare counts that were made in different ways.

        Raises:
            HeadraceError: If they differ, so that records or tokens are missing or counted twice.
        """
        _equal(
            "records, and those kept, dropped and bad", self.records, self.kept + sum(self.dropped.values()) + self.bad
        )
        for key, sums in self.tokens.items():
            accounted = sums.kept + sums.truncated + sum(sums.dropped.values())
            _equal(f"tokens of {key!r} made, and those kept, truncated and dropped", sums.made, accounted)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MadeDocuments:
    """The m documents of a block, in the order of its records."""

    records: IntArray
    """(m,) the number of each document's record in the block."""

    arrays: dict[str, Ragged]
    """By the store's name of each key."""

    domains: list[str] | None
    """(m,) the domain of each document; None if the recipe has no ``domain_key``."""

    dropped: list[Dropped]
    bad: list[Refused]
    """Records that made no document: their number in the block, and the reason."""

    counts: MakerCounts

    def __len__(self) -> int:
        return len(self.records)


def gather(rows: Sequence[Mapping[str, NDArray[Any] | int]], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Ragged]:
    """Concatenate the values of each key over all documents. A key is either a number or an array in all documents."""
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
    """Return the counts that are not 0, sorted by name."""
    return {name: number for name, number in sorted(counts.items()) if number}


def _equal(what: str, left: int, right: int) -> None:
    if left != right:
        raise HeadraceError(
            f"the ledger does not balance: {what}: {left:,} and {right:,}. Nothing was written. This is a defect of "
            "Headrace or of this machine: please report it."
        )


class SampleBlock:
    """Collects the records of a block one by one, each completely or not at all."""

    def __init__(self, num_records: int) -> None:
        self._counts = MakerCounts(records=num_records)
        self._sums = self._counts.tokens = defaultdict(TokenSums)
        self._rows: list[Document] = []
        self._owners: list[int] = []
        self._domains: list[str] = []
        self._dropped: list[Dropped] = []
        self._bad: list[Refused] = []
        self._notes: Counter[str] = Counter()
        self._added: Counter[str] = Counter()

    def note_special(self, tallies: Sequence[RecordCounts]) -> None:
        """Count the special tokens in the texts of all records, also of those that are dropped or bad."""
        for tally in filter(lambda tally: tally.special, tallies):
            self._counts.with_special_tokens += 1
            self._notes.update(tally.special)

    def drop_record(self, record: int, error: DroppedError | InputError, made: Sequence[MadeSequence] = ()) -> None:
        """Count a record that is dropped or bad. ``made``: its sequences before any cut."""
        if isinstance(error, InputError):
            self._bad.append(Refused(record, str(error)))
            return
        self._dropped.append(Dropped(record, error.reason, str(error), sum(one.num_made for one in made)))
        for one in made:
            self._sums[one.key].made += one.num_made
            self._drop_tokens(one, error.reason)

    def _drop_tokens(self, one: MadeSequence, reason: str) -> None:
        dropped = self._sums[one.key].dropped
        dropped[reason] = dropped.get(reason, 0) + one.num_made

    def take(
        self,
        record: int,
        made: Sequence[MadeSequence],
        kept: Sequence[MadeSequence],
        documents: list[Document],
        tally: RecordCounts,
        domain: str,
    ) -> None:
        """Keep the documents of a record, after those of the records before it.

        ``made`` and ``kept`` are its sequences before and after any cut.
        """
        self._counts.kept += 1
        for document in documents:
            self._rows.append(document)
            self._owners.append(record)
            self._domains.append(domain)
        if tally.notes:
            self._notes.update(tally.notes)
        if tally.added:
            self._added.update(tally.added)
        for one in made:
            self._sums[one.key].made += one.num_made
        for one in kept:
            if one.num_truncated:
                self._sums[one.key].truncated += one.num_truncated
            if one.dropped:
                self._drop_tokens(one, one.dropped)

    def result(
        self, keys: Sequence[StoreKey], dtypes: Mapping[str, np.dtype[Any]], *, with_domains: bool
    ) -> MadeDocuments:
        """Return everything that was kept, in the order of the records.

        Raises:
            HeadraceError: If the counts do not balance.
        """
        arrays = gather(self._rows, dtypes)
        counts = self._counts
        counts.dropped = counted(Counter(entry.reason for entry in self._dropped))
        counts.bad, counts.documents = len(self._bad), len(self._rows)
        counts.eos, counts.bos = self._added["eos"], self._added["bos"]
        counts.notes = counted(self._notes)
        for key in keys:
            if key.kind == "ids":
                self._sums[key.name].kept = int(arrays[key.name].lengths.sum())
            elif key.kind == "mask":
                counts.supervised += int(np.count_nonzero(arrays[key.name].values))
        counts.balance()
        return MadeDocuments(
            records=np.array(self._owners, np.int64),
            arrays={key.stored: arrays[key.name] for key in keys},
            domains=self._domains if with_domains else None,
            dropped=sorted(self._dropped),
            bad=sorted(self._bad),
            counts=counts,
        )
