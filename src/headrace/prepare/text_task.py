"""One task: the records of its spans -> documents -> pieces on disk."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import InputError, RenderLimitError
from headrace.prepare.documents import Documents, Encoder
from headrace.prepare.messages import PieceDone, Progress, Setup, TextTask
from headrace.prepare.piece_builder import PieceBuilder
from headrace.prepare.sources import BadRecord, SourceFile, Span, open_span

PIECE_BYTES = 32 << 20
"""Of tokens: a task that makes more leaves them in several pieces, so that its size costs no memory."""

PIECE_LINES = 1 << 19


class BadLineError(InputError):
    """A line that cannot be used: the input file's number, and the line from 1 on within this piece of the span."""

    def __init__(self, message: str, file: int, line: int) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class TextWork:
    """Runs tasks, one at a time.

    Memory: one block of 1 MiB (or the longest record) with its texts and ids, and the piece that is being filled.
    """

    def __init__(
        self,
        setup: Setup,
        encoder: Encoder,
        *,
        report: Callable[[Progress], None],
        deliver: Callable[[PieceDone], None],
    ) -> None:
        self._setup = setup
        self._encoder = encoder
        self._report = report
        self._deliver = deliver

    def run(self, order: TextTask) -> PieceDone:
        """Write the pieces of a task; deliver all but the last, and return that.

        Raises:
            BadLineError: a record that cannot be used, where that stops the run.
            MismatchError: the fast tokeniser is not equal to the truth.
            InputError: a file that cannot be read or has changed.
            OutputError: a piece cannot be written.
        """
        number, start = order.task.number, order.start
        self._piece = PieceBuilder(self._setup, number, start.piece)
        self._progress = Progress(number, 0, 0, 0)
        spans = list(zip(order.task.spans, order.files, strict=True))
        for index in range(start.span, len(spans)):
            span, file = spans[index]
            self._run_span(span, file, index, start.lines if index == start.span else 0)
        return self._piece.write(is_last=True)

    def _run_span(self, span: Span, file: SourceFile, index: int, skip_lines: int) -> None:
        reader = open_span(file, span, self._setup.records, max_record_bytes=self._setup.max_record_bytes)
        self._piece.begin_span(span.file, skip_lines)
        lines = 0
        for block in reader.blocks():
            lines += block.num_lines
            if lines <= skip_lines:  # pieces end where blocks do
                self._advance(block.input_bytes, 0, 0)
                continue
            try:
                documents = self._encoder.encode(block, span.file)
            except RenderLimitError as error:
                raise BadLineError(str(error), span.file, error.record - self._piece.first_line + 1) from None
            if documents.bad and self._setup.on_error == "stop":
                self._stop(documents.bad[0], span.file)
            self._piece.add(block, documents)
            self._check_errors(span.file)
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

    def _stop(self, bad: BadRecord, file: int) -> None:
        raise BadLineError(bad.message, file, bad.line - self._piece.first_line + 1)

    def _advance(self, input_bytes: int, documents: int, tokens: int) -> None:
        before = self._progress
        self._progress = Progress(
            before.turn, before.input_bytes + input_bytes, before.documents + documents, before.tokens + tokens
        )
        self._report(self._progress)
