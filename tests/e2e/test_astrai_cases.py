"""AstrAI's cases of its builders, its pipeline and its packing, by number: its configurations through the command line.

What is not equal is asserted as it is here; `docs/recipes.md` lists it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import faults
import headrace
import recipe_runs
import recipes_made
import records_made
from headrace.cli import main
from headrace.loader import collate_fn
from headrace.plan.packing import plan_packs
from headrace.samples.recipe import parse_recipe
from headrace.stores import load_manifest

TALKS = [
    {"messages": [recipes_made.USER, recipes_made.YES], "domain": "wiki"},
    {"messages": [recipes_made.USER, recipes_made.NO, recipes_made.USER, recipes_made.YES], "domain": "books"},
]
STRINGS = [{"prompt": "What is it?", "response": "A mill."}, {"prompt": "Why?", "response": "Water flows down."}]
PAIRS = [
    {"chosen": [recipes_made.USER, recipes_made.YES], "rejected": [recipes_made.USER, recipes_made.NO]},
    {"chosen": [recipes_made.USER, recipes_made.NO], "rejected": [recipes_made.USER, recipes_made.YES]},
]
GROUPS = [
    {"prompt": [recipes_made.USER], "responses": ["a", "bb", "ccc", "dd"], "rewards": [1.0, 0.5, 0.8, 0.2]},
    {"prompt": [recipes_made.USER], "responses": ["e"], "rewards": 0.9},
]
TEXT_SECTION = [{"field": "text", "action": "train"}]
TURNS = [{"field": "messages", "action": "$role", "template": True}]
MASK = {"system": "mask", "user": "mask", "assistant": "train"}
CHAT = {"input": {"sections": TURNS}, "mask": MASK}
DPO = {
    "input": {
        "sources": {
            side: {"sections": [{"field": side, "action": "$role", "template": True}]}
            for side in ("chosen", "rejected")
        }
    },
    "mask": MASK,
}
GRPO = {
    "input": {
        "sources": {
            "prompts": {"sections": [{"field": "prompt", "action": "mask", "template": True}]},
            "responses": {
                "sections": [{"field": "responses", "action": "train"}],
                "list_field": True,
                "mask_key": "masks",
            },
            "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
        }
    }
}


def instruction(prompt: str = "mask", response: str = "train") -> dict[str, Any]:
    return {"input": {"sections": [{"field": "prompt", "action": prompt}, {"field": "response", "action": response}]}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current one, with a model in it."""
    recipe_runs.make_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)


def prepare(config: dict[str, Any], records: list[Any], into: str = "out", **parts: Any) -> Any:
    """``headrace prepare`` of a configuration of AstrAI; ``parts`` are put into its sections."""
    config = {**config, **{name: {**config.get(name, {}), **part} for name, part in parts.items()}}
    recipe_runs.write_lines(Path("data.jsonl"), records)
    Path("config.json").write_text(json.dumps(config))
    arguments = ["prepare", "data.jsonl", "--recipe", "config.json", "--tokenizer", "model", "-o", into, "-q"]
    with faults.small_run():
        return CliRunner().invoke(main, [*arguments, "--backend", "tokenizers"])


def prepared(config: dict[str, Any], records: list[Any], into: str = "out", **parts: Any) -> Path:
    """The store that it made."""
    result = prepare(config, records, into, **parts)
    assert result.exit_code == 0, result.output
    assert list(load_manifest(into).faults()) == []
    return Path(into)


def masks_of(path: Path, ids: str = "sequence", mask: str = "loss_mask") -> list[list[int]]:
    """Masks that are as long as their tokens."""
    masks = recipe_runs.documents(path, mask)
    assert [len(row) for row in masks] == [len(row) for row in recipe_runs.documents(path, ids)]
    return [list(map(int, row)) for row in masks]


def dropped(path: Path) -> dict[str, int]:
    return load_manifest(path).ledger.documents.dropped


def test_case_13_a_folder_of_records_with_its_configuration() -> None:
    """AstrAI tokenises such a folder whenever it is loaded; here it is prepared, and then read by its names."""
    for kind, config in (("seq", {"input": {"sections": TEXT_SECTION}}), ("sft", CHAT)):
        records = [{"text": "a mill " * 9}, {"text": "a wheel " * 9}] if kind == "seq" else TALKS
        path = prepared(config, records, kind, output={"position_ids_mode": "doc_reset"})
        dataset = headrace.compat.astrai.DatasetFactory.load(kind, path, 8)
        assert {tuple(value.shape) for value in dataset[0].values()} == {(8,)}
        assert len(headrace.open(path)) == 2


