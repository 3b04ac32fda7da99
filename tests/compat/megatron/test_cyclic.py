"""Megatron's cyclic sampler through runs and loaders: its micro-batches on its ranks, its steps on any others."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpora
from counts import cases
from headrace import Blend, ConfigError, Loader, Order, PackedSequenceDataset, Packing, Run, StateError, WindowDataset
from headrace import open as open_store
from headrace.compat.megatron import CyclicDataset, GPTBlend, GPTDataset
from headrace.datasets import Dataset, count_step
from headrace.loader import Ranks, Reading
from headrace.plan import Share
from headrace.plan.megatron import cyclic_batches

NONE = Order(kind="none")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 tokens, each another id: a sample of 5 tokens tells its number in the stream."""
    place = tmp_path_factory.mktemp("cyclic") / "x"
    corpora.write(place, np.split(np.arange(200, dtype=np.uint16), [3, 60, 61, 130]))
    return place


@pytest.fixture(scope="module")
def dataset(prefix: Path) -> GPTDataset:
    return GPTDataset(prefix, sequence_length=5, num_samples=39)


def loaders(run: Run, world_size: int, micro: int, threads: int = 1) -> list[Loader]:
    reading = Reading(num_threads=threads, pin_memory=False)
    return [
        Loader(run, micro_batch_size=micro, ranks=Ranks(rank, world_size), reading=reading)
        for rank in range(world_size)
    ]


@settings(max_examples=cases(10, 400), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 30), st.booleans())
def test_each_rank_is_fed_megatrons_micro_batches(
    dataset: GPTDataset, micro: int, ranks: int, steps: int, skipped: int, sharded: bool
) -> None:
    """From any ``consumed_samples`` on, over several epochs and with several micro-steps a step."""
    together = micro * ranks
    cyclic = CyclicDataset(dataset, micro_batch_size=micro, data_parallel_size=ranks, data_sharding=sharded)
    run = Run(cyclic, global_batch_size=steps * together, order=NONE)
    consumed = skipped * together
    active = len(dataset) - len(dataset) % together
    for rank, loader in enumerate(loaders(run, ranks, micro)):
        loader.start_at(consumed, allow_repeats=True)
        share = Share(rank, ranks, micro)
        expected: list[list[int]] = []
        at = consumed
        while len(expected) < 25:
            left = (active - at % active) // together
            batches = cyclic_batches(len(dataset), at, share, data_sharding=sharded)
            expected += [batch.tolist() for batch in itertools.islice(batches, left)]
            at += left * together
        for samples, batch in zip(expected, loader, strict=False):
            wanted = dataset.read(np.array(samples))
            assert batch["tokens"].tolist() == wanted["tokens"].tolist()
            assert batch["labels"].tolist() == wanted["labels"].tolist()
        assert loader.position == consumed + len(expected) * together


@pytest.mark.parametrize("sharded", [True, False])
def test_other_ranks_get_the_same_steps_and_resume_anywhere(dataset: GPTDataset, sharded: bool) -> None:
    """Megatron's sampler refuses most of these changes in the middle of an epoch, and else goes on in another order."""
    cyclic = CyclicDataset(dataset, micro_batch_size=3, data_parallel_size=2, data_sharding=sharded)
    run = Run(cyclic, global_batch_size=12, order=NONE, samples=120)
    expected = {step: sorted(row[0] for row in run.step(step)["tokens"].tolist()) for step in range(10)}
    seen: dict[int, list[int]] = {step: [] for step in expected}
    state = None
    for world_size, micro, threads, micro_steps in ((2, 3, 1, 3), (5, 2, 0, 1), (1, 4, 2, 4), (3, 1, 1, 99)):
        crew = loaders(run, world_size, micro, threads)
        for loader in crew:
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, micro_steps):
                for position, tokens in zip(batch["sample_positions"].tolist(), batch["tokens"].tolist(), strict=True):
                    seen[run.schedule.step_of(position)].append(tokens[0])
        state = crew[0].state_dict()
        assert all(loader.state_dict() == state for loader in crew)
    assert {step: sorted(rows) for step, rows in seen.items()} == expected


