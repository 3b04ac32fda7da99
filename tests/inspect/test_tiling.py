"""Pieces tile a document, or it is noticed."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.inspect.store_checks import Tiling, kept_range
from headrace.plan.packing import OverLong, Packing, PackItems, plan_packs

Piece = tuple[int, int]


def is_wrong(pieces: list[Piece], begin: int, end: int) -> bool:
    tiling = Tiling(3)
    none = np.zeros(len(pieces), dtype=np.int64)
    begins = np.array([piece[0] for piece in pieces], dtype=np.int64)
    lengths = np.array([piece[1] - piece[0] for piece in pieces], dtype=np.int64)
    tiling.add(PackItems(none, none + 1, begins, lengths, none, none != 0))
    return bool(tiling.is_wrong(1, np.array([begin]), np.array([end]))[0])


@settings(max_examples=cases(40, 2000))
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=5), st.integers(0, 6), st.integers(0, 12))
def test_against_counting_each_token(drawn: list[Piece], begin: int, length: int) -> None:
    pieces = [(first, first + size) for first, size in drawn]
    seen = [token for first, end in pieces for token in range(first, end)]
    expected = sorted(seen) != list(range(begin, begin + length))
    assert is_wrong(pieces, begin, begin + length) == expected


@settings(max_examples=cases(20, 500))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.randoms())
def test_pieces_in_any_order(sizes: list[int], random: np.random.Generator) -> None:
    ends = np.cumsum(sizes).tolist()
    pieces = list(zip([0, *ends], ends, strict=False))
    random.shuffle(pieces)  # type: ignore[arg-type]
    assert not is_wrong(pieces, 0, ends[-1])
    assert is_wrong(pieces[1:], 0, ends[-1])
    assert is_wrong([*pieces, pieces[0]], 0, ends[-1])


@pytest.mark.parametrize("over_long", [one for one in get_args(OverLong) if one != "error"])
def test_what_is_kept_is_what_the_plan_packs(over_long: OverLong) -> None:
    lengths = np.array([0, 3, 8, 9, 16, 30])
    plan = plan_packs(lengths, Packing(seq_len=8, over_long=over_long))
    begins, ends = kept_range(lengths, plan.packing)
    items = plan.items(np.arange(len(plan)))
    assert np.bincount(items.documents, items.lengths, len(lengths)).tolist() == (ends - begins).tolist()
    for document in np.flatnonzero(ends > begins):
        assert items.begins[items.documents == document].min() == begins[document]
