"""A training that transformers' Trainer, or accelerate, began by itself goes on in its own order, bit for bit."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import headrace
import hf_training
from counts import cases
from headrace import ConfigError, StateError
from headrace.loader import Ranks

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def _trl(calm: None) -> None:
    pytest.importorskip("trl.trainer.sft_trainer")


@settings(max_examples=cases(40, 300), deadline=None)
@given(*(st.integers(1, 60), st.integers(0, 9), st.integers(0, 4), st.integers(1, 4), st.integers(1, 4), st.booleans()))
def test_each_rank_has_the_batches_of_accelerate(
    num_samples: int, seed: int, epoch: int, world_size: int, batch: int, drop_last: bool
) -> None:
    """All of them, but the last of each rank, which accelerate fills from the beginning of the epoch."""
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler

    samples, size = list(range(num_samples)), world_size * batch
    loaders = []
    for rank in range(world_size):
        sampler = SeedableRandomSampler(samples, data_seed=seed)
        sampler.set_epoch(epoch)
        batches = torch.utils.data.BatchSampler(sampler, batch, drop_last)
        theirs = list(BatchSamplerShard(batches, world_size, rank))
        options: Any = {"seed": seed, "order": "torch", "drop_last": drop_last, "ranks": Ranks(rank, world_size)}
        loader = headrace.DataLoader(samples, batch, True, collate_fn=list, **options)
        loader.set_epoch(epoch)
        assert len(loader) == len(theirs)
        mine = list(loader)
        whole = num_samples // size
        assert mine[:whole] == theirs[:whole]
        loaders.append((mine, theirs))
    mine, theirs = (chain.from_iterable(map(chain.from_iterable, each)) for each in zip(*loaders, strict=True))
    assert set(mine) == set(theirs)


SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 6}
SAVING = {"save_strategy": "steps", "save_steps": 5, "max_steps": 5}


def plain_trainer(out: Path, name: str = "Trainer", **options: Any) -> Any:
    out.mkdir(exist_ok=True)
    return hf_training.trainer_of(name, "own plain", out, out, **{**SIZES, "save_strategy": "no", **options})


def rows_of(out: Path) -> list[tuple[int, list[Any]]]:
    """(step, rows of a micro-batch), as they were trained; forgotten then."""
    said = [json.loads(line) for line in (out / "life-0-0.jsonl").read_text().splitlines()]
    (out / "life-0-0.jsonl").unlink()
    return [(one["step"], one["rows"]) for one in said if "rows" in one]


@pytest.mark.parametrize(
    ("name", "options", "step"),
    [
        ("Trainer", {}, 2),
        ("Trainer", {"data_seed": 5, "dataloader_drop_last": True, "gradient_accumulation_steps": 1}, 30),
        ("Trainer", {"seed": 3}, 4),
        ("SFTTrainer", {}, 5),
    ],
)
def test_a_trainers_own_training_goes_on_as_if_it_had_done_so_itself(
    name: str, options: dict[str, Any], step: int, tmp_path: Path
) -> None:
    """From a checkpoint of the plain trainer within an epoch, or at its end: the rest of it, and all later ones."""
    plain_trainer(tmp_path, name, **options).train()
    whole = rows_of(tmp_path)
    saving = {"save_strategy": "steps", "save_steps": step, "max_steps": step}
    plain_trainer(tmp_path, name, **options, **saving).train()
    assert rows_of(tmp_path) == [(number, rows) for number, rows in whole if number < step]
    trainer = headrace.exact(plain_trainer(tmp_path, name, **options), order="torch")
    trainer.train(resume_from_checkpoint=True)
    assert rows_of(tmp_path) == [(number, rows) for number, rows in whole if number >= step]
    again = headrace.exact(plain_trainer(tmp_path, name, **options), order="torch")
    again.train()
    assert rows_of(tmp_path) == whole


def test_micro_batches_of_another_size_have_the_samples_of_each_step(tmp_path: Path) -> None:
    """As two processes have, half of the samples each; the next checkpoint is exact in Headrace's own way."""
    plain_trainer(tmp_path).train()
    whole = rows_of(tmp_path)
    plain_trainer(tmp_path, **SAVING).train()
    rows_of(tmp_path)
    other = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}
    saving = {**SAVING, "save_steps": 6, "max_steps": 6}
    headrace.exact(plain_trainer(tmp_path, **other, **saving), order="torch").train(resume_from_checkpoint=True)
    assert (tmp_path / "checkpoint-6" / "headrace_state.json").exists()
    headrace.exact(plain_trainer(tmp_path, **other), order="torch").train(resume_from_checkpoint=True)

    def steps(found: list[tuple[int, list[Any]]]) -> list[list[Any]]:
        return [sorted(chain.from_iterable(rows for number, rows in found if number == step)) for step in range(5, 8)]

    assert steps(rows_of(tmp_path)) == steps(whole)


