"""Best-fit, first-fit and next-fit: the packs of the plain loops, in their order, with their rooms."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_plainly
from counts import cases, python_steps
from headrace.errors import ConfigError
from headrace.plan.packing import Placement, place
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


@settings(max_examples=cases(60, 5_000), deadline=None)
@given(documents(), st.sampled_from([1, 2, 7, 1 << 18]))
def test_it_is_the_quadratic_one(drawn: tuple[list[int], int], spread: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "_SPREAD", spread)
        check(*drawn)


@settings(max_examples=cases(40, 5_000), deadline=None)
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


@settings(max_examples=cases(40, 5_000), deadline=None)
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


@settings(max_examples=cases(60, 5_000), deadline=None)
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
