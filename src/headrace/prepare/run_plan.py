"""What a run is to do, once everything that the user named was found and checked. No I/O."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.plan.keys import source_key
from headrace.prepare.backends import Choice, OnCompared
from headrace.prepare.columns import Column
from headrace.prepare.messages import Encoding, HashTask, Order, PiecePosition, RecipeSetup, Setup, TextTask
from headrace.prepare.options import TextOptions, output_keys
from headrace.prepare.sources import (
    MAX_TASK_SPANS,
    RecordSpec,
    SourceFile,
    counted_from,
    is_hashed_while_read,
    plan_tasks,
    record_noun,
)
from headrace.prepare.tokenizer import TextTokenizer
from headrace.stores import optimal_dtype

MIN_PENDING_BYTES = 1 << 19
MAX_PENDING_BYTES = 96 << 20
MAX_OPEN_KEYS = 400
_CHECKPOINTS = 64
_BYTES_PER_TOKEN = 3
"""Roughly; it only sizes buckets and checkpoints."""


class TextProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, tasks on their way included."""

    phase: Literal["tokenizer", "probe", "prove", "encode", "sort", "finish"] = "encode"
    """In this order; ``probe`` only where its outcome is not known yet, ``sort`` only of a shuffled run."""

    input_bytes: int = 0
    """What is done of the phase: bytes of the inputs, or of buckets; in the proofs characters."""

    total_bytes: int = 0
    """Of the same; 0 where the phase is short."""

    documents: int = 0
    tokens: int = 0


def show_compared(on_progress: Callable[[TextProgress], None], phase: Literal["probe", "prove"]) -> OnCompared:
    """What tells the progress of a proof."""

    def show(done: int, total: int) -> None:
        on_progress(TextProgress(phase=phase, input_bytes=done, total_bytes=total))

    return show


class RecipePart(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has besides, where a recipe makes its documents."""

    columns: tuple[Column, ...]
    making: RecipeSetup
    described: dict[str, Any]
    """For the manifest, and to know the run again: the recipe in full, the template."""

    max_records: int | None = None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs, tokeniser and options of a run; what follows from them."""

    files: tuple[SourceFile, ...]
    options: TextOptions
    tokenizer: TextTokenizer
    eod: int | None
    bos: int | None
    choice: Choice
    first_documents: int = 0
    """Texts at the beginning that the reference tokeniser encoded as well."""
    task_bytes: int
    recipe: RecipePart | None = None

    @staticmethod
    def record_spec(options: TextOptions) -> RecordSpec:
        """What readers take of each record."""
        records = options.records
        return RecordSpec(
            fields=records.fields,
            id_field=records.id_field,
            whole=options.filters.function is not None or not records.fields,
            sample_by=records.sample_by,
            lists=not records.fields,
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The keys that are written, and what goes with them."""
        if self.recipe is not None:
            return self.recipe.columns
        return tuple(Column(key, self.dtype.name) for key in output_keys(self.options))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are written."""
        return tuple(column.key for column in self.columns if column.kind != "domain")

    @property
    def max_records(self) -> int | None:
        """Records after which no more are kept."""
        return None if self.recipe is None else self.recipe.max_records

    @property
    def max_domains(self) -> int:
        """Stores that the run may have open at the same time: each has two files a key."""
        return MAX_OPEN_KEYS // max(len(self.keys), 1)

    @property
    def is_shuffled(self) -> bool:
        """Whether the documents leave the order of the input."""
        return self.options.output.shuffle is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens in the store."""
        return np.dtype(optimal_dtype(self.tokenizer.vocab_size))

    @property
    def total_bytes(self) -> int:
        """Bytes of all input files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def output_bytes(self) -> int:
        """What the output may take, roughly."""
        return sum(file.text_bytes for file in self.files) * self.dtype.itemsize // _BYTES_PER_TOKEN

    @property
    def pending_bytes(self) -> int:
        """Bytes of pieces that are taken before a checkpoint lets them be deleted: a small part of the output."""
        return min(max(self.output_bytes // _CHECKPOINTS, MIN_PENDING_BYTES), MAX_PENDING_BYTES)

    def place(self, file: int, line: int) -> str:
        """A place in this file in words; ``line`` counts from 0."""
        noun = record_noun(self.files[file].format, self.options.records.sample_by)
        return f"{noun} {line + counted_from(noun):,}"

    def setup(self, *, parts: str, buckets: str, tokenizer: str, backend: str) -> Setup:
        """What all workers are told."""
        options = self.options
        seed = options.output.shuffle
        return Setup(
            parent=os.getpid(),
            parts=parts,
            buckets=buckets,
            records=self.record_spec(options),
            max_record_bytes=options.records.max_record_bytes,
            join=options.records.join,
            encoding=Encoding(
                tokenizer=tokenizer,
                backend=backend,
                special=options.tokens.special_tokens_in_text,
                eod=self.eod,
                bos=self.bos,
                vocab_size=self.tokenizer.vocab_size,
                dtype=self.dtype.name,
            ),
            filters=options.filters,
            columns=self.columns,
            on_error=options.errors.on_error,
            max_errors=options.errors.max_errors if isinstance(options.errors.max_errors, int) else None,
            with_text_hashes=options.deduplicate,
            order_key=None if seed is None else source_key(seed, "", "prepare shuffle"),
            sample_key=source_key(0, self.tokenizer.fingerprint, "prepare sample"),
            making=None if self.recipe is None else self.recipe.making,
        )

    def orders(self, *, first_task: int, start: PiecePosition, hashed: list[str]) -> list[Order]:
        """Tasks from ``first_task`` on, which begins at ``start``; and files to hash that have no hash yet."""
        # Readers need no sizes of units, of which a file may have many thousands.
        sent = [msgspec.structs.replace(file, unit_bytes=()) for file in self.files]
        orders: list[Order] = []
        for task in plan_tasks(self.files, task_bytes=self.task_bytes, max_spans=MAX_TASK_SPANS):
            # A file cut into several spans, or one whose reader jumps about in it, is hashed on its own.
            for span in task.spans:
                file = self.files[span.file]
                is_due = span.begin == 0 and not hashed[span.file] and not file.fault
                if is_due and not is_hashed_while_read(file, span):
                    orders.append(HashTask(span.file, sent[span.file]))
            if task.number >= first_task:
                files = tuple(sent[span.file] for span in task.spans)
                orders.append(TextTask(task, files, start if task.number == first_task else PiecePosition()))
        return orders
