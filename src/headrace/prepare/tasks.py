"""The plan of a run: which bytes of which files make a task. Pure integer arithmetic, no I/O.

A task is a list of *spans*, byte ranges of input files. A span owns every line whose **first byte** lies in it, so
spans may be cut anywhere and the plan needs to read nothing. Two lines of 6 bytes cut at byte 4:

    a a a a | a \\n b b b b b \\n        span [0, 4) owns line a, whole: it reads on to byte 6
    0       4      6                    span [4, 12) owns line b, which begins at byte 6

A line longer than a span leaves the spans in its middle without lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

MIN_TASK_BYTES = 1 << 20
MAX_TASK_BYTES = 16 << 20
MAX_TASK_SPANS = 4096


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Bytes ``[begin, end)`` of input number ``file``; an empty file is the span ``[0, 0)``."""

    file: int
    begin: int
    end: int


class Task(msgspec.Struct, frozen=True, array_like=True):
    """Spans that one worker reads in one go; ``number`` is its place in the output, from 0."""

    number: int
    spans: tuple[Span, ...]


def choose_task_bytes(total_bytes: int) -> int:
    """Bytes a task, a power of two from 1 to 16 MiB: small inputs still make tasks enough for every core.

    It depends on the input alone, never on the number of workers.
    """
    wanted = max(total_bytes // 256, MIN_TASK_BYTES)
    return min(1 << (wanted - 1).bit_length(), MAX_TASK_BYTES)


def plan_tasks(sizes: Sequence[int], *, task_bytes: int, max_spans: int) -> list[Task]:
    """Cut files of these sizes (bytes) into tasks of about ``task_bytes``, in order. O(files + tasks).

    A file above ``task_bytes`` is cut into near-equal spans, a task each; smaller files in a row share a task until it
    holds ``task_bytes`` or ``max_spans`` files.
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

    for file, size in enumerate(sizes):
        if size > task_bytes:
            close()
            pieces = -(-size // task_bytes)
            cuts = [size * piece // pieces for piece in range(pieces + 1)]
            for begin, end in itertools.pairwise(cuts):
                tasks.append(Task(len(tasks), (Span(file, begin, end),)))
            continue
        if open_bytes + size > task_bytes or len(open_spans) >= max_spans:
            close()
        open_spans.append(Span(file, 0, size))
        open_bytes += size
    close()
    return tasks
