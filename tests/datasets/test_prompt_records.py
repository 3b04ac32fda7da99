"""Prompts, padded on the left, and the columns that come with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import records_made
from headrace import ConfigError, InputError, PromptDataset
from headrace.datasets import Collation

RECORDS = records_made.prompts(3, 30)


@pytest.mark.parametrize("layout", ["combined", "keyed"])
def test_batches(tmp_path: Path, layout: str) -> None:
    dataset = PromptDataset(records_made.store(tmp_path / layout, RECORDS, layout), Collation(padding_idx=9))
    batch = dataset.read(np.array([4, 2]))
    rows = [RECORDS[i]["prompts"] for i in (4, 2)]
    width = max(map(len, rows))
    assert batch["input_ids"].tolist() == [[9] * (width - len(row)) + row for row in rows]
    assert batch["attention_mask"].tolist() == [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    assert batch["position_ids"].tolist() == [[*range(width - len(row)), *range(len(row))] for row in rows]
    assert batch["columns"] == [
        {"data_source": "made", "reward_model": {"ground_truth": str(i)}, "index": i} for i in (4, 2)
    ]
    assert not dataset.traits.is_counted
    assert dataset.sample_lengths(np.array([4, 2])).tolist() == list(map(len, rows))
    assert dataset[4]["columns"]["index"] == 4
    assert PromptDataset(dataset.store, Collation(padding_side="right")).read(np.array([4]))["input_ids"].tolist() == [
        rows[0]
    ]


def test_without_columns(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "bare", [{"prompts": record["prompts"]} for record in RECORDS])
    assert PromptDataset(store).read(np.array([0, 1]))["columns"] == [{}, {}]


def test_bad_columns_name_the_record(tmp_path: Path) -> None:
    records = [RECORDS[0], {**RECORDS[1], "columns": list(b"[1]")}]
    dataset = PromptDataset(records_made.store(tmp_path / "bad", records))
    assert dataset[0]["columns"]["index"] == 0
    with pytest.raises(InputError, match="record 1: its columns are not a JSON object"):
        dataset[1]
    with pytest.raises(ConfigError, match="expected an open store"):
        PromptDataset([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no key for prompts"):
        PromptDataset(records_made.store(tmp_path / "none", [{"tokens": [1]}]))
