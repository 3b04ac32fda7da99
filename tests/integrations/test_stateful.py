"""Loaders with epochs, of samples and of prompts, driven as the trainers drive theirs."""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import corpora
import headrace
import records_made
from headrace import ConfigError, Order, Run, StateError, WindowDataset
from headrace.integrations.stateful import PromptLoader, StatefulLoader
from headrace.loader import Ranks
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
        (48, {"epochs": 0}, "epochs is 0.*>= 1"),
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


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> headrace.PromptDataset:
    records: list[Any] = [
        {"prompts": [number + 1] * (1 + number % 3), "columns": list(json.dumps({"n": number}).encode())}
        for number in range(48)
    ]
    folder: Path = tmp_path_factory.mktemp("prompts")
    return headrace.PromptDataset(records_made.store(folder / "store", records, "keyed"))


def made(dataset: headrace.PromptDataset, samples: int | None = 48, **options: Any) -> PromptLoader:
    run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=samples)
    prompts = headrace.Prompts(run, group_size=2, ranks=options.pop("ranks", Ranks()))
    return PromptLoader(prompts, **{"batch_size": 8, "epochs": 2, **options})


def test_two_epochs_of_prompts_are_two(dataset: headrace.PromptDataset) -> None:
    loader = made(dataset)
    assert (len(loader), loader.batch_size, len(loader.dataset), loader.sampler) == (3, 8, 48, None)
    fed = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            assert batch["input_ids"].shape[0] == len(batch["columns"]) == 8
            fed += batch["sample_positions"].tolist()
            loader.prompts.finish(batch["sample_positions"])
        assert len(fed) == 24 * (epoch + 1)
    assert fed == list(range(48))
    assert loader.prompts.account().num_finished == 48
    with pytest.raises(StateError, match=r"2.*6.*batches"):
        next(iter(loader))
    longer = made(dataset, 72, epochs=3)
    longer.load_state_dict(loader.state_dict())
    longer.set_epoch(2)
    assert [batch["sample_positions"][0].item() for batch in longer] == [48, 56, 64]
    with pytest.raises(StateError, match=r"position.*48.*24"):
        made(dataset, 24, epochs=1).load_state_dict(loader.state_dict())


def test_prompts_that_cannot_be_divided(dataset: headrace.PromptDataset) -> None:
    for samples, options, named in (
        (None, {}, "needs"),
        (50, {}, "50.*2.*8"),
        (48, {"epochs": 0}, "epochs is 0.*>= 1"),
        (48, {"ranks": Ranks(1, 2)}, "1.*2.*controller"),
    ):
        with pytest.raises(ConfigError, match=named):
            made(dataset, samples, **options)
    with pytest.raises(StateError, match=r"1.*dispatched"):
        made(dataset).set_epoch(1)


class Trainer:
    """Generates ahead of its updates, counts its epochs by steps, and saves the state of its loader after a step."""

    def __init__(self, dataset: headrace.PromptDataset, batch_size: int, ahead: int, saved: Any) -> None:
        self.loader = made(dataset, batch_size=batch_size, collate_fn=lambda prompts: [one.position for one in prompts])
        self.ahead = ahead
        self.trained: list[int] = []
        self.steps = 0
        if saved is not None:
            self.trained, self.steps = list(saved["trained"]), saved["steps"]
            self.loader.load_state_dict(saved["loader"])

    def fit(self, stop_after: int) -> Any:
        """Return what was saved after so many steps of this life, or at the end."""
        in_hand: deque[list[int]] = deque()
        for _ in range(self.loader.epoch, 2):
            for batch in self.loader:
                assert batch
                in_hand.append(batch)
                while len(in_hand) > self.ahead:
                    self.update(in_hand.popleft())
                    stop_after -= 1
                    if not stop_after:
                        return self.saved()
        while in_hand:
            self.update(in_hand.popleft())
        return self.saved()

    def update(self, batch: list[int]) -> None:
        self.trained += batch
        self.steps += 1
        self.loader.prompts.finish(batch)

    def saved(self) -> Any:
        state = {"trained": self.trained, "steps": self.steps, "loader": self.loader.state_dict()}
        return json.loads(json.dumps(state))


@given(
    lives=st.lists(st.tuples(st.sampled_from([2, 4, 8, 24]), st.integers(0, 3), st.integers(1, 6)), max_size=5),
)
def test_killed_with_prompts_in_hand(dataset: headrace.PromptDataset, lives: list[tuple[int, int, int]]) -> None:
    """Nothing is lost or trained twice, whatever the sizes of batches and however far ahead it generates."""
    saved = None
    for batch_size, ahead, stop_after in [*lives, (8, 1, 100)]:
        trainer = Trainer(dataset, batch_size, ahead, saved)
        if trainer.loader.epoch == 2:
            break
        saved = trainer.fit(stop_after)
        account = trainer.loader.prompts.account()
        assert account.num_finished == len(saved["trained"])
        assert account.num_outstanding == len(saved["loader"]["outstanding"])
        assert account.num_dispatched == account.num_finished + account.num_outstanding
    assert saved is not None
    assert Counter(saved["trained"]) == Counter(range(48))
