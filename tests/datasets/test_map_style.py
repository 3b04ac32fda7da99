"""Any map-style dataset as a source, mixed, edited, traced and resumed; and functions of samples that draw."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings, strategies as st
from torch.utils.data import ConcatDataset, TensorDataset

import corpora
from counts import cases
from headrace import Loader, MapDataset, MapStyleDataset, Order, Packing, Run, WindowDataset
from headrace.datasets import Blend, Dataset, PackedSequenceDataset
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError, StateError
from headrace.loader import Ranks
from headrace.plan.bucketing import Bucketing
from headrace.tracing import Sources, read_run_file, save_run, trace_step


class Named:
    """Samples that say where they come from."""

    def __init__(self, name: str, num_samples: int) -> None:
        self.name = name
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> tuple[str, int]:
        if not 0 <= number < self.num_samples:
            raise IndexError(number)
        return self.name, number


class Batched(Named):
    """Samples that are read together."""

    def __getitems__(self, numbers: list[int]) -> list[tuple[str, int]]:
        return [(self.name, number) for number in numbers]


def listed(samples: list[Any]) -> list[Any]:
    return samples


def source(name: str, num_samples: int, **options: Any) -> MapStyleDataset:
    kind = Batched if num_samples % 2 else Named
    return MapStyleDataset(kind(name, num_samples), collate_fn=listed, **options)


def blend(sizes: dict[str, int], **weights: float) -> Blend:
    return Blend({name: source(name, sizes[name]) for name in weights}, weights=weights)


SIZES = {"web": 33, "code": 16, "math": 7}


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run over a mix of several sources, which may be edited."""
    batch = draw(st.integers(1, 9))
    run = Run(blend(SIZES, web=3, code=1), global_batch_size=batch, samples=160, order=Order(seed=draw(st.integers())))
    step = 0
    for kind in draw(st.lists(st.sampled_from(["mix", "skip", "batch"]), max_size=3)):
        step += draw(st.integers(1, 6))
        if step >= (run.num_steps or 0) - 3:
            break
        event(kind)
        if kind == "mix":
            names = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, unique=True))
            run = run.edit(step, data=blend(SIZES, **{name: draw(st.integers(1, 4)) for name in names}))
        elif kind == "skip":
            run = run.skip(range(step, step + 2), then=draw(st.sampled_from(["drop", "defer"])))
        else:
            run = run.edit(step, global_batch_size=draw(st.integers(1, 9)))
    return run


