"""The worker process, which runs one task after another until its parent closes the connection.

A task of the inputs reads the records of its spans, makes documents of them, and writes these as a part.

`WorkerProcesses` starts a worker with one end of a socket pair, as a fork or as a fresh process. It does not
use the start methods of ``multiprocessing``, which run the caller's ``__main__`` again in every worker.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.engine.job import TaskResult, Tell
from headrace.engine.poison import At
from headrace.engine.serving import (
    Done,
    Parent,
    Progress,
    Reply,
    attempted,
    serve,
)
from headrace.errors import InputError, RenderLimitError
from headrace.io import Reader, reader, reader_at
from headrace.io.finding import storage_for
from headrace.preparing.backends import MismatchError, ProvedEncoder, SpecialFinder
from headrace.preparing.documents import BlockEncoder
from headrace.preparing.duplicates import find_duplicates
from headrace.preparing.finishing import join
from headrace.preparing.ledger import BAD_RECORDS
from headrace.preparing.parts import PartBuilder
from headrace.preparing.run_plan import FindTask, HashTask, JoinTask, Order, Setup, TextTask
from headrace.preparing.sources import BadRecord, SourceFile, Span, open_span
from headrace.samples.tokenizer import TokenizerFile

if TYPE_CHECKING:
    from headrace.preparing.record_encoder import RecordEncoder


class BadLineError(InputError):
    """A line that cannot be used, or at which workers have ended. Only the parent can count its place in the file.

    It has the number of the span in its task, and the line, counted from 0 in the span.
    """

    def __init__(self, message: str, span: int = 0, line: int = 0, *, ended_worker: bool = False) -> None:
        super().__init__(message)
        self.span = span
        self.line = line
        self.ended_worker = ended_worker


def _counts(part: PartBuilder) -> dict[str, int]:
    """What is shown of a part, and summed over all."""
    tally = part.tally
    counts = {"bytes": tally.input_bytes, "documents": tally.documents.kept, "tokens": tally.tokens.kept}
    return counts | ({BAD_RECORDS: len(part.errors)} if part.errors else {})


def _stop(bad: BadRecord, span: int) -> None:
    raise BadLineError(bad.message, span, bad.line, ended_worker=bad.ended_worker)


MAIN = "headrace.preparing.worker:main"


def load_encoder(setup: Setup, proved: ProvedEncoder) -> BlockEncoder | RecordEncoder:
    """The encoder that makes the documents of a run: of texts, or of records if a recipe makes them."""
    if setup.plan.recipe is None:
        return BlockEncoder(setup, proved, SpecialFinder(proved.file))
    from headrace.preparing.record_encoder import RecordEncoder

    return RecordEncoder(setup, setup.plan.recipe, proved)


def combine(setup: Setup, order: FindTask | JoinTask, using: Reader, tell: Tell) -> TaskResult:
    """Do a task that reads what the tasks of the inputs have left.

    Raises:
        OutputError, StoreError: that is damaged, or cannot be read; or the result cannot be written.
    """
    if isinstance(order, FindTask):
        return find_duplicates(setup.results, setup.hashes, using, order)
    return join(setup, order, using, tell)


class TextWorker:
    """Runs orders, one at a time, and reports the progress to the parent.

    Memory of a task of the inputs: one block of 1 MiB (or the longest record) with its texts and ids, and some numbers
    for each document.

    ``proved`` is an encoder that is loaded already. Without it, or if the setup names another backend, the worker loads
    one itself.
    """

    def __init__(self, parent: Parent, setup: Setup, proved: ProvedEncoder | None = None) -> None:
        self._parent = parent
        self._setup = setup
        self._proved = proved
        self._spec = setup.plan.record_spec(setup.plan.options)

    def handle(self, order: Order) -> Reply:
        """Run one order. A failure is returned as a `Failed`."""
        return attempted(order.task_index, lambda: self._run(order))

    def _run(self, order: Order) -> Reply:
        try:
            if isinstance(order, TextTask) and order.first is not None:
                return self.probe(order, *order.first)
            return Done.of(order.task_index, self._do(order))
        except MismatchError as error:  # it is so on every host
            return Done.of(order.task_index, TaskResult(value={"mismatch": str(error)}))

    def _do(self, order: TextTask | HashTask | FindTask | JoinTask) -> TaskResult:
        if isinstance(order, HashTask):
            return TaskResult(value={"xxh3_128": order.file.digest(self._parent.check)})
        if isinstance(order, TextTask):
            return self.run(order)
        return combine(self._setup, order, self._using, lambda counts: self._parent.check())

    def run(self, order: TextTask) -> TaskResult:
        """Write the part of a task.

        Raises:
            BadLineError: a record cannot be used, and the run is to stop at such a record.
            MismatchError: the fast tokeniser differs from the reference tokeniser.
            InputError: a file cannot be read or has changed.
            OutputError: the part cannot be written.
        """
        with PartBuilder(self._setup, order.task_index) as part:
            for index, (span, file) in enumerate(zip(order.task.spans, order.files, strict=True)):
                self._run_span(part, span, file, index, order)
            files = part.write()
        return TaskResult(files=files, counts=_counts(part), value={"lines": part.tally.lines})

    def probe(self, order: TextTask, first_span: int, first_line: int) -> Done:
        """Do the records of a task one at a time from this one on, say before each which it is, and write nothing.

        Errors are left to the task itself, which meets them again.

        Raises:
            InputError: a file cannot be read or has changed.
        """
        number, spans = order.task_index, list(zip(order.task.spans, order.files, strict=True))
        for index in range(first_span, len(spans)):
            span, file = spans[index]
            reached = first_line if index == first_span else 0
            self._parent.send(At(number, index, reached, is_reading=True))
            for block in open_span(file, span, self._spec).blocks():
                for line in block.lines[np.searchsorted(block.lines, reached) :].tolist():
                    self._parent.send(At(number, index, line))
                    with contextlib.suppress(Exception):
                        self._encoder.encode(block.between(line, line + 1), span.file)
                    if order.is_alone:
                        return Done(number)
                    reached = line + 1
                self._parent.send(At(number, index, reached, is_reading=True))
        return Done(number)

    def _run_span(self, part: PartBuilder, span: Span, file: SourceFile, index: int, order: TextTask) -> None:
        reader = open_span(file, span, self._spec)
        poison = {record.line: record.message for record in order.poison if record.span == index}
        last = max(poison) if order.is_cut and order.poison[-1].span == index else None
        part.begin_span(span.file)
        lines = 0
        for block in reader.blocks():
            lines += block.num_lines
            if poison:
                block = block.without(poison)
            is_cut = last is not None and last < lines
            if last is not None and is_cut:
                block = block.between(0, last + 1)  # what is behind it may end this worker
            try:
                documents = self._encoder.encode(block, span.file)
            except RenderLimitError as error:
                raise BadLineError(str(error), index, error.record) from None
            if documents.bad and self._setup.plan.options.errors.on_error == "stop":
                _stop(documents.bad[0], index)
            part.add(block, documents)
            self._check_errors(part)
            if is_cut:
                bad, number = documents.bad[-1], len(order.poison)
                more = f"{bad.message}. So did {number:,} records of this task, and no more of them are searched for"
                _stop(msgspec.structs.replace(bad, message=more), index)
            self._parent.report(Progress(order.task_index, _counts(part)))
        part.end_span(reader.begin, reader.end, reader.xxh3_128)

    def _check_errors(self, part: PartBuilder) -> None:
        errors, allowed = part.errors, self._setup.plan.options.errors.max_errors
        # These alone fail the run. Of a share it is not known how many are too many.
        if isinstance(allowed, int) and len(errors) > allowed:
            span, line, message = errors[allowed]
            raise BadLineError(
                f"{message}. It is one of more than {allowed:,} bad records, which is what max_errors allows", span,
                line,
            )  # fmt: skip

    @functools.cached_property
    def _using(self) -> Reader:
        return reader(reader_at(self._setup.work, "pread", storage_for(self._setup.work, self._setup.storage)))

    @functools.cached_property
    def _encoder(self) -> BlockEncoder | RecordEncoder:
        setup, proved = self._setup, self._proved
        if proved is None or proved.name != setup.backend:
            file = TokenizerFile(Path(setup.tokenizer).read_bytes()) if proved is None else proved.file
            proved = ProvedEncoder(setup.backend, file, setup.plan.options.tokens.special_tokens_in_text)
        encoder = load_encoder(setup, proved)
        # Vocabulary and libraries stay in memory, so the collector need not visit them again for each block of records.
        gc.collect()
        gc.freeze()
        return encoder


def main(descriptor: int, proved: ProvedEncoder | None = None) -> None:
    """Serve the parent at the other end of this socket; ``proved`` is the encoder that a fork inherits."""
    serve(descriptor, Setup, Order, lambda parent, setup: TextWorker(parent, setup, proved).handle)
