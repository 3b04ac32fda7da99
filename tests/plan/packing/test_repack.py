"""Other epochs, other company: documents of equal length are exchanged, and nothing else changes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_plainly
from counts import cases
from headrace.plan import derive_array
from headrace.plan.packing import Packing, PackItems, PackPlan, plan_packs


def epoch(plan: PackPlan, key: int) -> PackItems:
    packs = np.arange(len(plan))
    return plan.items(packs, np.full(len(packs), key, dtype=np.uint64))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[int], Packing]:
    multiple = draw(st.sampled_from([1, 1, 2]))
    size = multiple * draw(st.integers(2, 20))
    few = draw(st.lists(st.integers(0, 2 * size + 1), min_size=1, max_size=4))
    strategy = draw(st.sampled_from(["best_fit", "best_fit_split"]))
    over_long = "split" if strategy == "best_fit_split" else draw(st.sampled_from(["split", "truncate_left", "drop"]))
    packing = Packing(
        seq_len=size,
        strategy=strategy,  # type: ignore[arg-type]
        over_long=over_long,  # type: ignore[arg-type]
        repack=True,
        segment_multiple=multiple,
    )
    return draw(st.lists(st.sampled_from(few), max_size=60)), packing


@settings(max_examples=cases(40, 5_000), deadline=None)
@given(drawn(), st.integers(0, 2**64 - 1))
def test_only_pieces_that_take_the_same_room_change_places(drawn: tuple[list[int], Packing], key: int) -> None:
    lengths, packing = drawn
    plan = plan_packs(np.array(lengths, dtype=np.int64), packing)
    base, other = plan.items(np.arange(len(plan))), epoch(plan, key)
    assert base.offsets.tolist() == other.offsets.tolist()
    multiple = packing.segment_multiple
    assert (-(-base.lengths // multiple)).tolist() == (-(-other.lengths // multiple)).tolist()
    if multiple == 1:
        assert base.lengths.tolist() == other.lengths.tolist()
    before, after = (
        sorted(piece for pack in packs_plainly.unpacked(items) for piece in pack) for items in (base, other)
    )
    assert before == after, "every piece of every document exactly once"


def test_keys_mean_nothing_without_repack() -> None:
    lengths = np.tile(np.arange(1, 9), 20)
    plan = plan_packs(lengths, Packing(seq_len=16))
    assert [a.tolist() for a in epoch(plan, 5)] == [a.tolist() for a in plan.items(np.arange(len(plan)))]


@pytest.fixture
def plan() -> PackPlan:
    """5,000 documents of up to 256 tokens, some of them split, packed into 128."""
    lengths = np.clip(np.random.default_rng(3).lognormal(3.3, 0.8, 5_000).astype(np.int64), 1, 256)
    return plan_packs(lengths, Packing(seq_len=128, strategy="best_fit_split", repack=True))


def test_each_pack_by_the_key_of_its_own_epoch(plan: PackPlan) -> None:
    """Packs of two epochs in one batch, as at the end of an epoch."""
    packs = np.random.default_rng(4).integers(0, len(plan), 40)
    keys = np.array([7, 8], dtype=np.uint64)[np.arange(40) % 2]
    mixed = packs_plainly.unpacked(plan.items(packs, keys))
    apart = [packs_plainly.unpacked(epoch(plan, key)) for key in (7, 8)]
    assert mixed == [apart[i % 2][pack] for i, pack in enumerate(packs.tolist())]


def meetings(items: PackItems) -> set[tuple[int, int]]:
    """Pairs of documents that lie in a pack together."""
    documents = items.documents.tolist()
    bounds = zip(items.offsets[:-1].tolist(), items.offsets[1:].tolist(), strict=True)
    return {pair for begin, end in bounds for pair in combinations(sorted(documents[begin:end]), 2)}


def test_who_met_in_one_epoch_mostly_does_not_in_the_next(plan: PackPlan) -> None:
    epochs = [meetings(epoch(plan, key)) for key in derive_array(1, np.arange(4)).tolist()]
    epochs.append(meetings(plan.items(np.arange(len(plan)))))
    for one, other in combinations(epochs, 2):
        # Some lengths are so rare that their documents have nobody to change with.
        assert len(one & other) < 0.1 * len(one)
    again = meetings(epoch(plan, int(derive_array(1, np.array([0]))[0])))
    assert again == epochs[0]


def test_lengths_that_are_equally_frequent_are_exchanged_apart() -> None:
    """In each pack lie a 6 and a 4, as many of one as of the other: those that met first are not moved together."""
    plan = plan_packs(np.repeat([6, 4], 500), Packing(seq_len=10, repack=True))
    epochs = [meetings(epoch(plan, key)) for key in derive_array(6, np.arange(3)).tolist()]
    for one, other in combinations([*epochs, meetings(plan.items(np.arange(500)))], 2):
        assert len(one & other) < 12


def test_each_document_comes_to_every_place_of_its_length() -> None:
    """60 documents of one length in 30 packs: over many epochs each is everywhere about equally often."""
    plan = plan_packs(np.full(60, 3), Packing(seq_len=6, repack=True))
    seen = np.zeros((60, 30))
    for key in derive_array(2, np.arange(600)).tolist():
        items = epoch(plan, key)
        seen[items.documents, np.repeat(np.arange(30), 2)] += 1
    assert seen.sum(axis=1).tolist() == [600] * 60
    # Each is 20 by luck; a place that a document never comes to, or comes to all the time, is not luck.
    assert ((seen - 20) ** 2 / 20).sum() < 1.15 * seen.size
    assert 2 <= seen.min() <= seen.max() <= 48
