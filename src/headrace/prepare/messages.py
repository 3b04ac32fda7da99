"""What the parent and its workers say to each other: msgpack, one message a send."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.prepare.backends.backend import SpecialPolicy
from headrace.prepare.columns import Column
from headrace.prepare.filters import FilterSpec
from headrace.prepare.sources import RecordSpec, SourceFile, Task


class Encoding(msgspec.Struct, frozen=True):
    """How texts become tokens."""

    tokenizer: str
    """The copy of ``tokenizer.json`` made for this run."""

    backend: str
    special: SpecialPolicy
    eod: int | None
    bos: int | None
    vocab_size: int
    dtype: str


class RecipeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How records become samples, where a recipe says it. In JSON, so that runs over text load nothing of it."""

    recipe: bytes
    """The `Recipe`, with the layout of each input said."""

    sources: tuple[int, ...]
    """For each input file, the number of the recipe's input that named it."""

    template: bytes | None
    """The `TemplateSetup`."""

    special_tokens: dict[str, str]
    """``bos_token`` and the like, where no template says them; see `find_end_names`."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message: all that is the same for every task."""

    parent: int
    """Process id; a worker that finds another parent gives up."""

    parts: str
    """Folder for the pieces."""

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
    """Bad records after which a piece need not be finished: the run fails by it alone."""
    with_text_hashes: bool
    order_key: int | None
    """Of the shuffle; None keeps the order of the input."""

    sample_key: int
    """Of the sample of documents that are proved."""

    making: RecipeSetup | None = None
    """None: each text is a document."""


class PiecePosition(msgspec.Struct, frozen=True, array_like=True):
    """Where in a task a piece begins: pieces before it, the span, and the lines of that span before it."""

    piece: int = 0
    span: int = 0
    lines: int = 0


class TextTask(msgspec.Struct, frozen=True, tag=True):
    """Read these spans, write pieces."""

    task: Task
    files: tuple[SourceFile, ...]
    """One a span."""
    start: PiecePosition = PiecePosition()

    @property
    def task_index(self) -> int:
        """Place of its result among those of the others."""
        return self.task.number


class SortTask(msgspec.Struct, frozen=True, tag=True):
    """Sort a bucket into a piece of the same number."""

    bucket: int
    size: int
    """Bytes of the bucket's file that count."""

    @property
    def task_index(self) -> int:
        """Place of its result among those of the others."""
        return self.bucket


class HashTask(msgspec.Struct, frozen=True, tag=True):
    """Hash a file that no single task reads whole."""

    number: int
    """Of the input file."""

    file: SourceFile

    @property
    def task_index(self) -> int:
        """It has none: the result is taken as it comes."""
        return -1


class PieceDone(msgspec.Struct, frozen=True, tag=True):
    """A piece of a task is complete on disk."""

    task_index: int
    piece: int
    is_last: bool


class HashDone(msgspec.Struct, frozen=True, tag=True):
    """The hash of a file."""

    number: int
    xxh3_128: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the running task is, its finished pieces included."""

    task_index: int
    input_bytes: int
    documents: int
    tokens: int


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    """A task failed; the worker lives on.

    ``kind`` is ``input``, ``output``, ``mismatch`` (the fast library is not equal to the reference tokeniser) or
    ``crash`` (``message`` is then a traceback). For a bad line ``message`` says what was found, and the parent adds
    file and line: only it knows how many lines there were before.
    """

    task_index: int
    """Of the task; -1 for a hash task."""

    kind: Literal["input", "output", "mismatch", "crash"]
    message: str
    file: int = -1
    """Input file of a bad line, else -1."""
    line: int = 0
    """The bad line, counted from 1 at the beginning of its span, or of the piece where that begins later."""


Order = TextTask | SortTask | HashTask
Reply = PieceDone | HashDone | Progress | TaskFailed
