"""First-fit with a tree against the plain loop."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packs_plainly
from counts import cases
from headrace.plan.packing.fitting import first_fit

MODULE = importlib.import_module("headrace.plan.packing.fitting")


def check(sizes: list[int], capacity: int, dtype: str = "int64") -> None:
    chosen, room = first_fit(np.array(sizes, dtype=dtype), capacity)
    wanted = packs_plainly.first_fit(sizes, capacity)
    assert (chosen.dtype, room.dtype) == (np.uint32, np.int64)
    packs = [np.flatnonzero(chosen == pack).tolist() for pack in range(len(room))]
    assert packs == wanted
    assert len(chosen) == len(sizes)
    assert room.tolist() == [capacity - sum(sizes[number] for number in pack) for pack in wanted]


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], int]:
    capacity = draw(st.integers(1, 40))
    shortest = draw(st.sampled_from([1, (capacity + 1) // 2, capacity]))
    return draw(st.lists(st.integers(shortest, capacity), max_size=80)), capacity


@settings(max_examples=cases(40, 5_000), deadline=None)
@given(documents(), st.sampled_from([1, 3, 1 << 18]), st.sampled_from(["int32", "int64", "uint32"]))
def test_it_is_the_plain_loop(drawn: tuple[list[int], int], chunk: int, dtype: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "CHUNK", chunk)
        check(*drawn, dtype)


@pytest.mark.parametrize("num_packs", [1023, 1024, 1025, 2048, 2049, 4100])
def test_the_tree_grows(num_packs: int) -> None:
    """Each pack is opened by one that leaves room for one more; these come last, and the first packs get them."""
    sizes = np.array([7] * num_packs + [3] * (num_packs // 2))
    chosen, room = first_fit(sizes, 10)
    assert chosen.tolist() == [*range(num_packs), *range(num_packs // 2)]
    assert room.tolist() == [0] * (num_packs // 2) + [3] * (num_packs - num_packs // 2)


def test_many_packs_with_little_room() -> None:
    rng = np.random.default_rng(1)
    check(rng.integers(30, 70, 1_500).tolist(), 100)
