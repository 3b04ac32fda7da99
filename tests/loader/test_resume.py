"""Killed anywhere, resumed on any topology, edited in between: every step is that of the uninterrupted run."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import corpora
import headrace
import records_made
import slots
from counts import cases
from headrace import (
    BatchSchedule,
    Blend,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    SFTDataset,
    StateError,
    WindowDataset,
)
from headrace.datasets import Dataset
from headrace.loader import Ranks, Reading
from loader.jobs import Job, flat

WINDOW = 6
PACK = 20


@dataclass(frozen=True)
class Leg:
    """One life of the job: its topology, how it reads, and after how many micro-steps it is killed."""

    world_size: int
    micro_batch_size: int
    reading: Reading
    micro_steps: int


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    strategy = draw(st.sampled_from(["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"]))
    cuts = strategy in ("best_fit_split", "wrapped")
    return Packing(
        seq_len=PACK,
        strategy=strategy,
        over_long="split" if cuts else draw(st.sampled_from(["split", "truncate_left", "drop"])),
        window_documents=None if strategy == "wrapped" else draw(st.sampled_from([None, 7])),
    )


def packed(corpus: list[corpora.Corpus], draw: st.DrawFn) -> PackedSequenceDataset:
    packing = draw(packings())
    if packing.window_documents is None and packing.strategy.startswith("best_fit") and draw(st.booleans()):
        packing = msgspec.structs.replace(packing, repack=True)
    return PackedSequenceDataset(draw(st.sampled_from(corpus)).store, packing, padding_idx=1)


@st.composite
def datas(draw: st.DrawFn, corpus: list[corpora.Corpus], packs: bool, depth: int = 2) -> Dataset | Blend:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        if packs:
            return packed(corpus, draw)
        return WindowDataset(
            draw(st.sampled_from(corpus)).store,
            seq_len=WINDOW,
            stride=draw(st.sampled_from([None, 1, 5, 40])),
            phase=draw(st.booleans()),
            document_ids=True,
            position_ids="restart",
        )
    names = "abcd"[: draw(st.integers(1, 4))]
    children = {name: draw(datas(corpus, packs, depth - 1)) for name in names}
    finite = all(not isinstance(child, Blend) or child.num_samples is not None for child in children.values())
    numbers = {name: draw(st.floats(0.2, 3)) for name in names}
    if finite and draw(st.booleans()):
        return Blend(children, repeats=numbers)
    end = draw(st.sampled_from(["endless", "samples", *(["first_exhausted", "all_exhausted"] if finite else [])]))
    return Blend(
        children,
        weights=numbers,
        unit=draw(st.sampled_from(["samples", "tokens"])),
        end=end,
        num_samples=draw(st.integers(1, 200)) if end == "samples" else None,
    )


@st.composite
def runs(draw: st.DrawFn, corpus: list[corpora.Corpus]) -> Run:
    data = draw(datas(corpus, draw(st.booleans())))
    schedule = [(0, draw(st.integers(1, 24)))]
    for _ in range(draw(st.integers(0, 2))):
        schedule.append((schedule[-1][0] + draw(st.integers(1, 5)), draw(st.integers(1, 24))))
    order = Order(
        kind=draw(st.sampled_from(["full", "blocks", "none"])),
        seed=draw(st.integers(0, 5)),
        block_samples=draw(st.sampled_from([1, 3, 50])),
        window_blocks=draw(st.integers(1, 5)),
    )
    endless = isinstance(data, Blend) and data.num_samples is None
    length: dict[str, int] = draw(
        st.sampled_from([{}, {"samples": 37}, {"samples": 300}, *([] if endless else [{"epochs": 1}, {"epochs": 2}])])
    )
    if "epochs" in length and not isinstance(data, Blend) and len(data) > 400:
        length = {"samples": 401}
    return Run(data, global_batch_size=BatchSchedule.of(schedule), order=order, **length)


@st.composite
def legs(draw: st.DrawFn) -> list[Leg]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        # Worker processes take long to start, so they are tried on few ranks and not in every case.
        workers = draw(st.sampled_from([0] * 15 + [1, 2]))
        reading = Reading(
            num_workers=workers, num_threads=draw(st.integers(0, 3)), prefetch=draw(st.integers(1, 3)), pin_memory=False
        )
        world_size = draw(st.integers(1, 2 if workers else 16))
        found.append(Leg(world_size, draw(st.integers(1, 7)), reading, draw(st.integers(0, 12))))
    return found


def life(run: Run, leg: Leg, state: dict[str, Any] | None, seen: dict[int, dict[str, list[int]]]) -> dict[str, Any]:
    """One life of all ranks; adds to ``seen`` what each position delivered, and returns the state at the kill."""
    job = Job(run, leg.world_size, leg.micro_batch_size, state, reading=leg.reading, debug=True)
    for batches in job.micro_steps(leg.micro_steps):
        step = {run.schedule.step_of(int(p)) for batch in batches for p in batch["sample_positions"]}
        assert len(step) == 1
        for batch in batches:
            if run.traits.is_packed:
                check_counts(run, batch, step)
            rows = {name: batch[name].tolist() for name in (*run.fields, *run.constants, "sample_positions")}
            for row, position in enumerate(rows.pop("sample_positions")):
                assert position not in seen, "no sample twice"
                seen[position] = {name: values[row] for name, values in rows.items()}
            for values in batch.values():
                if isinstance(values, torch.Tensor):
                    values.fill_(-1)  # what is done to a delivered batch changes no later one
    assert job.state()["position"] == len(seen)
    return job.state()


def check_counts(run: Run, batch: dict[str, Any], step: set[int]) -> None:
    """What a packed micro-batch says of itself and of its step, by the slow way."""
    assert batch["num_supervised_tokens"] == (batch["labels"] != -100).sum()
    begins = (batch["position_ids"].flatten() == 0).nonzero().flatten().tolist()
    assert batch["cu_seqlens"].tolist() == [*begins, batch["labels"].numel()]
    assert batch["max_seqlen"] == max(np.diff(batch["cu_seqlens"]), default=0)
    for number in step:
        assert batch["step_supervised_tokens"] == (run.step(number)["labels"] != -100).sum()


def expected_pack(dataset: PackedSequenceDataset, mine: corpora.Corpus, address: np.ndarray) -> dict[str, list[int]]:
    """The tokens and documents of a pack, from plain arrays."""
    items = dataset.items(address)
    begins = [int(np.flatnonzero(mine.documents == document)[0]) for document in items.documents]
    places = [
        place
        for begin, first, length in zip(begins, items.begins, items.lengths, strict=True)
        for place in range(begin + first, begin + first + length)
    ]
    tail = PACK - len(places)
    return {
        "input_ids": mine.tokens[places].tolist() + [1] * tail,
        "document_ids": mine.documents[places].tolist() + [-1] * tail,
    }


def expected(run: Run, corpus: list[corpora.Corpus], position: int) -> dict[str, list[int]]:
    """A sample by the slow way: one look-up, plain slices of plain arrays."""
    found = run.lookup(np.array([position], dtype=np.int64))
    dataset = run.datasets[int(found.sources[0])]
    keys = None if run.order.kind == "none" else found.keys
    address = dataset.locate(found.indices, keys)
    mine = next(one for one in corpus if one.store is dataset.store)  # type: ignore[attr-defined]
    if isinstance(dataset, PackedSequenceDataset):
        return expected_pack(dataset, mine, address)
    begin = int(address[0])
    documents = mine.documents[begin : begin + WINDOW].tolist()
    restart = [
        column - next(i for i in range(column + 1) if documents[i] == doc) for column, doc in enumerate(documents)
    ]
    return {
        "input_ids": mine.tokens[begin : begin + WINDOW].tolist(),
        "labels": mine.tokens[begin + 1 : begin + WINDOW + 1].tolist(),
        "position_ids": restart,
        "document_ids": documents,
    }


@settings(max_examples=cases(16, 5_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), legs())
def test_chains_of_kills_equal_the_uninterrupted_run(
    corpus: list[corpora.Corpus], data: st.DataObject, lives: list[Leg]
) -> None:
    run = data.draw(runs(corpus))
    seen: dict[int, dict[str, list[int]]] = {}
    state = None
    for leg in lives:
        state = life(run, leg, state, seen)
    assert sorted(seen) == slots.first_positions(run, len(seen)), "the ranks' parts are disjoint and complete"
    if run.length is not None:
        assert len(seen) <= run.length
    uninterrupted: dict[int, dict[str, list[int]]] = {}
    if not seen:
        return
    alone = Loader(run, micro_batch_size=1, ranks=Ranks(), reading=Reading(num_threads=0))
    for batch, _ in zip(alone, range(len(seen)), strict=False):
        names = (*run.fields, *run.constants, "sample_positions")
        row = {name: batch[name][0].tolist() for name in names}
        uninterrupted[row.pop("sample_positions")] = row
    assert seen == uninterrupted
    for position in list(seen)[:: max(1, len(seen) // 20)]:
        wanted = expected(run, corpus, position)
        assert {name: seen[position][name] for name in wanted} == wanted


def test_a_whole_run_ends_exactly(corpus: list[corpora.Corpus]) -> None:
    """Two epochs over three sources on uneven ranks: every sample of every source twice, then the end, for good."""
    mix = Blend(
        {name: WindowDataset(one.store, seq_len=WINDOW) for name, one in zip("abc", corpus, strict=False)},
        repeats={"a": 1, "b": 2, "c": 0.5},
    )
    run = Run(mix, global_batch_size=16, epochs=2)
    counts = [2 * len(mix.children["a"]), 4 * len(mix.children["b"]), 2 * round(0.5 * len(mix.children["c"]) + 1e-9)]  # type: ignore[arg-type]
    assert run.length == sum(counts)
    job = Job(run, 3, 2)
    positions = flat(job.positions())
    assert sorted(positions) == list(range(run.length))
    sources = run.lookup(np.array(positions, dtype=np.int64)).sources
    assert np.bincount(sources).tolist() == counts
    for loader in job.loaders:
        assert loader.position == run.length
        with pytest.raises(StateError, match=r"epochs=.*restart=True"):
            iter(loader)
    assert Job(run, 1, 2, job.state()).positions() == [], "a state at the end has nothing left"


def test_validation_is_every_sample_once_in_order(corpus: list[corpora.Corpus]) -> None:
    data = WindowDataset(corpus[1].store, seq_len=WINDOW)
    run = Run.validation(data, global_batch_size=32)
    for world_size in (1, 2, 5, 16):
        job = Job(run, world_size, 4, restart=True)
        for _ in range(2):
            rows = {
                position: tokens.tolist()
                for batch in chain.from_iterable(job.micro_steps())
                for position, tokens in zip(batch["sample_positions"].tolist(), batch["input_ids"], strict=True)
            }
            assert [rows[i] for i in range(len(data))] == [data[i]["input_ids"].tolist() for i in range(len(data))]
            assert len(rows) == len(data)
        assert len({len(loader) for loader in job.loaders}) == 1


def test_steps_as_numpy_are_what_the_loader_gives(corpus: list[corpora.Corpus]) -> None:
    run = Run(WindowDataset(corpus[0].store, seq_len=WINDOW), global_batch_size=[(0, 3), (2, 5)], epochs=1)
    batches = iter(Loader(run, micro_batch_size=5))
    assert run.num_steps is not None
    for step in range(run.num_steps):
        ours, batch = run.step(step), next(batches)
        assert {name: values.tolist() for name, values in ours.items()} == {n: v.tolist() for n, v in batch.items()}
    with pytest.raises(IndexError, match=f"{run.num_steps}"):
        run.step(run.num_steps)


PLAIN = Reading(num_threads=0)
NAMES = ("web", "code", "math", "forum", "books")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Dataset]]:
    """For each kind of data five datasets of different lengths."""
    folder = tmp_path_factory.mktemp("edited")
    stores = [corpora.make(folder / f"t{number}", number, 8 + 7 * number).store for number in range(5)]
    made = [records_made.sft(number, 9 + 4 * number) for number in range(5)]
    records = [records_made.store(folder / f"r{number}", rows) for number, rows in enumerate(made)]
    return {
        "windows": [WindowDataset(store, seq_len=8) for store in stores],
        "moving windows": [WindowDataset(store, seq_len=8, phase=True) for store in stores],
        "packs": [PackedSequenceDataset(store, Packing(seq_len=32, over_long="split")) for store in stores],
        "records": [SFTDataset(store) for store in records],
    }


class Life:
    """A training that goes through runs, and what it was fed at each step."""

    def __init__(self, rng: random.Random, run: Run) -> None:
        self.rng = rng
        self.run = run
        self.state: dict[str, Any] | None = None
        self.fed: dict[int, list[int]] = defaultdict(list)
        self.position = 0

    def go_on(self, num_samples: int) -> None:
        """Train on some ranks up to a position or beyond it, stop after any micro-step, and keep the state."""
        world_size, micro = self.rng.choice([1, 1, 2, 3]), self.rng.choice([1, 2, 4])
        job = Job(self.run, world_size, micro, self.state)
        micro_steps = job.micro_steps()
        while self.position < num_samples:
            step = job.loaders[0].step
            if (batches := next(micro_steps, None)) is None:
                break
            for batch in batches:
                self.fed[step] += batch["sample_positions"].tolist()
            self.state = job.state()
            self.position = self.state["position"]

    @property
    def step(self) -> int:
        """The first step that nothing was fed of."""
        found = self.run.schedule.step_of(self.position)
        return found + (self.run.schedule.begin(found) < self.position)


def edited(rng: random.Random, life: Life, datasets: dict[str, Dataset]) -> Run:
    """Return the run of a life with an edit that takes effect from its present step on, or some steps later."""
    run = life.run
    at = life.step + rng.choice([0, 0, 1, 2, 5])
    if any(edit.at_step >= at for edit in run.edits):
        at = max(edit.at_step for edit in run.edits) + 1
    what = rng.choice(["weights", "weights", "nested", "order", "batch", "skip", "defer"])
    if what == "weights":
        names = rng.sample(sorted(datasets), rng.randrange(1, len(datasets) + 1))
        return run.edit(at, data=blend(rng, {name: datasets[name] for name in names}))
    if what == "nested":
        names = sorted(datasets)
        inner = blend(rng, {name: datasets[name] for name in names[:2]})
        outer = {"pair": inner, **{name: datasets[name] for name in names[2:]}}
        return run.edit(at, data=Blend(outer, weights={name: rng.choice([1, 2, 3]) for name in outer}))
    if what == "order":
        return run.edit(at, order=Order(kind=rng.choice(["full", "blocks"]), seed=rng.randrange(5), block_samples=4))
    if what == "batch":
        return run.edit(at, global_batch_size=rng.choice([4, 6, [(0, 2), (3, 5)]]))
    return run.skip(range(at, at + rng.choice([1, 2, 7])), then="drop" if what == "skip" else "defer")


def blend(rng: random.Random, children: dict[str, Dataset]) -> Blend:
    return Blend(children, weights={name: rng.choice([1, 1, 2, 3, 7]) for name in children})


@pytest.mark.parametrize("kind", ["windows", "moving windows", "packs", "records"])
@pytest.mark.parametrize("seed", range(cases(6, 1_250)))
def test_lives(kinds: dict[str, list[Dataset]], kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    datasets = dict(zip(NAMES, rng.sample(kinds[kind], rng.randrange(2, 6)), strict=False))
    run = Run(blend(rng, datasets), global_batch_size=rng.choice([4, 5, 8]), order=Order(seed=seed))
    life = Life(rng, run)
    for _ in range(rng.randrange(1, 6)):
        life.go_on(life.position + rng.randrange(0, 60))
        before = life.run
        life.run = edited(rng, life, datasets)
        # What was fed is the past of the new run, too.
        assert life.run.past(life.position).hashes() == before.past(life.position).hashes()
    life.go_on(life.position + 150)
    check_steps(life)
    check_epochs(life)


def check_steps(life: Life) -> None:
    """Each step was fed the positions that the last run has there, whatever ranks there were and however it came."""
    last = max(life.fed)
    for step, positions in life.fed.items():
        wanted = life.run.positions(step).tolist()
        if step == last:
            wanted = wanted[: len(positions)] if life.run.draw is None else wanted
            assert set(positions) <= set(wanted)
        else:
            assert sorted(positions) == wanted
    flat = [position for positions in life.fed.values() for position in positions]
    assert len(flat) == len(set(flat)) == life.position


def check_epochs(life: Life) -> None:
    """Within an epoch no sample comes twice; all of a past epoch came, but for those that were dropped."""
    run = life.run
    plan = run.plan
    found = plan.lookup(np.arange(life.position, dtype=np.int64))
    times: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for series, epoch, index in zip(found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True):
        times[plan.source_of[series], epoch][index] += 1
    assert all(count == 1 for counter in times.values() for count in counter.values())
    if any(edit.skip_steps for edit in run.edits):
        return
    newest: dict[int, int] = {}
    for source, epoch in times:
        newest[source] = max(newest.get(source, 0), epoch)
    for (source, epoch), counter in times.items():
        if epoch < newest[source]:
            assert len(counter) == len(run.datasets[plan.source_of.index(source)])


def test_lengths_around_powers_of_two(tmp_path: Path) -> None:
    """Sources of 2^k - 1, 2^k and 2^k + 1 samples, edited at step 0, at borders of epochs and at the end."""
    datasets: dict[str, Dataset] = {}
    for name, count in zip(NAMES, (15, 16, 17), strict=False):
        corpora.write(tmp_path / name / "text_document", [np.arange(count * 8 + 1)])
        datasets[name] = WindowDataset(headrace.open(tmp_path / name), seq_len=8)
    run = Run(Blend(datasets, weights=dict.fromkeys(datasets, 1)), global_batch_size=8, samples=144)
    for step in (0, 1, 2, 3, 6, 17, 18):
        changed = run.edit(step, data=Blend(datasets, weights={"web": 2, "code": 1, "math": 1}), samples=160)
        loader = Loader(changed, micro_batch_size=8, ranks=Ranks(), reading=PLAIN)
        flat = [position for batch in loader for position in batch["sample_positions"].tolist()]
        assert sorted(flat) == list(range(160))
        found = changed.lookup(np.arange(160, dtype=np.int64))
        for source, dataset in enumerate(datasets.values()):
            rows = found.sources == source
            counts = Counter(zip(found.epochs[rows].tolist(), found.indices[rows].tolist(), strict=True))
            assert set(counts.values()) == {1}
            assert set(found.epochs[rows].tolist()) == set(range((int(rows.sum()) - 1) // len(dataset) + 1))
