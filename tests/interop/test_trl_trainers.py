"""TRL's trainers over a run, its collators, its packs and its records: what it would have made is what they get."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import hf_training
import records_made
from counts import cases
from headrace import ConfigError, InputError, PreferenceDataset, Run, SFTDataset, open as open_store
from headrace.datasets import Collation
from headrace.loader import collate_fn
from headrace.plan.packing import Packing, plan_packs

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


PAIRS = records_made.preferences(1, 60)
CONVERSATIONS = records_made.sft(2, 60)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("trl")
    return {
        "dpo": records_made.store(folder / "dpo", PAIRS),
        "sft": records_made.store(folder / "sft", CONVERSATIONS),
    }


def example(pair: records_made.Record) -> dict[str, list[int]]:
    """A pair as TRL's dataset has it: the prompt apart."""
    prompt = list(itertools.takewhile(lambda pair: not pair[1], zip(pair["chosen"], pair["chosen_mask"], strict=True)))
    ids = [token for token, _ in prompt]
    return {
        "prompt_ids": ids,
        "chosen_ids": pair["chosen"][len(ids) :],
        "rejected_ids": pair["rejected"][len(ids) :],
    }


@settings(max_examples=cases(24, 1_000), deadline=None)
@given(
    st.lists(st.integers(0, 59), min_size=1, max_size=6),
    st.sampled_from([None, 1, 8]),
    st.sampled_from([None, ("keep_start", "truncate_right"), ("keep_end", "truncate_left")]),
)
def test_preferences_are_trls_tensors(
    datasets: dict[str, Any], chosen: list[int], multiple: int | None, cut: tuple[str, str] | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collators = pytest.importorskip("trl.trainer.dpo_trainer")
    limit = {} if cut is None else {"max_length": 12, "truncation_mode": cut[0]}
    theirs = collators.DataCollatorForPreference(pad_token_id=3, pad_to_multiple_of=multiple, **limit)
    wanted = theirs([example(PAIRS[i]) for i in chosen])
    ours: Any = {} if cut is None else {"max_length": 12, "over_long": cut[1]}
    collation = Collation(padding_idx=3, multiple_of=multiple or 1, **ours)
    dataset = PreferenceDataset(datasets["dpo"], collation, layout="stacked")
    batch = collate_fn(dataset)([dataset[i] for i in chosen])
    if cut == ("keep_end", "truncate_left"):
        # The first token that is kept may be of the answer; nothing is before it that could predict it.
        wanted["completion_mask"][:, 0] = 0
    for name in ("input_ids", "attention_mask", "completion_mask"):
        assert torch.equal(batch[name], wanted[name]), name
        assert batch[name].dtype == wanted[name].dtype


@settings(max_examples=cases(16, 400), deadline=None)
@given(st.lists(st.integers(0, 59), min_size=1, max_size=6), st.sampled_from([None, 8]))
def test_conversations_are_trls_tensors(datasets: dict[str, Any], chosen: list[int], multiple: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collators = pytest.importorskip("trl.trainer.sft_trainer")
    examples = []
    for record in (CONVERSATIONS[i] for i in chosen):
        pairs = zip(record["tokens"], record["loss_mask"], strict=True)
        labels = [token if mark else -100 for token, mark in pairs]
        # What nothing predicts has no label here; a model that shifts leaves it out.
        labels[0] = -100
        examples.append({"input_ids": record["tokens"], "labels": labels})
    wanted = collators.DataCollatorForLanguageModeling(pad_token_id=3, pad_to_multiple_of=multiple)(examples)
    dataset = SFTDataset(datasets["sft"], Collation(padding_idx=3, multiple_of=multiple or 1), labels="same")
    batch = collate_fn(dataset)([dataset[i] for i in chosen])
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(batch[name], wanted[name]), name
        assert batch[name].dtype == wanted[name].dtype


PLACES = 1_000_000
Plan = list[list[list[int]]]
STRATEGIES = [("bfd", "best_fit"), ("bfd_split", "best_fit_split")]


@pytest.fixture(scope="module")
def trl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First: without TRL's own `datasets` that name would find a folder of these tests.
        module = pytest.importorskip("trl.data_utils")
        import datasets

        datasets.disable_progress_bars()
        return module


def theirs(trl: Any, lengths: list[int], seq_length: int, strategy: str, batch_size: int) -> Plan:
    """For each pack its pieces in order: document, first token of it, and length."""
    import datasets

    # A token says where it comes from: so many places for each document.
    ids = [np.arange(length) + PLACES * document for document, length in enumerate(lengths)]
    dataset = datasets.Dataset.from_dict({"input_ids": ids})
    options = {"batch_size": batch_size, "keep_in_memory": True, "load_from_cache_file": False}
    plan = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = trl.pack_dataset(dataset, seq_length, strategy, options)
    for row in packed:
        ends = np.cumsum(row["seq_lengths"])
        firsts = np.array(row["input_ids"])[ends - row["seq_lengths"]]
        plan.append(np.stack([firsts // PLACES, firsts % PLACES, row["seq_lengths"]], axis=1).tolist())
    return plan


def ours(lengths: list[int], seq_length: int, strategy: str, batch_size: int | None = None) -> Plan:
    """The same of our plan, every so many documents for themselves; over all without a number."""
    over_long = "truncate_right" if strategy == "best_fit" else "split"
    packing = Packing(
        seq_len=seq_length,
        strategy=strategy,  # type: ignore[arg-type]
        over_long=over_long,  # type: ignore[arg-type]
        window_documents=batch_size,
    )
    plan = plan_packs(np.array(lengths, dtype=np.int64), packing)
    items = plan.items(np.arange(len(plan)))
    pieces = np.stack([items.documents, items.begins, items.lengths], axis=1)
    return [piece.tolist() for piece in np.split(pieces, items.offsets[1:-1])] if len(plan) else []


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[int], int]:
    """Lengths, up to three times that of a pack, and this; no TRL batch is without tokens, which TRL does not take."""
    size = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, 3 * size), min_size=1, max_size=40))
    return [max(length, int(at % 3 == 0)) for at, length in enumerate(lengths)], size


@settings(max_examples=cases(40, 800), deadline=None)
@given(st.sampled_from(STRATEGIES), drawn(), st.sampled_from([None, None, 3, 6, 9]))
def test_the_plan_is_theirs(
    trl: Any, names: tuple[str, str], case: tuple[list[int], int], batch_size: int | None
) -> None:
    """Over all, and every so many documents for themselves."""
    lengths, size = case
    assert ours(lengths, size, names[1], batch_size) == theirs(trl, lengths, size, names[0], batch_size or len(lengths))


@pytest.mark.parametrize("names", STRATEGIES)
@pytest.mark.parametrize("batch_size", [1000, None])
def test_the_plan_is_theirs_for_many(trl: Any, names: tuple[str, str], batch_size: int | None) -> None:
    """In their batches of 1,000, and over all."""
    lengths = np.random.default_rng(1).lognormal(5.5, 1.2, 5_000).astype(np.int64).tolist()
    found = ours(lengths, 1024, names[1], batch_size)
    assert found == theirs(trl, lengths, 1024, names[0], batch_size or len(lengths))
    assert len(found) > 1_000
