"""Accounts of runs that were changed against a replay, which moves sample by sample and keeps explicit sets."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import headrace
import runs_made
from counts import cases
from headrace import Blend, ConfigError, Exclude, Order, Run, WindowDataset
from headrace.datasets import Concat, FramedRun, Limit
from headrace.datasets.dataset import CountedDataset, Counts, Traits
from headrace.datasets.exclusions import range_numbers, ranges_text
from headrace.plan import Branch, Bucketing, IntArray, Leaf, Lookup, Node
from headrace.plan.chaptered.changes import PlanEditor
from headrace.tracing import RunAccount, SourceAccount, account, first_difference, seen
from plan import changes_model

Space = tuple[int, int]


class Source(changes_model.ModelSource):
    """A source of the model that notes what it yields, by its data and epoch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fed: dict[tuple[Space, int], set[int]] = {}
        self.passed: dict[tuple[Space, int], set[int]] = {}
        self.left: dict[tuple[Space, int], set[int]] = {}
        self.cut: set[tuple[Space, int]] = set()
        self.pending: list[tuple[tuple[Space, int], int]] = []

    @property
    def space(self) -> Space:
        return self.leaf.num_samples, self.leaf.first_sample

    def settle(self) -> None:
        """Count as excluded what never comes any more; if the data change before the next sample, it is left behind."""
        for place, index in self.pending:
            self.left[place].add(index)
        self.pending = []

    def take(self) -> tuple[int, int]:
        self.settle()
        epoch, index = super().take()
        place = self.space, epoch
        self.left[place] = set(self.left_out)
        self.fed.setdefault(place, set()).add(index)
        return epoch, index

    def pass_over(self, item: tuple[int, int]) -> None:
        place = self.space, item[0]
        self.fed[place].remove(item[1])
        self.passed.setdefault(place, set()).add(item[1])

    def leave_out(self, samples: set[int]) -> None:
        for epoch, index in self.rest:
            place = self.space, epoch
            if index in samples and place in self.left and index not in self.passed.get(place, ()):
                self.pending.append((place, index))
        super().leave_out(samples)

    def begin_anew(self, leaf: Leaf, order: Order) -> None:
        begun = [place for place in self.left if place[0] == self.space]
        if begun:
            self.cut.add(max(begun))
        self.pending = []
        super().begin_anew(leaf, order)

    def columns(self) -> dict[tuple[Space, int], dict[str, int]]:
        """Where the samples of each epoch are that was begun."""
        self.settle()
        found = {}
        for place in self.left:
            (size, first), _ = place
            fed, passed = self.fed.get(place, set()), self.passed.get(place, set())
            coming = {index for number, index in (*self.rest, *self.late) if (self.space, number) == place}
            left = (self.left_out if coming else self.left[place]) - fed
            gone = passed - fed - coming - left
            columns = {
                "fed": len(fed),
                "to_come": len(coming - passed),
                "deferred": len(coming & passed),
                "dropped": len(gone),
                "excluded": len(left),
            }
            rest = set(range(first, first + size)) - fed - coming - gone - left
            assert not rest or place in self.cut
            found[place] = {**columns, "left_behind": len(rest)}
        return found

    def times(self, space: Space) -> dict[int, int]:
        counted = Counter(index for place, fed in self.fed.items() if place[0] == space for index in fed)
        return dict(Counter(counted[index] for index in range(space[1], space[1] + space[0])))


class Model(changes_model.Model):
    def add(self, leaf: Leaf) -> int:
        self.sources.append(Source(leaf, leaf.path, self.order))
        return len(self.sources) - 1

    def skip(self, count: int, *, defer: bool) -> None:
        passed: dict[int, list[tuple[int, int]]] = {}
        for _ in range(count):
            source, item = self.take()
            self.sources[source].pass_over(item)
            passed.setdefault(source, []).append(item)
        if defer:
            for source, items in passed.items():
                self.sources[source].put_off(items)