@settings(max_examples=cases(15, 400))
@given(runs(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 40), st.integers(1, 3))
def test_what_is_fed_is_what_the_trace_and_the_account_say(
    run: Run, world_size: int, micro_batch_size: int, killed_at: int, later_ranks: int
) -> None:
    """With ranks, a kill, and other ranks after it: the samples of each step by name and number."""
    fed: dict[int, list[Any]] = {}
    state: Any = None
    for ranks, limit in ((world_size, killed_at), (later_ranks, None)):
        loaders = [Loader(run, micro_batch_size=micro_batch_size, ranks=Ranks(rank, ranks)) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        if loaders[0].position == run.length:
            break
        for number, batches in enumerate(zip(*loaders, strict=True)):
            for batch in batches:
                for sample, position in zip(batch["batch"] or [], batch["sample_positions"].tolist(), strict=True):
                    fed.setdefault(run.schedule.step_of(position), []).append(sample)
            state = loaders[0].state_dict()
            if number + 1 == limit:
                break
    for step, samples in fed.items():
        told = trace_step(run, step)
        assert Counter(samples) == Counter((one.source, one.index) for one in told)
        assert all(one.origins[0].sample == one.index for one in told)
        assert all((one.origins[0].store or "").endswith(("Named", "Batched")) for one in told)
    account = run.account(run.num_steps)
    came = Counter(name for samples in fed.values() for name, _ in samples)
    assert {one.source: one.fed.samples for one in account.sources if one.fed.samples} == came
    for one in account.sources:
        times = Counter(Counter(sample for samples in fed.values() for sample in samples).values())
        assert one.num_samples == SIZES[one.source]
        assert sum(account_.fed.samples for account_ in account.sources) == sum(n * k for n, k in times.items())


def test_plain_data_become_sources() -> None:
    """Of torch's and of Python's own, without a word; samples are collated as torch does."""
    tensors = TensorDataset(torch.arange(6))
    mixed = Blend({"a": tensors, "b": ConcatDataset([tensors, tensors])}, weights={"a": 1, "b": 1})
    for data in (tensors, mixed):
        batch = next(iter(Loader(Run(data, global_batch_size=4), micro_batch_size=4)))
        (column,) = batch["batch"]
        assert column.shape == (4,)
        assert column.dtype == torch.int64
    with pytest.raises(ConfigError, match="collate"):
        Run(Blend({"a": source("a", 3), "b": [1, 2]}, weights={"a": 1, "b": 1}), global_batch_size=2)


def test_bucketing_needs_lengths() -> None:
    bad = Run(source("web", 20), global_batch_size=2, epochs=1, bucketing=Bucketing(window_steps=2))
    with pytest.raises(ConfigError, match="lengths="):
        list(Loader(bad, micro_batch_size=2))


def test_a_state_of_other_data_is_refused() -> None:
    def loader(num_samples: int, **options: Any) -> Loader:
        data = Blend({"a": source("a", num_samples, **options), "b": source("b", 5)}, weights={"a": 1, "b": 1})
        return Loader(Run(data, global_batch_size=4), micro_batch_size=4)

    first = loader(8)
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    for other in (loader(9), loader(8, version="two"), loader(8, indices=range(7))):
        with pytest.raises(StateError):
            other.load_state_dict(state)
        assert other.position == 0
    same = loader(8)
    same.load_state_dict(state)
    assert same.position == 4


def test_indices_are_a_part_of_the_data() -> None:
    some = source("web", 33, indices=[4, 4, 30])
    assert len(some) == 3
    run = Run(some, global_batch_size=3, order=Order(kind="none"), epochs=1)
    assert next(iter(Loader(run, micro_batch_size=3)))["batch"] == [("web", 4), ("web", 4), ("web", 30)]
    for wrong, named in (([33], r"33.*33.*33"), ([0.5], "int")):
        with pytest.raises(ConfigError, match=named):
            source("web", 33, indices=wrong)


class Short(Batched):
    def __getitems__(self, numbers: list[int]) -> list[tuple[str, int]]:
        return super().__getitems__(numbers)[1:]


class Failing(Named):
    def __getitem__(self, number: int) -> tuple[str, int]:
        if number % 5 == 3:
            raise ValueError("damaged")
        return super().__getitem__(number)


def test_samples_that_fail_are_replaced_counted_and_named() -> None:
    run = partial(Run, global_batch_size=4, epochs=1)
    data = MapStyleDataset(Failing("a", 20), collate_fn=listed, errors=ErrorPolicy(on_error="substitute"))
    loader = Loader(run(data), micro_batch_size=4)
    came = [number for batch in loader for _, number in batch["batch"]]
    assert (len(came), 3 in [number % 5 for number in came]) == (20, False)
    assert loader.ledger().substituted == {"ValueError in __getitem__": 4}
    assert {fault.index for fault in loader.faults.faults if fault.attempt == 0} == {3, 8, 13, 18}
    with pytest.raises(ValueError, match="damaged") as raised:
        list(Loader(run(MapStyleDataset(Failing("a", 20))), micro_batch_size=4))
    assert any("Failing" in note for note in raised.value.__notes__)


def test_too_few_samples_are_an_error() -> None:
    run = Run(MapStyleDataset(Short("a", 8)), global_batch_size=4)
    with pytest.raises(ConfigError, match=r"__getitems__.*3.*4"):
        next(iter(Loader(run, micro_batch_size=4)))


@pytest.mark.parametrize("data", ["text", b"bytes", {"a": 1}, iter([1]), 3])
def test_what_is_no_map_style_dataset(data: Any) -> None:
    with pytest.raises(ConfigError):
        MapStyleDataset(data)
    with pytest.raises(ConfigError):
        Run(data, global_batch_size=2)


Sample = dict[str, Any]


def noisy(sample: Sample, rng: np.random.Generator) -> Sample:
    return {**sample, "labels": rng.integers(0, 1 << 40, sample["labels"].shape)}


def twice(sample: Sample, rng: np.random.Generator) -> Sample:
    return {**sample, "input_ids": rng.integers(0, 1 << 40, sample["labels"].shape)}


def by_random(sample: Sample) -> Sample:
    return {**sample, "labels": sample["labels"] + random.randrange(1 << 30)}


def by_numpy(sample: Sample) -> Sample:
    return {**sample, "labels": sample["labels"] + np.random.randint(1 << 30)}  # noqa: NPY002 - what is found


def by_torch(sample: Sample) -> Sample:
    return {**sample, "labels": sample["labels"] + int(torch.randint(1 << 30, ()))}


def idle(sample: Sample) -> Sample:
    random.random()  # moves the generator, as another thread may, and changes nothing
    return sample


@pytest.fixture
def windows(tmp_path: Path) -> WindowDataset:
    return WindowDataset(corpora.make(tmp_path / "plain", 1, 60).store, seq_len=16, phase=True)


def labels(loader: Loader) -> dict[int, list[int]]:
    return {
        position: row
        for batch in loader
        for position, row in zip(batch["sample_positions"].tolist(), batch["labels"].tolist(), strict=True)
    }


def test_draws_are_of_the_sample_and_the_epoch(windows: WindowDataset) -> None:
    dataset = MapDataset(windows, noisy, seeded=True)
    assert {**dataset.recipe, "seeded": True} == dataset.recipe
    assert "seeded" not in MapDataset(windows, dict).recipe, "states saved before still load"
    mix = Blend({"a": dataset, "b": MapDataset(windows, noisy, seeded=True)}, repeats={"a": 1, "b": 1})
    run = Run(mix, global_batch_size=8, order=Order(seed=3), epochs=2)
    every = labels(Loader(run, micro_batch_size=4))
    assert len({tuple(row) for row in every.values()}) == len(every), "each path, epoch and sample draws others"
    assert every == {
        k: v for rank in range(3) for k, v in labels(Loader(run, micro_batch_size=1, ranks=Ranks(rank, 3))).items()
    }
    resumed = Loader(run, micro_batch_size=2, position=24)
    assert labels(resumed) == {k: v for k, v in every.items() if k >= 24}
    item = dataset[5]["labels"].tolist()
    assert item == dataset[5]["labels"].tolist()
    ordered = Run(dataset, global_batch_size=4, order=Order(kind="none"), epochs=1)
    assert labels(Loader(ordered, micro_batch_size=4))[5] == item, "without epochs a sample always draws the same"


def test_one_over_the_other_draws_others(windows: WindowDataset) -> None:
    both = MapDataset(MapDataset(windows, noisy, seeded=True), twice, seeded=True)
    assert both[3]["labels"].tolist() != both[3]["input_ids"].tolist()
    keys = np.array([7 << 40], dtype=np.uint64)
    address = both.locate(np.array([3]), keys)
    assert both.read(address)["labels"].tolist() != [both[3]["labels"].tolist()]


def test_a_trace_finds_what_was_fed(tmp_path: Path) -> None:
    """What varies from epoch to epoch within: the phase of windows, the documents of packs."""
    store = corpora.make(tmp_path / "plain", 1, 80).store
    packs = PackedSequenceDataset(store, Packing(seq_len=64, strategy="best_fit", over_long="split", repack=True))
    for inner in (WindowDataset(store, seq_len=16, stride=9, phase=True, document_ids=True), packs):
        dataset: Dataset = MapDataset(inner, lambda sample, rng: sample, seeded=True)
        run = Run(dataset, global_batch_size=8, order=Order(seed=3), samples=3 * len(dataset))
        place = tmp_path / f"{type(inner).__name__}.json"
        save_run(run, place)
        history = Sources(read_run_file(place)).history()
        for step in (0, run.num_steps - 1):  # type: ignore[operator]
            fed = [sorted(set(row.tolist()) - {-1}) for row in run.step(step)["document_ids"]]
            for traced in (trace_step(run, step), history.step(step)):
                assert [sorted({origin.document for origin in one.origins}) for one in traced] == fed


@pytest.mark.parametrize(
    ("function", "generator"), [(by_random, "random"), (by_numpy, "numpy.random"), (by_torch, "torch")]
)
def test_draws_that_nobody_seeds_are_an_error(windows: WindowDataset, function: Any, generator: str) -> None:
    run = Run(MapDataset(windows, function), global_batch_size=4)
    with pytest.raises(ConfigError, match=rf"{function.__name__}.*seeded=True"):
        next(iter(Loader(run, micro_batch_size=4)))


def test_a_generator_that_others_move_is_none_of_its_business(windows: WindowDataset) -> None:
    next(iter(Loader(Run(MapDataset(windows, idle), global_batch_size=4), micro_batch_size=4)))
