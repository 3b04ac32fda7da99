"""Prompts with epochs, for trainers with one controller: killed with some in hand, and each of them has one fate."""

from __future__ import annotations

import json
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import headrace
import records_made
from headrace import ConfigError, StateError
from headrace.integrations.stateful import PromptLoader
from headrace.loader import Ranks


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


def test_two_epochs_are_two(dataset: headrace.PromptDataset) -> None:
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


def test_what_cannot_be_divided(dataset: headrace.PromptDataset) -> None:
    for samples, options, named in (
        (None, {}, "needs"),
        (50, {}, "50.*2.*8"),
        (48, {"epochs": 0}, "1.*found.*0"),
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
