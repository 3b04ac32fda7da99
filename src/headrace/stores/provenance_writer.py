"""Writes the provenance of a store while its documents are made; it can be interrupted and continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import FileSum, file_sum, output_errors, sync_folder
from headrace.stores.json_file import write_json_file
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
"""A reason names a kind of document. If there are more reasons than this, they are messages about single documents."""

_DEFECT = "This is a defect of Headrace: please report it."


class ProvenanceState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The point from which a new `ProvenanceWriter` can continue.

    Attributes:
        num_documents: number of documents added.
        reasons: the reasons for skipped lines, in the order of their codes.
        num_items: number of items in each array, by the name of its file.
    """

    num_documents: int
    reasons: tuple[str, ...]
    num_items: dict[str, int]


class ProvenanceWriter:
    """Appends to the arrays of a provenance table; the module `provenance` describes the layout. O(1) memory.

    The files get their names at `finish`, ``provenance.json`` last. Their bytes do not depend on where the run was
    interrupted. Only one writer may write a folder at a time.

    Args:
        folder: folder of the table; it is created if it does not exist.
        with_order: whether the store has another order than the input; then pass the order to `add_order`.
        with_ids: whether the records have ids; then pass them to `add_ids`.
        state: continue from this checkpoint; what was added after it is cut off. None begins a new table.

    Raises:
        StoreError: the files are shorter than the state says, or belong to another kind of run.
        OutputError: the system reports an error.

    Example:
        >>> writer = headrace.stores.ProvenanceWriter("provenance", with_order=False, with_ids=False)
        >>> writer.add_span(0, 2, 0, 0, 3, np.array([1]), ["blank"])  # of 3 lines, line 1 was skipped
        >>> files = writer.finish()
        >>> headrace.stores.Provenance("provenance").locate(np.array([0, 1]))[1].tolist()
        [0, 2]
    """

    def __init__(
        self, folder: str | Path, *, with_order: bool, with_ids: bool, state: ProvenanceState | None = None
    ) -> None:
        self.folder = Path(folder)
        columns = {SPANS_NAME: SPAN_COLUMNS, SKIPPED_NAME: SKIPPED_COLUMNS}
        names = [SPANS_NAME, SKIPPED_NAME, *([ORDER_NAME] * with_order), *([IDS_NAME, ID_ENDS_NAME] * with_ids)]
        if state is not None and sorted(state.num_items) != sorted(names):
            raise StoreError(
                f"{self.folder}: the checkpoint belongs to a run that writes {', '.join(sorted(state.num_items))}, but "
                f"this run writes {', '.join(sorted(names))}: start the run again with --restart"
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
            first_document: ordinal of the span's first document, which is the number of documents added before.
            num_documents: number of lines that became documents.
            file: index into the inputs of the manifest.
            first_line: first line of the span, counted from 0 in the file.
            num_lines: number of all lines in the span.
            skipped_lines: (num_lines - num_documents,) lines that became no document, counted from 0 in the span,
                ascending.
            skipped_reasons: the reason for each skipped line.

        Raises:
            HeadraceError: the lines are not the documents plus the skipped lines, or documents are missing before it.
            ConfigError: there are more than `MAX_REASONS` different reasons.
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
        """Add the next documents of the store, as their ordinals in the order of the input."""
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
        """Bring everything to the disk, and return the state to continue from."""
        for array in self._arrays.values():
            array.sync()
        return ProvenanceState(
            num_documents=self.num_documents,
            reasons=tuple(self._codes),
            num_items={name: array.num_items for name, array in self._arrays.items()},
        )

    def suspend(self) -> None:
        """Close the files and keep them, for a writer that continues from the last checkpoint."""
        for array in self._arrays.values():
            array.close()

    def finish(self) -> tuple[FileSum, ...]:
        """Complete the files, and return their checksums in the order of their names.

        If the process dies in this method, a writer with the last state can continue, as at any other point.

        Raises:
            HeadraceError: the number of ordinals or of ids differs from the number of documents.
            OutputError: the system reports an error.
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
        write_json_file(self.folder / INFO_NAME, info)
        sums.append(file_sum(self.folder / INFO_NAME))
        self._sums = tuple(sorted(sums, key=lambda file: file.name))
        return self._sums

    def _code(self, reason: str) -> int:
        code = self._codes.setdefault(reason, len(self._codes))
        if code >= MAX_REASONS:
            raise ConfigError(
                f"documents are dropped for more than {MAX_REASONS:,} different reasons; the last one is {reason!r}: "
                "make the filter return a few kinds of reasons, without names and numbers of single records"
            )
        return code
