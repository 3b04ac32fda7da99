"""The messages from the parent to its workers, encoded as msgpack; their replies are in `headrace.engine.serving`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.engine.poison import Poison, RecordPlace
from headrace.io import Storage
from headrace.preparing.backends.backend import SpecialPolicy
from headrace.preparing.columns import Column
from headrace.preparing.filters import FilterSpec
from headrace.preparing.sources import RecordSpec, SourceFile, Task, spans_in_words


class Encoding(msgspec.Struct, frozen=True):
    """How texts become tokens."""

    tokenizer: str
    """Path of the copy of ``tokenizer.json`` that was made for this run."""

    backend: str
    special: SpecialPolicy
    eod: int | None
    bos: int | None
    missing_bos: int | None
    """Documents that do not begin with this token are counted."""

    vocab_size: int
    dtype: str


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

    records: RecordSpec
    max_record_bytes: int
    join: str | None
    encoding: Encoding
    filters: FilterSpec
    columns: tuple[Column, ...]
    on_error: Literal["stop", "skip"]
    max_errors: int | None
    """A task with more bad records need not be finished, as they alone fail the run; None sets no limit."""
    sample_key: int
    """Key that selects the documents which the reference tokeniser encodes as well."""

    making: RecipeSetup | None = None
    """None: each text is a document."""

    num_ranges: int = 0
    """Ranges of text hashes, in each of which a task finds the duplicates; 0 keeps them."""

    hashes: tuple[str, ...] = ()
    """For tasks that find duplicates: the files, or the URLs, of the hashes of all parts, in their order."""

    layout: str = ""
    """For tasks that join parts: the layout of the shards."""

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

    @property
    def task_index(self) -> int:
        """See `AnyTask`."""
        return self.task.number

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return spans_in_words(self.task.spans, self.files)

    def probe(self, first: RecordPlace, *, is_alone: bool) -> ProbeTask:
        """See `RecordTask`."""
        return ProbeTask(self, first, is_alone)

    def without(self, poison: Sequence[Poison], *, is_cut: bool) -> TextTask:
        """See `RecordTask`."""
        return msgspec.structs.replace(self, poison=tuple(poison), is_cut=is_cut)


class ProbeTask(msgspec.Struct, frozen=True, tag=True):
    """An order to do the records of a task one at a time, from ``first`` on, and to write nothing."""

    order: TextTask
    first: RecordPlace
    is_alone: bool
    """Whether only the first record is done."""

    @property
    def task_index(self) -> int:
        """See `AnyTask`."""
        return self.order.task_index

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return self.order.label


class FindTask(msgspec.Struct, frozen=True, tag=True):
    """An order to find the duplicates among the hashes of a range."""

    range: int

    @property
    def task_index(self) -> int:
        """See `AnyTask`."""
        return self.range

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"the texts of range {self.range:,}"


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


Order = TextTask | ProbeTask | FindTask | HashTask | JoinTask
