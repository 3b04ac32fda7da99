"""Both ways through runs and histories of runs, against what was fed step by step."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import runs_made
import slots
from counts import cases, python_steps
from headrace.datasets import Blend, Run
from headrace.errors import ConfigError, StateError
from headrace.plan import Bucketing, Cursor, Leaf, LimitNode, Node, Order, Share, micro_batches
from headrace.tracing import Topology, history_of, read_run_file, save_run, trace_sample, trace_step
from headrace.tracing.history import Chapter, History

LENGTH = 150


@settings(max_examples=cases(16, 100), deadline=None)
@given(
    runs_made.trees(),
    runs_made.orders,
    runs_made.schedules,
    st.booleans(),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0, 13, 60]),
)
def test_a_sample_comes_where_it_is_fed(
    root: Node, order: Order, pieces: list[tuple[int, int]], is_bucketed: bool, limit: int | None, begin: int
) -> None:
    bucketing = Bucketing(window_steps=3) if is_bucketed else None
    run = Run(runs_made.Tree(root), global_batch_size=pieces, order=order, samples=LENGTH, bucketing=bucketing)
    trace = history_of(run).chapters[0].trace
    fed = defaultdict(list)
    end = LENGTH - 10
    positions = np.sort(slots.positions_of(run, np.arange(begin, end)))
    found = run.lookup(positions)
    for position, source, epoch, index in zip(
        positions.tolist(), found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True
    ):
        fed[source, index].append((position, epoch))
    for source, leaf in enumerate(run.plan.leaves):
        for index in range(leaf.first_sample, leaf.first_sample + leaf.num_samples):
            seen = trace.find(source, index, begin=begin, end=end, limit=limit)
            wanted = fed[source, index]
            assert list(zip(seen.positions.tolist(), seen.epochs.tolist(), strict=True)) == wanted[:limit]
            assert seen.total == len(wanted)


class Fed(NamedTuple):
    """One sample as it was fed."""

    step: int
    rank: int
    micro_step: int
    run: int
    position: int
    source: str
    epoch: int
    index: int


def recipe_of(chapter: Chapter, source: str) -> Any:
    return chapter.run.datasets[chapter.paths[source.replace(".", "")][-1]].recipe


@st.composite
def trainings(draw: st.DrawFn) -> tuple[list[Chapter], list[tuple[Fed, Topology]], int]:
    """Runs that follow each other at any position of the next one, and what they fed, each with its own topology."""
    chapters: list[Chapter] = []
    log: list[tuple[Fed, Topology]] = []
    step = 0
    last = draw(st.integers(0, 2))
    for number in range(last + 1):
        schedule = draw(runs_made.schedules)
        run = Run(
            runs_made.Tree(draw(runs_made.trees())),
            global_batch_size=schedule,
            order=draw(runs_made.orders),
            samples=LENGTH,
        )
        position = draw(st.integers(0, 40)) if number else 0
        topology = Topology(ranks=draw(st.integers(1, 3)), micro_batch_size=draw(st.integers(1, 3)))
        (whole,) = history_of(run).chapters
        chapters.append(dataclasses.replace(whole, first_step=step, position=position))
        num_steps = draw(st.integers(1, 4))
        first = run.schedule.step_of(position)
        end = min(LENGTH, run.schedule.begin(first + num_steps)) if number < last else LENGTH
        for rank in range(topology.ranks):
            share = Share(rank, topology.ranks, topology.micro_batch_size)
            taken = micro_batches(run.schedule, share, position=position, end=end, at_least=LENGTH)
            micro_step = -1
            before = None
            columns = (taken.begins, taken.sizes, taken.steps)
            for begin, size, of in zip(*(column.tolist() for column in columns), strict=True):
                micro_step = micro_step + 1 if of == before else 0
                before = of
                some = slots.positions_of(run, np.arange(begin, begin + size))
                found = run.lookup(some)
                for at, source, epoch, index in zip(
                    some.tolist(), found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True
                ):
                    path = run.paths[source] or "."
                    log.append((Fed(of - first + step, rank, micro_step, number, at, path, epoch, index), topology))
        step += run.schedule.step_of(end - 1) + 1 - first
    return chapters, sorted(log, key=lambda one: (one[0].step, one[0].position)), step


@settings(max_examples=cases(16, 40), deadline=None)
@given(trainings(), st.integers(0, LENGTH))
def test_resumes_topologies_and_schedules(
    training: tuple[list[Chapter], list[tuple[Fed, Topology]], int], reached: int
) -> None:
    chapters, log, num_steps = training
    position = max(chapters[-1].position, reached)
    step_of = chapters[-1].trace.schedule.step_of(position)
    cursor = Cursor(recipe=chapters[-1].run.recipe.hashes(), step=step_of, position=position)

    def is_seen(one: Fed) -> bool:
        slot = int(chapters[one.run].trace.slots(np.array([one.position]))[0])
        return (one.run, slot) < (len(chapters) - 1, position)

    history = History(chapters)
    marked = History(chapters, cursor.to_dict())
    for step in range(num_steps):
        wanted = [one for one in log if one[0].step == step]
        found = marked.step(step, topology=wanted[0][1])
        names = Fed._fields
        assert [tuple(getattr(one, name) for name in names) for one in found] == [tuple(one) for one, _ in wanted]
        assert [one.seen for one in found] == [is_seen(one) for one, _ in wanted]
        mine = marked.step(step, topology=wanted[0][1], rank=0)
        assert [one.position for one in mine] == [one.position for one, _ in wanted if one.rank == 0]
    with pytest.raises(ConfigError, match="there"):
        history.step(num_steps)
    # The last sample of all, through every run that has its source as the same dataset.
    last = log[-1][0]
    recipe = recipe_of(chapters[-1], last.source)
    wanted = [
        one
        for one, _ in log
        if (one.source, one.index) == (last.source, last.index) and recipe_of(chapters[one.run], one.source) == recipe
    ]
    times = history.sample(last.source, last.index, limit=1000)
    assert times.count == len(wanted)
    assert [(one.step, one.run, one.position) for one in times.shown] == [(w.step, w.run, w.position) for w in wanted]
    before = history.sample(last.source, last.index, until_step=last.step)
    assert before.count == sum(one.step < last.step for one in wanted)
    so_far = marked.sample(last.source, last.index)
    assert so_far.count == sum(map(is_seen, wanted))


def test_an_endless_run_is_searched_as_far_as_is_asked() -> None:
    run = Run(runs_made.Tree(Leaf("web", 100)), global_batch_size=8)
    times = trace_sample(run, "web", 7, limit=5)
    assert times.count == 5, "once an epoch"
    assert [one.epoch for one in times.shown] == [0, 1, 2, 3, 4]
    assert all(one.source == "web" and one.origins == () for one in times.shown)
    assert trace_sample(run, "web", 7, until_step=100_000, limit=2).count == 8_000
    for one in times.shown:
        assert 7 in run.lookup(run.positions(one.step)).indices


def test_a_state_is_of_the_run_that_was_there() -> None:
    """The first recipe again after another one: a state from before it is of the first run."""
    run, other = (Run(runs_made.Tree(Leaf("web", 9)), global_batch_size=2, order=Order(seed=seed)) for seed in (0, 1))
    chapters = [
        dataclasses.replace(history_of(one).chapters[0], first_step=step, position=2 * step)
        for one, step in ((run, 0), (other, 10), (run, 20))
    ]
    for reached, place in ((12, 6), (50, 25)):
        cursor = Cursor(recipe=run.recipe.hashes(), step=place, position=reached)
        history = History(chapters, cursor.to_dict())
        found = [all(one.seen for one in history.step(step)) for step in (0, place - 1, place, 30)]
        assert found == [True, True, False, False]
        assert history.step(15)[0].seen is (reached == 50)
        assert history.sample("web", 3).until_step == place


def test_lengths_unknown_leave_a_window() -> None:
    tree = runs_made.Tree(Leaf("web", 100))
    run = Run(tree, global_batch_size=4, samples=LENGTH, bucketing=Bucketing(window_steps=4))
    vague = History([Chapter(run, lambda leaf: None, knows_lengths=False)])
    for step in (0, 5, 36):
        some, exact = vague.step(step), trace_step(run, step)
        assert {one.index for one in exact} <= {one.index for one in some}
        assert {(one.step, one.last_step) for one in some} == {(step // 4 * 4, min(step // 4 * 4 + 3, 37))}
        assert {one.position for one in some} == {None}
    for index in (0, 50, 99):
        pairs = zip(vague.sample("web", index).shown, trace_sample(run, "web", index).shown, strict=True)
        assert all(one.step <= exact.step <= one.last_step for one, exact in pairs)
    with pytest.raises(ConfigError, match="lengths"):
        vague.step(3, topology=Topology(ranks=2, micro_batch_size=1))


def test_many_epochs_of_which_samples_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each must be looked into: so many are, and it is said up to where."""
    run = Run(runs_made.Tree(LimitNode("few", Leaf("few", 10), 3)), global_batch_size=5, samples=3_000)
    whole = trace_sample(run, "few", 4, limit=3)
    assert (whole.until_step, whole.notes) == (600, ())
    monkeypatch.setattr("headrace.tracing.trace.MAX_EPOCHS", 64)
    some = trace_sample(run, "few", 4, limit=3)
    assert some.shown == whole.shown
    assert 3 < some.count < whole.count
    assert some.count == trace_sample(run, "few", 4, until_step=some.until_step).count
    assert f"step {some.until_step:,} " in some.notes[0]