KINDS = ["tree", "order", "left_out", "left_out", "skip", "defer", "batch", "fresh"]


def random_run(rng: random.Random) -> tuple[Run, Model, int]:
    """A run that was changed a few times and fed up to a step, and the model of it."""
    names = {name: changes_model.random_leaf(rng, name) for name in ["a", "b", "c"][: rng.randrange(2, 4)]}
    order, root = changes_model.random_order(rng), changes_model.random_tree(rng, names)
    run = Run(runs_made.Tree(root), global_batch_size=rng.choice([1, 4, 5, 8]), order=order)
    editor, model = PlanEditor(root, order, run.schedule, changes_model.ENDLESS), Model(root, order)
    step, _ = changes_model.random_changes(rng, editor, model, names, KINDS, rng.randrange(0, 8))
    for _ in range(rng.choice([0, 1, 3, 12])):
        for _ in range(editor.schedule.size(step)):
            model.take()
        step += 1
    run.plan, run.schedule = editor.plan(), editor.schedule
    run.datasets = tuple(runs_made.Numbers(leaf.first_sample + leaf.num_samples) for leaf in run.plan.leaves)
    return run, model, step


def check_source(found: SourceAccount, columns: dict[int, dict[str, int]], times: dict[int, int]) -> None:
    assert found.seen == times
    assert found.is_exact
    assert found.fed.samples == sum(one["fed"] for one in columns.values())
    for name in ("dropped", "deferred", "left_behind"):
        assert found.total(name) == sum(one[name] for one in columns.values()), name
    begun = {epoch: one for epoch, one in columns.items() if one["fed"] or one["dropped"] or one["deferred"]}
    assert found.epochs_begun == len(begun)
    whole = [one for one in begun.values() if one["fed"] + one["excluded"] == found.num_samples]
    assert found.epochs_complete == len(whole)
    assert found.present is not None
    if not found.present.fed + found.present.deferred + found.present.dropped:
        # The data came back, or are new, and their first epoch has not begun.
        assert found.present.to_come + found.present.excluded == found.num_samples
    elif columns:
        last = max(columns)
        assert found.present.epoch == last
        assert {name: getattr(found.present, name) for name in columns[last]} == columns[last]


@pytest.mark.parametrize("seed", range(cases(120, 5000)))
def test_random_changes_against_a_replay(seed: int) -> None:
    run, model, step = random_run(random.Random(seed))
    found = account(run, step)
    assert found.fed.samples == run.schedule.begin(step)
    for source in model.sources:
        mine = [one for one in found.sources if _name(one.source) == _name(source.key_path)]
        columns: dict[Space, dict[int, dict[str, int]]] = {source.space: {}}
        for (space, epoch), counts in source.columns().items():
            columns.setdefault(space, {})[epoch] = counts
        assert len(mine) == len(columns)
        for one in mine:
            # Two sets of data with as many samples are told apart by what was fed of them.
            [space, *_] = [
                space
                for space, all_counts in columns.items()
                if (space[0], space == source.space) == (one.num_samples, one.is_current)
                and one.fed.samples == sum(counts["fed"] for counts in all_counts.values())
            ]
            check_source(one, columns.pop(space), source.times(space))
    assert sum(sum(chapter.came.values()) for chapter in found.chapters) == found.fed.samples


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@settings(max_examples=cases(50, 1000), deadline=None)
@given(runs_made.trees(), runs_made.orders, runs_made.schedules, st.integers(0, 40))
def test_trees_of_all_kinds(root: Node, order: Order, pieces: list[tuple[int, int]], step: int) -> None:
    run = Run(runs_made.Tree(root), global_batch_size=pieces, order=order, samples=400)
    found = account(run, step)
    lookup = run.lookup(np.arange(min(run.schedule.begin(step), 400), dtype=np.int64))
    check_lookup(run, found, lookup)


