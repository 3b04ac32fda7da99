"""AstrAI's conformance cases of datasets, with its names, and what is better here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import records_made
from headrace import ConfigError, Loader, PreferenceDataset, Run, StoreError
from headrace.compat.astrai import DatasetFactory, load_dataset
from headrace.testing.shards import write_raw_keyed


def flat(folder: Path, num_tokens: int, keys: tuple[str, ...] = ("tokens",)) -> Path:
    records = [{key: [1] * num_tokens if key == "loss_mask" else list(range(num_tokens)) for key in keys}]
    return records_made.write(folder, records)


def test_case_9_segments_of_uneven_lengths(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(10):
        records_made.write(tmp_path / "many" / f"shard_{number:04d}", [{"tokens": [number] * (200 + 20 * number)}])
    dataset = DatasetFactory.load("seq", tmp_path / "many", 64)
    assert len(dataset) == (dataset.count - 1 - 64) // 64 + 1
    for item in dataset.__getitems__(range(len(dataset))):
        assert {tuple(value.shape) for value in item.values()} == {(64,)}
        assert {value.dtype for value in item.values()} == {torch.int64}


def test_case_10_counts(tmp_path: Path) -> None:
    path = flat(tmp_path / "flat", 200)
    assert len(load_dataset("seq", path, 64)) == 3
    assert len(load_dataset("seq", path, 64, 32)) == 5
    short = load_dataset("seq", flat(tmp_path / "short", 30), 64)
    assert (len(short), short.count, short.token_count) == (0, 30, 30)
    empty = DatasetFactory.create("seq", 64)
    assert (len(empty), empty.count, empty.keys) == (0, 0, [])
    with pytest.raises(RuntimeError, match="not loaded"):
        empty[0]
    assert repr(empty) == "<SeqDataset: not loaded>"


def test_case_11_fields(tmp_path: Path) -> None:
    item = load_dataset("sft", flat(tmp_path / "sft", 100, ("tokens", "loss_mask")), 64)[0]
    assert {name: tuple(value.shape) for name, value in item.items()} == dict.fromkeys(
        ("input_ids", "target_ids", "loss_mask", "position_ids"), (64,)
    )
    pairs = records_made.preferences(1, 30)
    path = records_made.write(tmp_path / "dpo", pairs)
    item = load_dataset("dpo", path, 8, layout="windows")[0]
    assert {tuple(value.shape) for value in item.values()} == {(8,)}
    assert list(item) == ["chosen", "rejected", "chosen_mask", "rejected_mask"]
    record = load_dataset("dpo", path, 8)[7]
    assert {name: value.tolist() for name, value in record.items()} == pairs[7]
    assert [value.dtype for value in record.values()] == [torch.int64, torch.int64, torch.bool, torch.bool]
    groups = records_made.groups(2, 30)
    item = load_dataset("grpo", records_made.write(tmp_path / "grpo", groups), 8)[5]
    assert (item["prompts"].dtype, item["rewards"].dtype) == (torch.int64, torch.float32)
    assert [len(one) for one in item["responses"]] == groups[5]["response_lengths"]
    assert {one.dtype for one in item["masks"]} == {torch.bool}


def test_case_12_storage_types(tmp_path: Path) -> None:
    path = flat(tmp_path / "flat", 100)
    assert len(load_dataset("seq", path, 8, storage_type="bin")) == len(load_dataset("seq", path, 8))
    with pytest.raises(ConfigError, match="storage_type is 'h5', but the data there have the format 'keyed'"):
        load_dataset("seq", path, 8, storage_type="h5")
    with pytest.raises(ValueError, match="Unknown component: 'parquet'"):
        load_dataset("seq", path, 8, storage_type="parquet")
    with pytest.raises(ValueError, match=r"Unknown component: 'ppo'.*'dpo', 'grpo', 'seq', 'sft'"):
        load_dataset("ppo", path, 8)
    with pytest.raises(KeyError, match=r"requires the keys \['loss_mask'\]; available are \['tokens'\]"):
        load_dataset("sft", path, 8)
    with pytest.raises(StoreError, match="nothing is there"):
        load_dataset("seq", tmp_path / "none", 8)


def test_windows_are_bounded(tmp_path: Path) -> None:
    dataset = load_dataset("seq", flat(tmp_path / "flat", 9), 4)
    assert dataset.get_index(1) == (4, 8)
    for index in (-1, 2, 99):
        with pytest.raises(IndexError, match="of 2"):
            dataset.get_index(index)
    pairs = records_made.write(tmp_path / "dpo", records_made.preferences(1, 3))
    with pytest.raises(RuntimeError, match="no windows"):
        load_dataset("dpo", pairs, 4).get_index(0)


def test_records_whose_borders_were_not_stored_are_refused(tmp_path: Path) -> None:
    """What AstrAI's own pipeline writes: one stream a shard, in which no pair can be found again."""
    keys = ("chosen", "chosen_mask", "rejected", "rejected_mask")
    meta = ", ".join(f'"{key}": {{"shape": [4], "dtype": "uint8"}}' for key in keys)
    path = write_raw_keyed(tmp_path / "dpo", f"{{{meta}}}".encode(), dict.fromkeys(keys, b"\0\1\1\1"))
    with pytest.raises(ConfigError, match="1 shards of one piece each: the borders of records were not stored"):
        load_dataset("dpo", path, 2)
    assert len(load_dataset("dpo", path, 2, layout="windows")) == 1


def test_a_single_record_with_offsets_is_one(tmp_path: Path) -> None:
    [pair] = records_made.preferences(1, 1)
    path = records_made.write(tmp_path / "dpo", [pair])
    dataset = load_dataset("dpo", path, 8)
    assert len(dataset) == 1
    assert {name: value.tolist() for name, value in dataset[0].items()} == pair
    assert len(load_dataset("grpo", records_made.write(tmp_path / "grpo", records_made.groups(2, 1)), 8)) == 1


def test_the_dataset_behind_goes_into_a_loader(tmp_path: Path) -> None:
    path = records_made.write(tmp_path / "dpo", records_made.preferences(1, 12))
    dataset = load_dataset("dpo", path, 8)
    assert isinstance(dataset.dataset, PreferenceDataset)
    batches: list[Any] = list(Loader(Run(dataset.dataset, global_batch_size=4, epochs=1), micro_batch_size=4))
    assert len(batches) == 3
    assert {batch["chosen_labels"].dtype for batch in batches} == {torch.int64}
    with pytest.raises(ConfigError, match="layout of 'seq' is 'records'"):
        load_dataset("seq", path, 8, layout="records")
    sft = records_made.write(tmp_path / "sft", records_made.sft(1, 12))
    assert len(load_dataset("sft", sft, 8, layout="records")) == 12
