"""Documents as two arrays, held against lists of lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.preparing.columns import IntArray, add_ends, keep_rows, total_lengths

documents = st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=12)


def flat(rows: list[list[int]]) -> tuple[np.ndarray, IntArray]:
    return np.array([token for row in rows for token in row], np.uint16), np.array([len(row) for row in rows], np.int64)


def unflat(tokens: np.ndarray, lengths: IntArray) -> list[list[int]]:
    ends = np.cumsum(lengths)
    assert len(tokens) == (int(ends[-1]) if len(ends) else 0)
    return [tokens[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]


@given(rows=documents, data=st.data())
def test_keep_rows(rows: list[list[int]], data: st.DataObject) -> None:
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
    tokens, lengths = flat(rows)
    kept = keep_rows(tokens, lengths, keep)
    assert kept.dtype == tokens.dtype
    assert unflat(kept, lengths[keep]) == [row for row, one in zip(rows, keep, strict=True) if one]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@given(rows=documents, bos=st.none() | st.just(7), eod=st.none() | st.just(9))
def test_add_ends(rows: list[list[int]], bos: int | None, eod: int | None, dtype: str) -> None:
    tokens, lengths = flat(rows)
    made, longer = add_ends(tokens.astype(np.uint32), lengths, bos=bos, eod=eod, dtype=np.dtype(dtype))
    assert made.dtype == dtype
    before, after = [bos] * (bos is not None), [eod] * (eod is not None)
    wanted = [[*([] if row[:1] == before else before), *row, *after] if row else [] for row in rows]
    assert unflat(made, longer) == wanted


@given(rows=documents)
def test_total_lengths(rows: list[list[int]]) -> None:
    tokens, lengths = flat(rows)
    before = lengths.copy()
    assert total_lengths([(tokens, lengths), (tokens, lengths)]).tolist() == [2 * len(row) for row in rows]
    assert lengths.tolist() == before.tolist()
