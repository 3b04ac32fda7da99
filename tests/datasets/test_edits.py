"""Runs that are edited while they go on: what each step holds, which states load, and what is refused.

Chains of edits over mixes of every kind are looked up: what is fed before a step stays, and each sample comes once. The
oracle knows nothing of plans: it looks every position up, before and after each edit, and counts.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
import media_texts
import records_made
from counts import cases
from headrace import Exclude, MediaDataset, PackedSequenceDataset, Packing, Run, SFTDataset, WindowDataset
from headrace.datasets import Blend, Concat, Dataset, Limit, Mix, Repeat, ScheduledBlend, Stage, Subset
from headrace.errors import ConfigError, HeadraceError, StateError
from headrace.loader import Ranks
from headrace.plan import BatchSchedule, Bucketing, Order
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
    with pytest.raises(StateError, match=r"5.*position.*40"):
        resumed(edited, state_at(run, 6))
    with pytest.raises(StateError, match=r"position.*48"):
        resumed(run, state_at(edited, 6))
    # What is still to come may be anything; so may numbers that are the same mix.
    for other in (
        run.edit(9, samples=100),
        Run(blend(sources, web=6, code=2), global_batch_size=8, samples=80),
        Run(blend(sources, web=3, code=1), global_batch_size=[(0, 8), (7, 2)]),
    ):
        assert resumed(other, state_at(run, 6)).step == 6
    for options in ({"global_batch_size": [(0, 8), (5, 2)]}, {"order": Order(seed=1)}):
        with pytest.raises(StateError, match="differ"):
            resumed(Run(run.data, **{"global_batch_size": 8, **options}), state_at(run, 6))  # type: ignore[arg-type]


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
    with pytest.raises(ConfigError, match=r"'web'.*4.*133"):
        run.edit(3, data=other)
    of_math = Blend({"web": sources["math"]}, weights={"web": 1})
    twice = Blend({"a": blend(sources, web=1), "b": of_math}, weights={"a": 1, "b": 1})
    with pytest.raises(ConfigError, match=r"'web'.*\['a/web'.*'b/web'"):
        run.edit(3, data=twice)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "changes"),
        ({"weights": {"web": 0, "code": 0}}, "weight"),
        ({"weights": {"web": 1}}, r"\['code'\]"),
        ({"weights": {"web": 1, "code": 1, "wbe": 1}}, r"\['wbe'\]"),
        ({"remove": ["forum"]}, "'forum'"),
        ({"remove": ["web", "code"]}, "all"),
        ({"add": {"web": None}}, "dataset"),
        ({"renamed": {"a": "b"}, "samples": 10}, "data="),
        ({"order": "full"}, "Order"),
        ({"samples": 10, "epochs": 1}, "both"),
        ({"epochs": 2}, "epochs"),
        ({"global_batch_size": 0}, "1"),
    ],
)
def test_what_is_refused(sources: dict[str, WindowDataset], options: Any, named: str) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8)
    with pytest.raises(ConfigError, match=named):
        run.edit(3, **options)


def test_edits_at_the_same_step_and_before(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=1, code=1), global_batch_size=8, samples=80)
    edited = run.edit(3, weights={"web": 2, "code": 1}).edit(6, weights={"web": 3, "code": 1}, reason="more web")
    with pytest.raises(ConfigError, match=r"already.*6"):
        edited.edit(6, samples=100)
    with pytest.raises(ConfigError, match=r"allowed.*0.*10"):
        edited.edit(11, samples=100)
    for choice in ("no", "step"):
        with pytest.raises(ConfigError, match=r"3.*6.*weights"):
            edited.edit(3, samples=48, replace=choice)
    with pytest.raises(ConfigError, match=r"later.*6"):
        edited.skip(range(4, 5))
    back = edited.edit(4, samples=48, replace="later")
    assert [edit.at_step for edit in back.edits] == [3, 4]
    with pytest.raises(ConfigError, match=r"5.*edits.*3"):
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
    with pytest.raises(StateError, match=r"before.*2"):
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
    with pytest.raises(HeadraceError, match=r"position.*16"):
        run.edit(2, weights={"web": 1, "code": 1})
    later = [Stage(weights={"web": 1}, until=20), Stage(weights={"code": 1})]
    staged = Run(ScheduledBlend({name: sources[name] for name in ("web", "code")}, later), global_batch_size=8)
    monkeypatch.setattr(PlanEditor, "_reached", right)
    plan = staged.plan
    assert isinstance(plan, ChapteredPlan)
    first, second = plan.chapters
    back = replace(second, births={"code": 3})
    with pytest.raises(HeadraceError, match=r"'code'.*3.*20"):
        check_change(ChapteredPlan((first, back), plan.sequences, plan.series, plan.source_of), 0, 0, {})


NAMES = ("a", "b", "c", "d")
AHEAD = 260
"""Positions that are looked up behind the last edit."""

Data = Dataset | Mix
Item = tuple[int, int, int]
"""The number of a source, an epoch, and a sample."""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Dataset]]:
    """For each kind of data four datasets of different lengths."""
    folder = tmp_path_factory.mktemp("chains")
    stores = [corpora.make(folder / f"t{number}", number, 8 + 9 * number).store for number in range(4)]
    records = [
        records_made.store(folder / f"r{number}", records_made.sft(number, 9 + 8 * number)) for number in range(4)
    ]
    media = [media_texts.shards(folder / f"m{number}", (5 + number, 4, 3 * number + 1)) for number in range(4)]
    return {
        "windows": [WindowDataset(store, seq_len=8) for store in stores],
        "packs": [PackedSequenceDataset(store, Packing(seq_len=32, over_long="split")) for store in stores],
        "records": [SFTDataset(store) for store in records],
        "media": [MediaDataset.open(place, **media_texts.TEXT) for place in media],
    }


def weights(rng: random.Random, names: list[str]) -> dict[str, float]:
    return {name: rng.choice([1, 1, 2, 3, 7]) for name in names}


def endless(rng: random.Random, children: dict[str, Data], **options: Any) -> Blend:
    return Blend(children, weights=weights(rng, list(children)), **options)


def staged(rng: random.Random, children: dict[str, Data], *, ramp: bool) -> ScheduledBlend:
    names = list(children)
    first = rng.sample(names, rng.randrange(1, len(names) + 1))
    until = rng.choice([1, 7, 16, 40])
    stages = [Stage(weights=weights(rng, first), until=until)]
    if ramp:
        until += rng.choice([1, 9, 60])
        stages.append(Stage(weights=weights(rng, names), until=until, ramp=True))
    for _ in range(rng.randrange(3)):
        until += rng.choice([1, 5, 30])
        stages.append(Stage(weights=weights(rng, rng.sample(names, rng.randrange(1, len(names) + 1))), until=until))
    return ScheduledBlend(children, [*stages, Stage(weights=weights(rng, names))])


def nested(rng: random.Random, children: dict[str, Data], make: Callable[[dict[str, Data]], Data]) -> Blend:
    names = list(children)
    inner = {name: children[name] for name in names[: max(1, len(names) - 1)]}
    outer: dict[str, Data] = {"in": make(inner)}
    outer |= {name: children[name] for name in names[len(inner) :]}
    return endless(rng, outer)


MIXES: dict[str, Callable[[random.Random, dict[str, Data]], Data]] = {
    "single": lambda rng, some: next(iter(some.values())),
    "blend": lambda rng, some: endless(rng, some),
    "blocks": lambda rng, some: endless(rng, some, block_samples=rng.choice([2, 4])),
    "by samples": lambda rng, some: endless(rng, some, end="samples", num_samples=rng.choice([30, 97])),
    "first exhausted": lambda rng, some: endless(rng, some, end="first_exhausted"),
    "all exhausted": lambda rng, some: endless(rng, some, end="all_exhausted"),
    "repeats": lambda rng, some: Blend(some, repeats={name: rng.choice([1, 0.5, 2, 1.75]) for name in some}),
    "concat": lambda rng, some: Concat(some),
    "limit": lambda rng, some: Limit(endless(rng, some), rng.choice([3, 20, 64])),
    "limited sources": lambda rng, some: endless(rng, {name: Limit(one, 3) for name, one in some.items()}),
    "repeated sources": lambda rng, some: endless(rng, {name: Repeat(one, 1.5) for name, one in some.items()}),
    "subsets": lambda rng, some: endless(rng, {name: Subset(one, ["10%", "90%"]) for name, one in some.items()}),
    "tree": lambda rng, some: nested(rng, some, lambda inner: endless(rng, inner)),
    "tree with passes": lambda rng, some: nested(rng, some, lambda inner: Concat(inner)),
    "stages": lambda rng, some: staged(rng, some, ramp=False),
    "ramp": lambda rng, some: staged(rng, some, ramp=True),
    "stages in a tree": lambda rng, some: nested(rng, some, lambda inner: staged(rng, inner, ramp=False)),
    "ramp in a limit": lambda rng, some: Limit(staged(rng, some, ramp=True), rng.choice([9, 50])),
}
WITH_PASSES = {"by samples", "first exhausted", "all exhausted", "repeats", "concat", "limit", "ramp in a limit"}
"""These end, so that nothing can be put off or dropped out of their epochs."""

WHOLE = WITH_PASSES | {"limited sources", "repeated sources", "tree with passes"}
"""A node of these counts whole passes of its sources, so that no epoch may become shorter."""

LIMITED = {"limit", "limited sources", "by samples", "first exhausted", "all exhausted", "ramp in a limit"}
"""Here samples of an epoch may never come, and passes may begin a source anew."""

WEIGHTED = {"blend", "blocks", "by samples", "first exhausted", "all exhausted", "tree", "subsets", "stages", "ramp"}
"""These have weights at their root that an edit can change."""

ENDS = {"by samples", "first exhausted", "all exhausted"}


class Chain:
    """A run that is edited, and what the oracle knows of it."""

    def __init__(self, rng: random.Random, kind: str, mix: str, datasets: dict[str, Dataset]) -> None:
        self.rng, self.kind, self.mix, self.datasets = rng, kind, mix, datasets
        self.refused: list[tuple[str, str]] = []
        self.num_asked = 0
        self.gone: set[Item] = set()
        self.excluded: dict[int, set[int]] = defaultdict(set)
        self.step = 0
        data = MIXES[mix](rng, dict(datasets))
        options: dict[str, Any] = {}
        self.is_endless = mix not in WITH_PASSES
        if rng.random() < 0.4:
            options["samples"] = rng.choice([180, 400, 1000])
        elif rng.random() < 0.4 and (not self.is_endless or mix == "single"):
            options["epochs"] = rng.choice([1, 3, 9])
        self.window = rng.choice([1, 1, 3]) if kind == "records" else 1
        self.bucketing = Bucketing(window_steps=self.window) if self.window > 1 else None
        self.measure = dict(options)
        options |= {"order": self.order(), "bucketing": self.bucketing}
        self.run = Run(data, global_batch_size=rng.choice([1, 4, 5, 8]), **options)

    def order(self) -> Order:
        kinds = ["full", "full", "blocks", "none"] + (["shards"] if self.kind == "media" else [])
        sizes = {"block_samples": 3, "window_blocks": 2, "max_samples_per_sequence": 3, "parallel_shard_iters": 2}
        return Order(kind=self.rng.choice(kinds), seed=self.rng.randrange(3), **sizes)  # type: ignore[arg-type]

    def items(self, run: Run, begin: int, end: int) -> list[Item]:
        """What the positions get, each source by its number in the run; bucketing moves them within windows."""
        plan = run.plan
        found = run.plan.lookup(np.arange(begin, end, dtype=np.int64))
        numbers = [plan.source_of[series] for series in found.sources.tolist()]
        return list(zip(numbers, found.epochs.tolist(), found.indices.tolist(), strict=True))

    def edit(self) -> None:
        """Edit the run at a step from the present one on, and check what stays."""
        rng, run = self.rng, self.run
        at = self.step + rng.choice([0, 0, 1, 3, 6])
        at += -at % self.window
        if run.num_steps is not None and at >= run.num_steps:
            return
        what, changed = rng.choice(list(self.edits(at)))
        self.num_asked += 1
        try:
            later = changed()
        except ConfigError as error:
            self.refused.append((what, str(error)))
            return
        begin = run.schedule.begin(at)
        self.step = at + 1
        self.run = later
        assert self.items(later, 0, begin) == self.items(run, 0, begin)
        assert later.past(begin).hashes() == run.past(begin).hashes()
        for position in map(later.schedule.begin, sorted(rng.choices(range(at + 40), k=4))):
            if later.length is None or position <= later.length:
                assert later.past_hashes(position) == later.past(position).hashes(), "what is kept is what it is"
        if "samples" in self.measure and what != "samples":
            skipped = sum(
                run.schedule.begin(edit.at_step + edit.skip_steps) - run.schedule.begin(edit.at_step)
                for edit in later.edits
                if edit.skip_steps and edit.then == "drop"
            )
            if not any(edit.pieces for edit in later.edits):
                assert later.length == self.measure["samples"] - skipped

    def edits(self, at: int) -> Iterator[tuple[str, Callable[[], Run]]]:
        """Yield the edits that make sense for the run at a step."""
        rng, run = self.rng, self.run
        begin = run.schedule.begin(at)
        names = sorted(self.datasets)
        yield "batch", lambda: run.edit(at, global_batch_size=rng.choice([2, 3, 6, [(0, 2), (self.window, 5)]]))
        yield "order", lambda: run.edit(at, order=self.order())
        if self.is_endless:
            yield "samples", lambda: self.measured(run.edit(at, samples=begin + 150), begin + 150)
        count = self.window * rng.choice([1, 2, 3])
        beyond = run.schedule.begin(at + count)
        if run.length is None or beyond <= run.length:
            yield "skip", lambda: self.skipped(at, count, begin, beyond)
            if self.is_endless:
                yield "defer", lambda: run.skip(range(at, at + count), then="defer")
        if self.mix in WEIGHTED and isinstance(run.data, Blend | ScheduledBlend):
            children = sorted(run.data.children)
            mine = {name: rng.choice([1, 2, 5]) for name in children}
            yield "weights", lambda: self.mixed(run.edit(at, weights=mine))
            if len(children) > 1 and self.mix not in ENDS:
                gone = rng.choice(children)
                rest = {name: weight for name, weight in mine.items() if name != gone}
                yield "remove", lambda: self.mixed(run.edit(at, weights=rest, remove=[gone]))
        if self.is_endless and self.mix != "single" and self.mix != "subsets":
            plain = {name: self.datasets[name] for name in rng.sample(names, rng.randrange(1, len(names) + 1))}
            for mix in ("blend", "tree", "stages", "ramp", "stages in a tree"):
                yield f"data: {mix}", partial(self.remixed, at, plain, mix)
        if self.mix not in WHOLE and self.mix != "subsets" and not any(edit.exclude for edit in run.edits):
            path, source = rng.choice(sorted(run.plan.chapters[-1].sources.items()))
            samples = sorted(rng.sample(range(len(self.datasets[path.rpartition("/")[2] or "a"])), 2))
            some = Exclude(samples=samples, how="drop")
            yield "exclude", lambda: self.without(run.edit(at, exclude={path or ".": some}), source, samples)
        if self.kind in ("windows", "packs") and self.mix != "subsets":
            masked = rng.choice(sorted(run.plan.chapters[-1].sources)) or "."
            yield "mask", lambda: run.edit(at, exclude={masked: Exclude(documents=[1], how="mask", pad_id=0)})

    def measured(self, later: Run, samples: int) -> Run:
        self.measure = {"samples": samples}
        skips = [edit for edit in later.edits if edit.skip_steps and edit.then == "drop"]
        if not skips:
            assert later.length == samples
        return later

    def skipped(self, at: int, count: int, begin: int, beyond: int) -> Run:
        later = self.run.skip(range(at, at + count))
        self.gone |= set(self.items(self.run, begin, beyond))
        return later

    def remixed(self, at: int, plain: dict[str, Dataset], mix: str) -> Run:
        return self.mixed(self.run.edit(at, data=MIXES[mix](self.rng, dict(plain))), mix)

    def mixed(self, later: Run, mix: str | None = None) -> Run:
        self.mix = mix or (
            self.mix if isinstance(later.data, Blend) and self.mix not in ("stages", "ramp") else "blend"
        )
        return later

    def without(self, later: Run, source: int, samples: list[int]) -> Run:
        self.excluded[source] |= set(samples)
        return later

    def check(self, limited: bool) -> None:
        """Each sample comes once in each epoch, all of them in those that are over, and accounts say the same."""
        run = self.run
        end = run.schedule.begin(self.step) + AHEAD
        if run.length is not None:
            end = min(end, run.length)
        found = self.items(run, 0, end)
        assert len(set(found)) == len(found), [item for item, count in Counter(found).items() if count > 1][:5]
        assert not self.gone & set(found)
        plan, paths = run.plan, run.source_paths
        seen: dict[tuple[int, int], set[int]] = defaultdict(set)
        for source, epoch, index in found:
            seen[source, epoch].add(index)
        last = {source: max(epoch for one, epoch in seen if one == source) for source, _ in seen}
        for source, _, index in found[run.schedule.begin(self.step - 1) if self.step else 0 :]:
            assert index not in self.excluded[source] or self.step == 0
        for source, final in () if limited else last.items():
            leaf = plan.leaves[plan.source_of.index(source)]
            whole = set(range(leaf.first_sample, leaf.first_sample + leaf.num_samples))
            for epoch in range(final):
                gone = {index for one, other, index in self.gone if (one, other) == (source, epoch)}
                missing = whole - seen[source, epoch] - gone - self.excluded[source]
                assert not missing, (paths[source], epoch, sorted(missing)[:5])
        for step in {0, self.step, run.schedule.step_of(max(end - 1, 0))}:
            place = run.schedule.begin(step)
            if (run.length is not None and place > run.length) or (self.bucketing is not None and step % self.window):
                continue
            counts = Counter(source for source, _, _ in found[:place])
            account = run.account(step)
            by_name: Counter[str] = Counter()
            for one in account.sources:
                by_name[one.source] += one.fed.samples
            assert sum(by_name.values()) == place == account.fed.samples
            assert sorted(by_name.values()) == sorted([*counts.values(), *[0] * (len(by_name) - len(counts))])


@pytest.mark.parametrize("kind", ["windows", "packs", "records", "media"])
def test_chains(kinds: dict[str, list[Dataset]], kind: str) -> None:
    drawn: set[str] = set()
    refused: list[tuple[str, str]] = []
    num_edits = 0
    for seed in range(cases(len(MIXES), 1_000)):
        rng = random.Random(f"{kind} {seed}")
        mix = list(MIXES)[seed % len(MIXES)]
        datasets = dict(zip(NAMES, rng.sample(kinds[kind], rng.randrange(2, len(kinds[kind]) + 1)), strict=False))
        chain = Chain(rng, kind, mix, datasets)
        for _ in range(rng.randrange(1, 6)):
            chain.edit()
        try:
            chain.check(mix in LIMITED)
        except Exception as error:
            error.add_note(f"kind {kind}, seed {seed}, mix {mix}, edits {[one.describe() for one in chain.run.edits]}")
            raise
        drawn.add(mix)
        num_edits += chain.num_asked
        refused += chain.refused
    assert drawn == set(MIXES)
    assert len(refused) < 0.02 * num_edits, refused
