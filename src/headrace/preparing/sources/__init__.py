"""Reads input files of all formats as spans and blocks of records.

    find_inputs   arguments of the user -> SourceFile      finds the files, and checks formats and columns
    plan_tasks    SourceFile -> Task, Span                 pure arithmetic: bytes, row groups, record batches
    open_span     SourceFile, Span -> SpanReader           JSON Lines, text, gzip, zstd, CSV, Parquet, Arrow
    SpanReader    -> Block, Block, ...                     texts, the place of each, and all bad records

A record that cannot be used raises no error; its block lists it, with a message. Neighbouring spans join without a gap,
so that the bytes that were read can be compared with the size of the file. pyarrow and zstandard are imported when the
first file needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.preparing.sources.block import BadRecord, Block, RecordSpec, SpanReader
    from headrace.preparing.sources.find import find_inputs, spool_stdin
    from headrace.preparing.sources.reader import open_span
    from headrace.preparing.sources.source_file import (
        MAX_TASK_SPANS,
        Format,
        SampleBy,
        SourceFile,
        Span,
        Task,
        check_all,
        choose_task_bytes,
        counted_from,
        is_hashed_while_read,
        plan_tasks,
        record_noun,
        spans_in_words,
    )

_HOMES = homes(
    {
        "headrace.preparing.sources.block": "BadRecord Block RecordSpec SpanReader",
        "headrace.preparing.sources.find": "find_inputs spool_stdin",
        "headrace.preparing.sources.reader": "open_span",
        "headrace.preparing.sources.source_file": "MAX_TASK_SPANS Format SampleBy SourceFile Span Task check_all "
        "choose_task_bytes counted_from is_hashed_while_read plan_tasks record_noun spans_in_words",
    }
)

__all__ = [
    "MAX_TASK_SPANS",
    "BadRecord",
    "Block",
    "Format",
    "RecordSpec",
    "SampleBy",
    "SourceFile",
    "Span",
    "SpanReader",
    "Task",
    "check_all",
    "choose_task_bytes",
    "counted_from",
    "find_inputs",
    "is_hashed_while_read",
    "open_span",
    "plan_tasks",
    "record_noun",
    "spans_in_words",
    "spool_stdin",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