def test_case_14_pairs_with_the_old_name_of_the_prompt() -> None:
    records: list[Any] = [
        {"input": "Why?", "chosen": "So.", "rejected": "No."},
        {"input": "Who?", "chosen": 3, "rejected": "No."},
        {"input": "Who?", "chosen": "I.", "rejected": "Not I."},
    ]
    recipe_runs.write_lines(Path("data") / "a.jsonl", records)
    recipe = "type: dpo\nstrings: chat\ntokenizer: model\nerrors: {on_error: skip}\n"
    recipe += "inputs: [{paths: data, layout: preference, fields: {prompt: input}}]\n"
    with faults.small_run():
        manifest = recipe_runs.prepare(recipe, Path(), Path("out"))
    assert [error.line for error in manifest.errors] == [2]
    dataset = headrace.compat.astrai.DatasetFactory.load("dpo", "out", 8)
    assert len(dataset) == 2
    for item in (dataset[0], dataset[1]):
        for side in ("chosen", "rejected"):
            assert (item[side].dtype, item[f"{side}_mask"].dtype) == (torch.int64, torch.bool)
            assert not item[f"{side}_mask"][0]
            assert item[f"{side}_mask"].any()


def test_case_15_groups_of_different_sizes(tmp_path: Path) -> None:
    groups: list[Any] = [
        {"prompts": [1, 2, 3], "responses": [4, 5, 6, 7], "masks": [1] * 4, "response_lengths": [1, 1, 2]},
        {"prompts": [10, 11], "responses": [12, 13], "masks": [1] * 2, "response_lengths": [1, 1]},
    ]
    groups[0]["rewards"], groups[1]["rewards"] = [1.0, 0.5, 0.25], [0.75, 0.5]
    path = records_made.write(tmp_path / "groups", groups)
    dataset = headrace.compat.astrai.DatasetFactory.load("grpo", path)
    assert [len(dataset[number]["responses"]) for number in range(2)] == [3, 2]
    records = headrace.GroupDataset(headrace.open(path))
    batch = collate_fn(records)([records[0], records[1]])
    assert batch["responses"].shape == (2, 3, 2)
    assert batch["prompts"].tolist() == [[1, 2, 3], [0, 10, 11]]
    assert batch["prompt_mask"].tolist() == [[True, True, True], [False, True, True]]
    assert batch["responses"][0].tolist() == [[4, 0], [5, 0], [6, 7]]
    assert batch["masks"][0].tolist() == [[True, False], [True, False], [True, True]]
    assert batch["group_mask"].tolist() == [[True] * 3, [True, True, False]]


def test_case_16_conversations() -> None:
    path = prepared(CHAT, [*TALKS, {"messages": []}, {}], output={"domain_key": "domain"})
    assert all(0 < sum(mask) < len(mask) for mask in masks_of(path))
    assert recipe_runs.documents(path / "wiki", "sequence") == recipe_runs.documents(path, "sequence")[:1]
    assert dropped(path) == {"empty": 2}
    short = prepared({**CHAT, "mask": {"user": "train"}}, TALKS, "short", preprocessing={"max_seq_len": 10})
    assert [len(mask) for mask in masks_of(short)] == [10, 10]
    # AstrAI keeps what has nothing to train.
    for config, limits, reason in (
        ({**CHAT, "mask": dict.fromkeys(MASK, "mask")}, {}, "no_supervised 2"),
        (CHAT, {"max_seq_len": 10}, "supervision_cut 2"),
    ):
        result = prepare(config, TALKS, "nothing", preprocessing=limits)
        assert f"no documents are left of 2 records: {reason}" in result.stderr
        assert not Path("nothing").exists()
    everything = prepared({**CHAT, "mask": {}, "mask_default": "train"}, TALKS, "everything")
    assert all(sum(mask) > 0 for mask in masks_of(everything))


def test_case_17_prompts_and_responses() -> None:
    for config, record_mask in ((instruction(), (0, 1)), (instruction("train", "mask"), (1, 0))):
        path = prepared(config, STRINGS, f"out{record_mask[0]}")
        lengths = [(len(one["prompt"]), len(one["response"])) for one in STRINGS]  # a token a byte
        wanted = [[record_mask[0]] * ask + [record_mask[1]] * tell for ask, tell in lengths]
        assert masks_of(path) == wanted


def test_case_18_texts() -> None:
    texts = [{"text": "a mill wheel"}, {"text": ""}, {"text": "  "}, {"text": "short"}]
    path = prepared({"input": {"sections": TEXT_SECTION}}, texts, preprocessing={"min_chars": 6, "max_seq_len": 8})
    assert headrace.open(path).keys == ("sequence", "position_ids")
    assert [len(row) for row in recipe_runs.documents(path, "sequence")] == [8]
    assert dropped(path) == {"empty": 2, "min_chars": 1}


def test_case_19_pairs() -> None:
    half = [{"chosen": PAIRS[0]["chosen"]}, {"rejected": PAIRS[0]["rejected"]}]
    path = prepared(DPO, [*PAIRS, {"chosen": [], "rejected": []}, *half])
    assert headrace.open(path).keys == ("chosen", "chosen_mask", "rejected", "rejected_mask")
    for side in ("chosen", "rejected"):
        assert [set(mask) for mask in masks_of(path, side, f"{side}_mask")] == [{0, 1}, {0, 1}]
    assert sum(dropped(path).values()) == 3


