"""What `headrace.exact` keeps of a trainer and of accelerate, and what it refuses; all in this process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import headrace
import hf_training
from headrace import ConfigError, StateError

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def _trl(calm: None) -> None:
    pytest.importorskip("trl.trainer.sft_trainer")


SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 6, "save_strategy": "no"}


def trainer_of(out: Path, name: str = "Trainer", kind: str = "own", **options: Any) -> Any:
    out.mkdir(exist_ok=True)
    return hf_training.trainer_of(name, kind, out, out, **{**SIZES, **options})


def rows_of(out: Path) -> list[tuple[int, list[Any]]]:
    """(step, rows of a micro-batch), as they were trained."""
    said = [json.loads(line) for line in (out / "life-0-0.jsonl").read_text().splitlines()]
    return [(one["step"], one["rows"]) for one in said if "rows" in one]


@pytest.mark.parametrize("options", [{}, {"max_steps": 6}, {"gradient_accumulation_steps": 5}])
def test_length_and_schedule_are_those_of_the_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for kind in ("own plain", "own"):
        trainer = trainer_of(tmp_path / kind, kind=kind, **options)
        trainer.train()
        logged = [one for one in trainer.state.log_history if "loss" in one]
        loader = trainer.get_train_dataloader()
        found.append([[(one["learning_rate"], one["step"], one["epoch"]) for one in logged], len(loader)])
        found[-1] += [trainer.state.max_steps, trainer.num_examples(loader)]
    assert found[0] == found[1]


def test_strategies_are_mapped(tmp_path: Path) -> None:
    rows = [{"input_ids": [9] * (4 + number % 30), "labels": [number] * (4 + number % 30)} for number in range(90)]

    def steps(**options: Any) -> list[set[int]]:
        from transformers import DataCollatorForSeq2Seq

        trainer = trainer_of(tmp_path, num_train_epochs=1, **options)
        trainer.train_dataset = rows
        trainer.data_collator = DataCollatorForSeq2Seq(hf_training.tokenizer_of())
        numbers = [sorted(set(batch["labels"][:, 0].tolist())) for batch in trainer.get_train_dataloader()]
        return [set().union(*numbers[first : first + 6]) for first in range(0, len(numbers), 6)]

    assert steps(train_sampling_strategy="sequential")[0] == set(range(12))
    for options in ({}, {"train_sampling_strategy": "group_by_length"}):
        found = steps(**options)
        assert sorted(number for step in found for number in step) == list(range(90))
        spread = sum(max(n % 30 for n in step) - min(n % 30 for n in step) for step in found) / len(found)
        assert (spread < 12) == bool(options), spread
    assert steps(data_seed=5) != steps() == steps(data_seed=42)
    assert len(steps(dataloader_drop_last=True)) == 7


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy='batch_rebalance'"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True"),
        ({"dataloader_in_order": False, "dataloader_num_workers": 1}, "in_order=False"),
    ],
)
def test_other_divisions_are_refused(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        trainer_of(tmp_path, **options).train()


def test_other_samplers_and_streams_are_refused(tmp_path: Path) -> None:
    import datasets

    trainer = trainer_of(tmp_path, max_steps=2)
    trainer._get_train_sampler = lambda dataset: torch.utils.data.WeightedRandomSampler([1.0] * 47, 47)
    with pytest.raises(ConfigError, match="WeightedRandomSampler"):
        trainer.get_train_dataloader()
    trainer.train_dataset = datasets.Dataset.from_list(hf_training.own_rows("Trainer")).to_iterable_dataset()
    with pytest.raises(ConfigError, match="samples"):
        trainer.get_train_dataloader()
    assert "prepare" not in vars(trainer.accelerator)


def test_a_checkpoint_without_a_state_needs_its_position(tmp_path: Path) -> None:
    trainer_of(tmp_path, kind="own plain", max_steps=6, save_strategy="steps", save_steps=6).train()
    with pytest.raises(StateError, match=r"headrace_state\.json.*first_position=71"):
        trainer_of(tmp_path).train(resume_from_checkpoint=True)
    (tmp_path / "life-0-0.jsonl").unlink()
    with pytest.raises(ConfigError, match="first_position"):
        headrace.exact(trainer_of(tmp_path), first_position=71).train()
    headrace.exact(trainer_of(tmp_path), first_position=71).train(resume_from_checkpoint=True)
    resumed = rows_of(tmp_path)
    (tmp_path / "life-0-0.jsonl").unlink()
    trainer_of(tmp_path).train()
    assert resumed == [(step, rows) for step, rows in rows_of(tmp_path) if step >= 6]


def test_another_size_of_a_step_and_other_files_are_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    for sizes, named in (
        ({"gradient_accumulation_steps": 3}, "6.*gradient_accumulation_steps=6"),
        ({"per_device_train_batch_size": 5}, "30.*per_device_train_batch_size"),
    ):
        with pytest.raises(ConfigError, match=rf"12.*{named}"):
            trainer_of(tmp_path, **sizes).train(resume_from_checkpoint=True)
    saved = tmp_path / "checkpoint-2" / "trainer_state.json"
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"global_step": 3}))
    with pytest.raises(StateError, match=r"3.*2.*these"):
        trainer_of(tmp_path).train(resume_from_checkpoint=True)


def test_states_of_runs_and_of_datasets_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    hf_training.make_stores(tmp_path / "stores")
    (tmp_path / "out").mkdir()
    saving = {**SIZES, "max_steps": 2, "save_strategy": "steps", "save_steps": 2}

    def trainer(kind: str) -> Any:
        return hf_training.trainer_of("Trainer", kind, tmp_path / "stores", tmp_path / "out", **saving)

    trainer("windows").train()
    with pytest.raises(StateError, match=r"headrace\.DataLoader"):
        trainer("own").train(resume_from_checkpoint=True)
    trainer("own").train()
    with pytest.raises(StateError):
        trainer("windows").train(resume_from_checkpoint=True)


def test_another_dataset_is_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    other = trainer_of(tmp_path)
    other.train_dataset = other.train_dataset.map(lambda row: {"labels": [1] * len(row["labels"])})
    with pytest.raises(StateError, match="version"):
        other.train(resume_from_checkpoint=True)


def test_rewards_may_change_their_rows(tmp_path: Path) -> None:
    """Each completion has a row of its own, and rows of later micro-steps are not drawn anew."""
    sizes = {"num_generations": 2, "steps_per_generation": 12, "max_completion_length": 4}
    loader = trainer_of(tmp_path, "GRPOTrainer", **sizes).get_train_dataloader()
    batches = list(loader)
    assert len(batches) == len(loader) == 24
    assert [[row["number"] for row in batch] for batch in batches[:12]] == [[row["number"] for row in batches[0]]] * 12
    assert batches[0] != batches[12]
    batches[0][0]["number"] = None
    assert batches[0][1]["number"] is not None


def test_what_cannot_be_exact_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (torch.nn.Linear(1, 1), hf_training.trainer_of, SimpleNamespace(train=print)):
        with pytest.raises(ConfigError, match=r"TRL.*train_dataset"):
            headrace.exact(found)
    trainer = trainer_of(tmp_path)
    assert headrace.exact(trainer) is trainer
    assert len(type(trainer).__mro__) == len(type(trainer_of(tmp_path)).__mro__)
    monkeypatch.setattr("headrace.integrations.exact.version_of", lambda name: "6.1.0")
    with pytest.raises(ConfigError, match=r"6.1.0.*transformers~=5.23.0"):
        headrace.exact(trainer)
    kind = type("GKDTrainer", (type(trainer),), {"__module__": "trl.experimental.gkd"})
    with pytest.raises(ConfigError, match=r"TRL's.*GKDTrainer"):
        headrace.exact(object.__new__(kind))


def accelerated(**options: Any) -> Any:
    from accelerate import Accelerator

    Accelerator(cpu=True).free_memory()
    return headrace.exact(Accelerator(cpu=True, gradient_accumulation_steps=2), **options)


def test_loops_of_accelerate_know_the_end_of_an_epoch(tmp_path: Path) -> None:
    """A short last step is one, and a state of any batch goes on with the next."""
    dataset = list(range(10))

    def loader_of(accelerator: Any) -> Any:
        return accelerator.prepare(torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=True))

    accelerator = accelerated()
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loader = loader_of(accelerator)
    assert accelerator.prepare(loader) is loader
    syncs, batches = [], []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                syncs.append(accelerator.sync_gradients)
            batches.append(batch.tolist())
            if len(batches) == 7:
                accelerator.save_state(str(tmp_path / "state"))
    assert syncs == [False, True, False, True, True] * 2
    assert loader.step == 6
    with pytest.raises(ConfigError, match="skip_first_batches"):
        accelerator.skip_first_batches(loader, 2)
    again = accelerated()
    again.prepare(torch.nn.Linear(1, 1))
    resumed = loader_of(again)
    again.load_state(str(tmp_path / "state"))
    assert (resumed.epoch, [batch.tolist() for batch in resumed]) == (1, batches[7:])


def test_loaders_of_an_evaluation_are_left_to_accelerate() -> None:
    accelerator = accelerated(seeded=False)
    loader = accelerator.prepare(torch.utils.data.DataLoader(list(range(10)), batch_size=2))
    assert not isinstance(loader, headrace.DataLoader)
    assert len(list(accelerator.skip_first_batches(loader, 2))) == 3
    with pytest.raises(ConfigError, match="first_position"):
        headrace.exact(accelerator, first_position=2)
