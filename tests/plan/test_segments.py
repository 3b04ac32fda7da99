"""Segments of position ids equal those that a batch was made of; context-parallel ranks hold each token once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_made
from counts import cases
from headrace.errors import ConfigError
from headrace.plan import segments
from headrace.plan.segments import context_parallel_indices

BATCHES = st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 4])).flatmap(
    lambda size: packs_made.drawn_rows(seq_len=size[0] * size[1], multiple=size[1]).map(
        lambda rows: packs_made.make(rows, size[0] * size[1])
    )
)
# Two rows of six: documents of 3, 2 and 1 tokens; one of 2, then pads.
POSITIONS = np.array([[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]])
DOCUMENTS = np.array([[7, 7, 7, 8, 8, 9], [5, 5, -1, -1, -1, -1]])


@settings(max_examples=cases(30, 2000), deadline=None)
@given(BATCHES)
def test_forms_equal_what_a_batch_was_made_of(batch: packs_made.Batch) -> None:
    positions = batch["position_ids"]
    for found, name in (
        (segments.cu_seqlens(positions), "cu_seqlens"),
        (segments.seq_lens(positions), "seq_lens"),
        (segments.seq_idx(positions), "seq_idx"),
    ):
        assert found.dtype == np.int32
        assert np.array_equal(found, batch[name])
        assert found.shape == batch[name].shape
    assert segments.max_seqlen(positions) == batch["max_seqlen"]
    row = segments.seq_idx(positions[0])
    assert row.shape == positions[0].shape
    assert np.array_equal(row, batch["seq_idx"][0])


@settings(max_examples=cases(30, 2000), deadline=None)
@given(BATCHES)
def test_real_lengths_are_those_without_pads(batch: packs_made.Batch) -> None:
    real = segments.real_cu_seqlens(batch["cu_seqlens"], batch["document_ids"])
    expected = []
    documents = batch["document_ids"].reshape(-1)
    for begin, end in zip(batch["cu_seqlens"], batch["cu_seqlens"][1:], strict=False):
        tokens = sum(document != -1 for document in documents[begin:end])
        expected.append(tokens or end - begin)
    assert np.diff(real).tolist() == expected
    assert real[0] == 0
    assert real.dtype == np.int32
    assert (np.diff(real) > 0).all()
    assert (np.diff(real) <= np.diff(batch["cu_seqlens"])).all()


def test_no_rows() -> None:
    none = np.empty((0, 6), dtype=np.int64)
    assert segments.cu_seqlens(none).tolist() == [0]
    assert segments.seq_lens(none).tolist() == []
    assert segments.seq_idx(none).shape == (0, 6)
    assert segments.max_seqlen(none) == 0
    assert segments.real_cu_seqlens(segments.cu_seqlens(none), none).tolist() == [0]
    assert segments.megatron_cu_seqlens(none)["cu_seqlens"].shape == (0, 7)
    assert segments.nemo_cu_seqlens(none)["cu_seqlens_argmin"].shape == (0, 1)


def test_megatron_repeats_the_last_border() -> None:
    form = segments.megatron_cu_seqlens(POSITIONS)
    assert form["cu_seqlens"].tolist() == [[0, 3, 5, 6, 6, 6, 6], [0, 2, 6, 6, 6, 6, 6]]
    assert form["max_seqlen"].tolist() == [3, 4]
    assert form["cu_seqlens"].dtype == form["max_seqlen"].dtype == np.int32
    assert segments.megatron_cu_seqlens(POSITIONS, num_entries=4)["cu_seqlens"].tolist() == [[0, 3, 5, 6], [0, 2, 6, 6]]
    folded = segments.megatron_cu_seqlens(POSITIONS, DOCUMENTS)
    assert folded["cu_seqlens"].tolist() == [[0, 3, 5, 6, 6, 6, 6], [0, 6, 6, 6, 6, 6, 6]]
    assert folded["max_seqlen"].tolist() == [3, 6]
    with pytest.raises(ConfigError, match=r"3.*4.*num_entries"):
        segments.megatron_cu_seqlens(POSITIONS, num_entries=3)


@settings(max_examples=cases(20, 1000), deadline=None)
@given(BATCHES)
def test_fixed_forms_hold_each_rows_borders(batch: packs_made.Batch) -> None:
    positions, documents = batch["position_ids"], batch["document_ids"]
    size = positions.shape[1]
    megatron, nemo = segments.megatron_cu_seqlens(positions), segments.nemo_cu_seqlens(positions)
    folded = segments.megatron_cu_seqlens(positions, documents)
    both = segments.nemo_cu_seqlens(positions, documents)
    assert [values.dtype.name for values in nemo.values()] == ["int32", "int64", "int32"]
    assert np.array_equal(nemo["cu_seqlens"].argmin(axis=1), nemo["cu_seqlens_argmin"][:, 0])
    merged = [0]
    for row in range(len(positions)):
        own = segments.cu_seqlens(positions[row]).tolist()
        assert megatron["cu_seqlens"][row].tolist() == own + [size] * (size + 1 - len(own))
        assert nemo["cu_seqlens"][row].tolist() == own + [-1] * (nemo["cu_seqlens"].shape[1] - len(own))
        assert megatron["max_seqlen"][row] == nemo["max_seqlen"][row, 0] == max(np.diff(own))
        merged += [row * size + border for border in own[1:]]
        begins_with_pads = [b for b in own[1:-1] if documents[row, b] == -1]
        assert sorted({*folded["cu_seqlens"][row].tolist()}) == [b for b in own if b not in begins_with_pads]
        assert {*both["cu_seqlens"][row].tolist()} - {-1} == {*folded["cu_seqlens"][row].tolist()}
    assert merged == segments.cu_seqlens(positions).tolist(), "the rows' borders one after another, as Megatron merges"


def test_what_is_no_segment_is_refused() -> None:
    # A pack that goes on with a document's positions, as torchtune has it.
    with pytest.raises(ConfigError, match=r"1.*position.*3"):
        segments.cu_seqlens(np.array([[0, 1, 2], [3, 0, 1]]))
    with pytest.raises(ConfigError, match=r"0.*position.*4"):
        segments.seq_idx(np.array([4, 5]))
    with pytest.raises(ConfigError, match=r"shape.*1.*1"):
        segments.seq_lens(np.zeros((1, 1, 1), dtype=np.int64))
    with pytest.raises(ConfigError, match=r"0.*12.*tokens"):
        segments.real_cu_seqlens(np.array([0, 6], dtype=np.int32), DOCUMENTS)


def test_more_tokens_than_int32_are_refused() -> None:
    many = np.broadcast_to(np.zeros(1, dtype=np.int64), (2, 1 << 30))
    with pytest.raises(ConfigError, match="2,147,483,648"):
        segments.cu_seqlens(many)


def plainly(lengths: list[int], cp_size: int, rank: int) -> list[int]:
    """Segment by segment, chunk by chunk."""
    taken: list[int] = []
    begin = 0
    for length in lengths:
        chunk = length // (2 * cp_size)
        for number in (rank, 2 * cp_size - 1 - rank):
            taken += range(begin + number * chunk, begin + (number + 1) * chunk)
        begin += length
    return taken


@settings(max_examples=cases(40, 2000), deadline=None)
@given(st.integers(2, 8), st.lists(st.integers(0, 4), max_size=6))
def test_each_token_once_and_back(cp_size: int, chunks: list[int]) -> None:
    lengths = [2 * cp_size * chunk for chunk in chunks]
    borders = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
    total = sum(lengths)
    parts = [context_parallel_indices(borders, cp_size, rank) for rank in range(cp_size)]
    for rank, part in enumerate(parts):
        assert part.dtype == np.int64
        assert part.tolist() == plainly(lengths, cp_size, rank)
        # Causal work: each rank's tokens see equally many, up to the triangles on the diagonal.
        assert len(part) * cp_size == total
        assert 2 * int(part.sum()) == len(part) * (total - 1) or len(set(lengths) - {0}) > 1
    together = np.concatenate(parts)
    assert sorted(together.tolist()) == list(range(total))


def test_one_rank_holds_segments_of_any_length() -> None:
    borders = np.array([0, 3, 4], dtype=np.int32)
    assert context_parallel_indices(borders, 1, 0).tolist() == [0, 1, 2, 3]


def test_a_segment_that_does_not_divide_is_named() -> None:
    with pytest.raises(ConfigError, match=r"1.*8.*14"):
        context_parallel_indices(np.array([0, 8, 14, 16], dtype=np.int32), 2, 0)


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_no_such_rank(size: int, rank: int) -> None:
    with pytest.raises(ConfigError, match=rf"{rank}"):
        context_parallel_indices(np.array([0, 8], dtype=np.int32), size, rank)


@pytest.mark.parametrize("borders", [[], [4, 8], [0, 8, 4], [[0, 8]]])
def test_what_is_no_prefix_sum_is_refused(borders: list[int]) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        context_parallel_indices(np.array(borders, dtype=np.int32), 2, 0)
