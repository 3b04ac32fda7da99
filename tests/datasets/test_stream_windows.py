"""AstrAI's windows: its arithmetic, its fields, and the misaligned masks that it reads and we refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import records_made
from counts import cases
from headrace import ConfigError, Loader, Run
from headrace.compat.astrai import StreamWindows
from headrace.stores import Store, open_keys

GOLDEN = [  # N, window, stride -> windows, the last one
    (9, 4, 4, 2, (4, 8)),
    (9, 4, 2, 3, (4, 8)),
    (9, 8, 8, 1, (0, 8)),
    (9, 9, 9, 0, None),
    (10, 4, 4, 2, (4, 8)),
    (10, 3, 4, 2, (4, 7)),
    (100, 10, 7, 13, (84, 94)),
]


def streams(folder: Path, records: list[records_made.Record]) -> dict[str, Store]:
    return open_keys(records_made.write(folder, records))


@pytest.mark.parametrize(("num_tokens", "window", "stride", "count", "last"), GOLDEN)
def test_the_golden_counts(
    tmp_path: Path, num_tokens: int, window: int, stride: int, count: int, last: tuple[int, int] | None
) -> None:
    stores = streams(tmp_path / "s", [{"tokens": list(range(num_tokens))}])
    dataset = StreamWindows(stores, "seq", window_size=window, stride=stride)
    assert len(dataset) == count
    if last is not None:
        assert dataset[count - 1]["input_ids"].tolist() == list(range(*last))
        assert dataset[count - 1]["target_ids"].tolist() == list(range(last[0] + 1, last[1] + 1))
    with pytest.raises(IndexError):
        dataset[count]


@settings(max_examples=cases(12, 300), deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 20))
def test_fine_tuning_windows_by_plain_slices(
    tmp_path_factory: pytest.TempPathFactory, window: int, stride: int, seed: int
) -> None:
    records = records_made.sft(seed, 6, longest=12)
    stores = streams(tmp_path_factory.mktemp("sft") / "s", records)
    ids = [token for record in records for token in record["tokens"]]
    marks = [mark for record in records for mark in record["loss_mask"]]
    positions = [place for record in records for place in range(len(record["tokens"]))]
    dataset = StreamWindows(stores, "sft", window_size=window, stride=stride)
    slack = len(ids) - 1 - window
    assert len(dataset) == (slack // stride + 1 if slack >= 0 else 0)
    for i in range(len(dataset)):
        item, begin = dataset[i], min(i * stride, slack)
        assert item["input_ids"].tolist() == ids[begin : begin + window]
        assert item["target_ids"].tolist() == ids[begin + 1 : begin + window + 1]
        assert item["loss_mask"].tolist() == [bool(mark) for mark in marks[begin + 1 : begin + window + 1]]
        assert item["position_ids"].tolist() == positions[begin : begin + window]
    assert {name: dtype.name for name, (_, dtype) in dataset.fields.items()} == {
        "input_ids": "int64",
        "target_ids": "int64",
        "loss_mask": "bool",
        "position_ids": "int64",
    }


def test_stored_positions_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(records_made.DTYPES, "position_ids", "int32")
    record = {"tokens": [1, 2, 3, 4], "loss_mask": [1] * 4, "position_ids": [7, 8, 9, 10]}
    dataset = StreamWindows(streams(tmp_path / "s", [record]), "sft", window_size=3)
    assert dataset[0]["position_ids"].tolist() == [7, 8, 9]


def test_pairs_and_groups_are_cut_at_equal_offsets(tmp_path: Path) -> None:
    """As AstrAI cuts them: the shortest key decides how many windows there are."""
    pairs = records_made.preferences(1, 9)
    chosen = [token for record in pairs for token in record["chosen"]]
    rejected = [token for record in pairs for token in record["rejected"]]
    dataset = StreamWindows(streams(tmp_path / "dpo", pairs), "dpo", window_size=5, stride=3)
    assert len(dataset) == (min(len(chosen), len(rejected)) - 6) // 3 + 1
    item = dataset[4]
    assert item["chosen"].tolist() == chosen[12:17]
    assert item["rejected"].tolist() == rejected[12:17]
    assert item["rejected_mask"].dtype == np.bool_
    groups = records_made.groups(2, 9)
    rewards = np.array([reward for record in groups for reward in record["rewards"]], np.float32)
    dataset = StreamWindows(streams(tmp_path / "grpo", groups), "grpo", window_size=2)
    assert len(dataset) == (len(rewards) - 3) // 2 + 1
    assert dataset[1]["rewards"].tolist() == rewards[2:4].tolist()
    assert dataset[1]["responses"].tolist() == groups[0]["responses"][2:4]


def test_what_is_refused(tmp_path: Path) -> None:
    stores = streams(tmp_path / "s", [{"tokens": [1, 2, 3]}])
    for message, options in (
        ("train_type is 'ppo'; allowed are 'seq', 'sft'", {"train_type": "ppo", "window_size": 2}),
        ("at least 1, found 0 and 0", {"train_type": "seq", "window_size": 0}),
        ("needs the key 'loss_mask'; the store has 'tokens'", {"train_type": "sft", "window_size": 2}),
    ):
        with pytest.raises(ConfigError, match=message):
            StreamWindows(stores, **options)  # type: ignore[arg-type]
    shorter = {**stores, **streams(tmp_path / "m", [{"loss_mask": [1, 1]}])}
    with pytest.raises(ConfigError, match="3 tokens and 2 values of 'loss_mask': the mask is shifted"):
        StreamWindows(shorter, "sft", window_size=1)


def test_they_go_into_a_run(tmp_path: Path) -> None:
    dataset = StreamWindows(streams(tmp_path / "s", records_made.sft(4, 20)), "sft", window_size=8)
    assert "as AstrAI's sft" in repr(dataset)
    seen: list[Any] = []
    for batch in Loader(Run(dataset, global_batch_size=4, epochs=1), micro_batch_size=2):
        seen += batch["input_ids"].tolist()
    assert sorted(seen) == sorted(dataset[i]["input_ids"].tolist() for i in range(len(dataset)))
