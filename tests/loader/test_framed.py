"""The loader over a framed run: its batches, its states, its end, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Barrier, Thread, current_thread
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import framed_made
import media_texts
import warm
from counts import PATIENCE_S, cases
from headrace import BatchSchedule, ConfigError, Loader, MediaDataset, Order, Run, StateError, WorkerError
from headrace.datasets import Framed, FramedRun
from headrace.encoders import DefaultTaskEncoder, TaskEncoder, stateless
from headrace.loader import Balance, Ranks, Reading, merge_state_dicts
from headrace.loader.faults import Given
from headrace.loader.framed.feed import up_to_the_end
from headrace.loader.framed.parts import BatchPart, LaneReader, coming_steps, lanes_of, parts
from headrace.plan import Cursor, Share, micro_batches
from headrace.plan.framed import LaneHistory, Lanes, LaneState, beginning, read_lanes
from waiting import workers_now

FORK = {"start_method": "fork", "pin_memory": False}
HERE = Reading(num_threads=0)
SCRIPT = Path(__file__).parent / "framed_ranks.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("framed") / "ds", (20, 17))


@pytest.fixture
def run(place: Path) -> FramedRun:
    return framed_made.framed_run("singles", [place])


def taken(loader: Loader, count: int | None = None) -> list[str]:
    """Its next batches, as text, so that they can be compared."""
    return [repr(sorted(batch.items())) for batch in islice(loader, count)]


def test_batches_are_those_of_the_run(run: FramedRun) -> None:
    loader = Loader(run, micro_batch_size=2, reading=HERE)
    for step in range(3):
        units = run.units(step)
        halves = list(islice(loader, 2))
        assert [n for half in halves for n in half["unit_numbers"].tolist()] == list(range(4 * step, 4 * step + 4))
        for name in ("number", "output", "draw", "__restore_key__"):
            assert [value for half in halves for value in half[name]] == [unit[name] for unit in units]
        for half in halves:
            again = run.restore_sample(half["__restore_key__"])
            assert again == {name: value for name, value in half.items() if name != "unit_numbers"}
        assert (loader.step, loader.position) == (step + 1, 4 * step + 4)


def saved_in(state: dict[str, Any], run: FramedRun) -> tuple[LaneState, ...]:
    cursor = Cursor.from_dict(state)
    return read_lanes(cursor.lanes[0], run.lanes, cursor.position)


def test_a_rank_saves_its_own_lanes_in_some_dozens_of_bytes_each(place: Path) -> None:
    for kind in framed_made.KINDS:
        run = framed_made.framed_run(kind, [place], global_batch_size=32)
        loaders = [Loader(run, micro_batch_size=1, ranks=Ranks(rank, 4), reading=HERE) for rank in range(4)]
        for loader in loaders:
            list(islice(loader, 8 * 2 + 3))
        states = [loader.state_dict() for loader in loaders]
        for state in states:
            assert json.loads(json.dumps(state)) == state
            assert len(saved_in(state, run)) == 8
            assert len(state["lanes"][0]["states"]) < 8 * 36
        merged = merge_state_dicts(states)
        assert len(saved_in(merged, run)) == 32
        assert merge_state_dicts([merged]) == merged
    assert len(json.dumps(Loader(run, micro_batch_size=1).state_dict())) < 400, "nothing but hashes at the beginning"


def test_states_of_other_ranks_and_runs_are_refused(run: FramedRun, place: Path) -> None:
    loaders = [Loader(run, micro_batch_size=1, ranks=Ranks(rank, 2), reading=HERE) for rank in range(2)]
    for loader in loaders:
        list(islice(loader, 3))
    states = [loader.state_dict() for loader in loaders]
    before = json.dumps(states[1])
    with pytest.raises(StateError, match=r"2.*4.*1"):
        loaders[1].load_state_dict(states[0])
    assert json.dumps(loaders[1].state_dict()) == before, "nothing has changed"
    list(islice(loaders[1], 1))
    with pytest.raises(StateError, match=r"1.*2.*position"):
        merge_state_dicts([states[0], loaders[1].state_dict()])
    with pytest.raises(StateError, match=r"2.*4.*state"):
        merge_state_dicts(states[:1])
    with pytest.raises(StateError, match="states"):
        merge_state_dicts([])
    with pytest.raises(StateError, match="process"):
        loaders[0].gather_state_dict()
    merged = merge_state_dicts(states)
    for change, named in [
        ({"lanes": []}, "6.*lanes"),
        ({"lanes": merged["lanes"] * 2}, "2.*lanes"),
        ({"lanes": [{**merged["lanes"][0], "states": "AQ=="}]}, "damaged"),
        ({"lanes": [{**merged["lanes"][0], "num_lanes": 0}]}, "damaged"),
        ({"lanes": [{**merged["lanes"][0], "num_lanes": 3}]}, "3 lanes"),
        ({"balanced_step": {"costs": "0", "taken": [[4, 1, 1, 2]]}}, "balance"),
    ]:
        with pytest.raises(StateError, match=named):
            loaders[0].load_state_dict({**merged, **change})
    other = framed_made.framed_run("packs", [place])
    with pytest.raises(StateError, match="dataset"):
        Loader(other, micro_batch_size=1).load_state_dict(merged)
    plain = Run(MediaDataset.open(place, **media_texts.TEXT), global_batch_size=4)
    loader = Loader(plain, micro_batch_size=4)
    assert merge_state_dicts([loader.state_dict(), loader.state_dict()]) == loader.gather_state_dict()
    with pytest.raises(StateError, match="source"):
        loader.load_state_dict({**loader.state_dict(), "lanes": merged["lanes"]})


def test_what_a_framed_run_cannot_do(run: FramedRun, place: Path) -> None:
    groups = framed_made.framed_run("groups", [place])
    endless = Loader(framed_made.framed_run("singles", [place], samples=40, steps=3), micro_batch_size=2)
    threads = Loader(run, micro_batch_size=2, reading=Reading(num_threads=1))
    for act, kind, named in [
        (lambda: Loader(groups, micro_batch_size=2), ConfigError, "micro_batch_size.*2"),
        (lambda: Loader(run, micro_batch_size=2, balance=Balance()), ConfigError, "balance"),
        (lambda: Loader(run, micro_batch_size=2, position=4), ConfigError, "4.*depends"),
        (lambda: Loader(run, micro_batch_size=2).start_at(4), ConfigError, "4.*depends"),
        (lambda: Loader(run, micro_batch_size=3, uneven="refuse"), ConfigError, r"\[4\]"),
        (lambda: Loader(3, micro_batch_size=1), ConfigError, "3.*FramedRun"),
        (lambda: next(iter(threads)), ConfigError, "thread"),
        (lambda: len(endless), TypeError, "len"),
    ]:
        with pytest.raises(kind, match=named):
            act()  # type: ignore[no-untyped-call]


def test_beginning_anew_and_where_it_stands(run: FramedRun) -> None:
    loader = Loader(run, micro_batch_size=2, reading=HERE)
    first = taken(loader, 5)
    loader.start_at(10)
    more = taken(loader, 2)
    with pytest.raises(ConfigError, match=r"14.*twice"):
        loader.start_at(0)
    loader.start_at(0, allow_repeats=True)
    assert taken(loader, 7) == first + more
    unused, older = iter(loader), iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    state = loader.state_dict()
    for one in (older, unused):
        with pytest.raises(StateError, match="outdated"):
            next(one)
        assert loader.state_dict() == state


@pytest.mark.parametrize("reading", [None, Reading(num_workers=2, **FORK)])
def test_validation_begins_anew_each_time(place: Path, reading: Reading | None) -> None:
    run = framed_made.framed_run("packs", [place], samples=37)
    loader = Loader(run, micro_batch_size=2, reading=reading, restart=True)
    whole = taken(loader)
    assert len(whole) > 5
    assert taken(loader, 3) == whole[:3]
    state = loader.state_dict()
    assert taken(loader) == whole
    resumed = Loader(run, micro_batch_size=2, restart=True)
    resumed.load_state_dict(state)
    assert taken(resumed) == whole[3:]
    assert taken(resumed) == whole
    loader.close()


def test_steps_end_a_run_without_an_end(place: Path) -> None:
    run = framed_made.framed_run("singles", [place], steps=3, global_batch_size=[(0, 4), (2, 8)])
    loader = Loader(run, micro_batch_size=2)
    assert len(loader) == len(taken(loader)) == 8
    with pytest.raises(StateError, match=r"16.*iterated"):
        taken(loader)
    with pytest.raises(ConfigError, match=r"16.*samples"):
        loader.start_at(17)


def test_a_state_of_any_moment_ends_where_the_run_does(place: Path) -> None:
    """In the midst of the last steps, too, where what is left of a step may be nothing."""
    run = framed_made.framed_run("singles", [place], samples=37)
    loader = Loader(run, micro_batch_size=1, reading=HERE)
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(batch["unit_numbers"].tolist())
        states.append(loader.state_dict())
    assert [] in whole
    with pytest.raises(StateError, match=r"72.*iterated"):
        taken(loader)
    for number, state in list(enumerate(states))[-16:]:
        resumed = Loader(run, micro_batch_size=1, reading=HERE)
        resumed.load_state_dict(state)
        assert [batch["unit_numbers"].tolist() for batch in resumed] == whole[number:]


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Draws nothing, so that threads may run it."""

    decoder = None


