"""Both ways through runs and histories of runs, against what was fed step by step; what samples are made of."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import energon_made
import records_made
import runs_made
import slots
from counts import cases, python_steps
from headrace import (
    MapDataset,
    MediaDataset,
    PackedSequenceDataset,
    Packing,
    SFTDataset,
    WindowDataset,
    open as open_store,
)
from headrace.compat.megatron import CyclicDataset, GPTDataset
from headrace.datasets import Blend, Collation, Dataset, FilledDataset, Run
from headrace.datasets.dataset import Origins
from headrace.errors import ConfigError, StateError
from headrace.plan import Bucketing, Cursor, Leaf, LimitNode, Node, Order, Share, micro_batches
from headrace.tracing import Topology, history, history_of, read_run_file, save_run, trace_sample, trace_step
from headrace.tracing.history import Chapter, History
from token_shards import write_shard

LENGTH = 150


@settings(max_examples=cases(8, 100), deadline=None)
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


@settings(max_examples=cases(8, 40), deadline=None)
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


KEYS = np.array([0, 1, 2**63 + 12345], dtype=np.uint64)


def spelled(origins: Origins) -> list[int]:
    """The document of each token."""
    return [one.document for one in origins for _ in range(one.tokens or 0)]


def check_holders(dataset: Dataset, keys: np.ndarray | None) -> None:
    """All samples with a document are named; without keys no others are."""
    indices = np.arange(len(dataset))
    held: dict[int, set[int]] = {}
    for key in [None] if keys is None else keys:
        own = None if key is None else np.full(len(dataset), key)
        for index, origins in enumerate(dataset.origins(dataset.locate(indices, own))):
            for one in origins:
                assert one.document is not None
                held.setdefault(one.document, set()).add(index)
    for document in range(dataset.store.num_documents):  # type: ignore[attr-defined]
        found = dataset.holders(document).tolist()
        assert found == sorted(set(found))
        if keys is None:
            assert set(found) == held.get(document, set())
        assert set(found) >= held.get(document, set())
    for wrong in (-1, 10**9):
        with pytest.raises(ConfigError, match="document"):
            dataset.holders(wrong)


@pytest.mark.parametrize("stride", [None, 3, 30])
@pytest.mark.parametrize("phase", [False, True])
def test_windows(corpus: list[corpora.Corpus], stride: int | None, phase: bool) -> None:
    for one in corpus[:3]:
        dataset = WindowDataset(one.store, seq_len=17, stride=stride, phase=phase, document_ids=True)
        for key in KEYS if phase else KEYS[:1]:
            addresses = dataset.locate(np.arange(len(dataset)), np.full(len(dataset), key))
            shown = dataset.read(addresses)["document_ids"].tolist()
            origins = dataset.origins(addresses)
            assert list(map(spelled, origins)) == shown
            begins = one.store.document_begins(np.array([pieces[0].document for pieces in origins]))
            assert [pieces[0].begin for pieces in origins] == (addresses - begins).tolist()
            assert all(piece.begin == 0 for pieces in origins for piece in pieces[1:])
        check_holders(dataset, KEYS if phase else None)
        assert dataset.origins(np.empty(0, dtype=np.int64)) == []


PACKINGS = {
    "greedy": Packing(seq_len=64, strategy="greedy", over_long="truncate_right"),
    "split": Packing(seq_len=20, strategy="best_fit_split"),
    "repack": Packing(seq_len=64, over_long="drop", repack=True),
    "repack_split": Packing(seq_len=20, strategy="best_fit_split", repack=True),
    "wrapped": Packing(seq_len=30, strategy="wrapped"),
}


@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_packs(corpus: list[corpora.Corpus], packing: Packing) -> None:
    for one in corpus[:2]:
        dataset = PackedSequenceDataset(one.store, packing)
        for key in KEYS:
            addresses = dataset.locate(np.arange(len(dataset)), np.full(len(dataset), key))
            shown = dataset.read(addresses)["document_ids"]
            for row, origins in zip(shown, dataset.origins(addresses), strict=True):
                assert spelled(origins) == row[row >= 0].tolist()
        check_holders(dataset, KEYS if packing.repack else None)


def test_megatron_samples(corpus: list[corpora.Corpus]) -> None:
    dataset = GPTDataset(corpus[0].store, sequence_length=30, num_samples=100)
    addresses = np.arange(len(dataset))
    for index, origins in enumerate(dataset.origins(addresses)):
        tokens = [
            corpus[0].tokens[corpus[0].documents == one.document][one.begin : one.begin + one.tokens]  # type: ignore[operator]
            for one in origins
        ]
        sample = dataset[index]
        assert np.concatenate(tokens).tolist() == [*sample["tokens"].tolist(), int(sample["labels"][-1])]
    with pytest.raises(ConfigError, match="GPTDataset"):
        dataset.holders(3)
    filled = FilledDataset(dataset, multiple_of=len(dataset) + 2)
    told = filled.origins(filled.locate(np.arange(len(filled))))
    assert told == [*dataset.origins(addresses), (), ()]
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    some = cyclic.locate(np.arange(20))
    assert cyclic.origins(some) == dataset.origins(some)


def test_records_and_maps(tmp_path: Path) -> None:
    store = records_made.store(tmp_path, records_made.sft(0, 20), "keyed")
    records = SFTDataset(store, Collation())
    assert [one.document for (one,) in records.origins(np.array([3, 0]))] == [3, 0]
    assert records.holders(7).tolist() == [7]
    with pytest.raises(ConfigError, match=r"document.*20.*20"):
        records.holders(20)
    mapped = MapDataset(records, dict)
    assert mapped.origins(np.array([3])) == records.origins(np.array([3]))
    assert mapped.holders(7).tolist() == [7]
    with pytest.raises(ConfigError, match="samples"):
        mapped.find_keys("7")


def test_media(tmp_path: Path) -> None:
    for shard in range(3):
        members = [(f"cats/{shard}{number}.txt", b"cat") for number in range(4)]
        energon_made.write_tar(tmp_path / f"{shard}.tar", members)
    dataset = MediaDataset.open(tmp_path)
    (origin,) = dataset.origins(np.array([6]))[0]
    assert (origin.key, origin.shard, origin.sample, origin.document) == ("cats/12", "1.tar", 2, None)
    assert dataset.find_keys("cats/12")[0] == 6
    with pytest.raises(ConfigError, match="'dogs'"):
        dataset.find_keys("dogs")
    times = history_of(Run(dataset, global_batch_size=4, epochs=2)).sample(".", key="cats/12")
    assert (times.count, times.shown[1].origins[0].key) == (2, "cats/12")


@pytest.mark.parametrize("order", ["full", "none"])
@pytest.mark.parametrize("kind", ["windows", "repack"])
def test_when_a_document_is_seen(corpus: list[corpora.Corpus], order: Any, kind: str) -> None:
    dataset: Dataset = (
        WindowDataset(corpus[0].store, seq_len=17, phase=True, document_ids=True)
        if kind == "windows"
        else PackedSequenceDataset(corpus[0].store, PACKINGS["repack"])
    )
    run = Run(dataset, global_batch_size=5, order=Order(kind=order), epochs=3)
    read = {position: set() for position in range(run.length or 0)}  # type: dict[int, set[int]]
    for step in range(run.num_steps or 0):
        batch = run.step(step)
        for position, row in zip(batch["sample_positions"].tolist(), batch["document_ids"], strict=True):
            read[position] = set(row.tolist())
        for one in trace_step(run, step):
            assert one.position is not None
            assert set(spelled(one.origins)) == read[one.position] - {-1}
    for document in range(0, corpus[0].store.num_documents, 2):
        times = history_of(run).sample(".", document=document, limit=1000)
        wanted = [position for position, documents in read.items() if document in documents]
        assert [one.position for one in times.shown] == wanted
        assert times.count == len(wanted)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_shard(tmp_path / "a", [np.arange(30), np.arange(3000) % 50, *[np.arange(20)] * 40])
    write_shard(tmp_path / "b", [np.arange(4000)])
    data = {name: WindowDataset(open_store(tmp_path / name), seq_len=8) for name in ("a", "b")}
    return Run(Blend(data, weights={"a": 2, "b": 1}), global_batch_size=24, order=Order(seed=1), samples=4000)


@pytest.mark.parametrize("is_edited", [False, True])
def test_the_same_times_are_found(run: Run, is_edited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = history_of(run.edit(10, weights={"a": 1, "b": 1}) if is_edited else run)
    one_by_one = [asked.sample("a", document=1, until_step=step, limit=50) for step in (7, 160)]
    monkeypatch.setattr(history, "_MANY_SAMPLES", 2)
    monkeypatch.setattr(history, "_WALKED_AT_ONCE", 100)
    assert [asked.sample("a", document=1, until_step=step, limit=50) for step in (7, 160)] == one_by_one
    assert one_by_one[1].count > 1000


@pytest.mark.parametrize("bound", ["_MAX_LOOKS", "_MAX_WALKED"])
def test_the_search_ends(run: Run, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MANY_SAMPLES", 2)
    monkeypatch.setattr(history, "_WALKED_AT_ONCE", 100)
    monkeypatch.setattr(history, bound, 300)
    found = history_of(run).sample("a", document=1)
    assert found.until_step is not None
    assert 10 < found.until_step < 40
    assert f"step {found.until_step} only: 376 " in found.notes[0]
    assert found.count == history_of(run).sample("a", document=1, until_step=found.until_step).count
