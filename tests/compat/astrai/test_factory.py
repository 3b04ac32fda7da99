"""AstrAI's conformance cases of datasets, with its names, and what is better here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import records_made
from counts import cases
from headrace import ConfigError, StoreError
from headrace.compat.astrai import DatasetFactory, SEQDataset
from token_shards import write_raw_keyed


def load(train_type: str, path: Path, *sizes: int, **options: Any) -> Any:
    return DatasetFactory.load(train_type, path, *sizes, **options)


def flat(folder: Path, num_tokens: int, keys: tuple[str, ...] = ("tokens",)) -> Path:
    records = [{key: [1] * num_tokens if key == "loss_mask" else list(range(num_tokens)) for key in keys}]
    return records_made.write(folder, records)


def raw(folder: Path, **streams: bytes) -> Path:
    """A shard of streams without the borders of records."""
    meta = ", ".join(f'"{key}": {{"shape": [{len(data)}], "dtype": "uint8"}}' for key, data in streams.items())
    return write_raw_keyed(folder, f"{{{meta}}}".encode(), streams)


def test_case_9_segments_of_uneven_lengths(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(10):
        records_made.write(tmp_path / "many" / f"shard_{number:04d}", [{"tokens": [number] * (200 + 20 * number)}])
    dataset = load("seq", tmp_path / "many", 64)
    assert len(dataset) == (dataset.count - 1 - 64) // 64 + 1
    for item in dataset:
        assert {tuple(value.shape) for value in item.values()} == {(64,)}
        assert {value.dtype for value in item.values()} == {torch.int64}


def test_case_10_counts(tmp_path: Path) -> None:
    path = flat(tmp_path / "flat", 200)
    assert len(load("seq", path, 64)) == 3
    assert len(load("seq", path, 64, 32)) == 5
    short = load("seq", flat(tmp_path / "short", 30), 64)
    assert (len(short), short.count) == (0, 30)
    empty = SEQDataset(64)
    assert (len(empty), empty.count, empty.keys) == (0, 0, [])
    for use in (empty.get_index, empty.__getitem__):
        with pytest.raises(RuntimeError, match="loaded"):
            use(0)
    assert repr(empty) == "<SEQDataset: not loaded>"


GOLDEN = [  # N, window, stride -> windows, the last one
    (9, 4, 4, 2, (4, 8)),
    (9, 4, 2, 3, (4, 8)),
    (9, 8, 8, 1, (0, 8)),
    (9, 9, 9, 0, None),
    (10, 4, 4, 2, (4, 8)),
    (10, 3, 4, 2, (4, 7)),
    (100, 10, 7, 13, (84, 94)),
]


@pytest.mark.parametrize(("num_tokens", "window", "stride", "count", "last"), GOLDEN)
def test_the_golden_counts(
    tmp_path: Path, num_tokens: int, window: int, stride: int, count: int, last: tuple[int, int] | None
) -> None:
    dataset = load("seq", flat(tmp_path / "s", num_tokens), window, stride)
    assert len(dataset) == count
    if last is not None:
        assert dataset.get_index(count - 1) == last
        assert dataset[count - 1]["input_ids"].tolist() == list(range(*last))
        assert dataset[count - 1]["target_ids"].tolist() == list(range(last[0] + 1, last[1] + 1))
    for index in (-1, count, 99):
        with pytest.raises(IndexError, match=rf"{count}"):
            dataset.get_index(index)
        with pytest.raises(IndexError, match=rf"{count}"):
            dataset[index]


@settings(max_examples=cases(12, 300), deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 20))
def test_fine_tuning_windows_by_plain_slices(
    tmp_path_factory: pytest.TempPathFactory, window: int, stride: int, seed: int
) -> None:
    records = records_made.sft(seed, 6, longest=12)
    ids = [token for record in records for token in record["tokens"]]
    marks = [mark for record in records for mark in record["loss_mask"]]
    positions = [place for record in records for place in range(len(record["tokens"]))]
    path = records_made.write(tmp_path_factory.mktemp("sft") / "s", records)
    dataset = pickle.loads(pickle.dumps(load("sft", path, window, stride)))
    slack = len(ids) - 1 - window
    assert len(dataset) == (slack // stride + 1 if slack >= 0 else 0)
    for i in range(len(dataset)):
        item, begin = dataset[i], min(i * stride, slack)
        assert item["input_ids"].tolist() == ids[begin : begin + window]
        assert item["target_ids"].tolist() == ids[begin + 1 : begin + window + 1]
        assert item["loss_mask"].tolist() == [bool(mark) for mark in marks[begin + 1 : begin + window + 1]]
        assert item["position_ids"].tolist() == positions[begin : begin + window]
        assert [value.dtype for value in item.values()] == [torch.int64, torch.int64, torch.bool, torch.int64]


def test_stored_positions_are_used(tmp_path: Path) -> None:
    path = raw(tmp_path / "s", tokens=bytes([1, 2, 3, 4]), loss_mask=bytes(4), position_ids=bytes([7, 8, 9, 10]))
    assert load("sft", path, 3)[0]["position_ids"].tolist() == [7, 8, 9]


def test_case_11_fields(tmp_path: Path) -> None:
    item = load("sft", flat(tmp_path / "sft", 100, ("tokens", "loss_mask")), 64)[0]
    assert {name: tuple(value.shape) for name, value in item.items()} == dict.fromkeys(
        ("input_ids", "target_ids", "loss_mask", "position_ids"), (64,)
    )
    pairs = records_made.preferences(1, 30)
    path = records_made.write(tmp_path / "dpo", pairs)
    record = load("dpo", path)[7]
    assert {name: value.tolist() for name, value in record.items()} == pairs[7]
    assert [value.dtype for value in record.values()] == [torch.int64, torch.int64, torch.bool, torch.bool]
    groups = records_made.groups(2, 30)
    item = load("grpo", records_made.write(tmp_path / "grpo", groups), 8)[5]
    assert (item["prompts"].dtype, item["rewards"].dtype) == (torch.int64, torch.float32)
    assert [len(one) for one in item["responses"]] == groups[5]["response_lengths"]
    assert {one.dtype for one in item["masks"]} == {torch.bool}


def test_case_12_storage_types(tmp_path: Path) -> None:
    path = flat(tmp_path / "flat", 100)
    assert len(load("seq", path, 8, storage_type="bin")) == len(load("seq", path, 8))
    with pytest.raises(ConfigError, match=r"storage_type.*'h5'.*'keyed'"):
        load("seq", path, 8, storage_type="h5")
    with pytest.raises(ValueError, match="'parquet'"):
        load("seq", path, 8, storage_type="parquet")
    with pytest.raises(ValueError, match=r"'ppo'.*'dpo'.*'grpo'"):
        load("ppo", path, 8)
    with pytest.raises(KeyError, match=r"\['loss_mask'\].*\['tokens'\]"):
        load("sft", path, 8)
    with pytest.raises(StoreError, match="nothing"):
        load("seq", tmp_path / "none", 8)
    with pytest.raises(ConfigError, match=r"window_size.*0.*1"):
        load("seq", path)


def test_a_mask_that_is_shifted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3.*2.*'loss_mask'"):
        load("sft", raw(tmp_path / "m", tokens=b"\1\2\3", loss_mask=b"\1\1"), 1)


def test_records_whose_borders_were_not_stored_are_refused(tmp_path: Path) -> None:
    """What AstrAI's own pipeline writes: one stream a shard, in which no pair can be found again."""
    keys = ("chosen", "chosen_mask", "rejected", "rejected_mask")
    path = raw(tmp_path / "dpo", **dict.fromkeys(keys, b"\0\1\1\1"))
    with pytest.raises(ConfigError, match=r"1.*records"):
        load("dpo", path, 2)


def test_a_single_record_with_offsets_is_one(tmp_path: Path) -> None:
    [pair] = records_made.preferences(1, 1)
    dataset = load("dpo", records_made.write(tmp_path / "dpo", [pair]), 8)
    assert len(dataset) == 1
    assert {name: value.tolist() for name, value in dataset[0].items()} == pair
    assert len(load("grpo", records_made.write(tmp_path / "grpo", records_made.groups(2, 1)), 8)) == 1
