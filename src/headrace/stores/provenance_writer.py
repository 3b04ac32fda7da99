"""Writes the provenance of a store while its documents are made, through any number of interruptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import FileSum, atomic_write, file_sum, output_errors, sync_folder
from headrace.stores.provenance import (
    ID_ENDS_NAME,
    IDS_NAME,
    INFO_NAME,
    ORDER_NAME,
    SKIPPED_COLUMNS,
    SKIPPED_NAME,
    SPAN_COLUMNS,
    SPANS_NAME,
    GrowingArray,
    ProvenanceInfo,
)
from headrace.stores.store import IntArray

MAX_REASONS = 1000
"""A reason is a kind of document; more of them than this are messages about single ones."""

_DEFECT = "This is a defect of Headrace: please report it."


class ProvenanceState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint made sure of; a new writer goes on from there."""

    num_documents: int
    reasons: tuple[str, ...]
    num_items: dict[str, int]
    """Items of each array, by the name of its file."""


class ProvenanceWriter:
    """Appends to the arrays of a provenance table; the layout is told in `provenance`. O(1) memory.

    The files appear under their names at `finish`, ``provenance.json`` last. The bytes do not depend on where the run
    was interrupted. One writer at a time.

    Args:
        folder: made if it is not there.
        with_order: the documents of the store are in another order than those of the input; `add_order` tells it.
        with_ids: the records have ids; `add_ids` takes them.
        state: go on from this checkpoint; what was added after it is cut off. None begins anew.

    Raises:
        StoreError: the files are shorter than the state says, or of another kind of run.
        OutputError: the system refuses.
    """

    def __init__(
        self, folder: str | Path, *, with_order: bool, with_ids: bool, state: ProvenanceState | None = None
    ) -> None:
        self.folder = Path(folder)
        columns = {SPANS_NAME: SPAN_COLUMNS, SKIPPED_NAME: SKIPPED_COLUMNS}
        names = [SPANS_NAME, SKIPPED_NAME, *([ORDER_NAME] * with_order), *([IDS_NAME, ID_ENDS_NAME] * with_ids)]
        if state is not None and sorted(state.num_items) != sorted(names):
            raise StoreError(
                f"{self.folder}: the checkpoint is of a run that writes {', '.join(sorted(state.num_items))}, this one "
                f"writes {', '.join(sorted(names))}: begin the run anew with --restart"
            )
        self.num_documents = state.num_documents if state else 0
        self._codes = {reason: code for code, reason in enumerate(state.reasons if state else ())}
        self._arrays: dict[str, GrowingArray] = {}
        self._sums: tuple[FileSum, ...] | None = None
        with output_errors(self.folder, "create"):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / INFO_NAME).unlink(missing_ok=True)
        try:
            for name in names:
                self._arrays[name] = GrowingArray(
                    self.folder / name,
                    "|u1" if name == IDS_NAME else "<i8",
                    columns=columns.get(name),
                    num_items=state.num_items[name] if state else None,
                )
            sync_folder(self.folder / INFO_NAME)
        except BaseException:
            self.suspend()
            raise

    def add_span(
        self,
        first_document: int,
        num_documents: int,
        file: int,
        first_line: int,
        num_lines: int,
        skipped_lines: IntArray,
        skipped_reasons: Sequence[str],
    ) -> None:
        """Add the next span of lines, in the order of the input.

        Args:
            first_document: ordinal of the first of them: how many were added before.
            num_documents: lines that became documents.
            file: index into the inputs of the manifest.
            first_line: counted from 0 in the file.
            num_lines: all lines of the span.
            skipped_lines: (num_lines - num_documents,) lines that became none, from 0 in the span, ascending.
            skipped_reasons: why, one a line.

        Raises:
            HeadraceError: lines are not documents plus skipped ones, or documents were left out.
            ConfigError: over `MAX_REASONS` different reasons.
        """
        skipped = np.asarray(skipped_lines, np.int64)
        is_ascending = bool((np.diff(skipped, prepend=-1, append=num_lines) > 0).all())
        is_sum = num_documents + len(skipped) == num_lines and len(skipped) == len(skipped_reasons)
        if not is_ascending or not is_sum or first_document != self.num_documents:
            raise HeadraceError(
                f"the provenance of input {file}, line {first_line + 1:,}, does not balance: {num_lines:,} lines, "
                f"{num_documents:,} documents from {first_document:,} on after {self.num_documents:,}, "
                f"{len(skipped):,} skipped lines with {len(skipped_reasons):,} reasons. {_DEFECT}"
            )
        spans = self._arrays[SPANS_NAME]
        if len(skipped):
            rows = np.empty((len(skipped), SKIPPED_COLUMNS), np.int64)
            rows[:, 0] = spans.num_items // SPAN_COLUMNS
            rows[:, 1] = skipped
            rows[:, 2] = np.fromiter(map(self._code, skipped_reasons), np.int64, len(skipped))
            self._arrays[SKIPPED_NAME].append(rows)
        spans.append(np.array([self.num_documents, num_documents, file, first_line, num_lines]))
        self.num_documents += num_documents

    def add_order(self, ordinals: IntArray) -> None:
        """Add the next documents of the store: the ordinal of each in the order of the input."""
        if len(ordinals) and not 0 <= int(ordinals.min()) <= int(ordinals.max()) < self.num_documents:
            raise HeadraceError(
                f"the order of the documents names ordinals from {int(ordinals.min())} to {int(ordinals.max())}; there "
                f"are {self.num_documents} documents. {_DEFECT}"
            )
        self._arrays[ORDER_NAME].append(ordinals)

    def add_ids(self, ids: Sequence[str]) -> None:
        """Add the ids of the next documents, in the order of the input."""
        encoded = [text.encode() for text in ids]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        data = self._arrays[IDS_NAME]
        self._arrays[ID_ENDS_NAME].append(data.num_items + np.cumsum(lengths))
        data.append(np.frombuffer(b"".join(encoded), np.uint8))

    def checkpoint(self) -> ProvenanceState:
        """Bring everything to the disk, and say how to go on from here."""
        for array in self._arrays.values():
            array.sync()
        return ProvenanceState(
            num_documents=self.num_documents,
            reasons=tuple(self._codes),
            num_items={name: array.num_items for name, array in self._arrays.items()},
        )

    def suspend(self) -> None:
        """Close the files and leave them as they are, for a writer that goes on from the last checkpoint."""
        for array in self._arrays.values():
            array.close()

    def finish(self) -> tuple[FileSum, ...]:
        """Complete the files, and return their sums in the order of their names.

        A process that dies in here can be followed by a writer with the last state, as at any other point.

        Raises:
            HeadraceError: order or ids are not as many as documents.
            OutputError: the system refuses.
        """
        if self._sums is not None:
            return self._sums
        for name in (ORDER_NAME, ID_ENDS_NAME):
            if name in self._arrays and self._arrays[name].num_items != self.num_documents:
                raise HeadraceError(
                    f"{self.folder / name}: {self._arrays[name].num_items:,} entries for {self.num_documents:,} "
                    f"documents. {_DEFECT}"
                )
        for array in self._arrays.values():
            array.finish()
        sums = [array.give_name() for array in self._arrays.values()]
        sync_folder(self.folder / INFO_NAME)
        info = ProvenanceInfo(version=1, num_documents=self.num_documents, reasons=tuple(self._codes))
        atomic_write(self.folder / INFO_NAME, msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
        sums.append(file_sum(self.folder / INFO_NAME))
        self._sums = tuple(sorted(sums, key=lambda file: file.name))
        return self._sums

    def _code(self, reason: str) -> int:
        code = self._codes.setdefault(reason, len(self._codes))
        if code >= MAX_REASONS:
            raise ConfigError(
                f"documents are dropped for more than {MAX_REASONS:,} different reasons, {reason!r} is one more: let "
                "the filter return a few kinds of reasons, without names and numbers of the single record"
            )
        return code
