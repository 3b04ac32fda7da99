"""Gathers the documents of a task until they make a piece."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import derive, derive_array
from headrace.prepare.columns import num_ids
from headrace.prepare.documents import BAD, BLANK, Documents
from headrace.prepare.messages import PieceDone, Setup
from headrace.prepare.piece import PieceInfo, SpanResult, TokenCounts, add_counts, write_piece
from headrace.prepare.ragged import take_rows
from headrace.prepare.sample_counts import SampleCounts
from headrace.prepare.sources import Block

_OPEN_SPAN = SpanResult(
    file=0, begin=0, end=0, lines=0, blank_lines=0, bad=0, documents=0, kept=0, skipped=0, text_bytes=0, input_bytes=0,
    xxh3_128="",
)  # fmt: skip


class PieceBuilder:
    """One piece being filled. The arrays that it writes, for n documents and the columns 0, 1, ...:

    =================== ==================== =================================================================
    ``tokens.K``        (values,) of column  documents one after another
    ``lengths.K``       (n,) int64           tokens of each
    ``order``           (n,) uint64          shuffled runs: documents are sorted by it
    ``rows``            (n,) int64           shuffled runs: number of each document in the order of the input
    ``text_hashes``     (n, 2) uint64        runs without duplicates: in the order of the input
    ``lines``           (n,) int64           runs without duplicates, and of recipes: line in the span's part
    ``ids``             (bytes,) uint8       where ids are asked for: all one after another, input order
    ``ids_lengths``     (n,) int64           bytes of each
    ``skipped_lines``   (s,) int64           lines of all spans that are no documents
    ``skipped_reasons`` (s,) int64           index into the reasons
    =================== ==================== =================================================================
    """

    def __init__(self, setup: Setup, turn: int, piece: int) -> None:
        self._setup = setup
        self._turn = turn
        self._number = piece
        self._next = (0, 0)
        self._arrays: dict[str, list[NDArray[Any]]] = {}
        self._spans: list[SpanResult] = []
        self._span = _OPEN_SPAN
        self._counts = {"text": 0, "eod": 0, "bos": 0}
        self._dropped_tokens: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self.errors: list[tuple[int, int, str]] = []
        self._reasons: dict[str, int] = {BLANK: 0, BAD: 1}
        self._truncated: dict[str, int] = {}
        self._domains: dict[str, int] = {}
        self._samples = SampleCounts() if setup.making is not None else None
        self._num_documents = self._num_empty = self._num_special = self._num_proved = self._num_routed = 0
        self.first_line = 0
        """The first line of the piece in the open span, counted from 0 in the span."""
        self.num_bytes = 0
        self.num_lines = 0

    def begin_span(self, file: int, first_line: int) -> None:
        """What is added from now on comes from this file; lines are counted from ``first_line`` of its span on."""
        self._span = msgspec.structs.replace(_OPEN_SPAN, file=file)
        self.first_line = first_line

    def end_span(self, begin: int, end: int, xxh3_128: str) -> None:
        """The span is done; ``[begin, end)`` was read of the file."""
        self._spans.append(msgspec.structs.replace(self._span, begin=begin, end=end, xxh3_128=xxh3_128))

    def next(self, span: int, lines: int) -> PieceBuilder:
        """The builder of the piece after this one, which begins after ``lines`` of a span. This one ends there."""
        self._spans.append(self._span)
        self._next = (span, lines)
        return PieceBuilder(self._setup, self._turn, self._number + 1)

    def add(self, block: Block, documents: Documents) -> None:
        """Take the documents of a block, and all that was found about the rest of it."""
        span, kept = self._span, len(documents.lines)
        self._span = msgspec.structs.replace(
            span,
            lines=span.lines + block.num_lines,
            blank_lines=span.blank_lines + block.num_blank,
            bad=span.bad + len(documents.bad),
            documents=span.documents + documents.num_read,
            kept=span.kept + kept,
            skipped=span.skipped + len(documents.skipped),
            text_bytes=span.text_bytes + documents.text_bytes,
            split=span.split + documents.num_split,
            input_bytes=span.input_bytes + block.input_bytes,
        )
        rows = list(zip(documents.tokens, documents.lengths, strict=True))
        for number, (tokens, lengths) in enumerate(rows):
            if self._setup.columns[number].kind == "domain":
                tokens = self._domain_numbers(documents.domains, tokens)
            self._put(f"tokens.{number}", tokens)
            self._put(f"lengths.{number}", lengths)
            self.num_bytes += tokens.nbytes
        if self._setup.order_key is not None:
            self._put("order", derive_array(derive(self._setup.order_key, span.file), documents.places))
        if documents.text_hashes is not None:
            self._put("text_hashes", documents.text_hashes)
        if documents.text_hashes is not None or documents.samples is not None:
            self._put("lines", documents.lines - self.first_line)
        if documents.ids is not None:
            encoded = [name.encode() for name in documents.ids]
            self._put("ids", np.frombuffer(b"".join(encoded), np.uint8))
            self._put("ids_lengths", np.fromiter(map(len, encoded), np.int64, len(encoded)))
        if documents.skipped:
            codes = [self._reasons.setdefault(reason, len(self._reasons)) for _, reason in documents.skipped]
            lines = np.array([line for line, _ in documents.skipped], np.int64)
            self._put("skipped_lines", lines - self.first_line)
            self._put("skipped_reasons", np.array(codes, np.int64))
        span_number = len(self._spans)
        self.errors += [(span_number, record.line - self.first_line, record.message) for record in documents.bad]
        self._counts["text"] += documents.text_tokens
        self._counts["eod"] += documents.eod_tokens
        self._counts["bos"] += documents.bos_tokens
        add_counts(self._dropped_tokens, documents.dropped_tokens)
        add_counts(self._dropped, documents.dropped_documents)
        add_counts(self._truncated, documents.truncated_tokens)
        if self._samples is not None and documents.samples is not None:
            self._samples.add(documents.samples)
        self._num_documents += kept
        self._num_empty += int(np.count_nonzero(num_ids(self._setup.columns, rows) == 0)) if kept else 0
        self._num_special += documents.num_special
        self._num_proved += documents.num_proved
        self._num_routed += documents.num_routed
        self.num_lines += block.num_lines

    def write(self, *, is_last: bool) -> PieceDone:
        """Write the piece.

        Raises:
            OutputError: the disk refuses.
        """
        if self._setup.order_key is not None and self._num_documents:
            self._sort()
        info = PieceInfo(
            turn=self._turn,
            piece=self._number,
            is_last=is_last,
            next_span=self._next[0],
            next_lines=self._next[1],
            spans=tuple(self._spans),
            tokens=TokenCounts(**self._counts, dropped=self._dropped_tokens, truncated=self._truncated),
            num_documents=self._num_documents,
            num_empty=self._num_empty,
            num_special=self._num_special,
            num_proved=self._num_proved,
            num_routed=self._num_routed,
            dropped=self._dropped,
            errors=tuple(self.errors),
            reasons=tuple(self._reasons),
            domains=tuple(self._domains),
            samples=self._samples,
        )
        write_piece(self._setup.parts, info, self._arrays)
        return PieceDone(self._turn, self._number, is_last)

    def _sort(self) -> None:
        order = np.concatenate(self._arrays["order"])
        rows = np.argsort(order, kind="stable")
        self._arrays["order"] = [order[rows]]
        self._arrays["rows"] = [rows]
        for number in range(len(self._setup.columns)):
            lengths = np.concatenate(self._arrays[f"lengths.{number}"])
            tokens = np.concatenate(self._arrays[f"tokens.{number}"])
            self._arrays[f"tokens.{number}"] = [take_rows(tokens, lengths, rows)]
            self._arrays[f"lengths.{number}"] = [lengths[rows]]

    def _domain_numbers(self, names: list[str], numbers: NDArray[Any]) -> NDArray[Any]:
        """The numbers of a block's domains as the piece counts them."""
        own = [self._domains.setdefault(name, len(self._domains)) for name in names]
        return np.array(own, numbers.dtype).take(numbers)

    def _put(self, name: str, array: NDArray[Any]) -> None:
        self._arrays.setdefault(name, []).append(array)
