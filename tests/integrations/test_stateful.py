"""A loader with epochs, driven as the trainers drive theirs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import corpora
from headrace import ConfigError, Order, Run, StateError, WindowDataset
from headrace.integrations.stateful import StatefulLoader
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.slots import num_micro_batches


def make(corpus: list[corpora.Corpus], samples: int | None = 48, **options: Any) -> Run:
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
    with pytest.raises(StateError, match=r"2.*12.*batches"):
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
    saved: list[tuple[dict[str, Any], int]] = []
    first = StatefulLoader(run, micro_batch_size=4, epochs=2)
    for _ in range(2):
        for batch in first:
            saved.append((first.state_dict(), positions([batch])[-1] + 1))
    for state, begin in saved[:-1]:
        later = StatefulLoader(run, micro_batch_size=8, epochs=2)
        later.load_state_dict(state)
        num_left, epochs = later.num_left(), [list(later) for _ in range(later.epoch, 2)]
        assert num_left == len(epochs[0])
        assert all(epochs)
        assert [position for epoch in epochs for position in positions(epoch)] == list(range(begin, 48))
    last = StatefulLoader(run, micro_batch_size=8, epochs=2)
    last.load_state_dict(saved[-1][0])
    with pytest.raises(StateError, match=r"2.*epochs"):
        list(last)


def test_more_epochs_of_a_longer_run(corpus: list[corpora.Corpus]) -> None:
    short = StatefulLoader(make(corpus), micro_batch_size=8, epochs=2)
    fed = positions(short) + positions(short)
    long = StatefulLoader(make(corpus, 72), micro_batch_size=8, epochs=3)
    long.load_state_dict(short.state_dict())
    assert fed + positions(long) == list(range(72))


def test_a_wrong_epoch_is_named(corpus: list[corpora.Corpus]) -> None:
    loader = StatefulLoader(make(corpus), micro_batch_size=8, epochs=2)
    with pytest.raises(StateError, match=r"1.*loader.*0"):
        loader.set_epoch(1)
    next(iter(loader))
    loader.set_epoch(0)


def test_what_cannot_be_divided(corpus: list[corpora.Corpus]) -> None:
    for samples, options, named in (
        (50, {"epochs": 2}, "7.*2.*samples=48"),
        (5, {"epochs": 3}, "1.*3.*samples=24"),
        (42, {"epochs": 2, "micro_batch_size": 2}, "2.*9.*12"),
        (None, {}, "needs"),
        (48, {"epochs": 0}, "least.*1"),
    ):
        with pytest.raises(ConfigError, match=named):
            StatefulLoader(make(corpus, samples), **{"micro_batch_size": 8, **options})
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
