"""JSON Lines -> tokens in one indexed store, with its manifest."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import InputError, OutputError, WorkerError
from headrace.io import atomic_write
from headrace.io.atomic import output_errors
from headrace.prepare.executor import Workers, run_tasks
from headrace.prepare.inputs import SourceFile, find_inputs
from headrace.prepare.ledger import RunLedger
from headrace.prepare.messages import Failed, HashDone, HashTask, Order, Progress, Setup, TextDone, TextTask
from headrace.prepare.options import TextOptions, check_options
from headrace.prepare.output_folder import PREFIX, OutputFolder
from headrace.prepare.part import part_path, read_part
from headrace.prepare.tasks import MAX_TASK_SPANS, choose_task_bytes, plan_tasks
from headrace.prepare.tokenizer import TextTokenizer, load_tokenizer
from headrace.stores import (
    IndexedWriter,
    InputFile,
    Manifest,
    OutputShard,
    TokenizerInfo,
    optimal_dtype,
    save_manifest,
)

REPORT_S = 0.2


class TextProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, tasks on their way included."""

    input_bytes: int
    total_bytes: int
    documents: int
    tokens: int


def prepare_text(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    options: TextOptions | None = None,
    on_progress: Callable[[TextProgress], None] | None = None,
) -> Manifest:
    """Tokenise JSON Lines into ``output/text_document.bin`` and ``.idx``, and describe it in ``output/headrace.json``.

    Documents keep the order of the input. The bytes written depend on inputs, tokeniser and options alone, never on
    the number of workers. Everything appears at the end at once, or nothing does.

    Args:
        inputs: ``.jsonl`` files, folders and globs, see `find_inputs`.
        output: a new or empty folder.
        tokenizer: a ``tokenizer.json``, or a folder that holds one.
        options: see `TextOptions`.
        on_progress: called a few times a second.

    Raises:
        ConfigError: inputs, tokeniser or options cannot be.
        InputError: a record or file is bad; names file and line.
        OutputError: the folder is taken, or the system refuses a write.
        WorkerError: a worker process was ended from outside.
    """
    options = options or TextOptions()
    check_options(options)
    loaded = load_tokenizer(tokenizer)
    eod = loaded.find_eod(options.eod)[0] if options.append_eod else None
    files = find_inputs(inputs)
    with OutputFolder(output, overwrite=options.overwrite) as folder:
        run = _Run(files, loaded, eod, options, folder.work, on_progress or (lambda progress: None))
        manifest = run.run()
        folder.commit()
    return manifest


