"""TRL's trainers over a run: their arguments are those of TRL's collators, and what they cannot train on is refused."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_training
from headrace import ConfigError, InputError, PreferenceDataset, Run, SFTDataset, open as open_store
from headrace.datasets import Collation

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("calm")]

SIZES = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4, "save_strategy": "no"}


@pytest.fixture(scope="module")
def folder(hf_stores: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("trl.trainer.kto_trainer")
        pytest.importorskip("trl.trainer.reward_trainer")
        pytest.importorskip("trl.trainer.grpo_trainer")
    return hf_stores


def trainer_of(name: str, kind: str, folder: Path, out: Path, **sizes: Any) -> Any:
    return hf_training.trainer_of(name, kind, folder, out, **{**SIZES, **sizes})


def test_answers_are_trls_tensors(folder: Path, tmp_path: Path) -> None:
    """With the answers of neighbours for the KL term, and the label, in every micro-batch of a step."""
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    collate = DataCollatorForUnpairedPreference(pad_token_id=0)
    run = hf_training.run_of("answers", folder)
    rows = run.samples(run.locate(run.positions(0)))
    batches = iter(trainer_of("KTOTrainer", "answers", folder, tmp_path).get_train_dataloader())
    for first in range(0, hf_training.STEP, 3):
        examples = []
        for row in rows[first : first + 3]:
            ids = row["input_ids"].tolist()
            begin = len(ids) // 2
            examples.append({"prompt_ids": ids[:begin], "completion_ids": ids[begin:], "label": bool(row["label"])})
        for number, example in enumerate(examples):
            example["KL_completion_ids"] = examples[number - 1]["completion_ids"]
        wanted = collate(examples)
        found = next(batches)
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            assert torch.equal(found[name], values), name
            assert found[name].dtype == values.dtype, name


def test_answers_without_the_kl_term_and_cut_ones(folder: Path) -> None:
    """Rows of the KL term are no longer than the others may be. A row without a trained token keeps its prompt."""
    from headrace.integrations.transformers_batches import answer_arguments

    cut = Collation(max_length=6, over_long="truncate_right")
    batch = SFTDataset(open_store(folder / "answers"), cut, labels="same").read(np.arange(4))
    batch = {name: torch.as_tensor(values) for name, values in batch.items()}
    assert "KL_input_ids" not in answer_arguments(batch, with_kl=False, max_length=6)
    batch["labels"][1] = -100
    found = answer_arguments(batch, with_kl=True, max_length=6)
    assert found["KL_input_ids"].shape[1] <= 6
    own = batch["input_ids"][1][batch["attention_mask"][1] == 1]
    assert found["KL_input_ids"][1][: len(own)].tolist() == own.tolist()
    assert found["KL_completion_mask"][2].sum() == 0


def test_scored_pairs_are_trls_tensors(folder: Path, tmp_path: Path) -> None:
    from trl.trainer.reward_trainer import DataCollatorForPreference

    run = hf_training.run_of("pairs", folder)
    rows = run.samples(run.locate(run.positions(0)[:3]))
    sides = ("chosen", "rejected")
    examples = [{f"{side}_ids": row[f"{side}_input_ids"].tolist() for side in sides} for row in rows]
    wanted = DataCollatorForPreference(pad_token_id=0)(examples)
    found = next(iter(trainer_of("RewardTrainer", "pairs", folder, tmp_path).get_train_dataloader()))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], values) for name, values in wanted.items())


@pytest.mark.parametrize(
    ("name", "kind"), [("SFTTrainer", "records"), ("DPOTrainer", "pairs"), ("KTOTrainer", "answers")]
)
def test_runs_are_evaluated_by_name_and_themselves(name: str, kind: str, folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(name, kind, folder, tmp_path)
    wanted = trainer.evaluate()["eval_chats_loss"]
    assert trainer.evaluate("chats")["eval_loss"] == pytest.approx(wanted)
    assert trainer.evaluate(hf_training.eval_runs_of(kind, folder)["chats"])["eval_loss"] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "kind", "named"),
    [
        ("KTOTrainer", "records", "KTOTrainer.*'label'.*input_ids"),
        ("SFTTrainer", "answers", "KTOTrainer"),
        ("RewardTrainer", "records", "RewardTrainer.*'completion_mask'.*PreferenceDataset"),
        ("DPOTrainer", "windows", "DPOTrainer.*'completion_mask'.*PreferenceDataset"),
    ],
)
def test_runs_that_a_trainer_cannot_train_on(name: str, kind: str, named: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        trainer_of(name, kind, folder, tmp_path)


def test_answers_that_ranks_cannot_share_equally_are_refused(folder: Path, tmp_path: Path) -> None:
    """The loss is a mean over answers: a rank without any would count for as much as the others."""
    trainer = trainer_of("KTOTrainer", "answers", folder, tmp_path, per_device_train_batch_size=5)
    trainer.args.gradient_accumulation_steps = 3
    with pytest.raises(ConfigError, match="5"):
        trainer.get_train_dataloader()


def test_pads_of_scored_pairs_are_those_of_the_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PreferenceDataset(open_store(folder / "pairs"), Collation(padding_idx=7), layout="stacked")
    run = Run(other, global_batch_size=12, samples=24)
    monkeypatch.setattr(hf_training, "run_of", lambda *_: run)
    with pytest.raises(ConfigError, match=r"7.*0.*Collation\(padding_idx=0"):
        trainer_of("RewardTrainer", "pairs", folder, tmp_path)


def rows_of(columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from headrace.integrations.transformers_batches import GenerationLayout

    layout = GenerationLayout(num_generations=2, rows=4, micro_steps=1, rank=0, world_size=1, decode=str)
    ids = np.array([[0, 5, 6], [7, 8, 9]])
    return layout.rows_of({"input_ids": ids, "attention_mask": (ids != 0).astype(int), "columns": columns})


def test_prompts_are_messages_where_the_columns_have_them() -> None:
    messages = [hf_training.question(number) for number in range(2)]
    rows = rows_of([{"prompt": messages[number], "number": number} for number in range(2)])
    assert [row["prompt"] for row in rows] == [messages[0], messages[0], messages[1], messages[1]]
    for row in rows:
        for copied in (copy.deepcopy(row["prompt"]), pickle.loads(pickle.dumps(row["prompt"]))):
            assert (copied, copied.ids) == (row["prompt"], [5, 6] if row["number"] == 0 else [7, 8, 9])
    assert [row["prompt"] for row in rows_of([{}, {}])] == ["[5, 6]", "[5, 6]", "[7, 8, 9]", "[7, 8, 9]"]
    with pytest.raises(InputError, match=r"1.*2.*generation"):
        rows_of([{"prompt": messages[0]}, {"prompt": "a text"}])
    with pytest.warns(UserWarning, match="'prompt'"):
        assert rows_of([{"prompt": "another"}, {}])[0]["prompt"] == "[5, 6]"


def test_messages_are_logged_and_written_with_the_tools_of_a_trainer(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of("GRPOTrainer", "questions", folder, tmp_path, max_steps=1, log_completions=True)
    trainer.train()
    [found] = trainer.state.log_history[:1]
    assert found["reward"] == found["rewards/politeness/mean"]
    [rows] = [next(iter(trainer.get_train_dataloader()))]
    ids = [row["prompt"].ids for row in rows]
    prompts = [row["prompt"] for row in rows]
    assert trainer._tokenize_prompts(prompts)[0] == ids
    # The store knows nothing of these tools, so the template has to write the prompt.
    trainer.tools = [len]
    trainer.chat_template = "{{ tools | length }}"
    trainer.processing_class.apply_chat_template = lambda **options: {"input_ids": json.dumps(len(options["tools"]))}
    assert trainer._tokenize_prompts(prompts)[0] == "1"
