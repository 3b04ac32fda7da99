"""Runs that are edited while they go on: what each step holds, which states load, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from headrace import (
    BatchSchedule,
    Blend,
    ConfigError,
    HeadraceError,
    Order,
    Run,
    ScheduledBlend,
    StateError,
    WindowDataset,
)
from headrace.datasets import Stage
from headrace.loader import Ranks
from headrace.plan.chaptered.changes import PlanEditor
from headrace.plan.chaptered.chapters import ChapteredPlan
from headrace.plan.chaptered.epochs import check_change

LENGTHS = {"web": 33, "code": 16, "math": 7, "forum": 9}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WindowDataset]:
    folder = tmp_path_factory.mktemp("edits")
    found = {}
    for number, (name, count) in enumerate(LENGTHS.items()):
        corpora.write(folder / name / "text_document", [np.arange(count * 4 + 1) + 1000 * number])
        found[name] = WindowDataset(headrace.open(folder / name), seq_len=4)
    assert {name: len(dataset) for name, dataset in found.items()} == LENGTHS
    return found


def blend(sources: dict[str, WindowDataset], **weights: float) -> Blend:
    return Blend({name: sources[name] for name in weights}, weights=weights)


def fed(run: Run, steps: range) -> list[list[int]]:
    """The first token of each sample of some steps: it tells source and sample."""
    return [run.step(step)["input_ids"][:, 0].tolist() for step in steps]


def of_source(run: Run, steps: range, name: str) -> list[int]:
    first = 1000 * list(LENGTHS).index(name)
    return [token for step in fed(run, steps) for token in step if first <= token < first + 1000]


def check_epochs(tokens: list[int], count: int) -> None:
    for begin in range(0, len(tokens), count):
        epoch = tokens[begin : begin + count]
        assert len(set(epoch)) == len(epoch)


def state_at(run: Run, step: int, **options: Any) -> dict[str, Any]:
    loader = headrace.Loader(run, micro_batch_size=1, ranks=Ranks(0, 1), position=run.schedule.begin(step), **options)
    return loader.state_dict()


def resumed(run: Run, state: dict[str, Any], **options: Any) -> headrace.Loader:
    loader = headrace.Loader(run, micro_batch_size=1, ranks=Ranks(0, 1), **options)
    loader.load_state_dict(state)
    return loader


def test_sources_go_on_where_they_are(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=3, code=1), global_batch_size=8, order=Order(seed=1))
    edited = run.edit(5, weights={"web": 1, "code": 1, "math": 2}, add={"math": sources["math"]}, reason="decay")
    assert fed(edited, range(5)) == fed(run, range(5))
    assert fed(edited, range(5, 9)) != fed(run, range(5, 9))
    for name, count in LENGTHS.items():
        check_epochs(of_source(edited, range(40), name), count)
    without = edited.edit(9, remove=["web"]).edit(
        12, weights={"code": 1, "math": 1, "web": 1}, add={"web": sources["web"]}
    )
    assert not of_source(without, range(9, 12), "web")
    for name, count in LENGTHS.items():
        check_epochs(of_source(without, range(40), name), count)


def test_a_stage_and_an_edit_are_the_same(sources: dict[str, WindowDataset]) -> None:
    children = {name: sources[name] for name in ("web", "code")}
    stages = [Stage(until=480, weights={"web": 3, "code": 1}), Stage(weights={"web": 1, "code": 1})]
    planned = Run(ScheduledBlend(children, stages), global_batch_size=16)
    run = Run(Blend(children, weights={"web": 3, "code": 1}), global_batch_size=16)
    edited = run.edit(30, weights={"web": 1, "code": 1})
    assert fed(edited, range(50)) == fed(planned, range(50))
    for step in (0, 1, 29, 30, 31, 50):
        state = state_at(edited, step)
        assert resumed(planned, state).state_dict() == state
        assert resumed(edited, state_at(planned, step)).state_dict() == state
        if step <= 30:
            assert resumed(run, state).state_dict() == state


def test_a_state_is_refused_only_if_the_past_differs(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=3, code=1), global_batch_size=8)
    edited = run.edit(5, weights={"web": 1, "code": 1}, reason="decay mix")
    assert resumed(edited, state_at(run, 5)).step == 5
    with pytest.raises(StateError, match=r"before its edit at step 5 \(decay mix\).*at most at position 40"):
        resumed(edited, state_at(run, 6))
    with pytest.raises(StateError, match=r"position 48, belongs to a run that fed other samples.*blend differ"):
        resumed(run, state_at(edited, 6))
    # What is still to come may be anything; so may numbers that are the same mix.
    for other in (
        run.edit(9, samples=100),
        Run(blend(sources, web=6, code=2), global_batch_size=8, samples=80),
        Run(blend(sources, web=3, code=1), global_batch_size=[(0, 8), (7, 2)]),
    ):
        assert resumed(other, state_at(run, 6)).step == 6
    with pytest.raises(StateError, match="batch differ"):
        resumed(Run(blend(sources, web=3, code=1), global_batch_size=[(0, 8), (5, 2)]), state_at(run, 6))
    with pytest.raises(StateError, match="order differ"):
        resumed(Run(blend(sources, web=3, code=1), global_batch_size=8, order=Order(seed=1)), state_at(run, 6))


@pytest.mark.parametrize("then", ["drop", "defer"])
def test_skips(sources: dict[str, WindowDataset], then: Any) -> None:
    run = Run(blend(sources, web=3, code=1), global_batch_size=8)
    skipping = run.skip(range(2, 4), then=then, reason="spike")
    assert fed(skipping, range(2)) == fed(run, range(2))
    # The two steps are within the first epoch of each source.
    assert fed(skipping, range(2, 3)) == fed(run, range(4, 5))
    for name in ("web", "code"):
        tokens = of_source(skipping, range(30), name)
        passed = of_source(run, range(2, 4), name)
        count = LENGTHS[name] - (len(passed) if then == "drop" else 0)
        assert set(passed).isdisjoint(tokens[:count]) == (then == "drop")
        assert sorted({*tokens[:count], *passed}) == sorted({*of_source(run, range(90), name)})
        assert len(set(tokens[:count])) == count


def test_a_single_dataset(sources: dict[str, WindowDataset]) -> None:
    run = Run(sources["web"], global_batch_size=4, epochs=2)
    assert run.length == 66
    assert run.skip(range(3, 5)).length == 58
    deferred = run.skip(range(3, 5), then="defer")
    assert deferred.length == 66
    tokens = [token for step in fed(deferred, range(17)) for token in step]
    assert sorted(tokens[:33]) == sorted(tokens[33:]) == sorted({*tokens})
    assert run.edit(5, epochs=3).length == 99
    assert run.edit(5, global_batch_size=16).num_steps == 5 + 3
    mixed = run.edit(5, data=blend(sources, web=1, code=1), samples=100)
    assert mixed.length == 100
    check_epochs(of_source(mixed, range(25), "web"), 33)
    again = run.edit(3, order=Order(kind="none"))
    assert fed(again, range(8)) == fed(run, range(8))
    assert fed(again, range(9, 16)) == [list(range(4 * begin, 4 * begin + 16, 4)) for begin in range(3, 31, 4)]


def test_batches(sources: dict[str, WindowDataset]) -> None:
    run = Run(sources["web"], global_batch_size=4)
    edited = run.edit(3, global_batch_size=6).edit(5, global_batch_size=BatchSchedule.of([(0, 2), (2, 3)]))
    assert [edited.schedule.size(step) for step in range(9)] == [4, 4, 4, 6, 6, 2, 2, 3, 3]
    flat = [token for step in fed(edited, range(9)) for token in step]
    assert flat == [token for step in fed(run, range(9)) for token in step][: len(flat)]


def test_another_cut_of_the_same_store(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8)
    # Windows at every second token are other samples, and their fields are the same.
    finer = WindowDataset(sources["web"].store, seq_len=4, stride=2)
    edited = run.edit(3, data=Blend({"web": finer, "code": sources["code"]}, weights={"web": 1, "code": 1}))
    found = edited.lookup(np.arange(24, 200))
    web = [found.epochs[row] for row in range(176) if edited.datasets[found.sources[row]] is finer]
    assert web[:1] == [1]
    assert len(web) > len(finer)
    assert len(set(of_source(edited, range(3, 30), "web")[: len(finer)])) == len(finer)
    check_epochs(of_source(edited, range(40), "code"), 16)


def test_names(sources: dict[str, WindowDataset], tmp_path: Path) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8)
    text = Blend({"english": sources["web"]}, weights={"english": 1})
    moved = Blend({"text": text, "code": sources["code"]}, weights={"text": 1, "code": 1})
    edited = run.edit(3, data=moved, renamed={"english": "web"})
    check_epochs(of_source(edited, range(40), "web"), 33)
    assert of_source(edited, range(40), "web")[:12] == of_source(run, range(3), "web")
    other = Blend({"web": sources["math"], "code": sources["code"]}, weights={"web": 1, "code": 1})
    with pytest.raises(
        ConfigError, match=r"'web' was windows of 4 tokens over 133 tokens, and is now .* 29 tokens, which is other"
    ):
        run.edit(3, data=other)
    twice = Blend(
        {"a": blend(sources, web=1), "b": Blend({"web": sources["math"]}, weights={"web": 1})}, weights={"a": 1, "b": 1}
    )
    with pytest.raises(ConfigError, match=r"the name 'web' is ambiguous.*\['a/web', 'b/web'\].*renamed="):
        run.edit(3, data=twice)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "an edit changes something"),
        ({"weights": {"web": 0, "code": 0}}, "weight"),
        ({"weights": {"web": 1}}, r"no weight for \['code'\]"),
        ({"weights": {"web": 1, "code": 1, "wbe": 1}}, r"no source \['wbe'\]"),
        ({"remove": ["forum"]}, "no 'forum'"),
        ({"remove": ["web", "code"]}, "removes all"),
        ({"add": {"web": None}}, "expected a dataset"),
        ({"renamed": {"a": "b"}, "samples": 10}, "goes with data="),
        ({"order": "full"}, "expected an Order"),
        ({"samples": 10, "epochs": 1}, "both given"),
        ({"epochs": 2}, "endless blend has no epochs"),
        ({"global_batch_size": 0}, "at least 1"),
    ],
)
def test_what_is_refused(sources: dict[str, WindowDataset], options: Any, message: str) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8)
    with pytest.raises(ConfigError, match=message):
        run.edit(3, **options)


def test_edits_at_the_same_step_and_before(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8, samples=80)
    edited = run.edit(3, weights={"web": 2, "code": 1}).edit(6, weights={"web": 3, "code": 1}, reason="more web")
    with pytest.raises(ConfigError, match="already edited at step 6"):
        edited.edit(6, samples=100)
    with pytest.raises(ConfigError, match="allowed are 0 to 10"):
        edited.edit(11, samples=100)
    for choice in ("no", "step"):
        with pytest.raises(ConfigError, match=r"step 3 would drop the later ones \(step 6: weights \(more web\)\)"):
            edited.edit(3, samples=48, replace=choice)
    with pytest.raises(ConfigError, match=r"would drop the later ones \(step 6"):
        edited.skip(range(4, 5))
    back = edited.edit(4, samples=48, replace="later")
    assert [edit.at_step for edit in back.edits] == [3, 4]
    with pytest.raises(ConfigError, match="no edit at step 5; the steps of its edits are 3, 6"):
        edited.skip(range(5, 7), replace="step")
    replaced = edited.skip(range(6, 8), replace="step")
    assert replaced.recipe == run.edit(3, weights={"web": 2, "code": 1}).skip(range(6, 8)).recipe
    with pytest.raises(ConfigError, match="replace"):
        edited.edit(6, samples=48, replace="all")
    assert back.num_steps == 6


def test_a_short_last_step_stays_as_it_was_fed(sources: dict[str, WindowDataset]) -> None:
    run = Run(sources["web"], global_batch_size=4, epochs=1)
    assert (run.num_steps, run.length) == (9, 33)
    longer = run.edit(9, epochs=2)
    assert [len(longer.positions(step)) for step in range(17)] == [4] * 8 + [1] + [4] * 8 + []
    assert longer.length == 66


def test_finite_blends(sources: dict[str, WindowDataset]) -> None:
    data = {name: sources[name] for name in ("web", "code")}
    run = Run(Blend(data, repeats={"web": 2, "code": 1}), global_batch_size=8)
    assert run.length == 82
    more = run.edit(4, data=Blend(data, repeats={"web": 2, "code": 3}))
    assert more.length == 66 + 48
    found = np.concatenate([np.array(step) for step in fed(more, range(15))])
    assert len(found) == more.length
    assert np.bincount(found[found < 1000], minlength=133)[::4].tolist() == [2] * 33 + [0]
    assert np.unique(found[found >= 1000], return_counts=True)[1].tolist() == [3] * 16
    counted = Run(Blend(data, weights={"web": 1, "code": 1}, end="samples", num_samples=64), global_batch_size=8)
    later = counted.edit(4, weights={"web": 3, "code": 1})
    assert later.length == 64
    assert len(of_source(later, range(4, 8), "web")) == 24


def test_what_is_planned_for_later_leaves_the_past_as_it_is(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8)
    # The order holds from the next epoch of code on, which begins at step 4.
    edited = run.edit(2, order=Order(seed=1))
    assert resumed(edited, state_at(run, 4)).step == 4
    with pytest.raises(StateError, match="before its edit at step 2"):
        resumed(edited, state_at(run, 5))


def test_a_skip_within_stages(sources: dict[str, WindowDataset]) -> None:
    stages = [Stage(weights={"web": 3, "code": 1}, until=16), Stage(weights={"web": 1, "code": 1})]
    data = ScheduledBlend({name: sources[name] for name in ("web", "code")}, stages)
    run = Run(data, global_batch_size=4, order=Order(kind="none"), samples=48)
    skipping = run.skip(range(2, 3))
    # The skipped step had three samples of web, and counts for the length of its stage.
    web = [token // 4 for token in of_source(skipping, range(11), "web")]
    assert web == [*range(6), *range(9, len(web) + 3)]
    mixes = [skipping.lookup(skipping.positions(step)).sources.tolist() for step in range(5)]
    assert [mix.count(0) for mix in mixes] == [3, 3, 3, 2, 2]


@pytest.mark.parametrize("end", ["samples", "first_exhausted", "all_exhausted"])
def test_the_length_and_the_rest_of_a_pass(sources: dict[str, WindowDataset], end: Any) -> None:
    options = {"num_samples": 60} if end == "samples" else {}
    data = Blend({name: sources[name] for name in ("web", "code")}, weights={"web": 3, "code": 2}, end=end, **options)
    run = Run(data, global_batch_size=7, samples=200).edit(1, weights={"web": 9, "code": 1})
    assert run.length == 200
    skipping = run.skip(range(3, 4))
    assert skipping.length == 193
    found = skipping.lookup(np.arange(193))
    items = list(zip(found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True))
    assert len(set(items)) == 193


def test_a_source_that_is_removed_at_step_0_is_in_the_account(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8).edit(0, remove=["code"])
    assert {one.source: one.fed.samples for one in run.account(5).sources} == {"web": 40, "code": 0}


def test_an_edit_that_would_be_wrong_is_refused_by_its_check(
    sources: dict[str, WindowDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(blend(sources, web=3, code=1), global_batch_size=8)
    right = PlanEditor._reached

    def wrong(editor: PlanEditor, position: int) -> dict[int, int]:
        return {source: rank - (source == 0) for source, rank in right(editor, position).items()}

    monkeypatch.setattr(PlanEditor, "_reached", wrong)
    with pytest.raises(HeadraceError, match=r"the change at position 16 is refused, as it is wrong: .* please report"):
        run.edit(2, weights={"web": 1, "code": 1})
    later = [Stage(weights={"web": 1}, until=20), Stage(weights={"code": 1})]
    staged = Run(ScheduledBlend({name: sources[name] for name in ("web", "code")}, later), global_batch_size=8)
    monkeypatch.setattr(PlanEditor, "_reached", right)
    plan = staged.plan
    assert isinstance(plan, ChapteredPlan)
    first, second = plan.chapters
    back = replace(second, births={"code": 3})
    with pytest.raises(HeadraceError, match=r"'code' would go on at its sample 3 at position 20, and is at 0"):
        check_change(ChapteredPlan((first, back), plan.sequences, plan.series, plan.source_of), 0, 0)
