"""Reads input files of all formats as spans and blocks of records.

    find_inputs   arguments of the user -> SourceFile      finds the files, and checks formats and columns
    plan_tasks    SourceFile -> Task, Span                 pure arithmetic: bytes, row groups, record batches
    open_span     SourceFile, Span -> SpanReader           JSON Lines, text, gzip, zstd, CSV, Parquet, Arrow
    SpanReader    -> Block, Block, ...                     texts, the place of each, and all bad records

A record that cannot be used raises no error; its block lists it, with a message. Neighbouring spans join without a gap,
so that the bytes that were read can be compared with the size of the file. pyarrow and zstandard are imported when the
first file needs them.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
