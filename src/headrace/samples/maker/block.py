"""What has become of the records of a block so far: taken, dropped or bad, and all tokens accounted for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.samples.maker.made import Made, MakerCounts, TokenSums, counted, gather
from headrace.samples.maker.sequences import Found, Tally
from headrace.samples.maker.shape import Document
from headrace.samples.masking.results import Dropped, DroppedError, Refused
from headrace.samples.recipe.keys import StoreKey


class Block:
    """Takes the records of a block one by one, each whole or not at all."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records
        self._documents: dict[int, list[Document]] = {}
        self._domains: dict[int, str] = {}
        self._dropped: list[Dropped] = []
        self._bad: list[Refused] = []
        self._record = -1
        self._made: dict[str, int] = {}
        """The record that is judged, and its tokens by key."""

        self._sums: defaultdict[str, TokenSums] = defaultdict(TokenSums)
        self._notes: Counter[str] = Counter()
        self._added: Counter[str] = Counter()

    def judging(self, record: int) -> Block:
        """``with block.judging(record)``: a record that raises is dropped or bad, and leaves nothing else behind."""
        self._record = record
        self._made = {}
        return self

    def __enter__(self) -> None:
        """The record that is judged is known from `judging`."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """What has become of the record; an error of it ends here."""
        if isinstance(error, InputError):
            self._bad.append(Refused(self._record, str(error)))
            return True
        reason = error.reason if isinstance(error, DroppedError) else None
        if error is not None:
            if reason is None:
                return False
            self._dropped.append(Dropped(self._record, reason, str(error), sum(self._made.values())))
        for key, number in self._made.items():
            sums = self._sums[key]
            sums.made += number
            if reason is not None:
                sums.dropped[reason] = sums.dropped.get(reason, 0) + number
        return error is not None

    def made(self, sequences: Sequence[Found]) -> None:
        """Count the tokens of the record that is judged, before any cut."""
        for one in sequences:
            self._made[one.key] = self._made.get(one.key, 0) + one.num_made

    def take(self, record: int, kept: Sequence[Found], documents: list[Document], tally: Tally, domain: str) -> None:
        """Keep the documents of a record."""
        self._documents[record] = documents
        self._domains[record] = domain
        if tally.notes:
            self._notes.update(tally.notes)
        if tally.added:
            self._added.update(tally.added)
        for one in kept:
            self._sums[one.key].truncated += one.num_truncated

    def result(self, keys: Sequence[StoreKey], dtypes: Mapping[str, np.dtype[Any]], *, with_domains: bool) -> Made:
        """All that was kept, in the order of the records.

        Raises:
            HeadraceError: the sums do not balance.
        """
        order = sorted(self._documents)
        rows = [document for record in order for document in self._documents[record]]
        arrays = gather(rows, dtypes)
        owners = [record for record in order for _ in self._documents[record]]
        counts = MakerCounts(
            records=self._num_records,
            kept=len(order),
            dropped=dict(sorted(Counter(entry.reason for entry in self._dropped).items())),
            bad=len(self._bad),
            documents=len(rows),
            tokens=self._sums,
            eos=self._added["eos"],
            bos=self._added["bos"],
            notes=counted(self._notes),
        )
        for key in keys:
            if key.kind == "ids":
                self._sums[key.name].kept = int(arrays[key.name].lengths.sum())
            elif key.kind == "mask":
                counts.supervised += int(np.count_nonzero(arrays[key.name].values))
        counts.balance()
        return Made(
            records=np.array(owners, np.int64),
            arrays={key.stored: arrays[key.name] for key in keys},
            domains=[self._domains[record] for record in owners] if with_domains else None,
            dropped=sorted(self._dropped),
            bad=sorted(self._bad),
            counts=counts,
        )
