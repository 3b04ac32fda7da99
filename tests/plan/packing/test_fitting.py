"""Best-fit, first-fit and next-fit beside plain loops, at any size, and packs that change places in each epoch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_plainly
from counts import cases, python_steps
from headrace.errors import ConfigError
from headrace.plan import derive_array
from headrace.plan.packing import MAX_DOCUMENTS, Packing, PackItems, PackPlan, Placement, place, plan_packs
from headrace.plan.packing.fitting import first_fit, next_fit

MODULE = importlib.import_module("headrace.plan.packing.fitting")


def laid_out(placement: Placement, lengths: list[int]) -> list[list[int]]:
    """The documents of each pack, in order."""
    sizes = np.array(lengths, dtype=np.int64)
    handed_out = np.argsort(-sizes, kind="stable")
    handed_out = handed_out[sizes[handed_out] > 0]
    bounds = placement.bounds()
    places = np.concatenate([np.zeros(0, dtype=np.int64), *placement.places(bounds)])
    assert np.array_equal(np.sort(places), np.arange(len(handed_out))), "each place is taken by one document"
    found = np.empty_like(handed_out)
    found[places] = handed_out
    return [pack.tolist() for pack in np.split(found, bounds[1:-1].astype(np.int64))] if len(bounds) > 1 else []


def check(lengths: list[int], capacity: int) -> None:
    placement = place(np.bincount(np.array(lengths, dtype=np.int64), minlength=capacity + 1))
    some = [number for number, length in enumerate(lengths) if length]
    wanted = [[some[i] for i in pack] for pack in packs_plainly.best_fit([lengths[i] for i in some], capacity)]
    assert laid_out(placement, lengths) == wanted
    rooms = [capacity - sum(lengths[number] for number in pack) for pack in wanted]
    assert placement.num_packs == len(wanted)
    assert placement.room_left == sum(rooms)


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], int]:
    capacity = draw(st.integers(1, 60))
    longest = draw(st.integers(1, capacity))
    few = st.lists(st.integers(0, longest), min_size=1, max_size=3).flatmap(st.sampled_from)
    return draw(st.lists(st.integers(0, longest), max_size=80) | st.lists(few, max_size=80)), capacity


@settings(max_examples=cases(30, 5_000), deadline=None)
@given(documents(), st.sampled_from([1, 2, 7, 1 << 18]))
def test_it_is_the_quadratic_one(drawn: tuple[list[int], int], spread: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "_SPREAD", spread)
        check(*drawn)


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(st.integers(20, 200), st.integers(3, 11), st.integers(20, 120), st.integers(0, 2**32))
def test_it_is_the_quadratic_one_for_many_of_a_few_lengths(capacity: int, few: int, many: int, seed: int) -> None:
    """Several runs of packs have the same room, and one of them is taken from before all of it is filled."""
    rng = np.random.default_rng(seed)
    check(rng.choice(rng.integers(1, capacity // 2 + 2, few), many).tolist(), capacity)


def test_documents_of_millions_of_tokens_and_hundreds_of_millions_of_documents() -> None:
    """Counts and squares beyond 2^31, 2^32 and 2^63; no array is as long as the documents are many."""
    capacity = 1 << 22
    counts = np.zeros(capacity + 1, dtype=np.int64)
    counts[capacity // 2 + 1] = 1 << 34
    counts[3] = 10
    placement = place(counts)
    assert placement.num_packs == 1 << 34
    room = capacity // 2 - 1
    # All ten of the short ones go to the first pack.
    assert placement.room_left == (1 << 34) * room - 30


def check_first_fit(sizes: list[int], capacity: int, dtype: str = "int64") -> None:
    chosen, room = first_fit(np.array(sizes, dtype=dtype), capacity)
    wanted = packs_plainly.first_fit(sizes, capacity)
    assert (chosen.dtype, room.dtype) == (np.uint32, np.int64)
    packs = [np.flatnonzero(chosen == pack).tolist() for pack in range(len(room))]
    assert packs == wanted
    assert len(chosen) == len(sizes)
    assert room.tolist() == [capacity - sum(sizes[number] for number in pack) for pack in wanted]


@st.composite
def documents_in_order(draw: st.DrawFn) -> tuple[list[int], int]:
    capacity = draw(st.integers(1, 40))
    shortest = draw(st.sampled_from([1, (capacity + 1) // 2, capacity]))
    return draw(st.lists(st.integers(shortest, capacity), max_size=80)), capacity


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(documents_in_order(), st.sampled_from([1, 3, 1 << 18]), st.sampled_from(["int32", "int64", "uint32"]))
def test_it_is_the_plain_loop(drawn: tuple[list[int], int], chunk: int, dtype: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "CHUNK", chunk)
        check_first_fit(*drawn, dtype)


@pytest.mark.parametrize("num_packs", [1023, 1024, 1025, 2048, 2049, 4100])
def test_the_tree_grows(num_packs: int) -> None:
    """Each pack is opened by one that leaves room for one more; these come last, and the first packs get them."""
    sizes = np.array([7] * num_packs + [3] * (num_packs // 2))
    chosen, room = first_fit(sizes, 10)
    assert chosen.tolist() == [*range(num_packs), *range(num_packs // 2)]
    assert room.tolist() == [0] * (num_packs // 2) + [3] * (num_packs - num_packs // 2)


def naive(lengths: list[int], seq_len: int) -> list[int]:
    bounds, held = [0], 0
    for document, length in enumerate(lengths):
        if held + length > seq_len:
            bounds.append(document)
            held = 0
        held += length
    return [*bounds, len(lengths)] if any(lengths) else [len(lengths)]


@st.composite
def documents_up_to_it(draw: st.DrawFn) -> tuple[list[int], int]:
    seq_len = draw(st.one_of(st.integers(1, 20), st.just(2**40)))
    shortest = draw(st.sampled_from([0, seq_len // 2, seq_len]))
    some = st.one_of(st.just(0), st.integers(shortest, seq_len))
    return draw(st.lists(some, max_size=60)), seq_len


@settings(max_examples=cases(30, 5_000), deadline=None)
@given(documents_up_to_it(), st.integers(1, 9))
def test_it_is_the_plain_loop_for_any_chunk(drawn: tuple[list[int], int], chunk: int) -> None:
    lengths, seq_len = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "_CHUNK", chunk)
        bounds = next_fit(np.array(lengths, dtype=np.int64), seq_len)
    assert bounds.dtype == np.int64
    assert bounds.tolist() == naive(lengths, seq_len)


def test_it_is_quick() -> None:
    """20 million documents_up_to_it a second are promised: what a Python step a document cannot reach."""
    lengths = np.full(1_000_000, 410, dtype=np.int64)
    assert len(next_fit(lengths, 4100)) == 100_001
    assert python_steps(lambda: next_fit(lengths, 4100)) < 500_000, "three lines a sample"


@pytest.mark.parametrize("wrong", [-1, 9])
def test_a_length_out_of_range_is_named(wrong: int) -> None:
    lengths = np.zeros(40_000, dtype=np.int64)
    lengths[30_001] = wrong
    lengths[0] = 8
    with pytest.raises(ConfigError, match=rf"30001.*{wrong}.*0"):
        next_fit(lengths, 8)
    with pytest.raises(ConfigError, match=r"seq_len.*1.*0"):
        next_fit(lengths, 0)


LONGEST = 1 << 22


class HugeLengths:
    """Runs of documents of the same length, as (documents, length), a million at a time, of one array."""

    def __init__(self, *runs: tuple[int, int]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return sum(documents for documents, _ in self._runs)

    def chunks(self) -> Iterator[np.ndarray]:
        for documents, length in self._runs:
            for first in range(0, documents, 1 << 20):
                yield np.full(min(1 << 20, documents - first), length)

    def spans(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.repeat([length for _, length in self._runs], [count for count, _ in self._runs])
        return (np.cumsum(lengths) - lengths)[documents], lengths[documents]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["best_fit", "best_fit_split", "greedy", "first_fit"])
def test_documents_of_thousands_of_full_pieces(strategy: Any) -> None:
    """150 documents of 2^33 + 5 tokens: 2^40 tokens, of which every piece lies where it should."""
    length = (1 << 33) + 5
    source = HugeLengths((150, length), (1, 7))
    plan = plan_packs(source, Packing(seq_len=LONGEST, strategy=strategy, over_long="split"))
    ledger = plan.ledger
    assert ledger.raw_tokens == 150 * length + 7 > 1 << 40
    assert ledger.split_remainder_tokens == 750
    assert ledger.packed_tokens == 150 * (length - 5) + 7
    items = plan.items(np.arange(len(plan)))
    order = np.lexsort((items.begins, items.documents))
    documents, begins, lengths = (column[order] for column in (items.documents, items.begins, items.lengths))
    assert documents.tolist() == np.repeat(np.arange(151), [2049] * 150 + [1]).tolist()
    assert np.array_equal(begins[:-1].reshape(150, 2049), np.tile(np.arange(2049) * LONGEST, (150, 1)))
    assert np.array_equal(lengths[:-1].reshape(150, 2049), np.tile([LONGEST] * 2048 + [5], (150, 1)))
    assert np.array_equal(items.starts, items.documents * length + items.begins)
    assert np.array_equal(items.continues[order], np.append(np.tile([True] * 2048 + [False], 150), False))


def test_wrapped_packs_beyond_two_to_the_32() -> None:
    """2^43 tokens in packs of 1,024: twice as many packs as 32 bits can number."""
    plan = plan_packs(HugeLengths((3, 1 << 41), (1, (1 << 41) + 1)), Packing(seq_len=1024, strategy="wrapped"))
    assert len(plan) == (1 << 33) + 1
    last = len(plan) - 1
    items = plan.items(np.array([last, last - 1, 1 << 31]))
    assert items.documents.tolist() == [3, 3, 1]
    assert items.begins.tolist() == [1 << 41, (1 << 41) - 1024, 0]
    assert items.lengths.tolist() == [1, 1024, 1024]
    assert items.starts.tolist() == [1 << 43, (1 << 43) - 1024, 1 << 41]
    assert items.continues.tolist() == [False, True, True]


@pytest.mark.parametrize("over_long", ["truncate_left", "truncate_right", "drop"])
def test_tokens_lost_by_the_thousand_million(over_long: Any) -> None:
    length = (1 << 40) + 3
    plan = plan_packs(HugeLengths((5, length), (1, LONGEST)), Packing(seq_len=LONGEST, over_long=over_long))
    if over_long == "drop":
        assert plan.ledger.dropped_tokens == 5 * length
        assert plan.items(np.arange(len(plan))).documents.tolist() == [5]
        return
    assert plan.ledger.truncated_tokens == 5 * (length - LONGEST)
    items = plan.items(np.arange(len(plan)))
    assert items.begins.tolist() == [length - LONGEST if over_long == "truncate_left" else 0] * 5 + [0]
    assert items.lengths.tolist() == [LONGEST] * 6


def test_more_pieces_than_a_plan_can_number() -> None:
    """One document is enough for it."""
    with pytest.raises(ConfigError, match=r"1.*4,294,967,296.*4,294,967,294"):
        plan_packs(HugeLengths((1, LONGEST << 32)), Packing(seq_len=LONGEST, over_long="split"))
    # Where it is no pieces there are not too many; and without splitting the numbers of documents count alone.
    plan = plan_packs(HugeLengths((1, LONGEST << 32)), Packing(seq_len=LONGEST, over_long="truncate_right"))
    assert (len(plan), MAX_DOCUMENTS) == (1, 2**32 - 2)


def test_more_documents_than_a_plan_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents and full pieces are numbered together. The real bound would take 32 GiB of lengths to pass."""
    monkeypatch.setattr("headrace.plan.packing.lengths.MAX_DOCUMENTS", 10)
    packing = Packing(seq_len=4, over_long="split")
    assert len(plan_packs(np.array([1] * 10), packing)) == 3
    assert len(plan_packs(np.array([1] * 5 + [20]), Packing(seq_len=4, over_long="drop"))) == 2
    for lengths in ([1] * 11, [1] * 5 + [20]):
        with pytest.raises(ConfigError, match=r"documents.*10"):
            plan_packs(np.array(lengths), packing)


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


@settings(max_examples=cases(20, 5_000), deadline=None)
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
