"""Byte ranges: every byte of every file once, in order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.prepare.tasks import MAX_TASK_BYTES, MIN_TASK_BYTES, Span, choose_task_bytes, plan_tasks


@given(
    sizes=st.lists(st.integers(0, 1 << 42) | st.integers(0, 40), max_size=30),
    task_bytes=st.integers(1, 50) | st.just(1 << 40),
    max_spans=st.integers(1, 5),
)
def test_spans_cover_all_files_in_order(sizes: list[int], task_bytes: int, max_spans: int) -> None:
    sizes = [min(size, task_bytes * 50) for size in sizes]
    tasks = plan_tasks(sizes, task_bytes=task_bytes, max_spans=max_spans)
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
    tasks = plan_tasks([3, 4, 25, 0, 10, 1], task_bytes=10, max_spans=100)
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
        (1 << 28, MIN_TASK_BYTES),
        ((1 << 28) + 256, 2 * MIN_TASK_BYTES),
        (1 << 31, 8 << 20),
        (1 << 45, MAX_TASK_BYTES),
    ],
)
def test_task_bytes(total: int, wanted: int) -> None:
    assert choose_task_bytes(total) == wanted
