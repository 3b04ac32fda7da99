"""Best-fit over the histogram: the packs of the plain quadratic one, in its order, with its rooms."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packs_plainly
from counts import cases
from headrace.plan.packing import Placement, place

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
    assert placement.room_left_squares == sum(room * room for room in rooms)


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


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_quadratic_one_for_many_documents(seed: int) -> None:
    """Enough of them that runs of packs are split, joined by others of the same room, and split again."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(20, 200))
    check(np.minimum(rng.lognormal(np.log(capacity / 6), 1, 600).astype(np.int64), capacity).tolist(), capacity)
    check(rng.choice(rng.integers(1, capacity // 2, 5), 600).tolist(), capacity)


@settings(max_examples=cases(40, 5_000), deadline=None)
@given(st.integers(20, 200), st.integers(3, 11), st.integers(20, 120), st.integers(0, 2**32))
def test_it_is_the_quadratic_one_for_many_of_a_few_lengths(capacity: int, few: int, many: int, seed: int) -> None:
    """Several runs of packs have the same room, and one of them is taken from before all of it is filled."""
    rng = np.random.default_rng(seed)
    check(rng.choice(rng.integers(1, capacity // 2 + 2, few), many).tolist(), capacity)


@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 0, 0], [1], [10], [3] * 7, [10] * 4, list(range(11)), list(range(10, -1, -1)), [1] * 25]
)
def test_special_sets(lengths: list[int]) -> None:
    check(lengths, 10)


def test_a_capacity_of_one() -> None:
    check([1, 0, 1, 1], 1)


def test_the_example_of_the_docstring() -> None:
    placement = place(np.bincount([7, 7, 7, 3, 3, 2], minlength=11))
    assert placement.num_packs == 3
    events = (placement.first, placement.packs, placement.each, placement.before)
    assert np.stack(events, axis=1).tolist() == [[0, 3, 1, 0], [0, 2, 1, 1], [2, 1, 1, 1]]
    assert (placement.room_left, placement.room_left_squares) == (1, 1)


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        # Both packs have room 3 at the end, and the second came to it first: with 42, before the first one with 37.
        ([60, 55, 42, 37, 2], [[0, 3], [1, 2, 4]]),
        # The least room that is enough, not the first pack: 45 leaves less than 40 does.
        ([60, 55, 41, 40], [[0, 3], [1, 2]]),
        # Both have room 40 from the beginning on.
        ([60, 60, 30, 5], [[0, 2, 3], [1]]),
        # The 3 goes to one of the two packs with 42 and room 3; the other of them stays ahead of those with 37.
        ([60, 60, 55, 55, 42, 42, 37, 37, 3, 2], [[0, 6], [1, 7], [2, 4, 8], [3, 5, 9]]),
        # Equal documents in their own order.
        ([20, 60, 20, 60, 20], [[1, 0, 2], [3, 4]]),
    ],
)
def test_ties(lengths: list[int], wanted: list[list[int]]) -> None:
    assert laid_out(place(np.bincount(lengths, minlength=101)), lengths) == wanted


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
    assert placement.room_left_squares == ((1 << 34) - 1) * room**2 + (room - 30) ** 2
    assert placement.room_left_squares > 2**63
