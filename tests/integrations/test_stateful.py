"""A loader with epochs, driven as the trainers drive theirs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import corpora
from headrace import ConfigError, Order, Run, StateError, WindowDataset
from headrace.integrations.stateful import StatefulLoader
from headrace.loader import Ranks
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.slots import num_micro_batches


def make(corpus: list[corpora.Corpus], samples: int = 48, **options: Any) -> Run:
    options = {"global_batch_size": 8, **options}
    return Run(WindowDataset(corpus[0].store, seq_len=8), order=Order(seed=3), samples=samples, **options)


def positions(batches: Any) -> list[int]:
    return [position for batch in batches for position in batch["sample_positions"].tolist()]


def test_two_epochs_are_two(corpus: list[corpora.Corpus]) -> None:
    loader = StatefulLoader(make(corpus), micro_batch_size=4, epochs=2)
    assert (len(loader), loader.batch_size, len(loader.dataset), loader.sampler) == (6, 4, 48, None)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert positions(loader) == list(range(24 * epoch, 24 * epoch + 24))
    assert loader.epoch == 2
    with pytest.raises(StateError, match=r"all 2 epochs of this loader are over.* stop after 12 batches"):
        next(iter(loader))


def test_an_iterator_that_is_not_used_changes_nothing(corpus: list[corpora.Corpus]) -> None:
    loader = StatefulLoader(make(corpus), micro_batch_size=8, epochs=2)
    used = iter(loader)
    first = positions([next(used)])
    iter(loader)
    assert first + positions(used) == list(range(24))


def test_a_state_of_any_batch_goes_on_with_the_next(corpus: list[corpora.Corpus]) -> None:
    """Also that of the last batch of an epoch, after which torchdata's loader gives an empty epoch."""
    run = make(corpus)
    saved: list[tuple[dict[str, Any], list[int]]] = []
    fed: list[int] = []
    first = StatefulLoader(run, micro_batch_size=4, epochs=2)
    for _ in range(2):
        for batch in first:
            fed += positions([batch])
            saved.append((first.state_dict(), list(fed)))
    for state, before in saved[:-1]:
        later = StatefulLoader(run, micro_batch_size=8, epochs=2)
        later.load_state_dict(state)
        assert later.num_left() == len(list(iter_copy(later, state)))
        rest = [positions(later) for _ in range(later.epoch, 2)]
        assert all(rest)
        assert before + [position for epoch in rest for position in epoch] == list(range(48))
    last = StatefulLoader(run, micro_batch_size=8, epochs=2)
    last.load_state_dict(saved[-1][0])
    with pytest.raises(StateError, match="all 2 epochs"):
        list(last)


def iter_copy(loader: StatefulLoader, state: dict[str, Any]) -> list[Any]:
    """The batches of the rest of the epoch; the loader stays where it is."""
    batches = list(loader)
    loader.load_state_dict(state)
    return batches


def test_more_epochs_of_a_longer_run(corpus: list[corpora.Corpus]) -> None:
    short = StatefulLoader(make(corpus), micro_batch_size=8, epochs=2)
    fed = positions(short) + positions(short)
    long = StatefulLoader(make(corpus, 72), micro_batch_size=8, epochs=3)
    long.load_state_dict(short.state_dict())
    assert fed + positions(long) == list(range(72))


def test_a_wrong_epoch_is_named(corpus: list[corpora.Corpus]) -> None:
    loader = StatefulLoader(make(corpus), micro_batch_size=8, epochs=2)
    with pytest.raises(StateError, match=r"begins epoch 1, and this loader is in epoch 0"):
        loader.set_epoch(1)
    next(iter(loader))
    loader.set_epoch(0)


def test_what_cannot_be_divided(corpus: list[corpora.Corpus]) -> None:
    with pytest.raises(ConfigError, match="7 steps, which 2 epochs do not divide: pass the run samples=48"):
        StatefulLoader(make(corpus, 50), micro_batch_size=8, epochs=2)
    with pytest.raises(ConfigError, match="1 steps, which 3 epochs do not divide: pass the run samples=24"):
        StatefulLoader(make(corpus, 5), micro_batch_size=8, epochs=3)
    with pytest.raises(ConfigError, match="2 epochs have 9, 12 batches"):
        StatefulLoader(make(corpus, 42), micro_batch_size=2, epochs=2)
    with pytest.raises(ConfigError, match="needs a run that ends"):
        StatefulLoader(make(corpus, samples=None), micro_batch_size=8)
    with pytest.raises(ConfigError, match="at least 1"):
        StatefulLoader(make(corpus), micro_batch_size=8, epochs=0)
    assert positions(StatefulLoader(make(corpus, 42), micro_batch_size=2)) == list(range(42))


def test_batches_as_the_trainer_takes_them(corpus: list[corpora.Corpus]) -> None:
    loader = StatefulLoader(make(corpus), micro_batch_size=8, collate_fn=lambda batch: batch["input_ids"].sum(1))
    assert torch.stack(list(loader)).shape == (6, 8)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_micro_batches_are_counted_from_any_position(world_size: int) -> None:
    schedule = BatchSchedule.of([(0, 4), (2, 7), (5, 3)])
    share = Share(0, world_size, 2)
    for begin, end in itertools.combinations(range(36), 2):
        planned = micro_batches(schedule, share, position=begin, end=end, at_least=end)
        assert num_micro_batches(schedule, end, share, begin) == len(planned)


def trained(loader: StatefulLoader, epochs: int, global_steps: int, stop: int = 10_000) -> tuple[list[list[int]], Any]:
    """Train as verl's trainers do, and return the samples of each step and the last checkpoint."""
    steps, state = [], None
    for _ in range(global_steps // len(loader), epochs):
        for batch in loader:
            steps.append(positions([batch]))
            state = loader.state_dict()
            if len(steps) == stop:
                return steps, state
    return steps, state


def test_a_trainer_that_counts_its_epochs_by_steps(corpus: list[corpora.Corpus]) -> None:
    """With its checkpoint within an epoch and at its end; ranks of the loader are those of the controller: one."""
    run = make(corpus)
    whole, _ = trained(StatefulLoader(run, micro_batch_size=8, epochs=2, ranks=Ranks(0, 1)), 2, 0)
    assert len(whole) == 6
    for stop in (1, 3, 4):
        begun, state = trained(StatefulLoader(run, micro_batch_size=8, epochs=2), 2, 0, stop)
        later = StatefulLoader(run, micro_batch_size=8, epochs=2)
        later.load_state_dict(state)
        assert begun + trained(later, 2, stop)[0] == whole
