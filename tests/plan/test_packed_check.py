"""The validator finds every single change of a packed batch that does not happen to give another right one."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_made
from counts import cases
from headrace.errors import ConfigError, HeadraceError
from headrace.plan import segments
from headrace.plan.packed_check import check_packed, verify_packed
from headrace.plan.segments import context_parallel_indices
from packs_made import Batch, Piece

SIZES = st.tuples(st.integers(1, 8), st.sampled_from([1, 1, 2]))
BATCHES = SIZES.flatmap(
    lambda size: packs_made.drawn_rows(seq_len=size[0] * size[1], multiple=size[1], vocabulary=4).map(
        lambda rows: packs_made.make(rows, size[0] * size[1])
    )
)
OPTIONAL = ["loss_mask", "seq_idx", "seq_lens", "cu_seqlens", "max_seqlen",
            "num_supervised_tokens", "step_supervised_tokens", "sample_positions"]  # fmt: skip
CHANGED = sorted({"input_ids", "labels", "position_ids", "document_ids", *OPTIONAL} - {"sample_positions"})


def change(data: st.DataObject, batch: Batch, name: str) -> tuple[int, ...]:
    """Another value at one place of one field."""
    if isinstance(batch[name], int):
        batch[name] += data.draw(st.integers(-3, 3).filter(bool))
        return ()
    values = batch[name]
    place = tuple(data.draw(st.integers(0, size - 1)) for size in values.shape)
    if values.dtype == np.bool_:
        values[place] = not values[place]
        return place
    other = st.sampled_from([-100, -1, 0, 1, 2, 3, int(values[place]) + 1, int(values[place]) - 1])
    values[place] = data.draw(other.filter(lambda value: value != values[place]))
    return place


def is_right(batch: Batch, padding_idx: int) -> bool:
    """Whether the plain way makes just this batch of the pieces that it seems to hold."""
    made = packs_made.make(packs_made.read_back(batch), batch["input_ids"].shape[1], padding_idx=padding_idx)
    if "step_supervised_tokens" in batch:
        made["step_supervised_tokens"] = max(batch["step_supervised_tokens"], made["num_supervised_tokens"])
    return all(bool((made[name] >= low).all()) for name, low in (("input_ids", 0), ("document_ids", -1))) and (
        bool(((made["labels"] >= 0) | (made["labels"] == -100)).all()) and packs_made.same(batch, made)
    )


@settings(max_examples=cases(20, 10_000), deadline=None)
@given(BATCHES, st.data())
def test_found_just_where_it_is_wrong(batch: Batch, data: st.DataObject) -> None:
    assert check_packed(batch, padding_idx=0) == []
    before = copy.deepcopy(batch)
    name = data.draw(st.sampled_from(CHANGED))
    place = change(data, batch, name)
    found = check_packed(batch, padding_idx=0)
    assert bool(found) != is_right(batch, 0)
    if not found:
        assert may_stay_hidden(before, batch, name, place), f"{name} at {place} was {before[name]}, is {batch[name]}"


def may_stay_hidden(before: Batch, after: Batch, name: str, place: tuple[int, ...]) -> bool:
    """The changes that leave another right batch even where every field is there."""
    if name == "step_supervised_tokens":
        return bool(after[name] >= after["num_supervised_tokens"])
    if name not in ("input_ids", "labels", "document_ids"):
        return False
    row, column = place
    if name == "input_ids":
        return bool(before["position_ids"][place] == 0 or before["labels"][row, column - 1] == -100)
    end = before["position_ids"].shape[1]
    last_of_document = column + 1 == end or before["document_ids"][row, column + 1] != before["document_ids"][place]
    last_of_document |= bool(column + 1 < end and before["position_ids"][row, column + 1] == 0)
    if name == "labels":
        return bool(last_of_document and before["labels"][place] >= 0 <= after["labels"][place])
    # A document of one token under another number; or a pad that could be a last token, or a last token a pad.
    alone = before["position_ids"][place] == 0 and last_of_document
    return bool(alone or -1 in (before[name][place], after[name][place]))


@settings(max_examples=cases(20, 10_000), deadline=None)
@given(BATCHES, st.data())
def test_with_fewer_fields_too(batch: Batch, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(OPTIONAL)))
    some = {name: value for name, value in batch.items() if name in kept or name not in OPTIONAL}
    assert check_packed(some) == []
    name = data.draw(st.sampled_from(sorted(set(some) - {"sample_positions"})))
    change(data, some, name)
    if not check_packed(some, padding_idx=0):
        assert is_right(some, 0), "what is not found could be right"


@settings(max_examples=cases(12, 1000), deadline=None)
@given(BATCHES, st.data())
def test_items_as_well(batch: Batch, data: st.DataObject) -> None:
    pieces = packs_made.read_back(batch)[0]
    item = packs_made.item(pieces, batch["input_ids"].shape[1])
    assert check_packed(item) == []
    name = data.draw(st.sampled_from(["position_ids", "loss_mask", "cu_seqlens", "seq_lens", "max_seqlen", "seq_idx"]))
    change(data, item, name)
    assert check_packed(item)
    assert not any("row" in finding.partition(":")[0] for finding in check_packed(item))


def example() -> Batch:
    rows = [
        [Piece(4, (5, 6, 7), (True,) * 3), Piece(9, (8,), (True,), after=3, pads=1)],
        [Piece(2, (1, 2), (True,) * 2, pads=1)],
    ]
    return packs_made.make(rows, 7, padding_idx=11)


def test_another_padding() -> None:
    batch = example()
    assert check_packed(batch) == check_packed(batch, padding_idx=11) == []
    (finding,) = check_packed(batch, padding_idx=0)
    assert re.match(r"row 0, column 4: input_ids is 11.* 0 \(and at 7 more\)", finding)
    batch["input_ids"][1, 4] = 12
    (finding,) = check_packed(batch)
    assert re.match("row 1, column 4: input_ids is 12.* 11$", finding)


SHAPE = np.zeros((2, 6), dtype=np.int64)


@pytest.mark.parametrize(
    ("name", "place", "value", "named"),
    [
        ("labels", (0, 1), 9, "row.*0.*column.*1.*labels.*9.*7"),
        ("labels", (1, 6), 1, "row.*1.*column.*6.*labels.*1.*-100"),
        ("labels", (0, 2), -7, "row.*0.*column.*2.*labels.*-7.*-100"),
        ("loss_mask", (0, 3), False, "row.*0.*column.*3.*loss_mask.*False.*True"),
        ("position_ids", (0, 2), 5, "row.*0.*column.*2.*position_ids.*5"),
        ("position_ids", (1, 0), 1, "row.*1.*column.*0.*position_ids.*1.*0"),
        ("document_ids", (0, 1), 3, "row.*0.*column.*1.*document_ids.*3.*segment"),
        ("document_ids", (0, 3), -1, "row.*0.*column.*5.*document_ids.*-1.*pads"),
        ("document_ids", (0, 0), -2, "row.*0.*column.*0.*document_ids.*-2"),
        ("input_ids", (0, 0), -5, "row.*0.*column.*0.*input_ids.*-5"),
        ("seq_idx", (0, 3), 0, "row.*0.*column.*3.*seq_idx.*0.*1"),
        ("cu_seqlens", (1,), 4, r"cu_seqlens\[1\].*4.*3"),
        ("seq_lens", (0,), 4, r"seq_lens\[0\].*4.*3"),
        ("max_seqlen", None, 5, "max_seqlen.*5.*4"),
        ("max_seqlen", None, np.int64(4), "max_seqlen.*int64.*int.*4"),
        ("num_supervised_tokens", None, 3, "num_supervised_tokens.*3.*4"),
        ("step_supervised_tokens", None, 2, "step_supervised_tokens.*2.*4"),
        ("sample_positions", None, np.arange(3), r"sample_positions.*\(3,\).*\(2,\)"),
        ("labels", None, SHAPE, r"labels.*\(2, 6\).*\(2, 7\)"),
        ("seq_idx", None, np.zeros((2, 7), dtype=np.int64), "seq_idx.*int64.*int32"),
        ("cu_seqlens", None, np.array([0, 14], dtype=np.int32), r"cu_seqlens.*\(2,\).*\(6,\)"),
        ("seq_lens", None, np.array([3, 2, 2, 3, 4]), "seq_lens.*int64.*int32"),
        ("input_ids", None, np.int64(3), r"input_ids.*\(\).*\(B, S\)"),
    ],
)
def test_findings_name_the_field_and_the_place(
    name: str, place: tuple[int, ...] | None, value: object, named: str
) -> None:
    batch = example()
    if place is None:
        batch[name] = value
    else:
        batch[name][place] = value
    with pytest.raises(HeadraceError, match=named):
        verify_packed(batch)


def test_what_is_no_packed_batch() -> None:
    (finding,) = check_packed({"labels": np.zeros(3)})
    assert finding.startswith("input_ids, position_ids, document_ids missing")


def test_segments_of_one_document_side_by_side() -> None:
    pieces = [Piece(1, (5, 6), (True, True), after=7), Piece(1, (7, 8), (True, True))]
    item = packs_made.item(pieces, 4)
    assert check_packed(item) == []
    bare = {name: item[name] for name in ("input_ids", "labels", "position_ids", "document_ids")}
    (finding,) = check_packed(bare)
    assert finding.startswith("column 2: document_ids is 1")


def test_no_rows() -> None:
    batch = packs_made.make([], 5)
    assert batch["input_ids"].shape == (0, 5)
    assert check_packed(batch, padding_idx=0) == check_packed(batch) == []
    verify_packed(batch)


# Segments of position ids equal those that a batch was made of; context-parallel ranks hold each token once.


LAID_OUT = st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 4])).flatmap(
    lambda size: packs_made.drawn_rows(seq_len=size[0] * size[1], multiple=size[1]).map(
        lambda rows: packs_made.make(rows, size[0] * size[1])
    )
)
# Two rows of six: documents of 3, 2 and 1 tokens; one of 2, then pads.
POSITIONS = np.array([[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]])
DOCUMENTS = np.array([[7, 7, 7, 8, 8, 9], [5, 5, -1, -1, -1, -1]])


@settings(max_examples=cases(15, 2000), deadline=None)
@given(LAID_OUT)
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


@settings(max_examples=cases(15, 2000), deadline=None)
@given(LAID_OUT)
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


def test_segments_of_no_rows() -> None:
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


@settings(max_examples=cases(12, 1000), deadline=None)
@given(LAID_OUT)
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


@settings(max_examples=cases(20, 2000), deadline=None)
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
