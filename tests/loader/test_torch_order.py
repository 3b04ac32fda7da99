"""The order `torch` is that of torch's own samplers, and goes on from any of their steps on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler

import headrace
from counts import cases
from headrace import ConfigError, DataLoader, StateError
from headrace.loader import Ranks
from headrace.plan import Leaf, Order, Plan

SEEDS = st.one_of(st.integers(0, 3), st.integers(-3, 3).map(lambda more: 2**32 + more), st.integers(0, 2**63 - 9))


def steps_of(num_samples: int, seed: int, epoch: int, world_size: int, batch: int) -> list[list[list[int]]]:
    """What the real DistributedSampler gives: step -> rank -> samples."""
    ranks = []
    for rank in range(world_size):
        sampler = DistributedSampler(range(num_samples), world_size, rank, seed=seed)  # type: ignore[arg-type, var-annotated]
        sampler.set_epoch(epoch)
        ranks.append(list(BatchSampler(sampler, batch, drop_last=False)))
    return [list(step) for step in zip(*ranks, strict=True)]


@settings(max_examples=cases(60, 600), deadline=None)
@given(st.integers(1, 80), SEEDS, st.integers(0, 5), st.integers(1, 5), st.integers(1, 7))
def test_a_step_has_the_samples_of_a_distributed_sampler(
    num_samples: int, seed: int, epoch: int, world_size: int, batch: int
) -> None:
    """Each rank of torch has every R-th sample of a step; only the last step repeats samples to fill its ranks."""
    plan, size = Plan(Leaf("", num_samples), Order(kind="torch", seed=seed)), world_size * batch
    found = plan.lookup(np.arange(epoch * num_samples, (epoch + 1) * num_samples))
    assert set(found.epochs.tolist()) == {epoch}
    order = found.indices.tolist()
    for number, step in enumerate(steps_of(num_samples, seed, epoch, world_size, batch)):
        mine = order[number * size : (number + 1) * size]
        for rank, samples in enumerate(step):
            assert samples[: len(mine[rank::world_size])] == mine[rank::world_size]
        assert len(mine) == size or number == (num_samples - 1) // size
    for sample in {0, num_samples - 1}:
        times = plan.find(0, sample, begin=epoch * num_samples, end=(epoch + 1) * num_samples)
        assert times.positions.tolist() == [epoch * num_samples + order.index(sample)]


@pytest.mark.parametrize("seed", [0, 7, -1, -(2**33) + 5, 2**64 - 1])
def test_an_epoch_is_that_of_a_random_sampler(seed: int) -> None:
    """Of its first epoch: later ones go on where the generator is."""
    for num_samples in (1, 2, 1000, 70_000):
        sampler = RandomSampler(range(num_samples), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        ranks = np.arange(num_samples)
        order = Order(kind="torch", seed=seed)
        keys = np.repeat(order.epoch_keys(3, np.zeros(1, dtype=np.int64)), num_samples)
        indices = order.indices(ranks, keys, num_samples)
        assert indices.tolist() == list(sampler)
        assert np.array_equal(order.ranks(indices, keys, num_samples), ranks)


def joined(batches: Iterable[Any]) -> list[int]:
    return list(chain.from_iterable(batches))


def fed(loaders: list[DataLoader]) -> list[list[int]]:
    """The samples of each step of the rest of an epoch, sorted."""
    return [sorted(joined(step)) for step in zip(*loaders, strict=True)]


@settings(max_examples=cases(30, 300), deadline=None)
@given(st.integers(1, 60), st.integers(0, 9), st.integers(0, 3), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_loader_goes_on_from_a_step_of_torchs_on_other_ranks(
    num_samples: int, seed: int, epoch: int, world_size: int, batch: int, data: st.DataObject
) -> None:
    size = world_size * batch
    step = data.draw(st.integers(0, (num_samples - 1) // size))
    now = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    samples = list(range(num_samples))
    loaders = [
        DataLoader(samples, size // now, True, seed=seed, order="torch", ranks=Ranks(rank, now), collate_fn=list)
        for rank in range(now)
    ]
    for loader in loaders:
        loader.start_at(epoch * num_samples + step * size)
        assert (loader.epoch, loader.position) == (epoch, step * size)
        assert loader.step == epoch * -(-num_samples // size) + step
    for number in (epoch, epoch + 1):
        steps = steps_of(num_samples, seed, number, world_size, batch)[step if number == epoch else 0 :]
        mine = fed(loaders)
        assert len(mine) == len(steps)
        assert mine[:-1] == [sorted(joined(one)) for one in steps[:-1]]
        assert set(mine[-1]) <= set(joined(steps[-1]))
    assert loaders[0].account().epochs == epoch + 2


def test_a_distributed_sampler_keeps_its_order_and_a_state_does(caplog: pytest.LogCaptureFixture) -> None:
    samples = list(range(10))
    sampler: Any = DistributedSampler(samples, 1, 0, seed=3)  # type: ignore[arg-type]
    loader = DataLoader(samples, 2, sampler=sampler, order="torch", collate_fn=list)
    loader.set_epoch(4)
    sampler.set_epoch(4)
    assert joined(loader) == list(sampler)
    state = loader.state_dict()
    assert state["order"] == {"kind": "torch", "seed": 3}
    with pytest.raises(StateError, match="kind was 'torch' and is 'full'"):
        DataLoader(samples, 2, sampler=sampler, collate_fn=list).load_state_dict(state)
    some = DataLoader(samples, 2, sampler=SubsetRandomSampler([5, 6, 7]), seed=2, order="torch", collate_fn=list)
    permutation = torch.randperm(3, generator=torch.Generator().manual_seed(2))
    assert joined(some) == (permutation + 5).tolist()


def test_where_a_loader_cannot_start() -> None:
    loader = DataLoader(range(10), 4, drop_last=True)
    for position, named in ((2, "sample 2.*step of 4"), (18, "sample 8 of epoch 1"), (-4, "position")):
        with pytest.raises(ConfigError, match=named):
            loader.start_at(position)
    loader.start_at(14)
    assert [batch.tolist() for batch in loader] == [[4, 5, 6, 7]]
    with pytest.raises(ConfigError, match="has fed 4"):
        loader.start_at(14)


def test_what_is_not_the_order_of_torchs_sampler_is_refused() -> None:
    for options in ({"generator": torch.Generator().manual_seed(1)}, {"lengths": [1, 2, 3]}):
        with pytest.raises(ConfigError, match=r"order='torch'.*seed="):
            DataLoader([1, 2, 3], 2, True, order="torch", **options)
    with pytest.raises(ConfigError, match=r"'full'.*'torch'"):
        DataLoader([1, 2, 3], 2, True, order="blocks")  # type: ignore[arg-type]


def test_a_run_in_the_order_of_torch_goes_on_and_is_edited() -> None:
    run = headrace.Run(list(range(10)), global_batch_size=5, order=Order(kind="torch", seed=1), epochs=3)
    expected = [torch.randperm(10, generator=torch.Generator().manual_seed(1 + epoch)).tolist() for epoch in range(3)]
    found = [joined(batch["batch"].tolist() for batch in headrace.Loader(run, micro_batch_size=5))]
    assert found == [joined(expected)]
    assert "torch's samplers draw, seed 1 plus the number of the epoch" in run.order.describe()
    later = run.edit(2, order=Order(kind="full", seed=1)).edit(4, order=Order(kind="torch", seed=8))
    loader = headrace.Loader(later, micro_batch_size=5, position=20)
    assert (
        joined(batch["batch"].tolist() for batch in loader)
        == torch.randperm(10, generator=torch.Generator().manual_seed(8 + 2)).tolist()
    ), "epochs are counted through"
