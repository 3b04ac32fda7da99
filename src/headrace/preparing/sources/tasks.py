"""Plans the tasks of a run: which parts of which files make a task. Pure integer arithmetic, no I/O.

A task is a list of *spans*, ranges of input files. What a span counts depends on the file, see `SourceFile.extent`.

Files of lines are cut by bytes: a span owns every line whose **first byte** lies in it, so spans may be cut anywhere,
and the plan does not need to read the files. Two lines of 6 bytes, cut at byte 4:

    a a a a | a \\n b b b b b \\n        span [0, 4) owns the whole line a, and reads on to byte 6
    0       4      6                    span [4, 12) owns line b, which begins at byte 6

If a line is longer than a span, the spans in its middle own no lines. Row groups of Parquet and record batches of Arrow
are never cut, but several of them may share a span. All other files, such as compressed ones, are one span.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from headrace.preparing.sources.source_file import SourceFile

MIN_TASK_BYTES = 1 << 19
MAX_TASK_BYTES = 16 << 20
MAX_TASK_SPANS = 4096


class Span(msgspec.Struct, frozen=True, array_like=True):
    """``[begin, end)`` of input number ``file``, in the unit of its extent; an empty file is the span ``[0, 0)``."""

    file: int
    begin: int
    end: int


class Task(msgspec.Struct, frozen=True, array_like=True):
    """Spans that one worker reads one after another; ``number`` is the task's place in the output, from 0."""

    number: int
    spans: tuple[Span, ...]


def choose_task_bytes(total_bytes: int) -> int:
    """The bytes of a task: a power of two from 0.5 to 16 MiB. Even small inputs make enough tasks for all cores.

    It depends only on the input (the sum of `SourceFile.text_bytes`), never on the number of workers.
    """
    wanted = max(total_bytes // 256, MIN_TASK_BYTES)
    return min(1 << (wanted - 1).bit_length(), MAX_TASK_BYTES)


def plan_tasks(files: Sequence[SourceFile], *, task_bytes: int, max_spans: int) -> list[Task]:
    """Cut files into tasks of about ``task_bytes`` of text, in order. Cost: O(files + units + tasks).

    A file above ``task_bytes`` is cut into spans, and each is a task. If the file can be cut at any byte, the spans are
    of nearly equal size; if it has units, a span has as many adjacent units as fit, at least one; else the span is the
    whole file. Adjacent smaller files share a task until it holds ``task_bytes`` or ``max_spans`` files.
    """
    tasks: list[Task] = []
    open_spans: list[Span] = []
    open_bytes = 0

    def close() -> None:
        nonlocal open_bytes
        if open_spans:
            tasks.append(Task(len(tasks), tuple(open_spans)))
            open_spans.clear()
            open_bytes = 0

    for number, file in enumerate(files):
        if file.text_bytes > task_bytes:
            close()
            for begin, end in itertools.pairwise(_cuts(file, task_bytes)):
                tasks.append(Task(len(tasks), (Span(number, begin, end),)))
            continue
        if open_bytes + file.text_bytes > task_bytes or len(open_spans) >= max_spans:
            close()
        open_spans.append(Span(number, 0, file.extent))
        open_bytes += file.text_bytes
    close()
    return tasks


def is_hashed_while_read(file: SourceFile, span: Span) -> bool:
    """Whether the reader of this span also computes the hash of the file, so that no other pass is needed."""
    return file.format not in ("parquet", "arrow") and (span.begin, span.end) == (0, file.extent)


def _cuts(file: SourceFile, task_bytes: int) -> Iterator[int]:
    """The begins of the spans of a file, and finally the end of the file."""
    if file.can_split:
        pieces = -(-file.extent // task_bytes)
        yield from (file.extent * piece // pieces for piece in range(pieces + 1))
        return
    yield 0
    span_bytes = 0
    for unit, unit_bytes in enumerate(file.unit_bytes):
        if unit and span_bytes + unit_bytes > task_bytes:
            yield unit
            span_bytes = 0
        span_bytes += unit_bytes
    yield file.extent
