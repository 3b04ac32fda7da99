"""The batches of this rank in Energon's own order."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.encoders import FaultLog
from headrace.loader.energon.dataset import EnergonDataset
from headrace.loader.energon.loader import EnergonLoader
from headrace.loader.energon.own_order import OwnOrder
from headrace.loader.faults import Counting, report_path, shared_out
from headrace.loader.ragged import faults_of
from headrace.loader.reading import Reader, Reading
from headrace.loader.spans import Batch, Span, divide
from headrace.plan import BatchSchedule, Recipe


class OwnOrderLoader(EnergonLoader):
    """Of Energon's own order."""

    def __init__(self, dataset: EnergonDataset, own: OwnOrder, reading: Reading, fault_report: str | None) -> None:
        super().__init__(dataset)
        self._own = own
        self._reader = Reader(own.run, reading)
        self._given = 0
        self._through = False
        self._inner: Iterator[tuple[Batch, FaultLog | None]] | None = None
        ranks = dataset.worker_config.ranks
        self._counting = Counting(report_path(fault_report, ranks.rank, ranks.world_size))

    @property
    def position(self) -> int:
        """Batches given to this rank."""
        return self._given

    @property
    def faults(self) -> FaultLog:
        """See `EnergonLoader.faults`; a step is a batch of this rank."""
        return self._counting.faults

    @property
    def _identity(self) -> tuple[Recipe, BatchSchedule]:
        return self._own.recipe, BatchSchedule.of(1)

    def _restore(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        self._inner, self._through, self._given = None, False, position

    def _next_epoch(self) -> Iterator[Batch]:
        if self._through:
            self._restore(0)
        if self._inner is None:
            spans = self._own.spans(self.dataset.worker_config.rank, self._given)
            self._inner = _read(self._own, self._reader, spans)
        begin = self._given
        length = self.dataset.virtual_epoch_length
        end = (self._given // length + 1) * length if length else None
        for batch, faults in self._inner:
            self._counting.add(len(batch["sample_positions"]), faults, self._given)
            self._given += 1
            yield batch
            if self._given == end:
                return
        self._inner, self._through = None, True
        if begin and self._given == begin:  # a state, or an iteration that was left, behind the last batch of a pass
            yield from self._next_epoch()

    def close(self) -> None:
        """End worker processes; the next iteration starts new ones."""
        self._inner = None
        self._reader.close()


def _read(own: OwnOrder, reader: Reader, spans: Iterator[Span]) -> Iterator[tuple[Batch, FaultLog | None]]:
    # Not of the loader, which holds it: that would keep worker processes until cycles are collected.
    for span, rows in reader.filled(spans):
        yield from zip(divide(rows, span, own.run.constants), shared_out(faults_of(rows), span), strict=True)
