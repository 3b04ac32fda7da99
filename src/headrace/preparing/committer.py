"""Commits the pieces of a run in their order: to shards, to the ledger, and to the table of origins.

The parent does this, since only it knows what came before a piece: which documents are duplicates, how many records
were kept already, and which line of its input each document comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.io import output_errors, write_all
from headrace.preparing.columns import Column, IntArray, Rows, count_ones, keep_rows, num_ids
from headrace.preparing.duplicates import HASH_BYTES, FoundDuplicates, SeenHashes
from headrace.preparing.ledger import RunLedger
from headrace.preparing.messages import PiecePosition
from headrace.preparing.output_folder import RunState, save_state
from headrace.preparing.piece import HASHES, Piece, SpanResult, piece_path
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.store_output import StoreOutput
from headrace.preparing.tally import DUPLICATE, MAX_RECORDS, Tally, left_out
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, ProvenanceWriter

BoolArray = NDArray[np.bool_]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the n documents of a piece are kept, in the order of the input."""

    keep: BoolArray
    """(n,) whether each document is kept."""

    reasons: dict[str, BoolArray]
    """(n,) for each reason, whether each document is left out for it. No document is left out for two reasons."""

    num_records: int
    """Records of which at least one document is kept; 0 if the run does not limit records."""

    @property
    def is_all(self) -> bool:
        """Whether all documents are kept."""
        return bool(self.keep.all())

    def reason_of(self, document: int) -> str:
        """Why a document is left out."""
        return next(reason for reason, which in self.reasons.items() if which[document])

    def left_out(self, piece: Piece, columns: Sequence[Column], rows: Rows) -> list[Tally]:
        """The counts that take off what is left out, for each reason."""
        found = []
        for reason, which in self.reasons.items():
            if not which.any():
                continue
            keys: dict[str, int] = {}
            supervised = 0
            for column, (values, lengths) in zip(columns, rows, strict=True):
                if column.kind == "ids":
                    keys[column.key] = int(lengths[which].sum())
                elif column.kind == "mask":
                    supervised += int(count_ones(values, lengths)[which].sum())
            found.append(
                left_out(
                    reason,
                    documents=int(np.count_nonzero(which)),
                    empty=int(np.count_nonzero(num_ids(columns, rows)[which] == 0)),
                    keys=keys,
                    supervised=None if piece.info.tally.samples is None else supervised,
                )
            )
        return found


def choose(piece: Piece, is_new: BoolArray | None, room: int | None) -> Chosen:
    """Choose the documents to keep.

    Args:
        piece: a piece with n documents.
        is_new: (n,) whether each document is seen for the first time; None keeps duplicates.
        room: how many more records may be kept; None sets no limit.
    """
    keep = np.ones(piece.info.num_documents, np.bool_) if is_new is None else is_new
    reasons: dict[str, BoolArray] = {}
    if is_new is not None:
        reasons[DUPLICATE] = ~is_new
    if room is None:
        return Chosen(keep=keep, reasons=reasons, num_records=0)
    records = record_numbers(piece)
    kept_records = np.unique(records[keep])
    last = kept_records[room - 1] if 0 < room <= len(kept_records) else len(records) if room > 0 else -1
    is_over = keep & (records > last)
    reasons[MAX_RECORDS] = is_over
    return Chosen(keep=keep & ~is_over, reasons=reasons, num_records=min(len(kept_records), max(room, 0)))


def record_numbers(piece: Piece) -> IntArray:
    """(n,) the number of each document's record within the piece, in the order of the input, ascending.

    Documents of the same record come from the same line of the same span.
    """
    lines = piece.arrays.get("lines", np.zeros(0, np.int64))
    is_first = np.ones(len(lines), np.bool_)
    is_first[1:] = lines[1:] != lines[:-1]
    begins = np.cumsum([0, *(span.kept for span in piece.info.spans)])[:-1]
    is_first[begins[begins < len(lines)]] = True
    return np.cumsum(is_first) - 1


