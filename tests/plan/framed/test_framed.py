"""Framed sources: nothing lost, nothing twice, nobody starves, and stops and topologies change no unit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError, HeadraceError, StateError
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.framed import (
    OLDEST,
    BestFit,
    Frame,
    Framing,
    GroupBatches,
    Items,
    Journal,
    Lane,
    Lanes,
    LaneState,
    Selected,
    ShuffleBuffer,
    Singles,
    Walk,
    beginning,
    journal_record,
    merge_states,
    plan_frame,
    served_lanes,
    serving,
    states_from_bytes,
    states_from_dict,
    states_to_bytes,
    states_to_dict,
    whole_bytes,
)
from plan.framed import simulated
from plan.framed.simulated import FORMS

NAMES = sorted(FORMS)


@settings(max_examples=cases(40, 2_000), deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.none() | st.integers(1, 3_000))
def test_lanes_and_frames_deal_every_position_once(num_lanes: int, frame: int, length: int | None) -> None:
    lanes = Lanes(num_lanes=num_lanes, frame_positions=frame, num_positions=length)
    seen = []
    for lane in range(num_lanes):
        wanted = np.arange(lane, 500 if length is None else length, num_lanes)
        num_frames = lanes.num_frames(lane)
        frames = range(500 // num_lanes // frame + 2 if num_frames is None else num_frames)
        parts = [lanes.positions(lane, number) for number in frames]
        for number, part in enumerate(parts):
            assert lanes.frames_of(lane, part).tolist() == [number] * len(part)
            assert 1 <= len(part) <= frame
        assert all(len(part) == frame for part in parts[1:-1])
        together = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        assert np.array_equal(together[: len(wanted)], wanted)
        seen.append(together)
        assert lanes.lane_positions(lane) == (None if length is None else len(wanted))
        if num_frames is not None:
            with pytest.raises(ConfigError, match="frames, numbered from 0"):
                lanes.positions(lane, num_frames)
        numbers = [number for number in range(200) if number % num_lanes == lane]
        for after in range(0, 200, 7):
            assert lanes.next_unit(lane, after) == sum(number < after for number in numbers)
    if length is not None:
        assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(length))


def test_first_frames_are_spread() -> None:
    """Of 64 lanes no tenth of a frame has much more borders than its share."""
    lanes = Lanes(num_lanes=64, frame_positions=1_000)
    firsts = np.array([len(lanes.positions(lane, 0)) for lane in range(64)])
    assert firsts.max() == 1_000
    assert np.histogram(firsts, bins=10, range=(0, 1_000))[0].max() <= 9


def test_lanes_divide_every_batch() -> None:
    schedule = BatchSchedule.of([(0, 16), (10, 24)])
    assert Lanes.of(schedule, frame_positions=4).num_lanes == 8
    assert Lanes.of(schedule, frame_positions=4, num_lanes=2).num_lanes == 2
    with pytest.raises(ConfigError, match="num_lanes must divide 8"):
        Lanes.of(schedule, frame_positions=4, num_lanes=16)
    with pytest.raises(ConfigError, match="frame_positions is 0"):
        Lanes(num_lanes=1, frame_positions=0)
    with pytest.raises(ConfigError, match="3 lanes"):
        Lanes(num_lanes=3, frame_positions=1).positions(3, 0)


@settings(max_examples=cases(30, 3_000), deadline=None)
@given(
    name=st.sampled_from(NAMES),
    num_lanes=st.sampled_from([1, 2, 3, 6]),
    frame=st.integers(1, 30),
    length=st.integers(1, 600),
    outputs=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_every_item_once_and_none_starves(
    name: str, num_lanes: int, frame: int, length: int, outputs: int, seed: int
) -> None:
    lanes = Lanes(num_lanes=num_lanes, frame_positions=frame, num_positions=length)
    find = simulated.finder(seed, outputs)
    seen = []
    for state in beginning(lanes):
        lane = Lane(simulated.framing_of(name, lanes), find, state)
        number = 0
        while (unit := lane.unit(number)) is not None:
            assert (unit.lane, unit.unit) == (state.lane, number)
            assert unit.items.num_items
            waited = unit.frame - lanes.frames_of(state.lane, unit.items.positions)
            assert 0 <= waited.min() <= waited.max() <= OLDEST
            if name == "packs":
                assert unit.items.lengths.sum() <= simulated.ROOM
            if name in ("groups", "sized"):
                assert len(set(unit.items.groups)) == 1
                assert unit.items.num_items <= (3 if name == "groups" else unit.items.sizes[0])
            seen += simulated.pairs(unit.items)
            number += 1
    assert sorted(seen) == list(simulated.pairs(find(np.arange(length))))


LEGS = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(0, 9), st.integers(0, 12))


@settings(max_examples=cases(24, 4_000), deadline=None)
@given(
    name=st.sampled_from(NAMES),
    batches=st.sampled_from([[(0, 12)], [(0, 6)], [(0, 12), (3, 24), (5, 6)]]),
    divisor=st.sampled_from([1, 2, 3, 6]),
    frame=st.integers(1, 40),
    outputs=st.integers(1, 3),
    length=st.none() | st.integers(20, 400),
    seed=st.integers(0, 100),
    legs=st.lists(LEGS, min_size=1, max_size=6),
)
def test_stops_and_topologies_change_no_unit(
    name: str,
    batches: list[tuple[int, int]],
    divisor: int,
    frame: int,
    outputs: int,
    length: int | None,
    seed: int,
    legs: list[tuple[int, int, int, int]],
) -> None:
    schedule = BatchSchedule.of(batches)
    largest = Lanes.of(schedule, frame_positions=frame).num_lanes
    lanes = Lanes.of(schedule, frame_positions=frame, num_lanes=largest // divisor, num_positions=length)
    framing, find = simulated.framing_of(name, lanes), simulated.finder(seed, outputs)
    states, number = beginning(lanes), 0
    delivered = {}
    for world_size, micro_batch_size, micro_steps, ahead in legs:
        some, number, states = simulated.leg(
            framing,
            find,
            schedule,
            states,
            number=number,
            world_size=world_size,
            micro_batch_size=micro_batch_size,
            micro_steps=micro_steps,
            ahead=ahead,
        )
        delivered |= some
    assert sorted(delivered) == list(range(number)), "every unit is delivered once, and in order"
    uninterrupted = simulated.units(Walk(framing, find, beginning(lanes)), range(number))
    assert [delivered[unit] for unit in range(number)] == uninterrupted


@settings(max_examples=cases(24, 1_000), deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 30), st.integers(0, 90), st.integers(1, 3))
def test_a_resumed_lane_encodes_one_frame_and_its_carry_again(name: str, frame: int, number: int, outputs: int) -> None:
    lanes = Lanes(num_lanes=3, frame_positions=frame)
    framing = simulated.framing_of(name, lanes)
    find = simulated.Asked(simulated.finder(4, outputs))
    walk = Walk(framing, find, beginning(lanes))
    simulated.units(walk, range(number))
    states = walk.states(number, range(3))
    before = set(find.positions)
    assert len(find.positions) == len(before), "an uninterrupted run encodes each sample once"
    again = simulated.Asked(find.find)
    simulated.units(Walk(framing, again, states), range(number, number + 3))
    for state in states:
        repeated = {position for position in again.positions if position in before and position % 3 == state.lane}
        assert len(repeated) <= frame + len({position for position, _ in state.carry})


def draw(name: str, size: int) -> np.ndarray:
    """Lengths of megatron.md 4.3, as in benchmarks/packing.py."""
    rng = np.random.default_rng(0)
    if name == "bimodal":
        short = rng.random(size) < 0.8
        return np.where(short, rng.lognormal(4.5, 0.5, size), rng.lognormal(7, 0.5, size)).astype(np.int64)
    return rng.lognormal(*{"sft": (5.5, 1), "web": (6, 1.2), "long": (7, 0.8)}[name], size).astype(np.int64)


@pytest.mark.parametrize("name", ["sft", "web", "bimodal", "long"])
@pytest.mark.parametrize("room", [2_048, 4_096, 8_192])
def test_packs_on_the_fly_are_full(name: str, room: int) -> None:
    lengths = np.clip(draw(name, 20_000), 1, room)
    lanes = Lanes(num_lanes=2, frame_positions=1_000, num_positions=len(lengths))
    walk = Walk(
        Framing(lanes, BestFit(room)),
        lambda positions: Items(positions, np.zeros_like(positions), lengths[positions]),
        beginning(lanes),
    )
    number = 0
    while any(unit is not None for unit in simulated.units(walk, [number, number + 1])):
        number += 2
    figures = walk.figures
    assert (figures.num_items, figures.num_tokens) == (len(lengths), lengths.sum())
    assert figures.fill(room) >= 0.97
    assert figures.most_carried <= 200


def test_one_group_in_a_hundred_thousand() -> None:
    """The rare ones leave with the fourth frame after their own, the others in whole units but for the ends."""
    size = 200_000
    lanes = Lanes(num_lanes=2, frame_positions=1_000, num_positions=size)

    def find(positions: np.ndarray) -> Items:
        names = ["rare" if position % 100_000 == 77_777 else int(position // 2 % 3) for position in positions.tolist()]
        return Items(positions, np.zeros_like(positions), groups=names)

    seen, short = 0, 0
    for state in beginning(lanes):
        lane = Lane(Framing(lanes, GroupBatches(16)), find, state)
        number = 0
        while (unit := lane.unit(number)) is not None:
            waited = unit.frame - lanes.frames_of(state.lane, unit.items.positions)
            assert waited.max() <= OLDEST
            if "rare" in unit.items.groups:
                assert (unit.items.num_items, waited.tolist()) == (1, [OLDEST])
            seen += unit.items.num_items
            short += unit.items.num_items < 16
            number += 1
    assert seen == size
    assert short <= 2 + 3 * 2


def test_packs_of_a_frame_do_not_begin_with_the_longest() -> None:
    lanes = Lanes(num_lanes=1, frame_positions=1_000)
    lengths = np.clip(draw("sft", 1_000), 1, 4_096)
    found = Items(np.arange(1_000), np.zeros(1_000, dtype=np.int64), lengths)
    formed = plan_frame(BestFit(4_096), lanes, Frame(0, 0, 0, 1, False), Items.none(), found)
    longest = np.array([formed.unit(unit).lengths.max() for unit in range(formed.num_units)])
    ranks = np.argsort(np.argsort(-longest))
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 0.3
    other = plan_frame(BestFit(4_096), lanes, Frame(0, 0, 0, 2, False), Items.none(), found)
    assert sorted(map(simulated.pairs, map(formed.unit, range(formed.num_units)))) == sorted(
        map(simulated.pairs, map(other.unit, range(other.num_units)))
    )
    assert simulated.pairs(formed.unit(0)) != simulated.pairs(other.unit(0))


def test_a_shuffle_buffer_shuffles() -> None:
    """Half of the items move by more than a third of the buffer, and a buffer of one moves none."""
    lanes = Lanes(num_lanes=1, frame_positions=500, num_positions=2_000)
    for size, least in ((1, 0), (300, 100)):
        walk = Walk(Framing(lanes, ShuffleBuffer(size)), simulated.finder(0, 1), beginning(lanes))
        found = np.array([unit[0][0] for unit in simulated.units(walk, range(2_000))])
        assert np.array_equal(np.sort(found), np.arange(2_000))
        moved = np.median(np.abs(found - np.arange(2_000)))
        assert moved >= least
        assert size > 1 or moved == 0


def test_each_lane_and_each_frame_draws_for_itself() -> None:
    lanes = Lanes(num_lanes=2, frame_positions=64)
    alike = np.full(64, 40, dtype=np.int64)

    def moved(form: ShuffleBuffer | BestFit, lane: int, frame: int, key: int) -> list[int]:
        """The order in which a frame gives its items, from its first position on."""
        positions = lanes.positions(lane, frame)
        found = Items(positions, np.zeros_like(positions), alike[: len(positions)])
        formed = plan_frame(form, lanes, Frame(lane, frame, 64 * frame, key, False), Items.none(), found)
        return ((formed.items.positions[formed.rows] - positions[0]) // 2).tolist()

    for form in (ShuffleBuffer(16), BestFit(50)):
        orders = [moved(form, 0, frame, key) for frame in (1, 2) for key in (5, 6)]
        assert len({tuple(order[:16]) for order in orders}) == 4
    lengths = Items(np.arange(1_000), np.zeros(1_000, dtype=np.int64))
    walk = Walk(
        Framing(lanes, ShuffleBuffer(16)),
        lambda positions: lengths.take(positions),
        beginning(lanes),
    )
    found = np.array([unit[0][0] for unit in simulated.units(walk, range(200))])
    assert (found[::2] // 2).tolist() != (found[1::2] // 2).tolist()


def test_a_dense_carry_is_a_bit_an_item() -> None:
    lanes = Lanes(num_lanes=4, frame_positions=1_000)
    begin = lanes.begin(2, 3)
    dense = LaneState(2, 3, 9, 9, tuple((4 * (begin - back) + 2, 0) for back in range(800, 0, -1)))
    assert len(states_to_bytes([dense], lanes)) < 120
    assert states_from_bytes(states_to_bytes([dense], lanes), lanes) == (dense,)
    pairs = tuple((4 * (begin - back) + 2, output) for back in range(800, 0, -1) for output in range(3) if back % 9)
    several = LaneState(2, 3, 9, 9, pairs)
    assert len(states_to_bytes([several], lanes)) < 320
    assert states_from_bytes(states_to_bytes([several], lanes), lanes) == (several,)


@pytest.mark.parametrize(("outputs", "most_bytes"), [(1, 520), (3, 1_520)])
def test_a_lane_carries_four_frames_at_most(outputs: int, most_bytes: int) -> None:
    lanes = Lanes(num_lanes=2, frame_positions=1_000)

    def find(positions: np.ndarray) -> Items:
        return Items(np.repeat(positions, outputs), np.tile(np.arange(outputs), len(positions)))

    walk = Walk(Framing(lanes, Selected(lambda items: [])), find, beginning(lanes))
    simulated.units(walk, range(2 * 2_500 * outputs))
    worst = [max(lane.marks, key=lambda mark: len(mark.carry)) for lane in walk.lanes.values()]
    assert {len(state.carry) for state in worst} == {4_000 * outputs}
    assert len(states_to_bytes(worst, lanes)) < 2 * most_bytes


def test_the_lanes_of_what_is_left_of_a_step_and_of_the_next() -> None:
    """Two ranks, batches of 8 stopped after 3: the five left are dealt as 3 4 and 5 6 7, the next as 0..3 and 4..7."""
    lanes, schedule = Lanes(num_lanes=8, frame_positions=5), BatchSchedule.of(8)
    served = [served_lanes(lanes, schedule, Share(rank, 2, 4), number=3).tolist() for rank in (0, 1)]
    assert served == [[0, 1, 2, 3, 4], [4, 5, 6, 7]]


PAIRS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=40, unique=True).map(sorted)


@settings(max_examples=cases(40, 5_000), deadline=None)
@given(st.lists(st.tuples(PAIRS, st.booleans(), st.integers(0, 2**35)), min_size=1, max_size=4))
def test_states_through_bytes(drawn: list[tuple[list[tuple[int, int]], bool, int]]) -> None:
    lanes = Lanes(num_lanes=7, frame_positions=100)
    states = []
    for lane, (numbers, plain, more) in enumerate(drawn):
        frame = 5 + more
        begin = lanes.begin(lane, frame) - 301
        pairs = {(7 * (begin + number) + lane, 0 if plain else output) for number, output in numbers}
        states.append(LaneState(lane, frame, more, more + 3, tuple(sorted(pairs))))
    data = states_to_bytes(states, lanes)
    assert states_from_bytes(data, lanes) == tuple(states)
    saved = json.loads(json.dumps(states_to_dict(states, lanes)))
    assert states_from_dict(saved, lanes) == tuple(states)
    for end in range(len(data)):
        with pytest.raises(StateError):
            states_from_bytes(data[:end], lanes)
    with pytest.raises(StateError, match="left over"):
        states_from_bytes(data + b"\0", lanes)
    with pytest.raises(StateError, match="restore these numbers"):
        states_from_bytes(data, Lanes(num_lanes=7, frame_positions=99))
    journal = b"".join(journal_record(state.at(state.first_unit), lanes) for state in states)
    for state in states:
        assert Journal(journal, lanes).unit(state.lane, state.unit) == state


@settings(max_examples=cases(40, 5_000), deadline=None)
@given(st.binary(max_size=30))
def test_whatever_the_bytes_it_is_a_state_error(data: bytes) -> None:
    lanes = Lanes(num_lanes=3, frame_positions=10)
    for prefix in (b"", b"\1\3\n\1"):
        try:
            states_from_bytes(prefix + data, lanes)
        except StateError:
            continue


def test_numbers_that_are_too_large_are_a_state_error() -> None:
    """A byte that has become another makes a number of any size."""
    lanes = Lanes(num_lanes=4, frame_positions=1_000)
    saved = states_to_bytes([LaneState(1, 5, 20, 22, ((4 * 3_000 + 1, 0), (4 * 3_500 + 1, 1)))], lanes)
    states = 0
    for at in range(1, len(saved)):
        for number in (b"\xff" * 5 + b"\x7f", b"\xff" * 9 + b"\x01", b"\x80" * 12 + b"\x01"):
            for cut in range(4):
                try:
                    states_from_bytes(saved[:at] + number + saved[at + cut :], lanes)
                except StateError:
                    states += 1
    assert states > 200


def test_a_state_is_some_dozens_of_bytes() -> None:
    lanes = Lanes(num_lanes=4, frame_positions=1_000)
    lengths = np.clip(draw("sft", 60_000), 1, 4_096)
    walk = Walk(
        Framing(lanes, BestFit(4_096)),
        lambda positions: Items(positions, np.zeros_like(positions), lengths[positions]),
        beginning(lanes),
    )
    simulated.units(walk, range(4 * 900))
    states = walk.states(4 * 900, range(4))
    assert max(len(state.carry) for state in states) > 10
    assert len(states_to_bytes(states, lanes)) / 4 < 100


@pytest.mark.parametrize("saved", [{}, {"version": 1}, {"version": 2, "states": ""}, {"version": 1, "states": "!"}])
def test_no_states(saved: dict) -> None:
    with pytest.raises(StateError):
        states_from_dict(saved, Lanes(num_lanes=1, frame_positions=1))


def test_merging_finds_what_is_wrong() -> None:
    lanes = Lanes(num_lanes=3, frame_positions=2)
    at_4 = [LaneState(0, unit=2), LaneState(1, unit=1), LaneState(2, unit=1)]
    assert merge_states([at_4[:2], at_4[1:]], lanes, number=4) == tuple(at_4)
    further = LaneState(1, 1, 1, 1)
    assert merge_states([at_4, [further]], lanes, number=4)[1] == further
    with pytest.raises(StateError, match="2 of 3 lanes are in no saved state, the first is lane 1"):
        merge_states([at_4[:1]], lanes, number=4)
    with pytest.raises(StateError, match="different steps"):
        merge_states([at_4], lanes, number=5)
    with pytest.raises(StateError, match="two saved states differ in frame 0 of lane 0"):
        merge_states([at_4, [LaneState(0, unit=2, first_unit=1)]], lanes, number=4)


@settings(max_examples=cases(20, 2_000), deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 5), st.integers(1, 6))
def test_the_lanes_of_a_rank(num_lanes: int, world_size: int, micro: int, times: int) -> None:
    lanes, batch = Lanes(num_lanes=num_lanes, frame_positions=5), num_lanes * times
    schedule = BatchSchedule.of(batch)
    held = []
    for rank in range(world_size):
        share = Share(rank, world_size, micro)
        split = micro_batches(schedule, share, position=3 * batch, end=None, at_least=batch)
        wanted = sorted({position % num_lanes for position in split.slots().tolist()})
        assert served_lanes(lanes, schedule, share, number=batch).tolist() == wanted
        held.append(len(wanted))
    figures = serving(lanes, global_batch_size=batch, world_size=world_size, micro_batch_size=micro)
    assert (figures.most_lanes, figures.fewest_lanes) == (max(held), min(held))
    assert figures.times_encoded == pytest.approx(sum(held) / num_lanes)
    if num_lanes == batch or num_lanes % (world_size * micro) == 0:
        assert figures.times_encoded == 1
        assert "encoded once" in figures.describe()
    elif figures.times_encoded > 1:
        assert "encoded" in figures.describe()
        assert "times" in figures.describe()


def test_what_sharing_costs() -> None:
    figures = serving(Lanes(num_lanes=8, frame_positions=1), global_batch_size=64, world_size=16, micro_batch_size=4)
    assert figures.times_encoded == 8
    assert "8 lanes, 4 a rank; every sample is encoded 8.00 times" in figures.describe()
    with pytest.raises(ConfigError, match="the lanes must divide the global batch"):
        serving(Lanes(num_lanes=8, frame_positions=1), global_batch_size=12, world_size=1, micro_batch_size=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_journal_finds_every_unit_again(name: str) -> None:
    lanes = Lanes(num_lanes=2, frame_positions=20, num_positions=700)
    framing, find = simulated.framing_of(name, lanes), simulated.finder(2, 2)
    whole = Walk(framing, find, beginning(lanes))
    wanted = simulated.units(whole, range(400))
    marks = [mark for lane in whole.lanes.values() for mark in lane.marks]
    data = b"".join(journal_record(mark, lanes) for mark in [*marks, *marks[3:9]])
    journal = Journal(data + journal_record(marks[-1], lanes)[:-1], lanes)
    assert len(data) <= (len(marks) + 6) * 16 + 2 * sum(len(mark.carry) + 3 for mark in [*marks, *marks[3:9]])
    where = {}
    assert whole_bytes(data + b"12345") == len(data)
    for number, unit in enumerate(wanted):
        if unit is None:
            assert journal.frames(number % 2, number // 2) is None
            continue
        asked = simulated.Asked(find)
        state = journal.unit(number % 2, number // 2)
        assert journal.frames(number % 2, number // 2) == (state, state.frame)
        again = Lane(framing, asked, state).unit(number // 2)
        assert simulated.pairs(again.items) == unit
        assert len(asked.positions) <= 20 + len(state.carry), "one frame and its carry are encoded"
        where |= {position: number for position, _ in unit}
    for position, number in where.items():
        first, after = journal.units_of(position)
        assert first <= number // 2
        assert after is None or number // 2 < after


def test_journals_that_do_not_do() -> None:
    lanes = Lanes(num_lanes=2, frame_positions=4)
    one = journal_record(LaneState(0, 1, 3, 3), lanes)
    with pytest.raises(StateError, match="contradicts itself in lane 0"):
        Journal(one + journal_record(LaneState(0, 1, 4, 4), lanes), lanes)
    with pytest.raises(StateError, match="has a record of lane 1"):
        Journal(journal_record(LaneState(1), lanes), Lanes(num_lanes=1, frame_positions=4))
    journal = Journal(one, lanes)
    with pytest.raises(StateError, match="lane 0 ends before its unit 3, with frame 1"):
        journal.frames(0, 3)
    later = Journal(one + journal_record(LaneState(0, 4, 9, 9), lanes), lanes)
    assert later.frames(0, 8) == (LaneState(0, 1, 3, 3).at(8), 3), "frames between were not recorded"
    with pytest.raises(StateError, match="no record of lane 0 at its unit 2"):
        journal.unit(0, 2)
    with pytest.raises(StateError, match="no record of lane 1"):
        journal.units_of(1)
    with pytest.raises(ConfigError, match="too large"):
        journal_record(LaneState(0, 1 << 40), lanes)


def walk_of(form: object, items: Items) -> Lane:
    lanes = Lanes(num_lanes=1, frame_positions=4)
    return Lane(Framing(lanes, form), lambda _: items, LaneState(0))


FOUR = np.arange(4)
NONE = np.zeros(4, dtype=np.int64)


@pytest.mark.parametrize(
    ("form", "items", "says"),
    [
        (GroupBatches(2), Items(FOUR, NONE), "no groups"),
        (GroupBatches(), Items(FOUR, NONE, groups=[1] * 4), "units of None"),
        (
            GroupBatches(),
            Items(FOUR, NONE, groups=[1] * 4, sizes=np.array([2, 3, 3, 3])),
            "position 1 on of 3; a group must have",
        ),
        (BestFit(8), Items(FOUR, NONE), "no lengths"),
        (BestFit(8), Items(FOUR, NONE, np.array([1, 9, 1, 1])), "position 1 has 9 tokens"),
        (BestFit(8), Items(FOUR, NONE, np.array([1, -1, 1, 1])), "has -1 tokens"),
        (Selected(lambda _: [[0, 0]]), Items(FOUR, NONE), "an item may be in only one pack"),
        (Selected(lambda _: [[4]]), Items(FOUR, NONE), "an item may be in only one pack"),
        (Selected(lambda _: [[-1]]), Items(FOUR, NONE), "an item may be in only one pack"),
        (Selected(lambda _: [[]]), Items(FOUR, NONE), "an item may be in only one pack"),
        (Singles(), Items(FOUR + 1, NONE), "some have another position"),
        (Singles(), Items(FOUR[::-1], NONE), "not in the order"),
        (Singles(), Items(NONE, NONE), "not in the order"),
        (Singles(), Items(FOUR, NONE, np.zeros(3, dtype=np.int64)), "have 3 lengths"),
    ],
)
def test_items_that_do_not_do(form: object, items: Items, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        walk_of(form, items).unit(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupBatches(0),
        lambda: ShuffleBuffer(0),
        lambda: BestFit(0),
        lambda: BestFit(8, multiple=3),
        lambda: BestFit(8, full_percent=101),
        lambda: BestFit(8, carried_in=0),
    ],
)
def test_forms_that_do_not_do(make: object) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_form_that_loses_items_is_found_out() -> None:
    class Keeps:
        def choose(self, items: Items, is_due: np.ndarray, frame: Frame) -> list:
            return [np.array([items.num_items - 1])]

    with pytest.raises(HeadraceError, match="an item that is due is in none"):
        Lane(
            Framing(Lanes(num_lanes=1, frame_positions=4), Keeps()), lambda p: Items(p, np.zeros_like(p)), LaneState(0)
        ).unit(9)


def test_an_encoder_that_changes_its_mind_is_found_out() -> None:
    lanes = Lanes(num_lanes=1, frame_positions=4)
    framing = Framing(lanes, GroupBatches(3))
    resumed = Lane(
        framing, lambda p: Items(p[1:], 0 * p[1:], groups=["a"] * (len(p) - 1)), LaneState(0, 1, 1, 1, ((3, 0),))
    )
    with pytest.raises(StateError, match="output 0 of position 3 into frame 1"):
        resumed.unit(1)


def test_a_filter_that_takes_nothing_gives_up() -> None:
    lane = Lane(
        Framing(Lanes(num_lanes=1, frame_positions=8), Singles(), most_empty_positions=100),
        lambda _: Items.none(),
        LaneState(0),
    )
    with pytest.raises(ConfigError, match="104 samples of lane 0 in a row have no output, up to position 103"):
        lane.unit(0)


def test_lanes_go_forward_only() -> None:
    lanes = Lanes(num_lanes=2, frame_positions=2)
    walk = Walk(simulated.framing_of("singles", lanes), simulated.finder(0, 1), beginning(lanes)[:1])
    walk.unit(18)
    assert simulated.units(walk, [18]) == [((18, 0),)]
    with pytest.raises(StateError, match="resume from a saved state"):
        walk.unit(0)
    with pytest.raises(StateError, match="no state of lane 1"):
        walk.unit(1)
    walk.forget(18)
    with pytest.raises(StateError, match="are kept from its unit"):
        walk.states(2, [0])
