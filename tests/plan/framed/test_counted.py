"""Units that become none, one or several: the same from any state, and what they are made of is used once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.plan.framed import Framing, Items, Lane, Lanes, LaneState, Selected, Singles, Unit
from headrace.plan.keys import IntArray
from plan.framed.simulated import finder, in_pairs, pairs


def how_many(items: Items, chosen: Sequence[IntArray]) -> list[int]:
    return [int(items.positions[rows[0]]) % 4 for rows in chosen]


def walked(lane: Lane, first: int) -> list[Unit]:
    found = []
    while (unit := lane.unit(first + len(found))) is not None:
        found.append(unit)
    return found


@settings(max_examples=cases(16, 400), deadline=None)
@given(st.integers(0, 9), st.integers(1, 3), st.integers(1, 30), st.integers(0, 200), st.booleans())
def test_counted_units(seed: int, outputs: int, frame: int, length: int, is_single: bool) -> None:
    lanes = Lanes(num_lanes=2, frame_positions=frame, num_positions=length + 1)
    form = Singles() if is_single else Selected(in_pairs)
    find = finder(seed, outputs)
    once = walked(Lane(Framing(lanes, form), find, LaneState(0)), 0)
    lane = Lane(Framing(lanes, form, count=how_many), find, LaneState(0))
    several = walked(lane, 0)
    wanted = [(pairs(unit.items), part) for unit in once for part in range(int(unit.items.positions[0]) % 4)]
    assert [(pairs(unit.items), unit.part) for unit in several] == wanted
    assert [unit.unit for unit in several] == list(range(len(several)))
    assert lane.figures.num_items == sum(unit.items.num_items for unit in once)
    assert lane.figures.num_tokens == sum(int(np.sum(unit.items.lengths)) for unit in once)
    for number in range(0, len(several), 7):
        again = walked(Lane(Framing(lanes, form, count=how_many), find, lane.state(number)), number)
        assert [(pairs(unit.items), unit.part) for unit in again] == wanted[number:]
