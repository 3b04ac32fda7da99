"""Framed sources: nothing lost, nothing twice, nobody starves, and stops and topologies change no unit."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError, HeadraceError, StateError
from headrace.loader.framed.parts import coming_steps, lanes_of
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.cursor import SavedLanes
from headrace.plan.framed import (
    OLDEST,
    Frame,
    Framing,
    Items,
    Journal,
    Lane,
    LaneHistory,
    Lanes,
    LaneState,
    Selected,
    ShuffleBuffer,
    Singles,
    Unit,
    Walk,
    beginning,
    journal_record,
    lanes as lanes_module,
    merge_states,
    plan_frame,
    read_lanes,
    saved_lanes,
    serving,
    whole_bytes,
)
from headrace.plan.framed.state import carry_from_bytes, carry_to_bytes
from headrace.plan.keys import IntArray
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing
from plan.framed import simulated
from plan.framed.simulated import FORMS, finder, in_pairs, pairs

NAMES = sorted(FORMS)


@settings(max_examples=cases(20, 2_000), deadline=None)
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
            with pytest.raises(ConfigError, match=r"numbered.*0"):
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
    with pytest.raises(ConfigError, match=r"num_lanes.*8"):
        Lanes.of(schedule, frame_positions=4, num_lanes=16)
    with pytest.raises(ConfigError, match=r"frame_positions.*0"):
        Lanes(num_lanes=1, frame_positions=0)
    with pytest.raises(ConfigError, match=r"3.*lanes"):
        Lanes(num_lanes=3, frame_positions=1).positions(3, 0)
    with pytest.raises(ConfigError, match="global"):
        serving(Lanes(num_lanes=8, frame_positions=1), global_batch_size=12, world_size=1, micro_batch_size=1)


@settings(max_examples=cases(15, 3_000), deadline=None)
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


@settings(max_examples=cases(16, 4_000), deadline=None)
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


@settings(max_examples=cases(12, 1_000), deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 30), st.integers(0, 90), st.integers(1, 3))
def test_a_resumed_lane_encodes_one_frame_and_its_carry_again(name: str, frame: int, number: int, outputs: int) -> None:
    lanes = Lanes(num_lanes=3, frame_positions=frame)
    framing = simulated.framing_of(name, lanes)
    find = simulated.Asked(simulated.finder(4, outputs))
    walk = Walk(framing, find, beginning(lanes))
    simulated.units(walk, range(number))
    states = simulated.history_of(walk, beginning(lanes)).states(number, range(3))
    before = set(find.positions)
    assert len(find.positions) == len(before), "an uninterrupted run encodes each sample once"
    again = simulated.Asked(find.find)
    simulated.units(Walk(framing, again, states), range(number, number + 3))
    for state in states:
        repeated = {position for position in again.positions if position in before and position % 3 == state.lane}
        assert len(repeated) <= frame + len({position for position, _ in state.carry})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["sft", "web", "bimodal", "long"])
@pytest.mark.parametrize("room", [2_048, 4_096, 8_192])
def test_packs_on_the_fly_are_full(name: str, room: int) -> None:
    lengths = simulated.lengths(name, 20_000, room)
    lanes = Lanes(num_lanes=2, frame_positions=1_000, num_positions=len(lengths))
    walk = Walk(
        Framing(lanes, Packing(seq_len=room)),
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
        lane = Lane(Framing(lanes, Grouping(size=16)), find, state)
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
    lengths = simulated.lengths("sft", 1_000, 4_096)
    found = Items(np.arange(1_000), np.zeros(1_000, dtype=np.int64), lengths)
    formed = plan_frame(Packing(seq_len=4_096), lanes, Frame(0, 0, 0, 1, False), Items.none(), found)
    longest = np.array([formed.unit(unit).lengths.max() for unit in range(formed.num_units)])
    ranks = np.argsort(np.argsort(-longest))
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 0.3
    other = plan_frame(Packing(seq_len=4_096), lanes, Frame(0, 0, 0, 2, False), Items.none(), found)
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

    def moved(form: ShuffleBuffer | Packing, lane: int, frame: int, key: int) -> list[int]:
        """The order in which a frame gives its items, from its first position on."""
        positions = lanes.positions(lane, frame)
        found = Items(positions, np.zeros_like(positions), alike[: len(positions)])
        formed = plan_frame(form, lanes, Frame(lane, frame, 64 * frame, key, False), Items.none(), found)
        return ((formed.items.positions[formed.rows] - positions[0]) // 2).tolist()

    for form in (ShuffleBuffer(16), Packing(seq_len=50)):
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


@pytest.mark.parametrize(("outputs", "most_bytes"), [(1, 530), (3, 1_530)])
def test_a_lane_carries_four_frames_at_most(outputs: int, most_bytes: int) -> None:
    lanes = Lanes(num_lanes=2, frame_positions=1_000)

    def find(positions: np.ndarray) -> Items:
        return Items(np.repeat(positions, outputs), np.tile(np.arange(outputs), len(positions)))

    walk = Walk(Framing(lanes, Selected(lambda items: [])), find, beginning(lanes))
    simulated.units(walk, range(2 * 2_500 * outputs))
    worst = [max(lane.marks, key=lambda mark: len(mark.carry)) for lane in walk.lanes.values()]
    assert {len(state.carry) for state in worst} == {4_000 * outputs}
    assert len(saved_lanes(worst, lanes).states) < 2 * most_bytes


def test_the_lanes_of_what_is_left_of_a_step_and_of_the_next() -> None:
    """Two ranks, batches of 8 stopped after 3: the five left are dealt as 3 4 and 5 6 7, the next as 0..3 and 4..7."""
    lanes, schedule = Lanes(num_lanes=8, frame_positions=5), BatchSchedule.of(8)
    served = [lanes_of(coming_steps(schedule, Share(rank, 2, 4), 3), lanes).tolist() for rank in (0, 1)]
    assert served == [[0, 1, 2, 3, 4], [4, 5, 6, 7]]


PAIRS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=40, unique=True).map(sorted)


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(st.lists(st.tuples(PAIRS, st.booleans(), st.integers(0, 2**35)), min_size=1, max_size=4))
def test_states_through_bytes(drawn: list[tuple[list[tuple[int, int]], bool, int]]) -> None:
    lanes = Lanes(num_lanes=7, frame_positions=100)
    states = []
    number = 7 * max(more for *_, more in drawn) + 20
    for lane, (numbers, plain, more) in enumerate(drawn):
        frame = 5 + more
        begin = lanes.begin(lane, frame) - 301
        pairs = {(7 * (begin + number) + lane, 0 if plain else output) for number, output in numbers}
        states.append(LaneState(lane, frame, more, lanes.next_unit(lane, number), tuple(sorted(pairs))))
    saved = saved_lanes(states, lanes)
    assert read_lanes(saved, lanes, number) == tuple(states)
    ends = [len(saved_lanes(states[:count], lanes).states) for count in range(len(states))]
    for end in range(len(saved.states)):
        cut = SavedLanes(7, 100, saved.states[:end])
        if end in ends:
            assert read_lanes(cut, lanes, number) == tuple(states[: ends.index(end)])
        else:
            with pytest.raises(StateError):
                read_lanes(cut, lanes, number)
    with pytest.raises(StateError, match="numbers"):
        read_lanes(saved, Lanes(num_lanes=7, frame_positions=99), number)
    if number > 20:
        with pytest.raises(StateError, match="damaged"):
            read_lanes(saved, lanes, 0)
    journal = b"".join(journal_record(state.at(state.first_unit), lanes) for state in states)
    for state in states:
        assert Journal(journal, lanes).unit(state.lane, state.unit) == state


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(st.binary(max_size=30))
def test_whatever_the_bytes_it_is_a_state_error(data: bytes) -> None:
    lanes = Lanes(num_lanes=3, frame_positions=10)
    for head in (b"", struct.pack("<QQ", 5 << 24, len(data))):
        with contextlib.suppress(StateError):
            read_lanes(SavedLanes(3, 10, head + data), lanes, 0)


def test_numbers_that_are_too_large_are_a_state_error() -> None:
    """A byte that has become another makes a number of any size."""
    lanes = Lanes(num_lanes=4, frame_positions=1_000)
    state = LaneState(1, 5, 20, 22, ((4 * 3_000 + 1, 0), (4 * 3_500 + 1, 1)))
    saved = carry_to_bytes(state, lanes)
    states = 0
    for at in range(len(saved)):
        for number in (b"\xff" * 5 + b"\x7f", b"\xff" * 9 + b"\x01", b"\x80" * 12 + b"\x01"):
            for cut in range(4):
                try:
                    carry_from_bytes(saved[:at] + number + saved[at + cut :], lanes, 1, 5)
                except StateError:
                    states += 1
    assert states > 50


@settings(max_examples=cases(12, 2_000), deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 5), st.integers(1, 6))
def test_the_lanes_of_a_rank(num_lanes: int, world_size: int, micro: int, times: int) -> None:
    lanes, batch = Lanes(num_lanes=num_lanes, frame_positions=5), num_lanes * times
    schedule = BatchSchedule.of(batch)
    held = []
    for rank in range(world_size):
        share = Share(rank, world_size, micro)
        split = micro_batches(schedule, share, position=3 * batch, end=None, at_least=batch)
        wanted = sorted({position % num_lanes for position in split.slots().tolist()})
        assert lanes_of(coming_steps(schedule, share, batch), lanes).tolist() == wanted
        held.append(len(wanted))
    figures = serving(lanes, global_batch_size=batch, world_size=world_size, micro_batch_size=micro)
    assert (figures.most_lanes, figures.fewest_lanes) == (max(held), min(held))
    assert figures.times_encoded == pytest.approx(sum(held) / num_lanes)
    if num_lanes == batch or num_lanes % (world_size * micro) == 0:
        assert figures.times_encoded == 1
    assert ("encoded once" in figures.describe()) == (figures.times_encoded == 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_journal_finds_every_unit_again(name: str) -> None:
    lanes = Lanes(num_lanes=2, frame_positions=20, num_positions=350)
    framing, find = simulated.framing_of(name, lanes), simulated.finder(2, 2)
    whole = Walk(framing, find, beginning(lanes))
    wanted = simulated.units(whole, range(250))
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
    with pytest.raises(StateError, match=r"contradicts.*0"):
        Journal(one + journal_record(LaneState(0, 1, 4, 4), lanes), lanes)
    with pytest.raises(StateError, match=r"record.*1"):
        Journal(journal_record(LaneState(1), lanes), Lanes(num_lanes=1, frame_positions=4))
    journal = Journal(one, lanes)
    with pytest.raises(StateError, match=r"0.*before.*3"):
        journal.frames(0, 3)
    later = Journal(one + journal_record(LaneState(0, 4, 9, 9), lanes), lanes)
    assert later.frames(0, 8) == (LaneState(0, 1, 3, 3).at(8), 3), "frames between were not recorded"
    with pytest.raises(StateError, match=r"record.*0.*2"):
        journal.unit(0, 2)
    with pytest.raises(StateError, match=r"record.*1"):
        journal.units_of(1)
    with pytest.raises(ConfigError, match="large"):
        journal_record(LaneState(0, 1 << 40), lanes)


def lane_of(form: object, find: Callable[..., Items], state: LaneState | None = None, **options: int) -> Lane:
    return Lane(Framing(Lanes(num_lanes=1, frame_positions=4), form, **options), find, state or LaneState(0))


FOUR = np.arange(4)
NONE = np.zeros(4, dtype=np.int64)


CARRIES_3 = LaneState(0, 1, 1, 1, ((3, 0),))


def without_the_first(positions: np.ndarray) -> Items:
    """An encoder that changes its mind."""
    return Items(positions[1:], 0 * positions[1:], groups=["a"] * (len(positions) - 1))


@pytest.mark.parametrize(
    ("form", "items", "named"),
    [
        (Grouping(size=2), Items(FOUR, NONE), "groups"),
        (Grouping(), Items(FOUR, NONE, groups=[1] * 4), "None"),
        (Grouping(), Items(FOUR, NONE, groups=[1] * 4, sizes=np.array([2, 3, 3, 3])), "position.*1.*3"),
        (Packing(seq_len=8), Items(FOUR, NONE), "lengths"),
        (Packing(seq_len=8), Items(FOUR, NONE, np.array([1, 9, 1, 1])), "position.*1.*9"),
        (Packing(seq_len=8), Items(FOUR, NONE, np.array([1, -1, 1, 1])), "-1"),
        (Selected(lambda _: [[0, 0]]), Items(FOUR, NONE), "pack"),
        (Selected(lambda _: [[4]]), Items(FOUR, NONE), "pack"),
        (Selected(lambda _: [[-1]]), Items(FOUR, NONE), "pack"),
        (Selected(lambda _: [[]]), Items(FOUR, NONE), "pack"),
        (Singles(), Items(FOUR + 1, NONE), "position"),
        (Singles(), Items(FOUR[::-1], NONE), "order"),
        (Singles(), Items(NONE, NONE), "order"),
        (Singles(), Items(FOUR, NONE, np.zeros(3, dtype=np.int64)), "3.*lengths"),
    ],
)
def test_items_that_do_not_do(form: object, items: Items, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        lane_of(form, lambda _: items).unit(0)


THREE = Lanes(num_lanes=3, frame_positions=2)
AT_4 = [LaneState(0, unit=2), LaneState(1, unit=1), LaneState(2, unit=1)]
ELSEWHERE = LaneState(0, unit=2, first_unit=1)


def test_merging_takes_who_is_further() -> None:
    assert merge_states([AT_4[:2], AT_4[1:]], THREE) == tuple(AT_4)
    further = LaneState(1, 1, 1, 1)
    assert merge_states([AT_4, [further]], THREE)[1] == further


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: merge_states([AT_4[:1]], THREE), StateError, "2.*3.*first"),
        (lambda: merge_states([AT_4, [ELSEWHERE]], THREE), StateError, "differ"),
        (lambda: Grouping(size=0), ConfigError, "0"),
        (lambda: ShuffleBuffer(0), ConfigError, "0"),
        (lambda: Packing(seq_len=0), ConfigError, "0"),
        (lambda: Packing(seq_len=8, segment_multiple=3), ConfigError, "3"),
        (lambda: lane_of(Grouping(size=3), without_the_first, CARRIES_3).unit(1), StateError, "0.*position.*3"),
        (lambda: lane_of(Singles(), lambda _: Items.none(), most_empty_positions=100).unit(0), ConfigError, "104.*103"),
    ],
)
def test_what_cannot_go_on_is_found_out(make: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        make()


def test_a_choice_that_loses_items_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "choose", lambda form, items, *_: [np.array([items.num_items - 1])])
    with pytest.raises(HeadraceError, match="none"):
        lane_of(Singles(), lambda p: Items(p, np.zeros_like(p))).unit(9)


def test_lanes_go_forward_only() -> None:
    lanes = Lanes(num_lanes=2, frame_positions=2)
    walk = Walk(simulated.framing_of("singles", lanes), simulated.finder(0, 1), beginning(lanes)[:1])
    walk.unit(18)
    assert simulated.units(walk, [18]) == [((18, 0),)]
    with pytest.raises(StateError, match="resume"):
        walk.unit(0)
    with pytest.raises(StateError, match=r"state.*1"):
        walk.unit(1)


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
    history = LaneHistory(lanes, [LaneState(0)])
    history.add(lane.marks)
    for number in range(0, len(several), 7):
        [state] = history.states(2 * number, [0])
        again = walked(Lane(Framing(lanes, form, count=how_many), find, state), number)
        assert [(pairs(unit.items), unit.part) for unit in again] == wanted[number:]
