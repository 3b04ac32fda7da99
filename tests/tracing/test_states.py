"""Two states side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import corpora
from headrace import Blend, Loader, Order, Run, WindowDataset
from headrace.errors import StateError
from headrace.loader import Ranks
from headrace.tracing import read_state, state_difference


@pytest.fixture
def run(tmp_path: Path) -> Run:
    data = {
        name: WindowDataset(corpora.make(tmp_path / name, seed, 80).store, seq_len=16)
        for seed, name in enumerate(("web", "code"))
    }
    blend = Blend(data, weights={"web": 3, "code": 1})
    return Run(blend, global_batch_size=8, samples=8 * 50, order=Order(seed=3))


def state(run: Run, step: int) -> dict[str, Any]:
    loader = Loader(run, micro_batch_size=8, ranks=Ranks(0, 1))
    loader.start_at(run.schedule.begin(step))
    return loader.state_dict()


def test_of_one_run(run: Run) -> None:
    assert state_difference(state(run, 5), state(run, 5)).relation == "equal"
    apart = state_difference(state(run, 5), state(run, 9), runs={"run.json": run})
    assert (apart.relation, apart.steps, apart.positions) == ("same run", (5, 9), (40, 72))
    assert apart.runs == (("run.json",), ("run.json",))


def test_of_two_runs(run: Run) -> None:
    edited = run.edit(20, weights={"web": 1, "code": 1})
    runs = {"run.json": run, "other.json": edited}
    early = state_difference(state(run, 20), state(edited, 20), runs=runs)
    assert early.relation == "equal", "a state belongs to each run that feeds the same before it"
    late = state_difference(state(run, 30), state(edited, 30), runs=runs)
    assert late.relation == "other past"
    assert late.runs == (("run.json",), ("other.json",))
    assert late.difference is not None
    assert (late.difference.step, late.difference.field) == (20, "weights")
    alone = state_difference(state(run, 30), state(edited, 30))
    assert alone.relation == "other past"
    assert alone.differing


def test_a_state_of_no_run(run: Run) -> None:
    other = Run(run.data, global_batch_size=8, samples=80, order=Order(seed=4))
    found = state_difference(state(run, 7), state(other, 3), runs={"run.json": run})
    assert found.runs == (("run.json",), ())
    assert found.relation == "not comparable"


def test_files_that_are_no_states(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot"):
        read_state(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(StateError, match="state_dict"):
        read_state(tmp_path / "list.json")
    (tmp_path / "other.json").write_text(json.dumps({"kind": "other"}))
    with pytest.raises(StateError, match="loader"):
        state_difference(read_state(tmp_path / "other.json"), read_state(tmp_path / "other.json"))
