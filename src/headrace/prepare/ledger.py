"""The sums of a run, and the proof that nothing was lost between a file and the store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import HeadraceError
from headrace.prepare.piece import PieceInfo, SpanResult, add_counts
from headrace.prepare.sources import SampleBy, SourceFile, counted_from, record_noun
from headrace.stores import DocumentLedger, ErrorEntry, Ledger, TokenLedger

DUPLICATE = "duplicate"


class LedgerState(msgspec.Struct, kw_only=True):
    """All sums so far, as they stand in a checkpoint."""

    reached: list[int]
    """For each file, in the unit of its extent."""
    lines: list[int]
    hashes: list[str]
    input_bytes: int = 0
    all_lines: int = 0
    blank_lines: int = 0
    bad: int = 0
    documents: int = 0
    empty: int = 0
    special: int = 0
    proved: int = 0
    routed: int = 0
    text_bytes: int = 0
    kept: int = 0
    dropped: dict[str, int] = {}
    text_tokens: int = 0
    eod_tokens: int = 0
    bos_tokens: int = 0
    dropped_tokens: dict[str, int] = {}
    errors: list[ErrorEntry] = []


class Duplicates(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent left out of a piece because it had been met before."""

    documents: int = 0
    empty: int = 0
    tokens: int = 0


class RunLedger:
    """Counts what was read and what was kept on independent ways, and compares them.

    Lines are counted by the readers, records by their texts, documents and tokens by their encodings, and all of them
    again by the store that was written.
    """

    def __init__(
        self, files: Sequence[SourceFile], state: LedgerState | None = None, *, sample_by: SampleBy = "document"
    ) -> None:
        self._files = files
        self._sample_by: SampleBy = sample_by
        count = len(files)
        self.state = state or LedgerState(reached=[0] * count, lines=[0] * count, hashes=[""] * count)

    @property
    def tokens(self) -> int:
        """Tokens kept so far, end-of-document tokens and the like included."""
        return self._made - sum(self.state.dropped_tokens.values())

    @property
    def _made(self) -> int:
        return self.state.text_tokens + self.state.eod_tokens + self.state.bos_tokens

    def add(self, info: PieceInfo, duplicates: Duplicates) -> None:
        """Take the next piece's counts, in the order of the input.

        Raises:
            HeadraceError: bytes of a file were left out or read twice, or lines are not documents plus skipped ones.
        """
        state = self.state
        for number, span in enumerate(info.spans):
            first_line = state.lines[span.file]
            for entry, line, message in info.errors:
                if entry == number:
                    state.errors.append(self._entry(span.file, first_line + line, message))
            self._add_span(span)
        documents = sum(span.documents for span in info.spans)
        kept = sum(span.kept for span in info.spans)
        dropped = sum(info.dropped.values())
        self._equal("records of a piece, and documents kept plus dropped", documents, info.num_documents + dropped)
        self._equal("documents of a piece, and those of its spans", info.num_documents, kept)
        self._equal("bad records of a piece, and those listed", sum(span.bad for span in info.spans), len(info.errors))
        state.empty += info.num_empty - duplicates.empty
        state.special += info.num_special
        state.proved += info.num_proved
        state.routed += info.num_routed
        state.kept += info.num_documents - duplicates.documents
        add_counts(state.dropped, info.dropped)
        state.text_tokens += info.tokens.text
        state.eod_tokens += info.tokens.eod
        state.bos_tokens += info.tokens.bos
        add_counts(state.dropped_tokens, info.tokens.dropped)
        if duplicates.documents:
            add_counts(state.dropped, {DUPLICATE: duplicates.documents})
            add_counts(state.dropped_tokens, {DUPLICATE: duplicates.tokens})

    def _entry(self, file: int, line: int, message: str) -> ErrorEntry:
        unit = record_noun(self._files[file].format, self._sample_by)
        return ErrorEntry(file=self._files[file].name, unit=unit, line=line + counted_from(unit), message=message)

    def _add_span(self, span: SpanResult) -> None:
        state, name = self.state, self._files[span.file].name
        if span.end > span.begin:
            reached = state.reached[span.file]
            self._equal(f"{name}: where one span ends, and where the next begins", reached, span.begin)
            state.reached[span.file] = span.end
        accounted = span.documents + span.blank_lines + span.bad
        self._equal(f"{name}: lines, and records plus blank and bad ones", span.lines, accounted)
        self._equal(f"{name}: lines, and documents plus skipped ones", span.lines, span.kept + span.skipped)
        state.lines[span.file] += span.lines
        if span.xxh3_128:
            state.hashes[span.file] = span.xxh3_128
        state.input_bytes += span.input_bytes
        state.all_lines += span.lines
        state.blank_lines += span.blank_lines
        state.bad += span.bad
        state.documents += span.documents
        state.text_bytes += span.text_bytes

    def balance(self, *, num_documents: int, num_tokens: int, num_origins: int) -> Ledger:
        """The ledger for the manifest, held against the store that was written and its table of origins.

        Raises:
            HeadraceError: it does not balance.
        """
        state = self.state
        for file, reached in zip(self._files, state.reached, strict=True):
            self._equal(f"{file.name}: its extent, and what was read", file.extent, reached)
        self._equal("documents kept, and documents in the store", state.kept, num_documents)
        self._equal("documents in the store, and in the table of origins", num_documents, num_origins)
        self._equal("tokens kept, and tokens in the store", self.tokens, num_tokens)
        self._equal(
            "records read, and documents kept plus dropped", state.documents, state.kept + sum(state.dropped.values())
        )
        dropped = dict(state.dropped)
        if state.bad:
            dropped["bad"] = state.bad
        return Ledger(
            documents=DocumentLedger(
                read=state.documents + state.bad,
                kept=state.kept,
                dropped=dict(sorted(dropped.items())),
                empty=state.empty,
                blank_lines=state.blank_lines,
                text_bytes=state.text_bytes,
                with_special_tokens=state.special,
            ),
            tokens=TokenLedger(
                made=self._made,
                kept=num_tokens,
                eod=state.eod_tokens,
                bos=state.bos_tokens,
                dropped={name: number for name, number in sorted(state.dropped_tokens.items()) if number},
            ),
        )

    @staticmethod
    def _equal(what: str, left: int, right: int) -> None:
        if left != right:
            raise HeadraceError(
                f"the ledger does not balance: {what}: {left:,} and {right:,}. Nothing was written. This is a defect "
                "of Headrace or of this machine: please report it."
            )
