"""Runs that were edited are asked: what each step was fed, when a sample came, and when it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import headrace
import runs_made
import slots
from counts import cases
from headrace import Blend, Exclude, Loader, Order, Run, ScheduledBlend
from headrace.cli import main
from headrace.datasets import Stage
from headrace.datasets.editing import Edit
from headrace.datasets.exclusions import Exclusion
from headrace.loader import Ranks
from headrace.tracing import Sources, Topology, history_of, read_run_file, save_run, trace_sample
from states_made import indexed, run_of

SIZES = {"web": 33, "code": 16, "math": 7}
DROPPED = Exclusion(how="drop", samples="3 5", left_out="3 5")


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Numbers(runs_made.Numbers):
    """Numbers that may stand beside others in a batch."""

    @property
    def collated_by(self) -> dict[str, Any]:
        return {}


def blend(**weights: float) -> Blend:
    return Blend({name: Numbers(SIZES[name]) for name in weights}, weights=weights)


@st.composite
def edited(draw: st.DrawFn) -> Run:
    """A run after some edits and skips."""
    run = Run(blend(web=3, code=1), global_batch_size=draw(st.integers(1, 5)), samples=240)
    step = 0
    for _ in range(draw(st.integers(1, 4))):
        step += draw(st.integers(1, 12))
        if step >= (run.num_steps or 0) - 3:
            break
        names = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, unique=True))
        weights = {name: draw(st.integers(1, 4)) for name in names}
        kind = draw(st.sampled_from(["data", "skip", "order", "batch", "left out"]))
        if kind == "skip":
            run = run.skip(range(step, step + draw(st.integers(1, 3))), then=draw(st.sampled_from(["drop", "defer"])))
        elif kind == "order":
            run = run.edit(step, order=draw(runs_made.orders))
        elif kind == "batch":
            run = run.edit(step, global_batch_size=draw(st.integers(1, 5)))
        elif kind == "left out" and isinstance(run.data, Blend) and "web" in run.data.children:
            run = run.rebuilt([*run.edits, Edit(at_step=step, exclude={"web": DROPPED}, asked=("exclude",))])
        else:
            run = run.edit(step, data=blend(**weights))
    return run


def named(run: Run, position: int, leaf: int) -> str:
    plan: Any = run.plan
    return plan.chapter_at(position).paths[plan.source_of[leaf]] if run.edits else run.paths[leaf]


@settings(max_examples=cases(8, 400), deadline=None)
@given(edited(), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_steps_and_samples(run: Run, ranks: int, micro_batch_size: int, from_file: bool) -> None:
    history = history_of(run)
    if from_file:
        Path("run.json").unlink(missing_ok=True)
        save_run(run, "run.json")
        history = Sources(read_run_file("run.json")).history()
    log = []
    topology = Topology(ranks=ranks, micro_batch_size=micro_batch_size)
    for step in range(run.num_steps or 0):
        positions = run.positions(step)
        found = run.lookup(positions)
        wanted = [
            (step, position, named(run, position, leaf), epoch, index)
            for position, leaf, epoch, index in zip(
                *(column.tolist() for column in (positions, found.sources, found.epochs, found.indices)), strict=True
            )
        ]
        told = history.step(step, topology=topology)
        assert [(one.step, one.position, one.source, one.epoch, one.index) for one in told] == wanted
        taken = slots.positions_of(run, positions).tolist()
        assert sorted(taken) == positions.tolist()
        log += wanted
    for source in {one[2] for one in log}:
        for index in (0, 3, SIZES[source] - 1):
            times = history.sample(source, index, limit=10_000)
            wanted = [one for one in log if (one[2], one[4]) == (source, index)]
            assert times.count == len(wanted)
            assert [(one.step, one.position, one.source, one.epoch, one.index) for one in times.shown] == wanted
            part = history.sample(source, index, until_step=20, limit=2)
            assert part.count == sum(one[0] < 20 for one in wanted)


def test_when_it_stopped() -> None:
    run = Run(blend(web=3, code=1), global_batch_size=8)
    run = run.rebuilt([Edit(at_step=9, exclude={"web": DROPPED}, asked=("exclude",))])
    run = run.edit(20, weights={"web": 1, "code": 1, "math": 1}, add={"math": Numbers(7)}).edit(30, remove=["code"])
    assert trace_sample(run, "web", 4).notes == ()
    out = trace_sample(run, "web", 3)
    assert out.notes == ("excluded from step 9 on",)
    assert max(one.step for one in out.shown) < 9
    gone = trace_sample(run, "code", 1, limit=1000)
    assert gone.notes == ("'code' comes no more from step 30 on, where it was removed",)
    assert {one.step < 30 for one in gone.shown} == {True}
    assert trace_sample(run, "math", 1).shown[0].step >= 20
    back = run.edit(40, weights={"web": 1, "math": 1, "code": 1}, add={"code": Numbers(16)})
    assert trace_sample(back, "code", 1).notes == ()
    for wrong in ("cod", "x"):
        with pytest.raises(headrace.ConfigError, match=rf"'{wrong}'"):
            trace_sample(run, wrong, 1)


def windows(name: str, **options: Any) -> headrace.WindowDataset:
    return headrace.WindowDataset(indexed(name), **{"seq_len": 16, **options})


def changed() -> Run:
    """Web is cut in another way from step 6 on, and moves from step 12 on."""
    run = run_of(Blend({"a": windows("a", phase=True), "bb": windows("bb")}, weights={"a": 3, "bb": 1}), samples=None)
    finer = windows("a", stride=4)
    run = run.edit(6, data=Blend({"a": finer, "bb": windows("bb")}, weights={"a": 3, "bb": 1}), reason="finer")
    inner = Blend({"web": finer}, weights={"web": 1})
    return run.edit(12, data=Blend({"x": inner, "bb": windows("bb")}, weights={"x": 1, "bb": 1}), renamed={"web": "a"})


def test_documents_through_all_series() -> None:
    run = changed()
    save_run(run, "run.json", position=0)
    sources = Sources(read_run_file("run.json"))
    until = 30
    for history in (history_of(run), sources.history()):
        for document in (1, 7, 40):
            wanted = []
            for step in range(until):
                positions = run.positions(step)
                located = run.locate(positions)
                for row, position in enumerate(positions.tolist()):
                    leaf = int(located.sources[row])
                    if not named(run, position, leaf).endswith(("a", "web")):
                        continue
                    pieces = run.datasets[leaf].origins(located.addresses[row : row + 1])[0]
                    if any(piece.document == document for piece in pieces):
                        wanted.append((step, position))
            for name in ("a", "x/web"):
                times = history.sample(name, document=document, until_step=until, limit=1000)
                assert [(one.step, one.position) for one in times.shown] == wanted
                assert all(any(piece.document == document for piece in one.origins) for one in times.shown)
        told = [one.source for one in history.step(11)] + [one.source for one in history.step(12)]
        assert set(told) == {"a", "bb", "x/web"}
        index = next(one.index for one in history.step(8) if one.source == "a")
        numbered = history.sample("x/web", index, until_step=until)
        assert "was another dataset with other numbers" in numbered.notes[0]
        assert min(one.step for one in numbered.shown) == 8
        assert [one.origins for one in history.step(3)] == [
            run.datasets[one.sources.item()].origins(one.addresses)[0]
            for one in (run.locate(np.array([position])) for position in run.positions(3))
        ]
    assert sources.notes == []


@pytest.mark.parametrize("is_mapped", [False, True])
def test_documents_that_are_masked(is_mapped: bool) -> None:
    def cut(name: str) -> Any:
        return headrace.MapDataset(windows(name), dict) if is_mapped else windows(name)

    run = run_of(Blend({"a": cut("a"), "bb": cut("bb")}, weights={"a": 3, "bb": 1}), samples=None)
    run = run.edit(30, exclude={"a": Exclude(documents=[1, 2], pad_id=0)})
    run = run.edit(40, exclude={"a": Exclude(documents=[4], pad_id=0)})
    save_run(run, "run.json", position=0)
    for history in (history_of(run), Sources(read_run_file("run.json")).history()):
        index = next(one.index for one in history.step(2) if one.source == "a")
        times = history.sample("a", index, until_step=100, limit=1000)
        plain = history_of(run.rebuilt(())).sample("a", index, until_step=100, limit=1000)
        assert ([one.step for one in times.shown], times.notes) == ([one.step for one in plain.shown], ())
        for document, end in ((1, 30), (2, 30), (4, 40), (5, None)):
            times = history.sample("a", document=document, until_step=100, limit=1000)
            plain = history_of(run.rebuilt(())).sample("a", document=document, until_step=100, limit=1000)
            wanted = [one.step for one in plain.shown if end is None or one.step < end]
            assert [one.step for one in times.shown] == wanted
            assert times.notes == (() if end is None else (f"excluded from step {end} on",))
        assert not {1, 2} & {piece.document for one in history.step(31) if one.source == "a" for piece in one.origins}


def test_samples_that_are_wholly_masked_say_so() -> None:
    run = run_of(Blend({"a": windows("a"), "bb": windows("bb")}, weights={"a": 1, "bb": 1}), samples=None)
    (first, *_) = [one for one in history_of(run).step(31) if one.source == "a"]
    documents = [piece.document for piece in first.origins]
    run = run.edit(30, exclude={"a": Exclude(documents=documents, pad_id=0)})
    save_run(run, "run.json", position=0)
    (masked,) = [one for one in history_of(run).step(31) if one.position == first.position]
    assert (masked.index, masked.origins, masked.num_masked) == (first.index, (), len(documents))
    done = CliRunner().invoke(main, ["trace", "step", "31"])
    lines = [line.split() for line in done.output.splitlines() if line.endswith("  wholly masked")]
    assert [str(first.position) in line for line in lines] == [True], done.output


def test_a_stage_that_ends() -> None:
    stages = [Stage(until=40, weights={"web": 1, "code": 1}), Stage(weights={"web": 1})]
    data = ScheduledBlend({"web": Numbers(33), "code": Numbers(16)}, stages)
    run = Run(data, global_batch_size=8)
    for one in (run, run.edit(2, order=Order(seed=9))):
        assert trace_sample(one, "code", 1).notes == ("'code' comes no more from step 5 on, where its stage ends",)
        assert trace_sample(one, "web", 1).notes == ()


def test_states_and_commands() -> None:
    run = changed()
    save_run(run, "run.json", position=0)
    loader = Loader(run, micro_batch_size=4, ranks=Ranks(0, 1))
    for _ in loader:
        if loader.step == 14:
            break
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    done = CliRunner().invoke(main, ["trace", "step", "13", "--state", "state.json", "--json"])
    assert done.exit_code == 0, done.output
    assert {one["seen"] for one in json.loads(done.output)["samples"]} == {True}
    done = CliRunner().invoke(main, ["trace", "sample", "bb", "3", "--state", "state.json", "--json"])
    told = json.loads(done.output)
    assert told["until_step"] == 14
    assert all(one["seen"] for one in told["shown"])
    other = run.rebuilt(run.edits[:1]).edit(8, order=Order(seed=8))
    foreign = Loader(other, micro_batch_size=4, ranks=Ranks(0, 1), position=other.schedule.begin(20)).state_dict()
    Path("state.json").write_text(json.dumps(foreign))
    done = CliRunner().invoke(main, ["trace", "step", "13", "--state", "state.json"])
    assert (done.exit_code, "is of none of the 1 runs" in done.output) == (5, True)
