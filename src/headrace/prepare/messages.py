"""What the parent and its workers say to each other: msgpack, one message a send."""

from __future__ import annotations

import msgspec

from headrace.prepare.inputs import SourceFile
from headrace.prepare.tasks import Task


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message: all that is the same for every task."""

    parent: int
    """Process id; a worker that finds another parent gives up."""

    parts: str
    """Folder for the parts."""

    tokenizer: str
    """The copy of ``tokenizer.json`` made for this run."""

    text_field: str
    eod: int | None
    vocab_size: int
    dtype: str


class TextTask(msgspec.Struct, frozen=True, tag=True):
    """Read these spans, write one part."""

    task: Task
    files: tuple[SourceFile, ...]
    """One a span."""


class HashTask(msgspec.Struct, frozen=True, tag=True):
    """Hash a file that no single task reads whole."""

    number: int
    """Of the input file."""

    file: SourceFile


class SpanResult(msgspec.Struct, frozen=True, array_like=True):
    """What a span held. ``[begin, end)`` is from its first line's first byte to its last line's end."""

    file: int
    begin: int
    end: int
    lines: int
    blank_lines: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the texts."""
    xxh3_128: str
    """Of the whole file where the span is all of it, else empty."""


class TextDone(msgspec.Struct, frozen=True, tag=True):
    """A part is complete: ``num_tokens`` ids, then ``num_documents`` int64 lengths."""

    number: int
    spans: tuple[SpanResult, ...]
    num_documents: int
    num_empty: int
    num_text_tokens: int
    """Tokens of the texts, without end-of-document tokens."""
    num_eod_tokens: int


class HashDone(msgspec.Struct, frozen=True, tag=True):
    """The hash of a file."""

    number: int
    xxh3_128: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far the running task is."""

    number: int
    input_bytes: int
    documents: int
    tokens: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A task failed; the worker lives on.

    ``kind`` is ``input``, ``output`` or ``crash`` (``message`` is then a traceback). For a bad line ``message`` says
    what was found, and the parent adds file and line: only it knows how many lines the tasks before had.
    """

    number: int
    """Of the text task; -1 for a hash task."""

    kind: str
    message: str
    file: int = -1
    """Input file of a bad line, else -1."""
    line: int = 0
    """The bad line, counted from 1 at the beginning of its span."""


Order = TextTask | HashTask
Reply = TextDone | HashDone | Progress | Failed
