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
        self._num_kept = 0
        self._rows: list[Document] = []
        self._owners: list[int] = []
        self._domains: list[str] = []
        """Of each document."""

        self._dropped: list[Dropped] = []
        self._bad: list[Refused] = []
        self._sums: defaultdict[str, TokenSums] = defaultdict(TokenSums)
        self._notes: Counter[str] = Counter()
        self._added: Counter[str] = Counter()

    def put_aside(self, record: int, error: DroppedError | InputError, made: Sequence[Found] = ()) -> None:
        """A record that is dropped or bad, and leaves nothing else behind. ``made``: its sequences before any cut."""
        if isinstance(error, InputError):
            self._bad.append(Refused(record, str(error)))
            return
        for one in made:
            sums = self._sums[one.key]
            sums.made += one.num_made
            sums.dropped[error.reason] = sums.dropped.get(error.reason, 0) + one.num_made
        self._dropped.append(Dropped(record, error.reason, str(error), sum(one.num_made for one in made)))

    def take(
        self,
        record: int,
        made: Sequence[Found],
        kept: Sequence[Found],
        documents: list[Document],
        tally: Tally,
        domain: str,
    ) -> None:
        """Keep the documents of a record, behind those of the records before it.

        ``made`` and ``kept``: its sequences before and after any cut.
        """
        self._num_kept += 1
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

    def result(self, keys: Sequence[StoreKey], dtypes: Mapping[str, np.dtype[Any]], *, with_domains: bool) -> Made:
        """All that was kept, in the order of the records.

        Raises:
            HeadraceError: the sums do not balance.
        """
        arrays = gather(self._rows, dtypes)
        counts = MakerCounts(
            records=self._num_records,
            kept=self._num_kept,
            dropped=dict(sorted(Counter(entry.reason for entry in self._dropped).items())),
            bad=len(self._bad),
            documents=len(self._rows),
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
            records=np.array(self._owners, np.int64),
            arrays={key.stored: arrays[key.name] for key in keys},
            domains=self._domains if with_domains else None,
            dropped=sorted(self._dropped),
            bad=sorted(self._bad),
            counts=counts,
        )
