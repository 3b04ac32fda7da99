"""The worker process, which runs one task after another until its parent closes the connection.

A task reads the records of its spans, makes documents of them, and writes these as pieces on disk.

`WorkerProcesses` starts a worker with one end of a socket pair, as a fork or as a fresh process. It does not
use the start methods of ``multiprocessing``, which run the caller's ``__main__`` again in every worker.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from headrace.engine.poison import At
from headrace.engine.serving import (
    Done,
    Failed,
    Parent,
    Progress,
    Reply,
    attempted,
    serve,
)
from headrace.errors import InputError, RenderLimitError
from headrace.preparing.backends import MismatchError, ProvedEncoder, SpecialFinder
from headrace.preparing.documents import BlockEncoder, Documents, Encoder
from headrace.preparing.duplicates import DuplicateFinder
from headrace.preparing.messages import FindTask, HashTask, Order, ProbeTask, Setup, TextTask
from headrace.preparing.piece import PieceBuilder
from headrace.preparing.sources import BadRecord, SourceFile, Span, SpanReader, open_span

PIECE_BYTES = 32 << 20
"""Bytes of tokens in a piece. A task with more writes several pieces, so that large tasks need no more memory."""

PIECE_LINES = 1 << 19

BAD_LINE, ENDED_WORKER, MISMATCH = "bad line", "ended worker", "mismatch"
"""Failures: a line that cannot be used, or at which workers have ended, whose place only the parent can count; and a
fast library whose ids differ from those of the reference tokeniser."""


class BadLineError(InputError):
    """A line that cannot be used: the number of the input file, and the line, counted from 1 in this piece's part of
    the span."""

    def __init__(self, message: str, file: int, line: int, *, ended_worker: bool = False) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.kind = ENDED_WORKER if ended_worker else BAD_LINE


class TextWork:
    """Runs tasks, one at a time.

    Memory: one block of 1 MiB (or the longest record) with its texts and ids, and the piece that is filled.
    """

    def __init__(
        self,
        setup: Setup,
        encoder: Encoder,
        *,
        report: Callable[[Progress], None],
        deliver: Callable[[Done | At], None],
    ) -> None:
        self._setup = setup
        self._encoder = encoder
        self._report = report
        self._deliver = deliver

    def run(self, order: TextTask) -> Done:
        """Write the pieces of a task. All but the last are delivered on the way, and the last is returned.

        Raises:
            BadLineError: a record cannot be used, and the run is to stop at such a record.
            MismatchError: the fast tokeniser differs from the reference tokeniser.
            InputError: a file cannot be read or has changed.
            OutputError: a piece cannot be written.
        """
        number, start = order.task.number, order.start
        self._piece = PieceBuilder(self._setup, number, start.piece)
        self._progress = Progress(number, 0, 0, 0)
        spans = list(zip(order.task.spans, order.files, strict=True))
        for index in range(start.span, len(spans)):
            span, file = spans[index]
            self._run_span(span, file, index, start.lines if index == start.span else 0, order)
        return self._piece.write(is_last=True)

    def probe(self, order: ProbeTask) -> Done:
        """Do the records of a task one at a time, say before each which it is, and write nothing.

        Errors are left to the task itself, which meets them again.

        Raises:
            InputError: a file cannot be read or has changed.
        """
        number, (first_span, first_line) = order.task_index, order.first
        spans = list(zip(order.order.task.spans, order.order.files, strict=True))
        for index in range(first_span, len(spans)):
            span, file = spans[index]
            reached = first_line if index == first_span else 0
            self._deliver(At(number, index, reached, is_reading=True))
            for block in self._reader(span, file).blocks():
                for line in block.lines[np.searchsorted(block.lines, reached) :].tolist():
                    self._deliver(At(number, index, line))
                    with contextlib.suppress(Exception):
                        self._encoder.encode(block.between(line, line + 1), span.file)
                    if order.is_alone:
                        return Done(number)
                    reached = line + 1
                self._deliver(At(number, index, reached, is_reading=True))
        return Done(number)

    def _reader(self, span: Span, file: SourceFile) -> SpanReader:
        return open_span(file, span, self._setup.records, max_record_bytes=self._setup.max_record_bytes)

    def _run_span(self, span: Span, file: SourceFile, index: int, skip_lines: int, order: TextTask) -> None:
        reader = self._reader(span, file)
        poison = {record.line: record.message for record in order.poison if record.span == index}
        last = max(poison) if order.is_cut and order.poison[-1].span == index else None
        self._piece.begin_span(span.file, skip_lines)
        lines = 0
        for block in reader.blocks():
            lines += block.num_lines
            if lines <= skip_lines:  # exact, as pieces end at the ends of blocks
                self._advance(block.input_bytes, 0, 0)
                continue
            if poison:
                block = block.without(poison)
            is_cut = last is not None and last < lines
            if last is not None and is_cut:
                block = block.between(0, last + 1)  # what is behind it may end this worker
            try:
                documents = self._encoder.encode(block, span.file)
            except RenderLimitError as error:
                raise BadLineError(str(error), span.file, error.record - self._piece.first_line + 1) from None
            if documents.bad and self._setup.on_error == "stop":
                self._stop(documents.bad[0], span.file)
            self._piece.add(block, documents)
            self._check_errors(span.file)
            if is_cut:
                self._fail_at(documents.bad[-1], span.file, len(order.poison))
            self._advance(block.input_bytes, len(documents.lines), self._num_ids(documents))
            if self._piece.num_bytes >= PIECE_BYTES or self._piece.num_lines >= PIECE_LINES:
                following = self._piece.next(index, lines)
                self._deliver(self._piece.write(is_last=False))
                self._piece = following
                self._piece.begin_span(span.file, lines)
        self._piece.end_span(reader.begin, reader.end, reader.xxh3_128)

    def _num_ids(self, documents: Documents) -> int:
        rows = zip(self._setup.columns, documents.tokens, strict=True)
        return sum(len(tokens) for column, tokens in rows if column.kind == "ids")

    def _check_errors(self, file: int) -> None:
        errors, allowed = self._piece.errors, self._setup.max_errors
        if allowed is not None and len(errors) > allowed:
            _, line, message = errors[allowed]
            raise BadLineError(
                f"{message}. It is one of more than {allowed:,} bad records, which is what --max-errors allows", file,
                line + 1,
            )  # fmt: skip

    def _fail_at(self, bad: BadRecord, file: int, num_poison: int) -> None:
        message = f"{bad.message}. So did {num_poison:,} records of this task, and no more of them are searched for"
        self._stop(msgspec.structs.replace(bad, message=message), file)

    def _stop(self, bad: BadRecord, file: int) -> None:
        line = bad.line - self._piece.first_line + 1
        raise BadLineError(bad.message, file, line, ended_worker=bad.ended_worker)

    def _advance(self, input_bytes: int, documents: int, tokens: int) -> None:
        before = self._progress
        self._progress = Progress(
            before.task_index, before.input_bytes + input_bytes, before.documents + documents, before.tokens + tokens
        )
        self._report(self._progress)


HASH_BLOCK_BYTES = 1 << 20

MAIN = "headrace.preparing.worker:main"


def load_encoder(setup: Setup, tokenizer_json: bytes, proved: ProvedEncoder) -> Encoder:
    """The encoder that makes the documents of a run: of texts, or of records if a recipe makes them."""
    if setup.making is None:
        return BlockEncoder(setup, proved, SpecialFinder(tokenizer_json))
    from headrace.preparing.record_encoder import RecordEncoder

    return RecordEncoder(setup, tokenizer_json, proved)


class TextWorker:
    """Runs orders, and reports the progress to the parent.

    ``proved`` is an encoder that is loaded already. Without it, or if the setup names another backend, the worker loads
    one itself.
    """

    def __init__(self, parent: Parent, setup: Setup, proved: ProvedEncoder | None = None) -> None:
        self._parent = parent
        self._setup = setup
        self._proved = proved
        self._text: TextWork | None = None

    def handle(self, order: Order) -> Reply:
        """Run one order. A failure is returned as a `Failed`."""
        return attempted(order.task_index, lambda: self._run(order))

    def _run(self, order: Order) -> Reply:
        try:
            if isinstance(order, HashTask):
                return Done.of(order.task_index, (order.number, self._hash(order.file)))
            if isinstance(order, FindTask):
                return self._finder.run(order)
            if self._text is None:
                self._text = self._load()
            return self._text.probe(order) if isinstance(order, ProbeTask) else self._text.run(order)
        except BadLineError as error:
            return Failed(order.task_index, str(error), kind=error.kind, file=error.file, line=error.line)
        except MismatchError as error:
            return Failed(order.task_index, str(error), kind=MISMATCH)

    @functools.cached_property
    def _finder(self) -> DuplicateFinder:
        setup = self._setup
        return DuplicateFinder(setup.parts, setup.hashes)

    def _load(self) -> TextWork:
        encoding, proved = self._setup.encoding, self._proved
        if proved is None or proved.name != encoding.backend:
            proved = ProvedEncoder(encoding.backend, Path(encoding.tokenizer).read_bytes(), encoding.special)
        encoder = load_encoder(self._setup, proved.json, proved)
        # Vocabulary and libraries stay in memory, so the collector need not visit them again for each block of records.
        gc.collect()
        gc.freeze()
        return TextWork(self._setup, encoder, report=self._parent.report, deliver=self._parent.send)

    def _hash(self, file: SourceFile) -> str:
        hasher = xxhash.xxh3_128()
        view = memoryview(bytearray(HASH_BLOCK_BYTES))
        try:
            with file.open() as source:
                while count := source.readinto(view):
                    hasher.update(view[:count])
                    self._parent.check()
                file.check_opened(source)
        except OSError as error:
            raise InputError(f"{file.name}: the file cannot be read: {error.strerror or error}") from error
        return hasher.hexdigest()


def main(descriptor: int, proved: ProvedEncoder | None = None) -> None:
    """Serve the parent at the other end of this socket; ``proved`` is the encoder that a fork inherits."""
    serve(descriptor, Setup, Order, lambda parent, setup: TextWorker(parent, setup, proved).handle)
