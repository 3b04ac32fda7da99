"""Takes the pieces of a run in their order: into shards or buckets, into the ledger and the table of origins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.io import output_errors
from headrace.prepare.buckets import Buckets
from headrace.prepare.duplicates import HASH_BYTES, Seen
from headrace.prepare.ledger import DUPLICATE, Duplicates, RunLedger
from headrace.prepare.messages import Cursor
from headrace.prepare.piece import Piece
from headrace.prepare.ragged import IntArray, keep_rows
from headrace.prepare.run_plan import RunPlan
from headrace.prepare.run_state import RunState, save_state
from headrace.prepare.store_output import StoreOutput
from headrace.stores import ProvenanceWriter

SHARDS_NAME, ORIGINS_NAME, SEEN_NAME, BUCKETS_NAME = "shards", "provenance", "seen", "buckets"


class Taker:
    """Everything that a run has made so far, and its checkpoints.

    Pieces that were taken stay on disk until the checkpoint after them: at any moment a kill loses nothing.

    Raises:
        OutputError: the system refuses.
        StoreError: what is on disk is not what the checkpoint says.
    """

    def __init__(self, plan: RunPlan, work: Path, state: RunState) -> None:
        self._plan = plan
        self._work = work
        self.state = state
        self.ledger = RunLedger(plan.files, state.ledger, sample_by=plan.options.records.sample_by)
        self._pending: list[Path] = []
        self._pending_bytes = 0
        self._max_pending_bytes = plan.pending_bytes  # which looks at every file
        self._hashes: list[bytes] = []
        folders = [work / SHARDS_NAME, work / BUCKETS_NAME]
        with output_errors(work, "create folders in"):
            for folder in folders:
                folder.mkdir(exist_ok=True)
        self.output = StoreOutput(
            folders[0],
            layout=plan.options.output.format,
            keys=plan.keys,
            dtype=plan.dtype,
            shard_tokens=plan.options.output.shard_tokens,
            state=state.output,
        )
        self.origins = ProvenanceWriter(
            work / ORIGINS_NAME,
            with_order=plan.is_shuffled,
            with_ids=plan.options.records.id_field is not None,
            state=state.provenance,
        )
        self._buckets = None
        if plan.is_shuffled and state.phase == "encode":
            self._buckets = Buckets(folders[1], state.num_buckets, len(plan.keys), state.bucket_sizes or None)
        self._seen = self._load_seen() if plan.options.deduplicate and state.phase == "encode" else None

    def take_text(self, piece: Piece, path: Path) -> None:
        """The next piece of pass 1."""
        info = piece.info
        is_new = self._find_new(piece)
        first = self.ledger.state.kept
        self._take_origins(piece, is_new)
        self.ledger.add(info, self._duplicates(piece, is_new))
        rows = self._rows(piece)
        if self._buckets is not None:
            _deal(self._buckets, piece, rows, is_new, first)
        elif is_new is None or is_new.all():
            self.output.add(rows)
        else:
            self.output.add([(keep_rows(*row, is_new), row[1][is_new]) for row in rows])
        if info.is_last:
            self.state.turn, self.state.cursor = info.turn + 1, Cursor()
        else:
            self.state.cursor = Cursor(info.piece + 1, info.next_span, info.next_lines)
        self._done_with([path], piece.size_bytes)

    def take_sorted(self, piece: Piece, path: Path, bucket: Path) -> None:
        """The next piece of pass 2, and the bucket that it was made of."""
        if piece.info.num_documents:
            self.output.add(self._rows(piece))
            self.origins.add_order(piece.arrays["ordinals"])
        self.state.turn = piece.info.turn + 1
        self._done_with([path, bucket], 2 * piece.size_bytes)

    def checkpoint(self) -> None:
        """Bring all to the disk, say so, and delete what is no longer needed."""
        state = self.state
        if self._buckets is not None:
            self._buckets.flush()
            state.bucket_sizes = self._buckets.sizes
        if self._hashes:
            self._append_hashes()
        state.ledger = self.ledger.state
        state.output = self.output.checkpoint()
        state.provenance = self.origins.checkpoint()
        save_state(self._work, state)
        for path in self._pending:
            with output_errors(path, "remove"):
                path.unlink(missing_ok=True)
        self._pending.clear()
        self._pending_bytes = 0

    def begin_sorting(self) -> None:
        """Pass 1 is over."""
        self.checkpoint()
        self.state.phase, self.state.turn = "sort", 0
        self._buckets = self._seen = None
        save_state(self._work, self.state)
        with output_errors(self._work / SEEN_NAME, "remove"):
            (self._work / SEEN_NAME).unlink(missing_ok=True)

    def suspend(self) -> None:
        """Close all files, and leave them for a later run."""
        self.output.suspend()
        self.origins.suspend()

    def _done_with(self, paths: list[Path], num_bytes: int) -> None:
        self._pending += paths
        self._pending_bytes += num_bytes
        if self._pending_bytes >= self._max_pending_bytes:
            self.checkpoint()

    def _rows(self, piece: Piece) -> list[tuple[NDArray[Any], IntArray]]:
        empty = (np.zeros(0, self._plan.dtype), np.zeros(0, np.int64))
        return [
            (piece.arrays.get(f"tokens.{key}", empty[0]), piece.arrays.get(f"lengths.{key}", empty[1]))
            for key in range(len(self._plan.keys))
        ]

    def _find_new(self, piece: Piece) -> NDArray[np.bool_] | None:
        """For each document of the piece, in the order of the input, whether its text is met for the first time."""
        if self._seen is None:
            return None
        hashes = piece.arrays.get("text_hashes", np.zeros((0, 2), np.uint64))
        is_new = self._seen.add(hashes)
        self._hashes.append(hashes[is_new].tobytes())
        return is_new

    def _duplicates(self, piece: Piece, is_new: NDArray[np.bool_] | None) -> Duplicates:
        if is_new is None or is_new.all():
            return Duplicates()
        is_old = ~is_new
        if "rows" in piece.arrays:
            is_old = is_old[piece.arrays["rows"]]
        lengths = [row_lengths[is_old] for _, row_lengths in self._rows(piece)]
        return Duplicates(
            documents=int(np.count_nonzero(is_old)),
            empty=int(np.count_nonzero(np.sum(lengths, axis=0) == 0)),
            tokens=int(np.sum(lengths)),
        )

    def _take_origins(self, piece: Piece, is_new: NDArray[np.bool_] | None) -> None:
        info, arrays = piece.info, piece.arrays
        first = self.ledger.state.kept
        lines = {span.file: self.ledger.state.lines[span.file] for span in info.spans}
        document = skip = 0
        none = np.zeros(0, np.int64)
        for span in info.spans:
            skipped = arrays.get("skipped_lines", none)[skip : skip + span.skipped]
            codes = arrays.get("skipped_reasons", none)[skip : skip + span.skipped]
            reasons = [info.reasons[code] for code in codes.tolist()]
            kept = span.kept
            if is_new is not None and kept:
                is_old = ~is_new[document : document + kept]
                old_lines = arrays["lines"][document : document + kept][is_old]
                if len(old_lines):
                    skipped = np.concatenate((skipped, old_lines))
                    reasons += [DUPLICATE] * len(old_lines)
                    order = np.argsort(skipped, kind="stable")
                    skipped, reasons = skipped[order], [reasons[index] for index in order]
                    kept -= len(old_lines)
            if span.lines:
                self.origins.add_span(first, kept, span.file, lines[span.file], span.lines, skipped, reasons)
            lines[span.file] += span.lines
            document += span.kept
            skip += span.skipped
            first += kept
        if "ids" in arrays:
            self.origins.add_ids(_ids(arrays["ids"], arrays["ids_lengths"], is_new))

    def _load_seen(self) -> Seen:
        path, size = self._work / SEEN_NAME, self.state.seen
        with output_errors(path, "continue"):
            path.touch()
            seen = Seen.load(path, size // HASH_BYTES)  # refuses a file that is too short
            os.truncate(path, size)
        return seen

    def _append_hashes(self) -> None:
        path = self._work / SEEN_NAME
        data = b"".join(self._hashes)
        with output_errors(path, "write"), path.open("ab", buffering=0) as file:
            view = memoryview(data)
            while len(view):
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        self.state.seen += len(data)
        self._hashes.clear()


def _deal(
    buckets: Buckets,
    piece: Piece,
    rows: list[tuple[NDArray[Any], IntArray]],
    is_new: NDArray[np.bool_] | None,
    first: int,
) -> None:
    """Documents to buckets: they lie sorted in the piece, their ordinals follow the order of the input."""
    if not piece.info.num_documents:
        return
    order, number = piece.arrays["order"], piece.arrays["rows"]
    ordinals = first + number
    if is_new is not None and not is_new.all():
        ordinals = (first - 1 + np.cumsum(is_new))[number]
        keep = is_new[number]
        rows = [(keep_rows(*row, keep), row[1][keep]) for row in rows]
        order, ordinals = order[keep], ordinals[keep]
    buckets.add(order, ordinals, rows)


def _ids(data: NDArray[np.uint8], lengths: IntArray, is_new: NDArray[np.bool_] | None) -> list[str]:
    ends = np.cumsum(lengths)
    raw = data.tobytes()
    chosen = range(len(lengths)) if is_new is None else np.flatnonzero(is_new).tolist()
    return [raw[ends[index] - lengths[index] : ends[index]].decode() for index in chosen]
