"""Any map-style dataset as a source of runs and blends: mixed, edited, traced, accounted, bucketed and resumed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, TensorDataset

import headrace
from counts import cases
from headrace import Blend, ConfigError, Loader, MapStyleDataset, Order, Run, StateError
from headrace.datasets import Stage
from headrace.encoders import ErrorPolicy
from headrace.loader import Ranks
from headrace.plan.bucketing import Bucketing
from headrace.tracing import Topology, history_of, trace_sample, trace_step


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
    account = run.account(run.num_steps)
    came = Counter(name for samples in fed.values() for name, _ in samples)
    assert {one.source: one.fed.samples for one in account.sources if one.fed.samples} == came
    for one in account.sources:
        times = Counter(Counter(sample for samples in fed.values() for sample in samples).values())
        assert one.num_samples == SIZES[one.source]
        assert sum(account_.fed.samples for account_ in account.sources) == sum(n * k for n, k in times.items())


def test_a_trace_names_source_number_rank_and_data() -> None:
    run = Run(blend(SIZES, web=3, code=1), global_batch_size=8, samples=160)
    found = trace_sample(run, "code", 5)
    assert found.count >= 2
    for one in found.shown:
        told = history_of(run).step(one.step, topology=Topology(ranks=2, micro_batch_size=2))
        (same,) = [other for other in told if other.position == one.position]
        assert (same.source, same.index) == ("code", 5)
        assert same.origins[0].store is not None
        assert same.origins[0].store.endswith("Named")
        loader = Loader(run, micro_batch_size=2, ranks=Ranks(same.rank or 0, 2))
        batches = [batch for batch in loader if one.position in batch["sample_positions"].tolist()]
        assert ("code", 5) in batches[0]["batch"]


def test_stages_of_a_schedule() -> None:
    children = {name: source(name, SIZES[name]) for name in SIZES}
    stages = [Stage(weights={"web": 1}, until=20), Stage(weights={"code": 1, "math": 1})]
    run = Run(headrace.ScheduledBlend(children, stages), global_batch_size=4, samples=32)
    came = [[sample[0] for sample in batch["batch"]] for batch in Loader(run, micro_batch_size=4)]
    assert {name for names in came[:5] for name in names} == {"web"}
    assert Counter(name for names in came[5:] for name in names) == {"code": 6, "math": 6}


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


def test_samples_of_similar_length_come_together() -> None:
    lengths = np.random.default_rng(2).integers(1, 400, 200)
    run = Run(source("web", 200, lengths=lengths), global_batch_size=10, epochs=2, bucketing=Bucketing(window_steps=10))
    plain = Run(source("web", 200), global_batch_size=10, epochs=2)
    spreads = []
    for one in (run, plain):
        batches = [[number for _, number in batch["batch"]] for batch in Loader(one, micro_batch_size=10)]
        assert Counter(number for batch in batches for number in batch) == dict.fromkeys(range(200), 2)
        spreads.append(np.mean([np.ptp(lengths[batch]) for batch in batches]))
    assert spreads[0] < spreads[1] / 3
    bad = Run(source("web", 20), global_batch_size=2, epochs=1, bucketing=Bucketing(window_steps=2))
    with pytest.raises(ConfigError, match="pass lengths= for bucketing"):
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
    for wrong, words in (
        ([33], "indices go from 33 to 33, and the dataset has 33"),
        ([0.5], "expected one row of int"),
    ):
        with pytest.raises(ConfigError, match=words):
            source("web", 33, indices=wrong)


class Short(Batched):
    def __getitems__(self, numbers: list[int]) -> list[tuple[str, int]]:
        return super().__getitems__(numbers)[1:]


class Failing(Named):
    def __getitem__(self, number: int) -> tuple[str, int]:
        if number % 5 == 3:
            raise ValueError("damaged")
        return super().__getitem__(number)


def test_too_few_samples_are_an_error() -> None:
    run = Run(MapStyleDataset(Short("a", 8)), global_batch_size=4)
    with pytest.raises(ConfigError, match="__getitems__ returned 3 samples for 4 numbers"):
        next(iter(Loader(run, micro_batch_size=4)))


def test_samples_that_fail_are_replaced_counted_and_named() -> None:
    data = MapStyleDataset(Failing("a", 20), collate_fn=listed, errors=ErrorPolicy(on_error="substitute"))
    loader = Loader(Run(data, global_batch_size=4, epochs=1), micro_batch_size=4)
    came = [sample for batch in loader for sample in batch["batch"]]
    assert len(came) == 20
    assert all(number % 5 != 3 for _, number in came)
    assert loader.ledger().substituted == {"ValueError in __getitem__": 4}
    assert {fault.index for fault in loader.faults.faults if fault.attempt == 0} == {3, 8, 13, 18}
    raising = Loader(Run(MapStyleDataset(Failing("a", 20)), global_batch_size=4, epochs=1), micro_batch_size=4)
    with pytest.raises(ValueError, match="damaged") as raised:
        list(raising)
    assert any("of test_map_style.Failing" in note or "Failing" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("data", ["text", b"bytes", {"a": 1}, iter([1]), 3])
def test_what_is_no_map_style_dataset(data: Any) -> None:
    with pytest.raises(ConfigError):
        MapStyleDataset(data)
    with pytest.raises(ConfigError):
        Run(data, global_batch_size=2)
