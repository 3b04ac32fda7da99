"""Which line of which input each document of a piece comes from, into the table of origins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.prepare.choosing import Chosen
from headrace.prepare.piece import Piece, SpanResult
from headrace.prepare.ragged import IntArray
from headrace.stores import ProvenanceWriter


def add_origins(
    origins: ProvenanceWriter, piece: Piece, chosen: Chosen, first: int, lines_before: Sequence[int]
) -> None:
    """Add the spans of a piece, whose first document is number ``first``; ``lines_before`` were read of each file."""
    info, arrays = piece.info, piece.arrays
    next_line = {span.file: lines_before[span.file] for span in info.spans}
    document = skip = 0
    none = np.zeros(0, np.int64)
    for span in info.spans:
        documents = slice(document, document + span.kept)
        keep = chosen.keep[documents]
        skipped = arrays.get("skipped_lines", none)[skip : skip + span.skipped]
        codes = arrays.get("skipped_reasons", none)[skip : skip + span.skipped]
        reasons = [info.reasons[code] for code in codes.tolist()]
        if span.split or not keep.all():
            lines = arrays["lines"][documents]
            # Of a line that is several documents, some may be kept and others not.
            gone, at = np.unique(lines[~keep], return_index=True)
            is_gone = ~np.isin(gone, lines[keep])
            left = (np.flatnonzero(~keep)[at[is_gone]] + document).tolist()
            skipped = np.concatenate((skipped, gone[is_gone]))
            reasons += [chosen.reason_of(index) for index in left]
            order = np.argsort(skipped, kind="stable")
            skipped, reasons = skipped[order], [reasons[index] for index in order]
            _add_lines(origins, span, first, next_line[span.file], lines[keep], skipped, reasons)
        elif span.lines:
            origins.add_span(first, span.kept, span.file, next_line[span.file], span.lines, skipped, reasons)
        next_line[span.file] += span.lines
        document += span.kept
        skip += span.skipped
        first += int(np.count_nonzero(keep))
    if "ids" in arrays:
        origins.add_ids(_ids(arrays["ids"], arrays["ids_lengths"], chosen))


def _add_lines(
    origins: ProvenanceWriter,
    span: SpanResult,
    first: int,
    first_line: int,
    lines: IntArray,
    skipped: IntArray,
    reasons: list[str],
) -> None:
    """Add the lines of a span, where document number i comes from ``lines[i]``.

    The table has one document a line, so each further one of a line is a span of its own: documents of the lines 3, 3
    and 5 of 6 give the spans [0, 4), [3, 4) and [4, 6).
    """
    begin = at = document = 0
    for number in [*(np.flatnonzero(lines[1:] == lines[:-1]) + 1).tolist(), len(lines)]:
        is_further = number < len(lines)
        end = int(lines[number]) + 1 if is_further else span.lines
        if end > begin:
            until = int(np.searchsorted(skipped, end))
            own = skipped[at:until] - begin
            origins.add_span(
                first + document, number - document, span.file, first_line + begin, end - begin, own, reasons[at:until]
            )
            begin, at, document = end, until, number
        if is_further:
            origins.add_span(first + number, 1, span.file, first_line + end - 1, 1, skipped[:0], [])
            document = number + 1


def _ids(data: NDArray[np.uint8], lengths: IntArray, chosen: Chosen) -> list[str]:
    ends = np.cumsum(lengths)
    raw = data.tobytes()
    rows = range(len(lengths)) if chosen.is_all else np.flatnonzero(chosen.keep).tolist()
    return [raw[ends[index] - lengths[index] : ends[index]].decode() for index in rows]