def test_case_20_groups() -> None:
    path = prepared(GRPO, GROUPS)
    store = headrace.open(path)
    assert store.keys == ("prompts", "prompts_mask", "responses", "masks", "response_lengths", "rewards")
    assert store.dtypes["rewards"] == np.float32
    assert recipe_runs.documents(path, "rewards") == [
        [pytest.approx(reward) for reward in (1.0, 0.5, 0.8, 0.2)],
        [pytest.approx(0.9)],
    ]
    assert recipe_runs.documents(path, "response_lengths") == [[1, 2, 3, 2], [1]]
    assert masks_of(path, "responses", "masks") == [[1] * 8, [1]]


@pytest.mark.parametrize(("config", "records"), [(CHAT, TALKS), (instruction(), STRINGS), (DPO, PAIRS), (GRPO, GROUPS)])
def test_case_20_a_batch_is_its_records(config: dict[str, Any], records: list[Any]) -> None:
    maker = recipes_made.maker(json.dumps(config))
    together = maker.make(records)
    for key in together.arrays:
        alone = [row for record in records for row in recipes_made.rows(maker.make([record]), key)]
        assert recipes_made.rows(together, key) == alone


def test_what_the_pipeline_stores() -> None:
    chat = headrace.open(prepared(CHAT, TALKS, "chat"))
    assert {key: str(dtype) for key, dtype in chat.dtypes.items()} == {
        "sequence": "int32",
        "loss_mask": "uint8",  # AstrAI: int32
        "position_ids": "int32",
    }
    asked = headrace.open(prepared(CHAT, TALKS, "asked", output={"dtype": {"loss_mask": "bool"}}))
    assert str(asked.dtypes["loss_mask"]) == "bool"
    meta = json.loads(next(Path("asked").rglob("meta.json")).read_bytes())
    assert meta["loss_mask"]["dtype"] == "bool"
    assert meta["sequence"]["offsets"][-1] == asked.num_tokens
    assert "loss_mask" in headrace.open(prepared(instruction(), STRINGS, "instruction")).keys


def test_lengths_of_texts_are_inclusive() -> None:
    limits = {"min_chars": 3, "max_chars": 5}
    texts = [{"text": "x" * length} for length in range(1, 8)]
    path = prepared({"input": {"sections": TEXT_SECTION}}, texts, preprocessing=limits)
    assert [len(row) for row in recipe_runs.documents(path, "sequence")] == [3, 4, 5]
    assert dropped(path) == {"max_chars": 2, "min_chars": 2}


def packs(lengths: list[int], size: int, strategy: str) -> list[list[tuple[int, int]]]:
    """(document, tokens of it) of each pack, with the cut and the packing that a configuration asks for."""
    limits = {"packing_strategy": strategy, "max_packed_len": size}
    recipe = parse_recipe(json.dumps({"input": {"sections": TEXT_SECTION}, "preprocessing": limits}))
    assert recipe.packing is not None
    plan = plan_packs(np.minimum(lengths, recipe.length.max_tokens), recipe.packing)
    items = plan.items(np.arange(len(plan)))
    pieces = list(zip(items.documents.tolist(), items.lengths.tolist(), strict=True))
    return [pieces[begin:end] for begin, end in zip(items.offsets[:-1], items.offsets[1:], strict=True)]


@pytest.mark.parametrize(
    ("lengths", "size", "wanted"),
    [
        ([3, 7, 5, 2, 8, 1], 10, [[4, 3], [1, 0], [2, 5]]),
        ([6, 5, 5, 4, 3, 3], 10, [[0, 3], [1, 2], [4, 5]]),
        ([4, 4, 4, 4], 8, [[0, 1], [2, 3]]),
        ([10, 10, 1], 10, [[0], [1], [2]]),
    ],
)
def test_packs_are_its_bins(lengths: list[int], size: int, wanted: list[list[int]]) -> None:
    assert [[document for document, _ in pack] for pack in packs(lengths, size, "bfd")] == wanted


def test_packs_of_what_is_too_long() -> None:
    """Split, no token is lost; cut, those beyond the size are."""
    split = packs([25, 3], 10, "bfd_split")
    assert sum(tokens for pack in split for _, tokens in pack) == 28
    assert all(sum(tokens for _, tokens in pack) <= 10 for pack in split)
    assert [sorted(pack) for pack in split] == [[(0, 10)], [(0, 10)], [(0, 5), (1, 3)]]
    assert sum(tokens for pack in packs([25, 8], 10, "bfd") for _, tokens in pack) < 33
    assert sum(tokens for pack in packs([25, 8], 10, "bfd_split") for _, tokens in pack) == 33
    assert packs([4, 3], 10, "bfd_split") == [[(0, 4), (1, 3)]]