@pytest.fixture(scope="module")
def asked() -> History:
    return history_of(Run(runs_made.Tree(Leaf("web", 100)), global_batch_size=8, samples=80))


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda history: history.step(-1), "steps.*0.*9"),
        (lambda history: history.step(10), "steps.*0.*9"),
        (lambda history: history.sample("wed", 1), "'web'"),
        (lambda history: history.sample("web", 100), "0.*99.*100"),
        (lambda history: history.sample("web"), "them"),
        (lambda history: history.sample("web", 1, limit=0), r"limit.*0.*1"),
        (lambda history: history.step(1, topology=Topology(ranks=2, micro_batch_size=1), rank=2), "rank.*2"),
        (lambda history: Topology(ranks=0, micro_batch_size=1), r"ranks.*0.*1"),
        (lambda history: history.sample("web", document=1), "document"),
        (lambda history: history.sample("web", key="cat"), "samples"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked: History, ask: Callable[[History], Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ask(asked)


def test_a_state_of_another_run_is_refused(asked: History) -> None:
    other = Cursor(recipe=dict.fromkeys(asked.chapters[0].run.recipe.hashes(), "0"), step=0, position=0)
    with pytest.raises(StateError, match=r"1.*runs"):
        History(asked.chapters, other.to_dict())


def test_a_great_run_is_traced_at_once(tmp_path: Path) -> None:
    sources = {f"s{i}": runs_made.Sharded([10_000] * (size // 10_000)) for i, size in enumerate((10**10, 10**8))}
    blend = Blend(sources, weights={"s0": 0.99, "s1": 0.01})
    run = Run(blend, global_batch_size=1024, order=Order(kind="full", seed=3))
    save_run(run, tmp_path / "run.json")
    assert (tmp_path / "run.json").stat().st_size < 10_000
    times: Any = None

    def trace() -> None:
        nonlocal times
        (saved,) = read_run_file(tmp_path / "run.json").runs
        history = History([Chapter(saved.run(), lambda leaf: None)])
        samples = history.step(9_000_000)
        times = history.sample(samples[0].source, samples[0].index)

    assert python_steps(trace) < 500_000, "9 million steps are behind it"
    assert 9_000_000 in [one.step for one in times.shown]