def test_threads_change_no_byte(place: Path) -> None:
    data = Framed(MediaDataset.open(place, **media_texts.TEXT), Plain(), frame_positions=5)
    run = FramedRun(data, global_batch_size=8, order=Order(seed=4))
    wanted = taken(Loader(run, micro_batch_size=4, reading=HERE), 9)
    for num_threads in (1, 2, 3):
        loader = Loader(run, micro_batch_size=4, reading=Reading(num_threads=num_threads, pin_memory=False))
        assert taken(loader, 3) == wanted[:3]
        resumed = Loader(run, micro_batch_size=4, reading=HERE)
        resumed.load_state_dict(loader.state_dict())
        assert taken(resumed, 3) == wanted[3:6]
        assert taken(loader, 6) == wanted[3:]


class Slow(Plain):
    threads: ClassVar[set[Thread]] = set()

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.threads.add(current_thread())
        time.sleep(0.01)
        return sample


def test_reading_ahead_by_bytes_is_done_by_one_thread(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the loop waits: the lanes of a reader are not those of another thread."""
    monkeypatch.setattr("headrace.loader.reading.thread_time", lambda: 0.0)  # as if it waited for a store
    data = Framed(MediaDataset.open(place, **media_texts.TEXT), Slow())
    run = FramedRun(data, global_batch_size=4, order=Order(seed=1))
    found = [taken(Loader(run, micro_batch_size=4, reading=one), 6) for one in (HERE, Reading(ahead="1GB"))]
    assert found[0] == found[1]
    assert len(Slow.threads) == 2


class Stateful(TaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def encode_sample(self, sample: Any) -> Any:
        return sample


def test_lost_workers_with_hooks_that_hold_state_are_an_error(place: Path) -> None:
    run = FramedRun(Framed(MediaDataset.open(place, **media_texts.TEXT), Stateful()), global_batch_size=4)
    loader = Loader(run, micro_batch_size=2, reading=Reading(num_workers=2, prefetch=1, **FORK))
    batches = iter(loader)
    next(batches)
    for child in workers_now():
        os.kill(child.pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"encode_sample.*@stateless"):
        list(islice(batches, 20))
    loader.close()


class Poisoned(Plain):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.text == "13":
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


def test_a_sample_that_kills_every_worker_is_named(place: Path) -> None:
    data = Framed(MediaDataset.open(place, **media_texts.TEXT), Poisoned())
    run = FramedRun(data, global_batch_size=4, order=Order(kind="none"))
    loader = Loader(run, micro_batch_size=2, reading=Reading(num_workers=2, max_replacements=1, **FORK))
    with pytest.raises(WorkerError, match=r"SIGKILL.*'0013'.*00\.tar"):
        list(islice(loader, 20))
    loader.close()


def test_serving_says_what_it_costs(run: FramedRun, caplog: pytest.LogCaptureFixture) -> None:
    assert Loader(run, micro_batch_size=1, ranks=Ranks(0, 2)).serving() == (
        "4 lanes, 2 a rank; every sample is encoded once"
    )
    assert not caplog.records
    loader = Loader(run, micro_batch_size=1, ranks=Ranks(0, 3))
    assert "encoded" in loader.serving()
    halves = FramedRun(run.data, global_batch_size=4, num_lanes=2)
    costly = Loader(halves, micro_batch_size=2, ranks=Ranks(1, 2))
    assert "every sample is encoded 2.00 times" in costly.serving()
    assert "encoded 2.00 times" in caplog.text


def test_all_ranks_end_together_and_gather_their_states(place: Path, tmp_path: Path, warm_torch: warm.Warm) -> None:
    """Two processes with a collective of their own at every step; lanes end at different units."""
    samples = 37
    command = [str(SCRIPT), str(place), str(tmp_path / "meeting")]
    programs = [[*command, str(rank), "2", str(samples)] for rank in range(2)]
    said = []
    for ended in warm.together(warm_torch, programs, tmp_path, PATIENCE_S):
        assert ended.code == 0, ended.errors
        said.append(json.loads(ended.output))
    run = framed_made.framed_run("singles", [place], samples=samples)
    alone = [n for batch in Loader(run, micro_batch_size=4) for n in batch["unit_numbers"].tolist()]
    first, second = (one["taken"] for one in said)
    assert len(first) == len(second)
    assert [total for _, total in first] == [len(a) + len(b) for (a, _), (b, _) in zip(first, second, strict=True)]
    assert sorted(n for numbers, _ in (*first, *second) for n in numbers) == alone
    assert said[0]["state"] == said[1]["state"]
    resumed = Loader(run, micro_batch_size=4)
    resumed.load_state_dict(said[0]["state"])
    assert [n for batch in resumed for n in batch["unit_numbers"].tolist()] == [n for n in alone if n >= 10]


def test_a_reader_pickles_to_one_that_makes_the_same(run: FramedRun) -> None:
    reader = LaneReader(run, beginning(run.lanes))
    again = pickle.loads(pickle.dumps(reader))
    some = parts(run.schedule, run.lanes, Share(0, 1, 2), (), position=0, end=None, num_readers=1)
    for part in islice(some, 6):
        one, other = (made(part._replace(states=None)) for made in (reader, again))
        # Only how long it took may differ.
        assert repr(one) == repr(other._replace(times=one.times))


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    unit = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return BatchSchedule(tuple((3 * number, unit * size) for number, size in enumerate(sizes)))


@settings(max_examples=cases(12, 5_000), deadline=None)
@given(schedules(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 60), st.data())
def test_every_unit_is_in_one_part_and_a_lane_has_one_reader(
    schedule: BatchSchedule, world_size: int, micro: int, num_readers: int, position: int, data: st.DataObject
) -> None:
    lanes = Lanes.of(schedule, frame_positions=4)
    share = Share(data.draw(st.integers(0, world_size - 1)), world_size, micro)
    states = beginning(lanes)
    some = list(
        islice(
            parts(schedule, lanes, share, states, position=position, end=None, num_readers=num_readers),
            40 * num_readers,
        )
    )
    planned = micro_batches(schedule, share, position=position, end=None, at_least=1500)
    whole: list[list[BatchPart]] = [[]]
    readers: dict[int, set[int]] = {}
    for turn, part in enumerate(some):
        assert (part.states is states) == (turn < num_readers), "each reader is told where to begin, once"
        for number in part.numbers.tolist():
            readers.setdefault(number % lanes.num_lanes, set()).add(turn % num_readers)
        whole[-1].append(part)
        if part.after is not None:
            whole.append([])
    assert all(len(found) == 1 for found in readers.values())
    for number, found in enumerate(whole[:-1]):
        begin, size = int(planned.begins[number]), int(planned.sizes[number])
        assert sorted(n for part in found for n in part.numbers.tolist()) == list(range(begin, begin + size))
        assert found[-1].after == planned.afters[number]
        assert {part.step for part in found} == {planned.steps[number]}
        wholes = [part for part in found if part.is_whole]
        assert len(wholes) == (sum(map(bool, map(len, (part.numbers for part in found)))) < 2)
        assert all(len(part.numbers) == size for part in wholes)
    left = [set(part.leaves.tolist()) for part in some if len(part.leaves)]
    assert all(one == left[0] for one in left)
    assert len(left) <= num_readers
    if left and len(schedule.pieces) == 1:
        later = schedule.begin(schedule.step_of(position) + 1)
        assert not left[0] & set(lanes_of(coming_steps(schedule, share, later), lanes).tolist())


@pytest.mark.parametrize(("num_readers", "micro"), [(1, 2), (2, 2), (2, 4), (4, 2), (4, 8), (8, 4), (3, 8)])
def test_readers_have_equally_much_to_do(num_readers: int, micro: int) -> None:
    """In whole steps: the same number of units each, and no turn is passed where parts come out even."""
    schedule = BatchSchedule.of(16)
    lanes = Lanes.of(schedule, frame_positions=4)
    some = list(
        islice(
            parts(schedule, lanes, Share(0, 1, micro), (), position=0, end=None, num_readers=num_readers),
            16 * num_readers,
        )
    )
    units = Counter[int]()
    for turn, part in enumerate(some):
        units[turn % num_readers] += len(part.numbers)
    most, fewest = max(units.values()), min(units.values())
    assert most - fewest <= most * (num_readers == 3) / 2
    if num_readers != 3:
        assert all(len(part.numbers) for part in some)


class Simulated:
    """A rank whose units end after some steps; it knows of those it has made, and of the steps of its frame."""

    def __init__(self, units: list[list[int]], ahead: int) -> None:
        self.units = units
        self.ahead = ahead
        self.read = self.known = -1

    def made(self) -> Iterator[tuple[int, Given]]:
        after = 0
        for step in range(10_000):
            self.read = step
            for num_units in self.units[step] if step < len(self.units) else [0] * len(self.units[0]):
                after += 1
                self.known = step if num_units else self.known
                yield step, Given({"step": step}, after, num_units, None)

    def known_step(self) -> int:
        ends = [step for step, sizes in enumerate(self.units) if any(sizes)]
        return max([self.known, *(step for step in ends if step < self.read + self.ahead)])


@settings(max_examples=cases(16, 1_000), deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_all_ranks_end_after_the_last_step_that_has_a_unit(
    data: st.DataObject, num_ranks: int, micro_steps: int
) -> None:
    ranks = []
    for _ in range(num_ranks):
        num_steps = data.draw(st.integers(1, 7))
        sizes = st.lists(st.integers(0, 2), min_size=micro_steps, max_size=micro_steps)
        units = data.draw(st.lists(sizes, min_size=num_steps, max_size=num_steps))
        # A step in the midst in which a rank has nothing: others have, or lanes would not end.
        ranks.append(Simulated(units, data.draw(st.integers(0, 3))))
    steps = max(len(rank.units) for rank in ranks)
    for step in range(steps):
        if not any(any(rank.units[step]) for rank in ranks if step < len(rank.units)):
            owner = next(rank for rank in ranks if step < len(rank.units))
            owner.units[step][-1] = 1
    barrier, said = Barrier(num_ranks), [0] * num_ranks
    calls = [0] * num_ranks
    found: list[list[Given]] = [[] for _ in ranks]

    def take(number: int) -> None:
        def agreed(step: int) -> int:
            said[number] = step
            calls[number] += 1
            barrier.wait(PATIENCE_S)
            highest = max(said)
            barrier.wait(PATIENCE_S)
            return highest

        found[number] = list(up_to_the_end(ranks[number].made(), -1, ranks[number].known_step, agreed))

    threads = [Thread(target=take, args=(number,)) for number in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(calls)) == 1, "exchanges are collective"
    for taken in found:
        assert [one.batch["step"] for one in taken] == [step for step in range(steps) for _ in range(micro_steps)]
        assert [one.after for one in taken] == list(range(1, steps * micro_steps + 1))


def test_a_step_that_has_begun_is_handed_over_to_its_end() -> None:
    rank = Simulated([[0], [0]], 0)
    assert [one.batch["step"] for one in up_to_the_end(rank.made(), 0, rank.known_step, lambda step: step)] == [0]


def test_a_run_that_is_cut_ends_there() -> None:
    rank = Simulated([[1], [1], [1]], 0)
    assert len(list(up_to_the_end(islice(rank.made(), 2), -1, rank.known_step, lambda step: step))) == 2


def test_the_book_keeps_what_is_needed() -> None:
    lanes = Lanes(num_lanes=2, frame_positions=4)
    book = LaneHistory(lanes, beginning(lanes))
    assert book.last_unit() == -1
    marks = [LaneState(0, 1, 3, 3), LaneState(0, 2, 3, 3, ((4, 0),)), LaneState(0, 3, 5, 5), LaneState(1, 1, 2, 2)]
    book.add(marks)
    book.add(marks[:2])
    assert book.last_unit() == 4 * 2
    assert book.states(5, [0, 1]) == (LaneState(0, 2, 3, 3, ((4, 0),)), LaneState(1, 1, 2, 2))
    assert book.states(4, [0, 1]) == (LaneState(0, 0, 0, 2), LaneState(1, 1, 2, 2))
    book.number = 5
    assert book.states(5, [0]) == (LaneState(0, 2, 3, 3, ((4, 0),)),)
    book.add([LaneState(0, 4, 5, 5)])
    assert book.states(5, [0]) == (LaneState(0, 2, 3, 3, ((4, 0),)),)
    with pytest.raises(StateError, match=r"2.*known"):
        book.states(4, [0])
    with pytest.raises(StateError, match=r"lane.*3"):
        book.states(8, [3])
    assert np.array_equal(book.lanes, [0, 1])
