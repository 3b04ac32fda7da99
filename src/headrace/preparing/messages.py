"""The messages from the parent to its workers, encoded as msgpack; their replies are in `headrace.engine.serving`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.engine.poison import Poison, RecordPlace
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


class Dealt(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A piece whose documents lie in a file of parts, one part for each bucket."""

    path: str
    """The file, relative to the work folder or to the URL of the exchange."""

    size_bytes: int
    first: int
    """Documents of the pieces before it, including those that are left out."""

    documents: int
    domains: tuple[int, ...] = ()
    """For each number in the domain column, the number of that domain in the run."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What tasks of a planned run write for each other, and what the tasks of a phase read of it."""

    num_ranges: int = 0
    """Ranges of text hashes, in each of which a task finds the duplicates; 0 keeps duplicates."""

    num_buckets: int = 0
    """Buckets in which tasks sort the documents; 0 keeps the order of the input."""

    hashes: tuple[str, ...] = ()
    """Files of the hashes of all pieces, relative to the work folder, in the order of the pieces."""

    dealt: tuple[Dealt, ...] = ()
    """All pieces whose documents are to be sorted, in their order."""

    url: str = ""
    """The URL that these files are relative to; empty if that is the work folder."""

    numbers: str = ""
    """The file of numbers, relative to the URL; empty if it is in the folder of the buckets."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker: what is the same for every task."""

    parent: int
    """Process id of the parent; a worker that finds another parent exits."""

    parts: str
    """Folder for the pieces, also for those of sorted buckets."""

    buckets: str
    """Folder of the buckets of a shuffled run."""

    records: RecordSpec
    max_record_bytes: int
    join: str | None
    encoding: Encoding
    filters: FilterSpec
    columns: tuple[Column, ...]
    on_error: Literal["stop", "skip"]
    max_errors: int | None
    """A piece with more bad records need not be finished, as they alone fail the run; None sets no limit."""
    with_text_hashes: bool
    order_key: int | None
    """Key of the shuffle; None keeps the order of the input."""

    sample_key: int
    """Key that selects the documents which the reference tokeniser encodes as well."""

    making: RecipeSetup | None = None
    """None: each text is a document."""

    exchange: Exchange | None = None
    """None: the process that commits pieces finds duplicates, and deals documents to buckets."""


class PiecePosition(msgspec.Struct, frozen=True, array_like=True):
    """Where in a task a piece begins: the number of pieces before it, its span, and the lines before it in the span."""

    piece: int = 0
    span: int = 0
    lines: int = 0


class TextTask(msgspec.Struct, frozen=True, tag=True):
    """An order to read the spans of a task and to write pieces."""

    task: Task
    files: tuple[SourceFile, ...]
    """The file of each span."""
    start: PiecePosition = PiecePosition()
    most_poison: int = 1
    """How many poison records are searched for, see `RecordTask`."""
    poison: tuple[Poison, ...] = ()
    """Records that end each worker, and are left out."""
    is_cut: bool = False
    """Whether the task fails at the last of them, as those behind it are not known."""

    @property
    def task_index(self) -> int:
        """The place of its result in the order of all results."""
        return self.task.number

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return spans_in_words(self.task.spans, self.files)

    @property
    def begin(self) -> RecordPlace:
        """See `RecordTask`."""
        return self.start.span, self.start.lines

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
        """The place of its result in the order of all results."""
        return self.order.task_index

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return self.order.label


class SortTask(msgspec.Struct, frozen=True, tag=True):
    """An order to sort a bucket into a piece of the same number."""

    bucket: int
    size: int
    """Valid bytes of the bucket's file; what follows was not recorded before a kill."""

    @property
    def task_index(self) -> int:
        """The place of its result in the order of all results."""
        return self.bucket

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"bucket {self.bucket:,}"


class FindTask(msgspec.Struct, frozen=True, tag=True):
    """An order to find the duplicates among the hashes of a range."""

    range: int

    @property
    def task_index(self) -> int:
        """The place of its result in the order of all results."""
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
    place: int = -1

    @property
    def task_index(self) -> int:
        """-1 if the result has no place in the order, and is used when it arrives."""
        return self.place

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"the hash of {self.file.name}"


Order = TextTask | ProbeTask | SortTask | FindTask | HashTask
