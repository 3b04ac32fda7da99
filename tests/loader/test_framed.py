"""The loader over a framed run: its batches, its states, its end, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

import framed_made
import media_texts
import warm
from counts import PATIENCE_S
from headrace import ConfigError, Loader, MediaDataset, Order, Run, StateError, WorkerError
from headrace.datasets import Framed, FramedRun
from headrace.encoders import DefaultTaskEncoder, TaskEncoder, stateless
from headrace.loader import Balance, Ranks, Reading, merge_state_dicts
from headrace.loader.framed.parts import LaneReader, parts
from headrace.plan import Share
from headrace.plan.framed import beginning, states_from_dict

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


def test_a_rank_saves_its_own_lanes_in_some_dozens_of_bytes_each(place: Path) -> None:
    for kind in framed_made.KINDS:
        run = framed_made.framed_run(kind, [place], global_batch_size=32)
        loaders = [Loader(run, micro_batch_size=1, ranks=Ranks(rank, 4), reading=HERE) for rank in range(4)]
        for loader in loaders:
            list(islice(loader, 8 * 2 + 3))
        states = [loader.state_dict() for loader in loaders]
        for state in states:
            assert json.loads(json.dumps(state)) == state
            assert len(states_from_dict(state["lanes"][0], run.lanes)) == 8
            assert len(state["lanes"][0]["states"]) < 8 * 24
        merged = merge_state_dicts(states)
        assert len(states_from_dict(merged["lanes"][0], run.lanes)) == 32
        assert merge_state_dicts([merged]) == merged
    assert len(json.dumps(Loader(run, micro_batch_size=1).state_dict())) < 400, "nothing but hashes at the beginning"


def test_states_of_other_ranks_and_runs_are_refused(run: FramedRun, place: Path) -> None:
    loaders = [Loader(run, micro_batch_size=1, ranks=Ranks(rank, 2), reading=HERE) for rank in range(2)]
    for loader in loaders:
        list(islice(loader, 3))
    states = [loader.state_dict() for loader in loaders]
    before = json.dumps(states[1])
    with pytest.raises(StateError, match=r"holds 2 of 4 lanes, and rank 1 of 2 also needs lane .*gather_state_dict"):
        loaders[1].load_state_dict(states[0])
    assert json.dumps(loaders[1].state_dict()) == before, "nothing has changed"
    list(islice(loaders[1], 1))
    with pytest.raises(StateError, match="saved state 1 is of step 2 and position 8, and the first one of step 1"):
        merge_state_dicts([states[0], loaders[1].state_dict()])
    with pytest.raises(StateError, match="2 of 4 lanes are in no saved state"):
        merge_state_dicts(states[:1])
    with pytest.raises(StateError, match="no saved states"):
        merge_state_dicts([])
    with pytest.raises(StateError, match="no process group over which to gather"):
        loaders[0].gather_state_dict()
    merged = merge_state_dicts(states)
    for change, message in [
        ({"lanes": []}, "at unit 6, but holds no lanes"),
        ({"lanes": merged["lanes"] * 2}, "holds 2 lists of lanes"),
        ({"lanes": [{"version": 1, "states": "AQ"}]}, "damaged"),
        ({"position": 7}, "lane 2 of the saved state is at its unit 1, expected 2 after 7"),
        ({"balanced_step": {"costs": "0", "taken": [[4, 1, 1, 2]]}}, "of a run with balance"),
    ]:
        with pytest.raises(StateError, match=message):
            loaders[0].load_state_dict({**merged, **change})
    other = framed_made.framed_run("packs", [place])
    with pytest.raises(StateError, match="another run: dataset, batch differ"):
        Loader(other, micro_batch_size=1).load_state_dict(merged)
    plain = Run(MediaDataset.open(place, **media_texts.TEXT), global_batch_size=4)
    loader = Loader(plain, micro_batch_size=4)
    assert merge_state_dicts([loader.state_dict(), loader.state_dict()]) == loader.gather_state_dict()
    with pytest.raises(StateError, match="the saved state holds lanes, and no source of this run has any"):
        loader.load_state_dict({**loader.state_dict(), "lanes": merged["lanes"]})


def test_what_a_framed_run_cannot_do(run: FramedRun, place: Path) -> None:
    groups = framed_made.framed_run("groups", [place])
    with pytest.raises(
        ConfigError, match="a sample of this run is a whole batch of one group, and micro_batch_size is 2"
    ):
        Loader(groups, micro_batch_size=2)
    with pytest.raises(ConfigError, match="balance"):
        Loader(run, micro_batch_size=2, balance=Balance())
    for begin in (
        lambda: Loader(run, micro_batch_size=2, position=4),
        lambda: Loader(run, micro_batch_size=2).start_at(4),
    ):
        with pytest.raises(
            ConfigError, match="this run cannot begin at unit 4: what a unit holds depends on the state of its lane"
        ):
            begin()
    with pytest.raises(TypeError, match="it has no len"):
        len(Loader(framed_made.framed_run("singles", [place], samples=40, steps=3), micro_batch_size=2))
    with pytest.raises(ConfigError, match="would run in a thread"):
        next(iter(Loader(run, micro_batch_size=2, reading=Reading(num_threads=1))))
    with pytest.raises(ConfigError, match=r"steps of \[4\] samples, which .* do not divide"):
        Loader(run, micro_batch_size=3, uneven="refuse")
    with pytest.raises(ConfigError, match="run is 3; expected a Run or a FramedRun"):
        Loader(3, micro_batch_size=1)  # type: ignore[arg-type]


def test_beginning_anew_and_where_it_stands(run: FramedRun) -> None:
    loader = Loader(run, micro_batch_size=2, reading=HERE)
    first = taken(loader, 5)
    loader.start_at(10)
    more = taken(loader, 2)
    with pytest.raises(ConfigError, match=r"would go back: 14 units would come twice"):
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
    with pytest.raises(StateError, match="end of its run, at position 16, and was iterated again"):
        taken(loader)
    with pytest.raises(ConfigError, match="outside this run of 16 samples"):
        loader.start_at(17)


def test_lanes_that_end_leave_units_out(place: Path) -> None:
    """Four lanes of about as many samples each: the last batches are short, and then there are none."""
    run = framed_made.framed_run("singles", [place], samples=37)
    loader = Loader(run, micro_batch_size=4)
    batches = list(loader)
    numbers = [batch["unit_numbers"].tolist() for batch in batches]
    assert all(len(found) == 4 for found in numbers[:2])
    assert 0 < len(numbers[-1]) < 4
    for batch in batches:
        assert len(batch["number"]) == len(batch["unit_numbers"])
    by_lane: dict[int, list[int]] = {}
    for number in (n for found in numbers for n in found):
        by_lane.setdefault(number % 4, []).append(number // 4)
    assert all(units == list(range(len(units))) for units in by_lane.values()), "no gaps within a lane"
    with pytest.raises(StateError, match="end of its run, at position 72, and was iterated again"):
        taken(loader)
    again = Loader(run, micro_batch_size=1)
    again.load_state_dict(loader.state_dict())
    assert taken(again) == []


def test_a_state_of_any_moment_ends_where_the_run_does(place: Path) -> None:
    """In the midst of the last steps, too, where what is left of a step may be nothing."""
    run = framed_made.framed_run("singles", [place], samples=37)
    loader = Loader(run, micro_batch_size=1, reading=HERE)
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(batch["unit_numbers"].tolist())
        states.append(loader.state_dict())
    assert [] in whole
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


CALLS: list[str] = []


class Counting(Plain):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        CALLS.append(sample.text)
        return sample


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_resume_encodes_one_frame_of_each_lane_again(place: Path, num_workers: int) -> None:
    data = Framed(MediaDataset.open(place, **media_texts.TEXT), Counting(), frame_positions=5)
    run = FramedRun(data, global_batch_size=4, order=Order(seed=4))
    reading = Reading(num_threads=0, num_workers=num_workers, **FORK)
    loader = Loader(run, micro_batch_size=4, reading=reading)
    taken(loader, 13)
    resumed = Loader(run, micro_batch_size=4, reading=HERE)
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    CALLS.clear()
    taken(resumed, 1)
    assert 0 < len(CALLS) <= 4 * 5


class Stateful(TaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def encode_sample(self, sample: Any) -> Any:
        return sample


def test_lost_workers_with_hooks_that_hold_state_are_an_error(place: Path) -> None:
    run = FramedRun(Framed(MediaDataset.open(place, **media_texts.TEXT), Stateful()), global_batch_size=4)
    loader = Loader(run, micro_batch_size=2, reading=Reading(num_workers=2, prefetch=1, **FORK))
    batches = iter(loader)
    next(batches)
    for child in active_children():
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
    with pytest.raises(WorkerError, match=r"SIGKILL.*in read of sample '0013' of 00\.tar, for units"):
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


def life(run: FramedRun, folder: Path, num_workers: int, most: int) -> None:
    """Goes on from the last file, and writes one for each micro-batch: what it holds, and the state after it.

    When there are ``most`` files it waits to be killed.
    """
    loader = Loader(run, micro_batch_size=1, reading=Reading(num_threads=0, num_workers=num_workers, **FORK))
    if files := sorted(folder.glob("*.json")):
        loader.load_state_dict(json.loads(files[-1].read_text())["state"])
    for batch in loader:
        text = json.dumps({"state": loader.state_dict(), "batch": repr(sorted(batch.items()))})
        whole = folder / f"{loader.position:04d}.json"
        whole.with_suffix(".part").write_text(text)
        whole.with_suffix(".part").rename(whole)
        if len(list(folder.glob("*.json"))) >= most:
            signal.pause()


def lives(run: FramedRun, folder: Path) -> Iterator[int]:
    """Processes that are killed after some files each, until one comes to its end; their exit codes."""
    number = 0
    while True:
        wanted = len(list(folder.glob("*.json"))) + (2, 7, 4, 9)[number % 4]
        child = os.fork()
        if child == 0:
            try:
                life(run, folder, number % 3, wanted + 2)
            finally:
                os._exit(0)
        ended = 0
        while not ended:
            if len(list(folder.glob("*.json"))) >= wanted:
                os.kill(child, signal.SIGKILL)
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.001)
        yield os.waitstatus_to_exitcode(status)
        number += 1


def test_a_job_that_is_killed_goes_on_from_its_files(place: Path, tmp_path: Path) -> None:
    run = framed_made.framed_run("packs", [place], samples=37)
    codes = []
    for code in lives(run, tmp_path):
        codes.append(code)
        if code == 0:
            break
    assert codes.count(-signal.SIGKILL) >= 3
    found = [json.loads(file.read_text())["batch"] for file in sorted(tmp_path.glob("*.json"))]
    assert found == taken(Loader(run, micro_batch_size=1))


def test_a_reader_pickles_to_one_that_makes_the_same(run: FramedRun) -> None:
    reader = LaneReader(run, beginning(run.lanes))
    again = pickle.loads(pickle.dumps(reader))
    some = parts(run.schedule, run.lanes, Share(0, 1, 2), (), position=0, end=None, num_readers=1)
    for part in islice(some, 6):
        one, other = (made(part._replace(states=None)) for made in (reader, again))
        # Only how long it took may differ.
        assert repr(one) == repr(other._replace(times=one.times))
