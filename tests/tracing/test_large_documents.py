"""A document in many samples is found by looking at positions one after another, some seconds long at most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace import Blend, Order, Run, WindowDataset
from headrace import open as open_store
from headrace.testing.shards import write_shard
from headrace.tracing import history, history_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_shard(tmp_path / "a", [np.arange(30), np.arange(3000) % 50, *[np.arange(20)] * 40])
    write_shard(tmp_path / "b", [np.arange(4000)])
    data = {name: WindowDataset(open_store(tmp_path / name), seq_len=8) for name in ("a", "b")}
    return Run(Blend(data, weights={"a": 2, "b": 1}), global_batch_size=24, order=Order(seed=1), samples=4000)


@pytest.mark.parametrize("is_edited", [False, True])
def test_the_same_times_are_found(run: Run, is_edited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = history_of(run.edit(10, weights={"a": 1, "b": 1}) if is_edited else run)
    one_by_one = [asked.sample("a", document=1, until_step=step, limit=50) for step in (7, 160)]
    monkeypatch.setattr(history, "_MANY_SAMPLES", 2)
    monkeypatch.setattr(history, "_WALKED_AT_ONCE", 100)
    assert [asked.sample("a", document=1, until_step=step, limit=50) for step in (7, 160)] == one_by_one
    assert one_by_one[1].count > 1000


@pytest.mark.parametrize("bound", ["_MAX_LOOKS", "_MAX_WALKED"])
def test_the_search_ends(run: Run, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MANY_SAMPLES", 2)
    monkeypatch.setattr(history, "_WALKED_AT_ONCE", 100)
    monkeypatch.setattr(history, bound, 300)
    found = history_of(run).sample("a", document=1)
    assert found.until_step is not None
    assert 10 < found.until_step < 40
    note = f"counted before step {found.until_step} only: 376 samples hold the document, which must be searched"
    assert found.notes[0].startswith(note)
    assert found.count == history_of(run).sample("a", document=1, until_step=found.until_step).count