def add_origins(
    origins: ProvenanceWriter, piece: Piece, chosen: Chosen, first: int, lines_before: Sequence[int]
) -> None:
    """Add the spans of a piece to the table of origins.

    Args:
        origins: the table.
        piece: the piece.
        chosen: which of its documents are kept.
        first: number of the first of its kept documents in the run.
        lines_before: for each file, the lines that were read before this piece.
    """
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
            # If a line became several documents, some of them may be kept and others not.
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
    """Add the lines of a span whose document i comes from ``lines[i]``.

    A span of the table has at most one document for each line, so every further document of a line gets a span of its
    own: in a span of 6 lines, documents of the lines 3, 3 and 5 make the spans [0, 4), [3, 4) and [4, 6).
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


SHARDS_NAME, ORIGINS_NAME, SEEN_NAME = "shards", "provenance", "seen"


class Committer:
    """Writes everything that a run produces, and its checkpoints.

    Committed pieces stay on disk until the next checkpoint, so that a kill never loses anything.

    Args:
        plan: the plan.
        work: the work folder.
        state: the checkpoint to continue from.
        found: the duplicates, if tasks have found them.
        on_checkpoint: called once a checkpoint is saved.

    Raises:
        OutputError: the system refuses a write.
        StoreError: the files on disk do not match the checkpoint.
    """

    def __init__(
        self,
        plan: RunPlan,
        work: Path,
        state: RunState,
        found: FoundDuplicates | None,
        *,
        on_checkpoint: Callable[[], None] | None = None,
    ) -> None:
        self._plan = plan
        self._on_checkpoint = on_checkpoint
        self._work = work
        self.state = state
        self.ledger = RunLedger(plan.files, state.ledger, sample_by=plan.options.records.sample_by)
        self._pending: list[Path] = []
        self._pending_bytes = 0
        self._max_pending_bytes = plan.pending_bytes  # kept, since computing it visits every file
        self._hashes: list[bytes] = []
        with output_errors(work, "create folders in"):
            (work / SHARDS_NAME).mkdir(exist_ok=True)
        self.output = StoreOutput(
            work / SHARDS_NAME,
            layout=plan.options.output.format,
            columns=plan.columns,
            shard_tokens=plan.options.output.shard_tokens,
            state=state.output,
        )
        self.origins = ProvenanceWriter(
            work / ORIGINS_NAME,
            with_order=self.output.has_domains,
            with_ids=plan.options.records.id_field is not None,
            state=state.provenance,
        )
        self._found = found
        self._seen = self._load_seen() if plan.options.deduplicate and found is None else None

    def take(self, piece: Piece, path: Path) -> None:
        """Commit the next piece."""
        info = piece.info
        rows = self._rows(piece)
        is_new = self._find_new(piece)
        limit = self._plan.max_records
        chosen = choose(piece, is_new, None if limit is None else limit - self.state.kept_records)
        self.state.kept_records += chosen.num_records
        first = self.ledger.tally.documents.kept
        add_origins(self.origins, piece, chosen, first, self.ledger.state.lines)
        self.ledger.add(info, chosen.left_out(piece, self._plan.columns, rows))
        if chosen.is_all:
            self.output.add(rows, np.arange(first, first + info.num_documents))
        else:
            kept = [(keep_rows(*row, chosen.keep), row[1][chosen.keep]) for row in rows]
            self.output.add(kept, np.arange(first, first + int(np.count_nonzero(chosen.keep))))
        if info.is_last:
            self.state.task_index, self.state.cursor = info.task_index + 1, PiecePosition()
        else:
            self.state.cursor = PiecePosition(info.piece + 1, info.next_span, info.next_lines)
        self._pending.append(path)
        self._pending_bytes += piece.size_bytes
        if self._pending_bytes >= self._max_pending_bytes:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Flush everything to the disk, save the state, and delete files that are no longer needed."""
        state = self.state
        if self._hashes:
            self._append_hashes()
        state.ledger = self.ledger.state
        state.output = self.output.checkpoint()
        state.provenance = self.origins.checkpoint()
        save_state(self._work, state)
        self.output.forget()
        for path in self._pending:
            with output_errors(path, "remove"):
                path.unlink(missing_ok=True)
        self._pending.clear()
        self._pending_bytes = 0
        if self._on_checkpoint is not None:
            self._on_checkpoint()

    def add_order(self) -> None:
        """Write the order of the documents into the table of origins, one domain after another.

        If a kill interrupts this, the next run starts it again.
        """
        for ordinals in self.output.ordinals():
            self.origins.add_order(ordinals)

    def suspend(self) -> None:
        """Close all files, and leave them for a later run to continue."""
        self.output.suspend()
        self.origins.suspend()

    def _rows(self, piece: Piece) -> Rows:
        none = np.zeros(0, np.int64)
        rows = [
            (
                piece.arrays.get(f"tokens.{number}", none.astype(column.dtype)),
                piece.arrays.get(f"lengths.{number}", none),
            )
            for number, column in enumerate(self._plan.columns)
        ]
        if self.output.has_domains:
            numbers = np.array([self._domain(name) for name in piece.info.domains], rows[-1][0].dtype)
            rows[-1] = (numbers[rows[-1][0]], rows[-1][1])
        return rows

    def _domain(self, name: str) -> int:
        """The number of a domain in the run.

        Raises:
            InputError: there are too many domains; two names would be the same folder on a file system that ignores
                case; or the name is reserved.
        """
        known = self.state.domains
        if name in known:
            return known.index(name)
        most = self._plan.max_domains
        if len(known) >= most:
            raise InputError(
                f"the records have more than {most:,} domains, the last one {name!r}: each domain is a store with its "
                "own files. Choose another output.domain_key, one with a few kinds of data instead of their names"
            )
        for other in known:
            if name.casefold() == other.casefold():
                raise InputError(f"the domains {name!r} and {other!r} differ only in the case of letters: rename one")
        if name in (PROVENANCE_NAME, MANIFEST_NAME):
            raise InputError(f"a domain has the name {name!r}, which is reserved for a part of the store: rename it")
        known.append(name)
        return len(known) - 1

    def _find_new(self, piece: Piece) -> NDArray[np.bool_] | None:
        """(n,) whether each document of the piece is seen for the first time, in the order of the input."""
        hashes = piece.arrays.get("text_hashes", np.zeros((0, 2), np.uint64))
        if self._found is not None:
            self.state.is_found = True
            name = piece_path("", piece.info.task_index, piece.info.piece, HASHES).name
            return self._found.is_new(name, hashes) if len(hashes) else np.zeros(0, np.bool_)
        if self._seen is None:
            return None
        is_new = self._seen.add(hashes)
        self._hashes.append(hashes[is_new].tobytes())
        return is_new

    def _load_seen(self) -> SeenHashes:
        path, size = self._work / SEEN_NAME, self.state.seen
        with output_errors(path, "continue"):
            path.touch()
            seen = SeenHashes.load(path, size // HASH_BYTES)
            os.truncate(path, size)
        return seen

    def _append_hashes(self) -> None:
        path = self._work / SEEN_NAME
        data = b"".join(self._hashes)
        with output_errors(path, "write"), path.open("ab", buffering=0) as file:
            write_all(file.write, data)
            os.fsync(file.fileno())
        self.state.seen += len(data)
        self._hashes.clear()
