"""The plan of a run: its files, options and tokeniser; the tasks that follow, and what workers are told. No I/O.

`Setup` and the orders go to workers as msgpack; their replies are in `headrace.engine.serving`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from headrace.engine.job import Phase, Show, TaskProgress
from headrace.engine.poison import MAX_POISON, Poison, RecordPlace
from headrace.io import Storage
from headrace.plan.keys import source_key
from headrace.preparing.backends import Choice, OnCompared
from headrace.preparing.backends.tokenizer import TextTokenizer
from headrace.preparing.columns import Column
from headrace.preparing.options import PrepareOptions
from headrace.preparing.sources import (
    MAX_TASK_SPANS,
    RecordSpec,
    SourceFile,
    Task,
    is_hashed_while_read,
    plan_tasks,
    spans_in_words,
)


class RecipeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How a recipe makes samples of records, in JSON, so that runs over text need not load ``headrace.samples``."""

    recipe: bytes
    """The `Recipe`, with the layout of each input resolved."""

    sources: tuple[int, ...]
    """For each input file, the number of the recipe's input that named it."""

    template: bytes | None
    """The `TemplateSetup`."""

    special_tokens: dict[str, str]
    """``bos_token`` and the like, for tokens that no template names; see `find_end_names`."""

    before_text: tuple[int, ...]
    """See `TextTokenizer.before_text`."""

    generation_ends: tuple[str, ...] = ()
    """The tokens at which ``generation_config.json`` ends a generated text."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker: what is the same for every task."""

    parent: int
    """Process id of the parent; a worker that finds another parent exits."""

    results: str
    """Folder for the files that tasks write."""

    plan: RunPlan
    """The plan of the run, without its files and the content of ``tokenizer.json``."""

    tokenizer: str
    """Path of the copy of ``tokenizer.json`` that was made for this run."""

    backend: str
    """The library that encodes: that of the plan, or the reference tokeniser."""

    num_ranges: int = 0
    """Ranges of text hashes, in each of which a task finds the duplicates; 0 keeps them."""

    hashes: tuple[str, ...] = ()
    """For tasks that find duplicates: the files, or the URLs, of the hashes of all parts, in their order."""

    work: str = ""
    """For tasks that join parts: the folder, or the URL, below which these are."""

    storage: Storage | None = None
    """How the store of that URL is reached; None goes by the environment."""


class TextTask(msgspec.Struct, frozen=True, tag=True):
    """An order to read the spans of a task and to write a part."""

    task: Task
    files: tuple[SourceFile, ...]
    """The file of each span."""
    most_poison: int = 1
    """How many poison records are searched for, see `RecordTask`."""
    poison: tuple[Poison, ...] = ()
    """Records that end each worker, and are left out."""
    is_cut: bool = False
    """Whether the task fails at the last of them, as those behind it are not known."""
    first: RecordPlace | None = None
    """In a probe, which does the records one at a time and writes nothing, the first of them."""
    is_alone: bool = False
    """Whether a probe does only this record."""

    @property
    def task_index(self) -> int:
        """See `AnyTask`."""
        return self.task.number

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return spans_in_words(self.task.spans, self.files)

    def probe(self, first: RecordPlace, *, is_alone: bool) -> TextTask:
        """See `RecordTask`."""
        return msgspec.structs.replace(self, first=first, is_alone=is_alone)

    def without(self, poison: Sequence[Poison], *, is_cut: bool) -> TextTask:
        """See `RecordTask`."""
        return msgspec.structs.replace(self, poison=tuple(poison), is_cut=is_cut)


class FindTask(msgspec.Struct, frozen=True, tag=True):
    """An order to find the duplicates among the hashes of a range."""

    task_index: int
    """The number of the range."""

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"the texts of range {self.task_index:,}"


class HashTask(msgspec.Struct, frozen=True, tag=True):
    """An order to hash a file that no single task reads whole."""

    number: int
    """Number of the input file."""

    file: SourceFile
    task_index: int

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"the hash of {self.file.name}"


class JoinTask(msgspec.Struct, frozen=True, tag=True):
    """An order to write a shard, of documents of parts."""

    task_index: int
    order: str
    """The file, below the work folder, that says which documents; see `cutting`."""

    folder: str
    """The folder of the shard in the output; empty for the output itself."""

    number: int
    """The number of the shard in this folder."""

    is_single: bool
    """Whether no other shard is in this folder."""

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"shard {self.number:,}" + (f" of {self.folder}" if self.folder else "")


Order = TextTask | FindTask | HashTask | JoinTask


MAX_OPEN_KEYS = 400

RANGE_BYTES = 512 << 20
"""Text whose hashes are a range. Documents of 500 bytes make 10^6 hashes of it, which take 120 MB of memory."""
MAX_RANGES = 1 << 14


OnProgress = Callable[[TaskProgress], None]
"""Called a few times a second. Before tasks are done, the phases are ``tokenizer``, ``probe`` (unless its outcome is
known) and ``prove``, of which the latter two count characters as ``bytes``."""


