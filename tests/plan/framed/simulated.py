"""Framed runs without samples: what is found at a position is a function of it, and ranks are objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from headrace.loader.framed.parts import coming_steps, lanes_of
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.framed import (
    Find,
    FramedForm,
    Framing,
    Items,
    LaneHistory,
    Lanes,
    LaneState,
    Selected,
    ShuffleBuffer,
    Singles,
    Walk,
    merge_states,
    read_lanes,
    saved_lanes,
)
from headrace.plan.keys import IntArray, derive_array
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing

ROOM = 50
Pairs = tuple[tuple[int, int], ...]


def lengths(name: str, size: int, room: int) -> IntArray:
    """Lengths of megatron.md 4.3, as in benchmarks/packing.py, of at most ``room``."""
    rng = np.random.default_rng(0)
    if name == "bimodal":
        short = rng.random(size) < 0.8
        drawn = np.where(short, rng.lognormal(4.5, 0.5, size), rng.lognormal(7, 0.5, size))
    else:
        drawn = rng.lognormal(*{"sft": (5.5, 1), "web": (6, 1.2), "long": (7, 0.8)}[name], size)
    return np.clip(drawn.astype(np.int64), 1, room)


GAPS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=4)


def schedule_of(gaps: list[tuple[int, int]]) -> BatchSchedule:
    """Sizes, each for some steps."""
    step, pieces = 0, []
    for gap, size in gaps:
        pieces.append((step, size))
        step += gap
    return BatchSchedule.of(pieces)


def in_pairs(items: Items) -> list[list[int]]:
    """A user's selection: neighbours whose lengths fit; every fifth item is not taken at first."""
    assert items.lengths is not None
    rows = [row for row in range(items.num_items) if items.positions[row] % 5]
    return [rows[i : i + 2] for i in range(0, len(rows) - 1, 2)]


FORMS: dict[str, FramedForm] = {
    "singles": Singles(),
    "buffer": ShuffleBuffer(7),
    "groups": Grouping(size=3),
    "sized": Grouping(),
    "packs": Packing(seq_len=ROOM),
    "selected": Selected(in_pairs),
}


def finder(seed: int, most_outputs: int) -> Find:
    """None to ``most_outputs`` items at a position; 1 of each without a filter and a generator."""

    def find(positions: IntArray) -> Items:
        drawn = (derive_array(seed, positions) >> np.uint64(8)).astype(np.int64)
        counts = drawn % (most_outputs + 1) if most_outputs > 1 else np.ones_like(drawn)
        rows = np.repeat(np.arange(len(positions)), counts)
        outputs = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        other = (drawn[rows] >> 4) + outputs
        names = ["abcde"[number] for number in (other % 5).tolist()]
        sizes = np.array([1 + "abcde".index(name) for name in names], dtype=np.int64)
        return Items(positions[rows], outputs, 1 + other % ROOM, names, sizes)

    return find


class Asked:
    """A finder that remembers which positions it was asked for."""

    def __init__(self, find: Find) -> None:
        self.find = find
        self.positions: list[int] = []

    def __call__(self, positions: IntArray) -> Items:
        self.positions += positions.tolist()
        return self.find(positions)


def pairs(items: Items) -> Pairs:
    return tuple(items.pairs)


def units(walk: Walk, numbers: Sequence[int] | IntArray) -> list[Pairs | None]:
    """The items of some units."""
    found = [walk.unit(int(number)) for number in numbers]
    return [None if unit is None else pairs(unit.items) for unit in found]


def history_of(walk: Walk, states: Sequence[LaneState], forgotten: int = 0) -> LaneHistory:
    """The states of all lanes that a walk came through, but for those that only units before ``forgotten`` need."""
    history = LaneHistory(walk.framing.lanes, states, forgotten)
    for lane in walk.lanes.values():
        history.add(lane.marks)
    return history


def leg(
    framing: Framing,
    find: Find,
    schedule: BatchSchedule,
    states: tuple[LaneState, ...],
    *,
    number: int,
    world_size: int,
    micro_batch_size: int,
    micro_steps: int,
    ahead: int,
) -> tuple[dict[int, Pairs | None], int, tuple[LaneState, ...]]:
    """Some micro-steps of all ranks, which read ``ahead`` of what they deliver, and are then killed.

    Returns the units by number, how far the run has come, and the merged states, having been through bytes.
    """
    delivered: dict[int, Pairs | None] = {}
    parts = []
    after = number
    for rank in range(world_size):
        share = Share(rank, world_size, micro_batch_size)
        split = micro_batches(schedule, share, position=number, end=None, at_least=10_000)
        walk = Walk(framing, find, states)
        mine = split.slots()
        count = int(split.sizes[:micro_steps].sum())
        found = units(walk, mine[: count + ahead])
        after = int(split.afters[micro_steps - 1]) if micro_steps else number
        for unit, items in zip(mine[:count].tolist(), found, strict=False):
            assert unit not in delivered
            delivered[unit] = items
        served = lanes_of(coming_steps(schedule, share, after), framing.lanes).tolist()
        part = history_of(walk, states).states(after, sorted({*served, *walk.lanes}))
        parts.append(read_lanes(saved_lanes(part, framing.lanes), framing.lanes, after))
        late = history_of(walk, states, after)
        assert late.states(after, [state.lane for state in part]) == part, "what is forgotten is not needed"
    return delivered, after, merge_states(parts, framing.lanes)


def framing_of(name: str, lanes: Lanes, seed: int = 1) -> Framing:
    return Framing(lanes, FORMS[name], seed)
