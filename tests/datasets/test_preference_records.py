"""Pairs: both answers in one width, labels or TRL's stacked masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import records_made
from headrace import ConfigError, InputError, PreferenceDataset
from headrace.datasets import Collation

RECORDS = records_made.preferences(1, 40)


@pytest.fixture(scope="module", params=["combined", "keyed"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return records_made.store(tmp_path_factory.mktemp("dpo") / "store", RECORDS, request.param)


def padded(rows: list[list[int]], width: int, fill: int, side: str) -> list[list[int]]:
    return [row + [fill] * (width - len(row)) if side == "right" else [fill] * (width - len(row)) + row for row in rows]


def labels_of(record: records_made.Record, answer: str, kind: str) -> list[int]:
    pairs = zip(record[answer], record[f"{answer}_mask"], strict=True)
    own = [token if mark else -100 for token, mark in pairs]
    own[0] = -100
    return own if kind == "same" else [*own[1:], -100]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("labels", ["next", "same"])
def test_both_layouts_by_plain_lists(store: Any, side: Any, labels: Any) -> None:
    chosen = [3, 9, 0, 3]
    records = [RECORDS[i] for i in chosen]
    collation = Collation(padding_idx=5, padding_side=side, multiple_of=4)
    width = -(-max(len(record[answer]) for record in records for answer in ("chosen", "rejected")) // 4) * 4
    apart = PreferenceDataset(store, collation, labels=labels)
    batch = apart.read(np.array(chosen))
    masks: list[list[int]] = []
    for answer in ("chosen", "rejected"):
        rows = [record[answer] for record in records]
        assert batch[f"{answer}_input_ids"].tolist() == padded(rows, width, 5, side)
        wanted = [labels_of(record, answer, labels) for record in records]
        assert batch[f"{answer}_labels"].tolist() == padded(wanted, width, -100, side)
        assert batch[f"{answer}_attention_mask"].tolist() == padded([[1] * len(row) for row in rows], width, 0, side)
        masks += padded([record[f"{answer}_mask"] for record in records], width, 0, side)
    stacked = PreferenceDataset(store, collation, labels=labels, layout="stacked").read(np.array(chosen))
    assert stacked["completion_mask"].tolist() == masks
    for name in ("input_ids", "attention_mask"):
        halves = [batch[f"{answer}_{name}"] for answer in ("chosen", "rejected")]
        assert stacked[name].tolist() == np.concatenate(halves).tolist()
    assert batch["num_supervised_tokens"] == stacked["num_supervised_tokens"] == sum(map(sum, masks))
    counts = apart.count(np.array(chosen))
    assert counts.supervised_tokens.sum() == batch["num_supervised_tokens"]
    assert counts.tokens.tolist() == [len(record["chosen"]) + len(record["rejected"]) for record in records]
    assert counts.documents.tolist() == [2] * 4
    lengths = [max(len(record["chosen"]), len(record["rejected"])) for record in records]
    assert apart.sample_lengths(np.array(chosen)).tolist() == lengths
    for name, (_, dtype) in apart.fields.items():
        assert batch[name].dtype == dtype


def test_cutting_and_counting(store: Any) -> None:
    collation = Collation(max_length=8, over_long="truncate_right")
    dataset = PreferenceDataset(store, collation)
    for i, record in enumerate(RECORDS):
        sample = dataset[i]
        supervised = 0
        for answer in ("chosen", "rejected"):
            assert sample[f"{answer}_input_ids"].tolist() == record[answer][:8]
            supervised += sum(record[f"{answer}_mask"][1:8])
        assert dataset.count(np.array([i])).supervised_tokens.tolist() == [supervised]


def test_an_over_long_rejected_one_is_found_when_it_is_read(tmp_path: Path) -> None:
    record = {"chosen": [1, 2], "chosen_mask": [0, 1], "rejected": [1, 2, 3], "rejected_mask": [0, 1, 1]}
    dataset = PreferenceDataset(records_made.store(tmp_path / "long", [record]), Collation(max_length=2))
    with pytest.raises(InputError, match="record 0: the rejected answer has 3 tokens, max_length is 2"):
        dataset[0]


def test_what_is_refused(store: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layout is 'both'"):
        PreferenceDataset(store, layout="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="labels is"):
        PreferenceDataset(store, labels="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected an open store"):
        PreferenceDataset(None)  # type: ignore[arg-type]
    half = [{key: record[key] for key in ("chosen", "chosen_mask")} for record in RECORDS]
    with pytest.raises(ConfigError, match="no key for rejected of preferences"):
        PreferenceDataset(records_made.store(tmp_path / "half", half))
    wrong = [{**RECORDS[0], "rejected_mask": [1]}]
    with pytest.raises(InputError, match="values of 'rejected_mask'"):
        PreferenceDataset(records_made.store(tmp_path / "wrong", wrong))[0]
