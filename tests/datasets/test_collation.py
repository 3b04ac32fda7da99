"""Rows of different lengths on a grid: width, side, fill, positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace import ConfigError
from headrace.datasets import Collation
from headrace.datasets.records import Grid


@settings(max_examples=cases(20, 1_000), deadline=None)
@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 4), st.sampled_from(["right", "left"]))
def test_rows_and_pads_by_plain_lists(lengths: list[int], more: int, side: Any) -> None:
    width = max(lengths, default=0) + more
    rows = [np.arange(1, length + 1) for length in lengths]
    grid = Grid.of(lengths, width, side)
    wanted, positions = [], []
    for row in rows:
        pads = width - len(row)
        values, gap = row.tolist(), [-7] * pads
        wanted.append(values + gap if side == "right" else gap + values)
        counted = [list(range(len(row))), list(range(pads))]
        positions.append([*counted[0], *counted[1]] if side == "right" else [*counted[1], *counted[0]])
    assert grid.filled(rows, -7, np.int64).tolist() == wanted
    assert grid.positions().tolist() == positions
    assert grid.is_token.shape == (len(lengths), width)


def test_lists_and_other_dtypes_are_taken() -> None:
    grid = Grid.of([2, 1], 2, "right")
    assert grid.filled([[0.5, 1], [2]], 0, np.float32).tolist() == [[0.5, 1], [2, 0]]
    with pytest.raises(ConfigError, match="sample 1 has 3 tokens, and the batch is 2 wide"):
        Grid.of([2, 3], 2, "right")


def test_widths() -> None:
    assert [Collation(multiple_of=8).width(longest) for longest in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert Collation(max_length=32, pad_to="max_length").width(3) == 32
    assert Collation(max_length=30, multiple_of=8).width(30) == 32, "a multiple may be above the longest allowed"


def test_what_is_kept() -> None:
    values = np.arange(5)
    right = Collation(max_length=3, over_long="truncate_right")
    left = Collation(max_length=3, over_long="truncate_left")
    assert right.cut(values).tolist() == [0, 1, 2]
    assert left.cut(values).tolist() == [2, 3, 4]
    assert left.cut(values[:2]).tolist() == [0, 1]
    assert right.kept(np.array([2, 3, 9])).tolist() == [2, 3, 3]
    assert Collation().kept(np.array([9])).tolist() == [9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over_long": "cut"}, "over_long is 'cut'; allowed are 'error', 'truncate_right'"),
        ({"pad_to": "longer"}, "pad_to is 'longer'"),
        ({"padding_side": "top"}, "padding_side is 'top'"),
        ({"max_length": 0}, "at least 1, found 0 and 1"),
        ({"multiple_of": 0}, "at least 1, found None and 0"),
        ({"pad_to": "max_length"}, "need max_length"),
        ({"over_long": "truncate_left"}, "need max_length"),
        ({"max_length": 10, "multiple_of": 8, "pad_to": "max_length"}, "10 is not a multiple of 8"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Collation(**options)
