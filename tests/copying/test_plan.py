"""The arithmetic of a copy: cuts are in order, disjoint and complete, and fall where they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.copying.plan import (
    DocumentRange,
    cut,
    limited,
    named_split,
    part_borders,
    ranges_of,
    shard_borders,
    whole,
)
from headrace.errors import ConfigError
from headrace.plan.megatron.sampling import split_ranges

LENGTHS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), max_size=40)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[list[int], list[np.ndarray]]:
    """Lengths, and the same in pieces of any size."""
    lengths = draw(LENGTHS)
    at = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=5)))
    return lengths, np.split(np.array(lengths, np.int64), at)


def listed(pieces: list[DocumentRange]) -> list[tuple[int, int]]:
    return [(piece.source, number) for piece in pieces for number in range(piece.first, piece.end)]


@given(st.lists(st.integers(0, 9), max_size=6), st.data())
def test_a_cut_is_in_order_disjoint_and_complete(counts: list[int], data: st.DataObject) -> None:
    total = sum(counts)
    borders = sorted(data.draw(st.lists(st.integers(0, total), max_size=6)))
    parts = cut(whole(counts), borders)
    everything = listed(whole(counts))
    for part, begin, end in zip(parts, [0, *borders], [*borders, total], strict=True):
        assert listed(part) == everything[begin:end]
        assert all(piece.num_documents for piece in part)
    joined = ranges_of(parts)
    assert listed(joined) == everything
    assert len(joined) == len([count for count in counts if count])
    assert ranges_of([[DocumentRange(0, 0, 2)], [DocumentRange(0, 3, 1), DocumentRange(1, 4, 1)]]) == [
        DocumentRange(0, 0, 2),
        DocumentRange(0, 3, 1),
        DocumentRange(1, 4, 1),
    ]


@given(chunked(), st.integers(1, 60))
def test_shards_end_before_they_grow_too_long(case: tuple[list[int], list[np.ndarray]], most: int) -> None:
    lengths, chunks = case
    wanted, tokens, is_empty = [], 0, True
    for number, length in enumerate(lengths):
        if not is_empty and tokens + length > most:
            wanted.append(number)
            tokens = 0
        tokens, is_empty = tokens + length, False
    assert shard_borders(chunks, most) == wanted


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 8))
def test_shards_of_at_most_so_many_documents(counts: list[int], most: int) -> None:
    parts = limited(whole(counts), most)
    sizes = [sum(piece.num_documents for piece in part) for part in parts]
    assert [one for part in parts for one in listed(part)] == listed(whole(counts))
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == max(1, -(-sum(counts) // most))
    assert limited(whole(counts), None) == [whole(counts)]


@given(chunked(), st.integers(1, 9))
def test_parts_have_equal_tokens_as_near_as_documents_allow(
    case: tuple[list[int], list[np.ndarray]], num_parts: int
) -> None:
    lengths, chunks = case
    total = sum(lengths)
    borders = part_borders(chunks, num_parts, num_documents=len(lengths), num_tokens=total)
    assert len(borders) == num_parts - 1
    assert borders == sorted(borders)
    assert all(0 <= border <= len(lengths) for border in borders)
    before = [sum(lengths[:border]) for border in range(len(lengths) + 1)]
    for part, border in enumerate(borders, 1):
        nearest = min(abs(tokens * num_parts - part * total) for tokens in before)
        assert abs(before[border] * num_parts - part * total) == nearest


def test_parts_by_hand() -> None:
    assert part_borders([np.array([5, 1, 1, 1, 2])], 2, num_documents=5, num_tokens=10) == [1]
    assert part_borders([np.array([1, 2, 1])], 2, num_documents=3, num_tokens=4) == [1]
    assert part_borders([np.array([9, 1])], 3, num_documents=2, num_tokens=10) == [0, 1]
    assert part_borders([np.array([0, 0, 0, 0])], 2, num_documents=4, num_tokens=0) == [2]


@given(st.integers(0, 3000), st.sampled_from(["969,30,1", "98/1/1", "1,0,1", "5", "50,50"]))
def test_splits_are_megatrons(num_documents: int, split: str) -> None:
    found = named_split(split, num_documents, era="core", names=("a", "b", "c"))
    wanted = zip("abc", split_ranges(split, num_documents, era="core"), strict=True)
    assert found == [(name, *part) for name, part in wanted if part is not None]
    assert found[0][1] == 0
    assert [end for _, _, end in found[:-1]] == [first for _, first, _ in found[1:]]
    assert found[-1][2] == num_documents


def test_a_split_needs_a_name_for_each_part() -> None:
    assert [name for name, _, _ in named_split("9,1", 10, era="legacy", names=("x", "y"))] == ["x", "y"]
    with pytest.raises(ConfigError, match=r"2.*'8,1,1'.*3"):
        named_split("8,1,1", 10, era="core", names=("x", "y"))
    with pytest.raises(ConfigError, match=r"4.*names"):
        named_split("8,1,1", 10, era="core", names=("x", "y", "z", "a"))