def check_lookup(run: Run, found: RunAccount, lookup: Lookup) -> None:
    """Whether an account is that of samples, fed one by one."""
    by_name = {one.source: one for one in found.sources}
    for number, leaf in enumerate(run.plan.leaves):
        mine = lookup.sources == number
        one = by_name[leaf.path or "."]
        counted = np.bincount(lookup.indices[mine] - leaf.first_sample, minlength=leaf.num_samples)
        assert one.seen == dict(Counter(counted.tolist()))
        assert one.fed.samples == mine.sum()
        assert one.present is not None
        if mine.any():
            # A limit may pass over whole epochs after the last sample.
            last = int(lookup.epochs[mine].max())
            assert one.epochs_begun == one.present.epoch + 1 >= last + 1
            assert one.present.fed == (lookup.epochs[mine] == one.present.epoch).sum()
    assert found.fed.samples == len(lookup.sources)


def test_windows_of_steps_with_bucketing() -> None:
    tree = Branch("", (Leaf("a", 31), Leaf("b", 17)), (2, 1), None)
    options = {"global_batch_size": 5, "samples": 203, "bucketing": Bucketing(window_steps=4)}
    run = Run(runs_made.Tree(tree), **options)
    for step in (0, 1, 3, 4, 5, 17, 39, 40, 41):
        check_lookup(run, account(run, step), run.lookup(np.arange(min(5 * step, 203), dtype=np.int64)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WindowDataset]:
    folder = tmp_path_factory.mktemp("accounts")
    found = {}
    for name, count in {"web": 33, "code": 16, "math": 7}.items():
        corpora.write(folder / name / "text_document", [np.arange(count * 2), np.arange(count * 2 + 1)])
        found[name] = WindowDataset(headrace.open(folder / name), seq_len=4)
    return found


def blend(sources: dict[str, WindowDataset], **weights: float) -> Blend:
    return Blend({name: sources[name] for name in weights}, weights=weights)


def test_an_edited_run(sources: dict[str, WindowDataset]) -> None:
    run = Run(blend(sources, web=3, code=1), global_batch_size=8, samples=160)
    edited = run.edit(5, weights={"web": 1, "code": 1, "math": 2}, add={"math": sources["math"]}, reason="decay")
    found = edited.account()
    assert (found.step, found.fed.samples, found.fed.tokens, found.fed.supervised_tokens) == (20, 160, 640, 640)
    assert found.fed.estimated == ()
    assert [one.source for one in found.sources] == ["web", "code", "math"]
    assert [one.fed.samples for one in found.sources] == [60, 40, 60]
    first, second = found.chapters
    assert (first.step, first.end_step, first.samples, first.reason) == (0, 5, 40, "")
    assert (second.step, second.end_step, second.samples, second.reason) == (5, 20, 120, "decay")
    assert (first.planned, first.came) == ({"web": 0.75, "code": 0.25}, {"web": 30, "code": 10})
    assert second.planned == {source: second.share(source) for source in second.came}
    assert second.planned == {"web": 0.25, "code": 0.25, "math": 0.5}
    assert edited.account(0).chapters[0].planned == first.planned, "of no samples that which is planned"
    assert found.sources[0].seen == {1: 6, 2: 27}
    math = found.sources[2]
    assert (math.epochs_begun, math.epochs_complete, math.seen) == (9, 8, {8: 3, 9: 4})
    # Later edits do not count, and those at the step do.
    assert edited.account(4) == run.account(4)
    assert [one.source for one in edited.account(5).sources] == ["web", "code", "math"]


def test_another_cut_of_the_same_store(sources: dict[str, WindowDataset]) -> None:
    finer = WindowDataset(sources["web"].store, seq_len=4, stride=2)
    run = Run(Blend({"web": sources["web"]}, weights={"web": 1}), global_batch_size=4)
    before, after = run.edit(5, data=Blend({"web": finer}, weights={"web": 1})).account(7).sources
    assert (before.is_current, before.total("left_behind"), before.seen) == (False, 13, {0: 13, 1: 20})
    assert (after.is_current, after.fed.samples) == (True, 8)
    assert after.present is not None
    assert (after.present.epoch, after.present.to_come) == (1, len(finer) - 8)
    assert before.data != after.data


class Endless(CountedDataset, runs_made.Numbers):
    """Numbers that are counted, and say how many of them were."""

    def __init__(self, num_samples: int, *, alike: bool) -> None:
        super().__init__(num_samples)
        self.alike = alike
        self.num_counted = 0

    @property
    def traits(self) -> Traits:
        return Traits(is_ragged=True, is_counted=not self.alike)

    @property
    def collated_by(self) -> dict[str, Any]:
        return {}

    def count(self, addresses: IntArray) -> Counts:
        self.num_counted += len(addresses)
        ones = np.ones_like(addresses)
        tokens = 7 * ones if self.alike else addresses % 7
        return Counts(tokens, tokens - ones if self.alike else addresses % 2, 0 * ones, ones)


def test_ten_thousand_million_samples() -> None:
    size = 10**10
    data = Blend({"a": Endless(size, alike=True), "b": Endless(size + 1, alike=True)}, weights={"a": 1, "b": 1})
    run = Run(data, global_batch_size=1000)
    run = run.skip(range(10**5, 10**5 + 10), then="defer").skip(range(10**6, 10**6 + 7))
    run = run.edit(15 * 10**6, weights={"a": 3, "b": 1}).edit(16 * 10**6, order=Order(seed=1))
    found = run.account(10**8)
    assert found.fed.samples == 10**11
    assert found.fed.tokens == 7 * 10**11
    assert found.fed.supervised_tokens == 6 * 10**11
    assert found.fed.estimated == ("documents",)
    assert all(one.is_exact for one in found.sources)
    assert all(sum(one.seen.values()) == one.num_samples for one in found.sources)
    assert [one.total("dropped") for one in found.sources] == [3500, 3500]
    for dataset in data.children.values():
        assert isinstance(dataset, Endless)
        assert dataset.num_counted <= 2048


def test_what_is_counted_and_what_is_estimated() -> None:
    dataset = Endless(5000, alike=False)
    run = Run(dataset, global_batch_size=100)
    found = run.account(173)
    whole = sum(number % 7 for number in range(5000))
    lookup = run.lookup(np.arange(17_300, dtype=np.int64))
    assert found.fed.tokens == int((lookup.indices % 7).sum())
    assert found.fed.supervised_tokens == int((lookup.indices % 2).sum())
    assert found.fed.estimated == ()
    large = Endless(1 << 22, alike=False)
    guessed = Run(large, global_batch_size=1 << 20).account(3).fed
    assert guessed.estimated == ("tokens", "supervised_tokens", "documents")
    assert guessed.tokens == pytest.approx(3 * (1 << 20) * whole / 5000, rel=0.05)
    assert large.num_counted <= 2048


def test_estimates_of_how_often_samples_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(runs_made.Numbers(1001), global_batch_size=100)
    for step in (4, 9, 14):
        run = run.skip(range(step, step + 5))
    exact = run.account(27).sources[0]
    assert exact.is_exact
    monkeypatch.setattr(seen, "MOST_LOOKED_UP", 10)
    scanned = run.account(27, exact=True).sources[0]
    assert (scanned.seen, scanned.is_exact) == (exact.seen, True)
    guessed = run.account(27).sources[0]
    assert not guessed.is_exact
    assert sum(guessed.seen.values()) == 1001
    for times, count in exact.seen.items():
        assert guessed.seen.get(times, 0) == pytest.approx(count, abs=80)


def test_limits(sources: dict[str, WindowDataset]) -> None:
    run = Run(Concat({"web": Limit(sources["web"], 10), "code": sources["code"]}), global_batch_size=13, epochs=4)
    web, code = run.account().sources
    assert (web.fed.samples, web.epochs_begun, web.epochs_complete, web.total("dropped")) == (40, 4, 0, 4 * 23)
    assert (code.seen, code.epochs_complete) == ({4: 16}, 4)
    with pytest.raises(ConfigError, match="earlier"):
        Run(Limit(sources["web"], 1), global_batch_size=1000, epochs=10**6).account()


def test_what_is_refused(sources: dict[str, WindowDataset]) -> None:
    run = Run(sources["web"], global_batch_size=4, epochs=1)
    with pytest.raises(ConfigError, match=r"account.*10.*0"):
        run.account(10)
    with pytest.raises(ConfigError, match="step"):
        Run(sources["web"], global_batch_size=4).account()
    with pytest.raises(ConfigError, match="framed"):
        account(FramedRun.__new__(FramedRun), 5)
    with pytest.raises(ConfigError, match="expected"):
        account("run.json")  # type: ignore[arg-type]


def test_the_first_difference(sources: dict[str, WindowDataset]) -> None:
    def told(one: Run, other: Run) -> tuple[int, str]:
        found = first_difference(one, other)
        assert found is not None
        assert f"step {found.step:,}: " in found.message
        return found.step, found.field

    run = Run(blend(sources, web=1, code=1), global_batch_size=8)
    assert first_difference(run, Run(blend(sources, web=2, code=2), global_batch_size=8)) is None
    assert told(run, run.edit(1200, weights={"web": 3, "code": 1})) == (1200, "weights")
    assert told(run, run.edit(7, global_batch_size=16)) == (7, "global_batch_size")
    more = run.edit(7, weights={"web": 1, "code": 1, "math": 2}, add={"math": sources["math"]})
    assert told(run, more) == (7, "sources")
    skipped = run.skip(range(5, 7))
    assert told(run, skipped) == (5, "skip")
    assert "code 20 -> 28, web 20 -> 28" in str(first_difference(run, skipped))
    # Another order holds from the next epoch on: web has 33 samples, 4 a step, and code 16.
    assert told(run, run.edit(2, order=Order(seed=1))) == (4, "order")
    assert told(run, run.edit(2, samples=100)) == (12, "length")
    assert told(run, run.edit(2, samples=104)) == (13, "length")
    finer = WindowDataset(sources["web"].store, seq_len=4, stride=2)
    cut = run.edit(3, data=Blend({"web": finer, "code": sources["code"]}, weights={"web": 1, "code": 1}))
    assert told(run, cut) == (3, "data")


@pytest.mark.parametrize("phase", [False, True])
def test_what_else_was_in_dropped_samples(tmp_path: Path, phase: bool) -> None:
    store = corpora.make(tmp_path / "web", 1, 40).store
    windows = headrace.WindowDataset(store, seq_len=16, phase=phase)
    run = Run(windows, global_batch_size=4)
    assert run.account(20).sources[0].exclusions == ()
    run = run.edit(2, exclude={".": Exclude(documents=[3, 4], how="drop")})
    run = run.edit(4, exclude={".": Exclude(documents=[9], pad_id=0)})
    dropped, masked = run.account(20).sources[0].exclusions
    assert (dropped.step, dropped.how, dropped.documents) == (2, "drop", "3-4")
    assert dropped.samples == run.edits[0].exclude[""].left_out
    samples = range_numbers(dropped.samples)
    keys = np.repeat(run.plan.keys(0, np.array([0])), len(samples))
    held = {piece.document for found in windows.origins(windows.locate(samples, keys)) for piece in found}
    assert dropped.other_documents == ranges_text(np.array(sorted(held - {3, 4})))
    assert (masked.step, masked.documents, masked.samples, masked.other_documents) == (4, "9", "", "")
    assert run.account(20).sources[0].present.excluded > 0
    assert len(run.account(3).sources[0].exclusions) == 1