class _Run:
    """One run into a work folder that it has for itself."""

    def __init__(
        self,
        files: list[SourceFile],
        tokenizer: TextTokenizer,
        eod: int | None,
        options: TextOptions,
        work: Path,
        on_progress: Callable[[TextProgress], None],
    ) -> None:
        self._files = files
        self._tokenizer = tokenizer
        self._eod = eod
        self._options = options
        self._work = work
        self._on_progress = on_progress
        self._ledger = RunLedger(files)
        self._dtype = np.dtype(optimal_dtype(tokenizer.vocab_size))
        self._total_bytes = sum(file.size_bytes for file in files)
        # A name of its own: a worker that outlives a killed parent for a moment must not meet the next run's parts.
        self._parts = work.absolute() / f"parts.{secrets.token_hex(4)}"
        self._underway: dict[int, Progress] = {}

    def run(self) -> Manifest:
        snapshot = self._work / "tokenizer.json"
        atomic_write(snapshot, self._tokenizer.json)
        with output_errors(self._parts, "create"):
            self._parts.mkdir()
        setup = Setup(
            parent=os.getpid(),
            parts=str(self._parts),
            tokenizer=str(snapshot.absolute()),
            text_field=self._options.text_field,
            eod=self._eod,
            vocab_size=self._tokenizer.vocab_size,
            dtype=self._dtype.name,
        )
        orders = self._orders()
        num_workers = min(self._options.workers or usable_cores(), len(orders))
        with IndexedWriter(self._work / PREFIX, dtype=self._dtype) as writer:
            with Workers(num_workers, setup) as workers:
                for result in run_tasks(workers, orders, on_progress=self._report, interval_s=REPORT_S):
                    self._take(result, writer)
            self._check_inputs()
            shard = writer.finish()
        manifest = Manifest(
            inputs=tuple(
                InputFile(path=file.name, size=file.size_bytes, xxh3_128=digest)
                for file, digest in zip(self._files, self._ledger.hashes, strict=True)
            ),
            options={"text_field": self._options.text_field, "append_eod": self._options.append_eod},
            tokenizer=TokenizerInfo(
                source=self._tokenizer.name,
                xxh3_128=self._tokenizer.fingerprint,
                vocab_size=self._tokenizer.vocab_size,
                eod=self._eod,
            ),
            outputs=(OutputShard.of(shard, self._work),),
            ledger=self._ledger.balance(shard),
        )
        return save_manifest(self._work, manifest)

    def _orders(self) -> list[Order]:
        sizes = [file.size_bytes for file in self._files]
        task_bytes = self._options.task_bytes or choose_task_bytes(self._total_bytes)
        orders: list[Order] = []
        for task in plan_tasks(sizes, task_bytes=task_bytes, max_spans=MAX_TASK_SPANS):
            first = task.spans[0]
            # A file cut into several spans is hashed on its own, beside its first span.
            if first.begin == 0 and first.end < sizes[first.file]:
                orders.append(HashTask(first.file, self._files[first.file]))
            orders.append(TextTask(task, tuple(self._files[span.file] for span in task.spans)))
        return orders

    def _take(self, result: TextDone | HashDone | Failed, writer: IndexedWriter) -> None:
        if isinstance(result, Failed):
            raise self._error(result)
        if isinstance(result, HashDone):
            self._ledger.hashes[result.number] = result.xxh3_128
            return
        path = part_path(self._parts, result.number)
        tokens, lengths = read_part(
            path,
            self._dtype,
            num_tokens=result.num_text_tokens + result.num_eod_tokens,
            num_documents=result.num_documents,
        )
        writer.add_documents(tokens, lengths)
        with output_errors(path, "remove"):
            path.unlink()
        self._underway.pop(result.number, None)
        self._ledger.add(result)

    def _error(self, failed: Failed) -> Exception:
        if failed.kind == "output":
            return OutputError(failed.message)
        if failed.kind == "crash":
            return WorkerError(f"a worker failed in a way nobody foresaw; please report this:\n{failed.message}")
        if failed.line == 0:
            return InputError(failed.message)
        line = self._ledger.lines_of(failed.file) + failed.line
        return InputError(
            f"{self._files[failed.file].name}, line {line:,}: {failed.message}. Nothing was written; "
            "correct or remove this line and run again."
        )

    def _check_inputs(self) -> None:
        for file in self._files:
            try:
                file.check_unchanged(Path(file.path).stat())
            except OSError as error:
                raise InputError(f"{file.name}: the file vanished during the run: {error.strerror}") from error
        if self._ledger.documents == 0:
            raise InputError(
                f"no documents: {len(self._files):,} files with {self._ledger.blank_lines:,} lines, all of them blank. "
                "Nothing was written."
            )
        if self._ledger.tokens == 0:
            raise InputError(
                f"no tokens: all {self._ledger.documents:,} documents are empty (field {self._options.text_field!r}). "
                "Nothing was written."
            )

    def _report(self, progress: Progress | None) -> None:
        if progress is not None:
            self._underway[progress.number] = progress
        underway = self._underway.values()
        self._on_progress(
            TextProgress(
                input_bytes=self._ledger.input_bytes + sum(task.input_bytes for task in underway),
                total_bytes=self._total_bytes,
                documents=self._ledger.documents + sum(task.documents for task in underway),
                tokens=self._ledger.tokens + sum(task.tokens for task in underway),
            )
        )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
