"""Byte ranges: every byte of every file once, in order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.preparing.sources import SourceFile, Span, choose_task_bytes, is_hashed_while_read, plan_tasks
from headrace.preparing.sources.source_file import MAX_TASK_BYTES, MIN_TASK_BYTES, Format


def plain(size: int, kind: Format = "jsonl", can_split: bool = True) -> SourceFile:
    return SourceFile(name="f", path="/f", format=kind, size_bytes=size, mtime_ns=0, extent=size, can_split=can_split)


def units(*unit_bytes: int) -> SourceFile:
    return SourceFile(
        name="f",
        path="/f",
        format="parquet",
        size_bytes=99,
        mtime_ns=0,
        extent=len(unit_bytes),
        unit_bytes=unit_bytes,
    )


@given(
    sizes=st.lists(st.integers(0, 1 << 42) | st.integers(0, 40), max_size=30),
    task_bytes=st.integers(1, 50) | st.just(1 << 40),
    max_spans=st.integers(1, 5),
)
def test_spans_cover_all_files_in_order(sizes: list[int], task_bytes: int, max_spans: int) -> None:
    sizes = [min(size, task_bytes * 50) for size in sizes]
    tasks = plan_tasks([plain(size) for size in sizes], task_bytes=task_bytes, max_spans=max_spans)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    spans = [span for task in tasks for span in task.spans]
    assert [span.file for span in spans] == sorted(span.file for span in spans)
    for file, size in enumerate(sizes):
        cuts = [(span.begin, span.end) for span in spans if span.file == file]
        assert cuts[0][0] == 0
        assert cuts[-1][1] == size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))
        assert all(begin < end for begin, end in cuts) or cuts == [(0, 0)]
    for task in tasks:
        assert 1 <= len(task.spans) <= max_spans
        assert sum(span.end - span.begin for span in task.spans) <= task_bytes


def test_a_large_file_is_cut_and_small_ones_share_a_task() -> None:
    tasks = plan_tasks([plain(size) for size in (3, 4, 25, 0, 10, 1)], task_bytes=10, max_spans=100)
    assert [task.spans for task in tasks] == [
        (Span(0, 0, 3), Span(1, 0, 4)),
        (Span(2, 0, 8),),
        (Span(2, 8, 16),),
        (Span(2, 16, 25),),
        (Span(3, 0, 0), Span(4, 0, 10)),
        (Span(5, 0, 1),),
    ]


@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (0, MIN_TASK_BYTES),
        (MIN_TASK_BYTES << 8, MIN_TASK_BYTES),
        ((MIN_TASK_BYTES << 8) + 256, 2 * MIN_TASK_BYTES),
        (1 << 31, 8 << 20),
        (1 << 45, MAX_TASK_BYTES),
    ],
)
def test_task_bytes(total: int, wanted: int) -> None:
    assert choose_task_bytes(total) == wanted


@given(
    files=st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=8),
    task_bytes=st.integers(1, 60),
    max_spans=st.integers(1, 4),
)
def test_units_are_covered_and_never_cut(files: list[list[int]], task_bytes: int, max_spans: int) -> None:
    tasks = plan_tasks([units(*sizes) for sizes in files], task_bytes=task_bytes, max_spans=max_spans)
    spans = [span for task in tasks for span in task.spans]
    assert [span.file for span in spans] == sorted(span.file for span in spans)
    for number, sizes in enumerate(files):
        cuts = [(span.begin, span.end) for span in spans if span.file == number]
        assert (cuts[0][0], cuts[-1][1]) == (0, len(sizes))
        assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))
        # A span is as long as it may be: one unit, or what fits, and the next one would not.
        for begin, end in cuts:
            assert end - begin <= 1 or sum(sizes[begin:end]) <= task_bytes or sum(sizes) == 0
            assert end == len(sizes) or sum(sizes[begin : end + 1]) > task_bytes


def test_files_that_are_not_cut() -> None:
    files = [plain(100, "jsonl.gz", False), plain(2, "jsonl.zst", False), plain(1, "txt", False), plain(5)]
    tasks = plan_tasks(files, task_bytes=10, max_spans=9)
    # Compressed bytes count four times.
    assert [task.spans for task in tasks] == [
        (Span(0, 0, 100),),
        (Span(1, 0, 2), Span(2, 0, 1)),
        (Span(3, 0, 5),),
    ]


def test_row_groups_are_grouped() -> None:
    files = [units(3, 4, 4, 20, 1, 1), units(2, 2), units()]
    assert [task.spans for task in plan_tasks(files, task_bytes=10, max_spans=9)] == [
        (Span(0, 0, 2),),
        (Span(0, 2, 3),),
        (Span(0, 3, 4),),
        (Span(0, 4, 6),),
        (Span(1, 0, 2), Span(2, 0, 0)),
    ]


@pytest.mark.parametrize(
    ("file", "span", "is_hashed"),
    [
        (plain(10), Span(0, 0, 10), True),
        (plain(10), Span(0, 0, 9), False),
        (plain(10), Span(0, 1, 10), False),
        (plain(0), Span(0, 0, 0), True),
        (plain(10, "jsonl.gz", False), Span(0, 0, 10), True),
        (units(1, 2), Span(0, 0, 2), False),
        (plain(10, "arrow", False), Span(0, 0, 10), False),
    ],
)
def test_which_spans_hash_their_file(file: SourceFile, span: Span, is_hashed: bool) -> None:
    assert is_hashed_while_read(file, span) is is_hashed
