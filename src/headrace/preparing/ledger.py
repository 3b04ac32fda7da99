"""The ledger of a run: the sums of all it read and kept, which prove that nothing was lost on the way to the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.errors import HeadraceError
from headrace.preparing.documents import SampleCounts
from headrace.preparing.piece import PieceInfo, SpanResult, add_counts
from headrace.preparing.sources import SampleBy, SourceFile, counted_from, record_noun
from headrace.stores import DocumentLedger, ErrorEntry, Ledger, TokenLedger

DUPLICATE, MAX_RECORDS = "duplicate", "max_records"


class LedgerState(msgspec.Struct, kw_only=True):
    """All sums so far, as a checkpoint holds them."""

    reached: list[int]
    """For each file the end of what was read, in the unit of its extent."""
    lines: list[int]
    """For each file the number of lines that were read."""
    hashes: list[str]
    """For each file its xxh3_128, or empty while it is not known."""
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
    truncated_tokens: dict[str, int] = {}
    samples: SampleCounts | None = None
    """The counts of samples, if a recipe makes the documents."""
    errors: list[ErrorEntry] = []


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Documents of a piece that the parent left out for one reason: duplicates, or those above a limit."""

    reason: str = DUPLICATE
    documents: int = 0
    empty: int = 0
    tokens: int = 0
    keys: dict[str, int] = {}
    """Tokens of each key."""
    supervised: int = 0


class RunLedger:
    """Counts in independent ways what was read and what was kept, and compares the counts.

    The readers count lines, the texts give the records, the encodings give documents and tokens, and all of these are
    counted again in the store that was written.
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
        """Tokens kept so far, including end-of-document tokens and the like."""
        state = self.state
        return self._made - sum(state.dropped_tokens.values()) - sum(state.truncated_tokens.values())

    @property
    def _made(self) -> int:
        return self.state.text_tokens + self.state.eod_tokens + self.state.bos_tokens

    def add(self, info: PieceInfo, left_out: Sequence[LeftOut] = ()) -> None:
        """Add the counts of the next piece, in the order of the input.

        Raises:
            HeadraceError: bytes of a file were left out or read twice, or the lines are not the sum of documents and
                skipped lines.
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
        state.empty += info.num_empty
        state.special += info.num_special
        state.proved += info.num_proved
        state.routed += info.num_routed
        state.kept += info.num_documents
        add_counts(state.dropped, info.dropped)
        state.text_tokens += info.tokens.text
        state.eod_tokens += info.tokens.eod
        state.bos_tokens += info.tokens.bos
        add_counts(state.dropped_tokens, info.tokens.dropped)
        add_counts(state.truncated_tokens, info.tokens.truncated)
        if info.samples is not None:
            self._add_samples(info, info.samples)
        for left in left_out:
            self._take_off(left)

    def _take_off(self, left: LeftOut) -> None:
        state = self.state
        if not left.documents:
            return
        state.kept -= left.documents
        state.empty -= left.empty
        add_counts(state.dropped, {left.reason: left.documents})
        add_counts(state.dropped_tokens, {left.reason: left.tokens})
        if state.samples is not None:
            state.samples.drop(left.reason, left.keys, left.supervised)

    def _add_samples(self, info: PieceInfo, samples: SampleCounts) -> None:
        """Add the sums of each key, after checking that together they are the sums of all tokens."""
        sums, tokens = samples.keys.values(), info.tokens
        self._equal(
            "tokens of a piece, and those of its keys", tokens.text + tokens.eod + tokens.bos, sum(s.made for s in sums)
        )
        truncated, dropped = sum(tokens.truncated.values()), sum(tokens.dropped.values())
        self._equal("tokens cut off in a piece, and those of its keys", truncated, sum(s.truncated for s in sums))
        by_key = sum(sum(s.dropped.values()) for s in sums)
        self._equal("tokens dropped in a piece, and those of its keys", dropped, by_key)
        for key, counts in samples.keys.items():
            accounted = counts.kept + counts.truncated + sum(counts.dropped.values())
            self._equal(f"tokens of {key!r} made, and those kept, cut off and dropped", counts.made, accounted)
        split = sum(span.split for span in info.spans)
        records = sum(span.documents for span in info.spans) - split
        self._equal("records of a piece, and those that were made into samples", records, samples.records)
        if self.state.samples is None:
            self.state.samples = SampleCounts()
        self.state.samples.add(samples)

    def _entry(self, file: int, line: int, message: str) -> ErrorEntry:
        unit = record_noun(self._files[file].format, self._sample_by)
        return ErrorEntry(file=self._files[file].name, unit=unit, line=line + counted_from(unit), message=message)

    def _add_span(self, span: SpanResult) -> None:
        state, name = self.state, self._files[span.file].name
        if span.end > span.begin:
            reached = state.reached[span.file]
            self._equal(f"{name}: where one span ends, and where the next begins", reached, span.begin)
            state.reached[span.file] = span.end
        accounted = span.documents - span.split + span.blank_lines + span.bad
        self._equal(f"{name}: lines, and records plus blank and bad ones", span.lines, accounted)
        found = span.kept - span.split + span.skipped
        self._equal(f"{name}: lines, and documents plus skipped ones", span.lines, found)
        state.lines[span.file] += span.lines
        if span.xxh3_128:
            state.hashes[span.file] = span.xxh3_128
        state.input_bytes += span.input_bytes
        state.all_lines += span.lines
        state.blank_lines += span.blank_lines
        state.bad += span.bad
        state.documents += span.documents
        state.text_bytes += span.text_bytes

    def balance(
        self,
        *,
        num_documents: int,
        num_tokens: int,
        num_origins: int,
        keys: Mapping[str, int] | None = None,
        supervised: int = 0,
    ) -> Ledger:
        """Compare the sums with the store that was written and with its table of origins.

        Args:
            num_documents: documents in the store.
            num_tokens: tokens in the store.
            num_origins: documents in the table of origins.
            keys: ids in the store for each key, if a recipe made it.
            supervised: ones in the masks of the store, if a recipe made it.

        Returns:
            The ledger for the manifest.

        Raises:
            HeadraceError: the ledger does not balance.
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
        if state.samples is not None:
            for key, sums in state.samples.keys.items():
                self._equal(f"tokens of {key!r} kept, and in the store", sums.kept, (keys or {}).get(key, 0))
            self._equal("trained tokens kept, and ones in the masks", state.samples.supervised, supervised)
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
                truncated={name: number for name, number in sorted(state.truncated_tokens.items()) if number},
            ),
            samples=None if state.samples is None else state.samples.ledger(),
        )

    @staticmethod
    def _equal(what: str, left: int, right: int) -> None:
        if left != right:
            raise HeadraceError(
                f"the ledger does not balance: {what}: {left:,} and {right:,}. Nothing was written. This is a defect "
                "of Headrace or of this machine: please report it."
            )