def shown(on_progress: OnProgress | None, on_notice: Callable[[str], None] | None) -> Show:
    """What is called to tell how far a run is, given what its caller wants to be told."""
    told: dict[str, Any] = {"tasks": on_progress, "notice": on_notice}
    return Show(**{name: call for name, call in told.items() if call is not None})


def show_compared(show: Show, phase: str) -> OnCompared:
    """A callback for a proof that passes its progress on."""

    def compared(done: int, total: int) -> None:
        show.tasks(TaskProgress(phase=phase, done=0, num_tasks=1, counts={"bytes": done}, total_bytes=total))

    return compared


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Inputs, tokeniser and options of a run, and what follows from them."""

    files: tuple[SourceFile, ...]
    options: PrepareOptions
    tokenizer: TextTokenizer
    eod: int | None
    bos: int | None
    eod_text: str = ""
    bos_text: str = ""
    choice: Choice
    first_documents: int = 0
    """Number of texts at the beginning that the reference tokeniser has encoded as well."""
    task_bytes: int
    columns: tuple[Column, ...]
    """The columns of the documents: the keys that are written, and the domain if there is one."""
    recipe: RecipeSetup | None = None
    """How a recipe makes the documents, if one does."""
    described: dict[str, Any] = {}
    """The recipe in full and the template, which the manifest lists beside the options."""
    max_records: int | None = None
    """The most records that the run keeps; None sets no limit."""

    @staticmethod
    def record_spec(options: PrepareOptions) -> RecordSpec:
        """What readers must read of each record."""
        records = options.records
        return RecordSpec(
            fields=records.fields,
            id_field=records.id_field,
            whole=options.filters.function is not None or not records.fields,
            sample_by=records.sample_by,
            max_record_bytes=records.max_record_bytes,
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are written."""
        return tuple(column.key for column in self.columns if column.kind != "domain")

    @property
    def max_domains(self) -> int:
        """The most stores that the run may have open at the same time: each has two open files for each key."""
        return MAX_OPEN_KEYS // max(len(self.keys), 1)

    @property
    def missing_bos(self) -> int | None:
        """The token with which the tokeniser begins texts, if a run over text adds none; None otherwise."""
        is_missing = self.tokenizer.before_text and self.bos is None and self.recipe is None
        return self.tokenizer.before_text[0] if is_missing else None

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all input files."""
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def num_ranges(self) -> int:
        """Ranges of text hashes in which tasks find duplicates; 0 if these are kept.

        It depends on the input alone, not on workers.
        """
        if not self.options.deduplicate:
            return 0
        least = -(-sum(file.text_bytes for file in self.files) // RANGE_BYTES)
        return min(1 << (max(least, 1) - 1).bit_length(), MAX_RANGES)

    @property
    def sample_key(self) -> int:
        """The key that selects the documents which the reference tokeniser encodes as well."""
        return source_key(0, self.tokenizer.fingerprint, "prepare sample")

    def setup(self, *, results: str, tokenizer: str, backend: str) -> Setup:
        """The first message to each worker."""
        return Setup(
            parent=os.getpid(),
            results=results,
            plan=msgspec.structs.replace(self, files=()),
            tokenizer=tokenizer,
            backend=backend,
            num_ranges=self.num_ranges,
        )

    def orders(self) -> tuple[list[TextTask], list[HashTask]]:
        """The tasks that read the inputs: those that encode, and after them those that hash files."""
        # Readers do not need the sizes of units, and a file may have many thousands of units.
        sent = [msgspec.structs.replace(file, unit_bytes=()) for file in self.files]
        texts: list[TextTask] = []
        hashed: list[int] = []
        for task in plan_tasks(self.files, task_bytes=self.task_bytes, max_spans=MAX_TASK_SPANS):
            # A file that is cut into several spans, or whose reader does not read it in order, is hashed separately.
            for span in task.spans:
                file = self.files[span.file]
                if span.begin == 0 and not file.fault and not is_hashed_while_read(file, span):
                    hashed.append(span.file)
            texts.append(TextTask(task, tuple(sent[span.file] for span in task.spans), self._most_poison))
        return texts, [HashTask(number, sent[number], place) for place, number in enumerate(hashed, len(texts))]

    @property
    def _most_poison(self) -> int:
        """How many records that end workers make any task fail."""
        errors = self.options.errors
        if errors.on_error == "stop":
            return 1
        return min(errors.max_errors + 1, MAX_POISON) if isinstance(errors.max_errors, int) else MAX_POISON


def encoding(mark: str, backend: str, num_tasks: int, *, first_task: int = 0, total_bytes: int = 0) -> Phase:
    """The phase that reads the inputs, see `RunPlan.orders`."""
    return Phase(name=f"encode-{mark}-{backend}", first_task=first_task, num_tasks=num_tasks, total_bytes=total_bytes)
