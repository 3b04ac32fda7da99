"""The validator finds every single change of a packed batch that does not happen to give another right one."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_made
from counts import cases
from headrace.errors import HeadraceError
from headrace.plan.packed_check import check_packed, verify_packed
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


@settings(max_examples=cases(40, 10_000), deadline=None)
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


@settings(max_examples=cases(40, 10_000), deadline=None)
@given(BATCHES, st.data())
def test_with_fewer_fields_too(batch: Batch, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(OPTIONAL)))
    some = {name: value for name, value in batch.items() if name in kept or name not in OPTIONAL}
    assert check_packed(some) == []
    name = data.draw(st.sampled_from(sorted(set(some) - {"sample_positions"})))
    change(data, some, name)
    if not check_packed(some, padding_idx=0):
        assert is_right(some, 0), "what is not found could be right"


@settings(max_examples=cases(20, 1000), deadline=None)
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
