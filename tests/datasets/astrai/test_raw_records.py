"""AstrAI's names of today: stores that are given, and texts that are tokenised when they are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import recipe_runs
import recipes_made
import records_made
from headrace import ConfigError, InputError
from headrace.compat.astrai import (
    BaseDataset,
    DatasetFactory,
    DPODataset,
    GRPODataset,
    JsonlStore,
    MmapStore,
    RDSampler,
    ResumableDistributedSampler,
    SEQDataset,
    SFTDataset,
    TokenizeTransform,
    dpo_collate_fn,
    grpo_collate_fn,
    transform,
)

TURNS = [{"field": "messages", "action": "$role", "template": True}]
CHAT: dict[str, Any] = {"input": {"sections": TURNS}, "mask": {"user": "mask", "assistant": "train"}}
GRPO: dict[str, Any] = {
    "input": {
        "sources": {
            "prompts": {"sections": [{"field": "prompt", "action": "mask"}]},
            "responses": {
                "sections": [{"field": "responses", "action": "train"}],
                "list_field": True,
                "mask_key": "masks",
            },
            "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
        }
    }
}
TALKS = [{"messages": [recipes_made.USER, recipes_made.YES]}, {"messages": [recipes_made.USER, recipes_made.NO]}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return recipe_runs.make_model(tmp_path / "model")


def folder(path: Path, records: list[Any], config: dict[str, Any] | None = None, model: Path | None = None) -> Path:
    recipe_runs.write_lines(path / "a.jsonl", records)
    if config is not None:
        (path / "dataset_config.json").write_text(json.dumps({"tokenizer_path": str(model), **config}))
    return path


class ForeignStore:
    """A store of someone else's, by AstrAI's methods alone."""

    def __init__(self, **data: list[Any]) -> None:
        self.data = data
        self.keys = list(data)

    token_count = 0

    def __len__(self) -> int:
        return len(self.data[self.keys[0]])

    def fetch_record(self, index: int, keys: str) -> Any:
        return self.data[keys][index]


def test_a_store_of_someone_else() -> None:
    ids = torch.tensor([1, 2, 3], dtype=torch.int32)
    group = ForeignStore(prompts=[ids], responses=[[ids, ids[:2]]], masks=[[ids > 1, ids[:2]]], rewards=[ids.double()])
    dataset = GRPODataset(store=group)
    assert (len(dataset), dataset.keys, dataset.token_count) == (1, group.keys, 0)
    item = dataset[0]
    assert {name: type(value) for name, value in item.items()} == {
        **dict.fromkeys(("prompts", "rewards"), torch.Tensor),
        **dict.fromkeys(("responses", "masks"), list),
    }
    assert [one.tolist() for one in item["responses"]] == [[1, 2, 3], [1, 2]]
    dtypes = (item["prompts"].dtype, item["responses"][0].dtype, item["masks"][1].dtype, item["rewards"].dtype)
    assert dtypes == (torch.int64, torch.int64, torch.bool, torch.float32)
    assert dataset.store is dataset.storage is group
    with pytest.raises(KeyError, match=r"requires the keys \['chosen_mask', 'rejected_mask'\]"):
        DPODataset(store=ForeignStore(chosen=[ids], rejected=[ids]))
    with pytest.raises(ConfigError, match="give only the store"):
        GRPODataset(8, store=group)
    with pytest.raises(RuntimeError, match="headrace prepare"):
        dataset.dataset  # noqa: B018


def test_a_store_of_windows(tmp_path: Path) -> None:
    path = records_made.write(tmp_path / "flat", [{"tokens": list(range(9))}])
    store = MmapStore(window_size=4)
    store.load(path)
    given, loaded = DatasetFactory.load("seq", store=store), DatasetFactory.load("seq", path, 4)
    assert isinstance(given, SEQDataset)
    assert len(given) == len(loaded) == 2
    for one, other in zip(given, loaded, strict=False):
        assert {name: value.tolist() for name, value in one.items()} == {n: v.tolist() for n, v in other.items()}
        assert {value.dtype for value in one.values()} == {torch.int64}


def test_every_loaded_dataset_has_its_store(tmp_path: Path) -> None:
    pairs = records_made.write(tmp_path / "dpo", records_made.preferences(1, 5))
    dataset = DatasetFactory.load("dpo", pairs, 0)
    assert isinstance(dataset.store, MmapStore)
    assert (len(dataset.store), dataset.storage) == (5, dataset.store)
    assert torch.equal(dataset.store.fetch_record(3, "chosen"), dataset[3]["chosen"].int())
    windows = DatasetFactory.load("seq", records_made.write(tmp_path / "seq", [{"tokens": [5] * 30}]), 8)
    assert len(windows.store) == len(windows) == 3
    assert windows.store.fetch(4, 4, "tokens").numel() == 0
    assert SEQDataset(8).store is None
    assert (RDSampler, issubclass(SFTDataset, BaseDataset)) == (ResumableDistributedSampler, True)


def test_texts_with_a_configuration_beside_them(tmp_path: Path, model: Path) -> None:
    """Tokens and masks are those that `headrace prepare` stores."""
    path = folder(tmp_path / "chat", TALKS, CHAT, model)
    dataset = DatasetFactory.load("sft", path, 8)
    assert {tuple(value.shape) for value in dataset[0].values()} == {(8,)}
    store = dataset.store
    assert isinstance(store, JsonlStore)
    assert store.num_records == 2
    prepared = recipes_made.maker(json.dumps(CHAT)).make(TALKS)
    for key in ("sequence", "loss_mask", "position_ids"):
        rows = recipes_made.rows(prepared, key)
        assert [store.fetch_record(number, key).tolist() for number in range(2)] == rows
        assert store.fetch(0, 9, key).tolist() == [value for row in rows for value in row][:9]
    assert sorted(store.fetch_record(1, store.keys)) == ["loss_mask", "position_ids", "sequence"]


def test_positions_that_go_on_through_the_records(tmp_path: Path, model: Path) -> None:
    for mode, wanted in (("continuous", list(range(9))), ("doc_reset", [*range(4), *range(5)])):
        config = {
            "input": {"sections": [{"field": "text", "action": "train"}]},
            "preprocessing": {"min_chars": 0},
            "output": {"position_ids_mode": mode},
        }
        made = TokenizeTransform(config, model).apply([{"text": "abcd"}, {"text": "efghi"}])
        assert torch.cat(made["position_ids"]).tolist() == wanted
        assert [len(one) for one in made["sequence"]] == [4, 5]


def test_conversations_need_a_tokeniser_only(tmp_path: Path, model: Path) -> None:
    path = folder(tmp_path / "chat", TALKS)
    dataset = DatasetFactory.load("sft", path, 8, tokenizer_path=model)
    by_config = DatasetFactory.load("sft", folder(tmp_path / "said", TALKS, CHAT, model), 8)
    assert [item["input_ids"].tolist() for item in dataset] == [item["input_ids"].tolist() for item in by_config]
    with pytest.raises(FileNotFoundError, match=r"no dataset_config.json beside them.*headrace prepare"):
        DatasetFactory.load("sft", path, 8)
    with pytest.raises(ConfigError, match="needs a load_path, or an open store"):
        DatasetFactory.load("sft")


def test_groups_keep_their_responses_apart(tmp_path: Path, model: Path) -> None:
    records = [
        {"prompt": "Why?", "responses": ["a", "bb", "ccc"], "rewards": [0.9, 0.1, 0.5]},
        {"prompt": "Who?", "responses": ["dd", "e"], "rewards": [0.3, 0.8]},
    ]
    dataset = DatasetFactory.load("grpo", folder(tmp_path / "groups", records, GRPO, model))
    assert len(dataset) == 2
    assert [[len(one) for one in dataset[number]["responses"]] for number in range(2)] == [[1, 2, 3], [2, 1]]
    assert dataset[0]["rewards"].tolist() == [pytest.approx(reward) for reward in (0.9, 0.1, 0.5)]
    assert {one.dtype for one in dataset[1]["masks"]} == {torch.bool}
    store = dataset.store
    assert (store.num_records, len(store), store.token_count) == (2, 2, 5)
    with pytest.raises(ConfigError, match="'responses' holds lists of sequences"):
        store.fetch(0, 1, "responses")
    batch = grpo_collate_fn([dataset[0], dataset[0]])
    assert (batch["responses"].shape, batch["masks"].sum().item()) == ((2, 3, 3), 12)
    with pytest.raises(InputError, match=r"have \[3, 2\] responses"):
        grpo_collate_fn([dataset[0], dataset[1]])


def test_pairs_are_tokenised_when_they_are_read(tmp_path: Path, model: Path) -> None:
    records = [
        {"input": "Why?", "chosen": "So it is.", "rejected": "No."},
        {"prompt": "Who?", "chosen": [recipes_made.YES], "rejected": [recipes_made.NO]},
        {"prompt": "What?", "chosen": "A mill."},
    ]
    recipe_runs.write_lines(tmp_path / "pairs.jsonl", records)
    dataset = DatasetFactory.load("dpo", tmp_path / "pairs.jsonl", tokenizer_path=model)
    assert len(dataset) == 3
    for number in range(2):
        item = dataset[number]
        for side in ("chosen", "rejected"):
            assert (item[side].dtype, item[f"{side}_mask"].dtype) == (torch.int64, torch.bool)
            assert item[side].shape == item[f"{side}_mask"].shape
            assert not item[f"{side}_mask"][0]
            assert item[f"{side}_mask"].any()
    with pytest.raises(ValueError, match="not a pair of answers"):
        dataset[2]
    batch = dpo_collate_fn([dataset[0], dataset[1]])
    width = max(len(dataset[number][side]) for number in range(2) for side in ("chosen", "rejected"))
    assert {tuple(value.shape) for value in batch.values()} == {(2, width)}
    assert batch["chosen"][0][: len(dataset[0]["chosen"])].tolist() == dataset[0]["chosen"].tolist()
    assert not batch["rejected_mask"][0][len(dataset[0]["rejected"]) :].any()
    with pytest.raises(RuntimeError, match="use fetch_record"):
        dataset.store.fetch(0, 1, "chosen")
    with pytest.raises(ConfigError, match="out of bounds"):
        dataset.store.fetch_record(3, "chosen")
    short = DatasetFactory.load("dpo", tmp_path / "pairs.jsonl", tokenizer_path=model, max_len=20)
    assert len(short[0]["chosen"]) == 20 < len(dataset[0]["chosen"])


def test_what_is_left_out_is_said(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AstrAI leaves faulty lines and records out with a line in its log, or without one."""
    records = [*TALKS, {"messages": []}]
    with pytest.warns(UserWarning, match="1 of 3 records are left out: empty 1"):
        made = TokenizeTransform(CHAT, model).apply(records)
    assert len(made["sequence"]) == 2
    monkeypatch.setattr(transform, "_AT_ONCE", 1)
    with pytest.warns(UserWarning, match="1 of 3 records are left out"):
        alone = TokenizeTransform(CHAT, model).apply([records[2], *TALKS])
    assert [one.tolist() for one in alone["sequence"]] == [one.tolist() for one in made["sequence"]]
    with pytest.raises(InputError, match="1 of 1 records are left out"):
        TokenizeTransform(CHAT, model).apply(records[2:])
    with pytest.raises(InputError, match="record 1: "):
        TokenizeTransform(CHAT, model).apply([TALKS[0], {"messages": 5}])
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n\n{"text": \n')
    with pytest.raises(InputError, match=r"bad.jsonl: line 3: not a JSON object"):
        JsonlStore().load(tmp_path / "bad.jsonl", processor=dict)
    with pytest.raises(ConfigError, match="give either transform, or processor"):
        JsonlStore().load(tmp_path / "bad.jsonl", processor=dict, transform=TokenizeTransform(CHAT, model))


def test_records_of_tokens_need_no_tokeniser(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    recipe_runs.write_lines(path, [{"sequence": list(range(20))}])
    dataset = DatasetFactory.load("seq", path, 8, tokenizer_path=model)
    assert dataset[0]["target_ids"].tolist() == list(range(1, 9))
    assert isinstance(dataset.store, JsonlStore)