def test_other_lengths_of_a_step_are_refused(tmp_path: Path) -> None:
    plain_trainer(tmp_path, **SAVING).train()
    with pytest.raises(StateError, match=r"order='torch'.*first_position=59"):
        headrace.exact(plain_trainer(tmp_path)).train(resume_from_checkpoint=True)
    longer = headrace.exact(plain_trainer(tmp_path, gradient_accumulation_steps=12), order="torch")
    with pytest.raises(StateError, match=r"checkpoint-5 was saved in epoch 1\.25.*24 samples"):
        longer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("Trainer", {"accelerator_config": {"use_seedable_sampler": False}}, "use_seedable_sampler=True"),
        ("Trainer", {"train_sampling_strategy": "group_by_length"}, "lengths="),
        ("Trainer", {"dataloader_drop_last": True}, "drop_last"),
        ("GRPOTrainer", {}, "GRPOTrainer"),
    ],
)
def test_other_orders_are_refused(name: str, options: dict[str, Any], named: str, tmp_path: Path) -> None:
    trainer = headrace.exact(plain_trainer(tmp_path, name, **options), order="torch")
    with pytest.raises(ConfigError, match=named):
        trainer.get_train_dataloader()


@pytest.mark.parametrize("seed", [None, 9])
def test_a_loop_of_accelerate_goes_on_from_a_position(seed: int | None, tmp_path: Path) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration

    def accelerator_of() -> Any:
        Accelerator(cpu=True).free_memory()
        torch.manual_seed(4)  # the seed of accelerate, if there is no data_seed
        return Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=seed)
        )

    def loader_of() -> Any:
        generator = torch.Generator().manual_seed(77)
        return torch.utils.data.DataLoader(list(range(13)), batch_size=4, shuffle=True, generator=generator)

    theirs = accelerator_of()
    model, loader = theirs.prepare(torch.nn.Linear(1, 1), loader_of())
    expected = [[batch.tolist() for batch in loader] for _ in range(3)]
    theirs.save_state(str(tmp_path / "state"))
    ours = headrace.exact(accelerator_of(), order="torch")
    model = ours.prepare(torch.nn.Linear(1, 1))
    ours.load_state(str(tmp_path / "state"))  # the model; a loader is prepared after it
    assert model is not None
    torch.manual_seed(4)
    mine = ours.prepare(loader_of())
    mine.start_at(13 + 8)
    assert [[batch.tolist() for batch in mine] for _ in range(2)] == [expected[1][2:], expected[2]]
    other = headrace.exact(Accelerator(cpu=True), order="torch")
    with pytest.raises(ConfigError, match="use_seedable_sampler"):
        other.prepare(loader_of())


def test_a_plain_trainer_goes_on_from_ours(tmp_path: Path) -> None:
    """Leaving is as easy: a checkpoint of ours has all that the Trainer itself needs."""
    plain_trainer(tmp_path).train()
    whole = rows_of(tmp_path)
    headrace.exact(plain_trainer(tmp_path, **SAVING), order="torch").train()
    plain_trainer(tmp_path).train(resume_from_checkpoint=True)
    assert rows_of(tmp_path) == whole