def test_worker_processes_read_the_same(dataset: GPTDataset) -> None:
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    run = Run(cyclic, global_batch_size=8, order=NONE, samples=88)
    rows = [
        [row for batch in Loader(run, micro_batch_size=4, reading=reading) for row in batch["tokens"].tolist()]
        for reading in (Reading(num_threads=0), Reading(num_workers=1, pin_memory=False))
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 88
    again = pickle.loads(pickle.dumps(cyclic))
    assert again.fingerprint == cyclic.fingerprint
    assert again[50]["tokens"].tolist() == cyclic[50]["tokens"].tolist()


def test_a_longer_run_keeps_its_beginning(dataset: GPTDataset) -> None:
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    short, longer = (Run(cyclic, global_batch_size=4, order=NONE, samples=samples) for samples in (40, 400))
    loader = Loader(short, micro_batch_size=2)
    begun = [row for batch in loader for row in batch["tokens"].tolist()]
    further = Loader(longer, micro_batch_size=2)
    further.load_state_dict(loader.state_dict())
    rest = [row for batch in further for row in batch["tokens"].tolist()]
    assert begun + rest == [row for batch in Loader(longer, micro_batch_size=2) for row in batch["tokens"].tolist()]


@pytest.mark.parametrize("kind", ["blend", "windows", "packs"])
def test_over_any_dataset(prefix: Path, dataset: GPTDataset, kind: str) -> None:
    store = open_store(prefix)
    inner: Dataset = {
        "blend": lambda: GPTBlend([dataset, GPTDataset(prefix, sequence_length=5, seed=1)]),
        "windows": lambda: WindowDataset(store, seq_len=5),
        "packs": lambda: PackedSequenceDataset(store, Packing(seq_len=20, over_long="split"), padding_idx=0),
    }[kind]()
    cyclic = CyclicDataset(inner, micro_batch_size=2, data_parallel_size=1)
    assert cyclic.traits.is_packed == inner.traits.is_packed
    assert cyclic.num_tokens_per_sample == inner.num_tokens_per_sample
    assert cyclic.deviation_tokens_per_sample == inner.deviation_tokens_per_sample
    run = Run(cyclic, global_batch_size=2, order=NONE, samples=2 * len(inner))
    positions = np.arange(2 * len(inner))
    samples = cyclic.order.locate(positions)
    expected = inner.read(inner.locate(samples))
    found = list(iter(Loader(run, micro_batch_size=2)))
    for name in (*inner.fields, *inner.constants):
        assert np.array_equal(np.concatenate([batch[name].numpy() for batch in found]), expected[name]), name
    if cyclic.traits.is_packed:
        counted = inner.count(inner.locate(samples[:2]))
        assert count_step(run, 0) == {name: int(column.sum()) for name, column in counted._asdict().items()}


def test_recipe_tells_every_option_apart(prefix: Path, dataset: GPTDataset) -> None:
    def make(inner: Dataset, **changes: Any) -> CyclicDataset:
        return CyclicDataset(inner, **{"micro_batch_size": 2, "data_parallel_size": 2, **changes})

    other = GPTDataset(prefix, sequence_length=5, num_samples=39, seed=5)
    every = [
        make(dataset),
        make(dataset, micro_batch_size=1),
        make(dataset, data_parallel_size=1),
        make(dataset, data_sharding=False),
        make(other),
    ]
    assert len({one.fingerprint for one in every}) == len(every)
    first, second = (Run(one, global_batch_size=4, order=NONE) for one in every[:2])
    with pytest.raises(StateError, match="micro_batch_size: 1 here, 2 in the saved recipe"):
        Loader(second, micro_batch_size=1).load_state_dict(
            Loader(first, micro_batch_size=1, position=4).state_dict(), recipe=first.recipe
        )


def test_what_is_refused(dataset: GPTDataset) -> None:
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    with pytest.raises(ConfigError, match=r"CyclicDataset has an order of its own.*order kind 'full'"):
        Run(cyclic, global_batch_size=4)
    with pytest.raises(ConfigError, match="pass samples instead of epochs"):
        Run(cyclic, global_batch_size=4, order=NONE, epochs=1)
    with pytest.raises(ConfigError, match="an order of its own"):
        Run(Blend({"a": cyclic, "b": dataset}, weights={"a": 1, "b": 1}), global_batch_size=4)
    with pytest.raises(ConfigError, match="fewer than one micro-batch of all ranks, which has 20 times 2"):
        CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=20)
    with pytest.raises(ConfigError, match=r"micro_batch_size is 2\.5; expected a whole number"):
        CyclicDataset(dataset, micro_batch_size=2.5, data_parallel_size=2)  # type: ignore[arg-type]


def test_it_says_what_it_is(dataset: GPTDataset) -> None:
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=4)
    described = Run(cyclic, global_batch_size=8, order=NONE).describe()
    assert described.startswith("run: endless, Megatron's cyclic order for 4 ranks, each with its own part, ")
    assert f"32 of {len(dataset)} samples an epoch" in described
    assert "length: endless" in described
