"""``headrace account``: from the file beside the checkpoints, as lines and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import Blend, Run
from headrace.tracing import save_run

Headrace = Any


@pytest.fixture
def file(prepared: Path, tmp_path: Path) -> Path:
    store = headrace.open(prepared)
    windows = headrace.WindowDataset(store, seq_len=24, labels="same")
    packs = headrace.PackedSequenceDataset(
        store, headrace.Packing(seq_len=24, strategy="best_fit_split"), labels="same"
    )
    # Windows and packs cannot be blended, and so have a file each.
    save_run(Run(packs, global_batch_size=16, epochs=2), tmp_path / "packs.json")
    run = Run(Blend({"web": windows, "code": windows}, weights={"web": 3, "code": 1}), global_batch_size=16)
    save_run(run, tmp_path / "run.json")
    return tmp_path / "run.json"


def test_lines_and_json(run: Headrace, file: Path) -> None:
    said = run("account", file, "--step", 10).stdout
    assert f"{file}: before step 10: 160 samples, 3,840 tokens, 3,680 supervised tokens" in said
    assert "from step 0: 160 samples: web 75.00 % (75.00 %), code 25.00 % (25.00 %)" in said
    found = json.loads(run("account", file, "--step", 10, "--json").stdout)
    assert (found["step"], found["fed"]["samples"], found["fed"]["supervised_tokens"]) == (10, 160, 3680)
    web, code = found["sources"]
    assert (web["fed"]["samples"], code["fed"]["samples"]) == (120, 40)
    columns = ("fed", "to_come", "deferred", "dropped", "excluded", "left_behind")
    for one in (web, code):
        assert sum(one["present"][name] for name in columns) == one["num_samples"] == sum(one["seen"].values())
    whole = json.loads(run("account", file.with_name("packs.json"), "--json").stdout)
    assert whole["sources"][0]["epochs_complete"] == 2
    assert whole["sources"][0]["seen"] == {"2": whole["sources"][0]["num_samples"]}
    assert (
        whole["fed"]["tokens"]
        == 2 * headrace.open(json.loads(file.read_text())["runs"][0]["sources"][0]["store"]["path"]).num_tokens
    )


def test_the_difference_of_two_files(run: Headrace, file: Path, prepared: Path, tmp_path: Path) -> None:
    windows = headrace.WindowDataset(headrace.open(prepared), seq_len=24, labels="same")
    other = Run(Blend({"web": windows, "code": windows}, weights={"web": 1, "code": 1}), global_batch_size=16)
    save_run(other, tmp_path / "other.json")
    message = "step 0: weights of code 25 % -> 50 %, web 75 % -> 50 %"
    assert run("account", "--diff", file, tmp_path / "other.json").stdout.endswith(f": {message}\n")
    found = json.loads(run("account", "--diff", file, tmp_path / "other.json", "--json").stdout)
    assert found["difference"] == {"step": 0, "field": "weights", "message": message}
    assert "the same from begin to end" in run("account", "--diff", file, file).stdout
    assert json.loads(run("account", "--diff", file, file, "--json").stdout)["difference"] is None


def test_what_is_refused(run: Headrace, file: Path, prepared: Path) -> None:
    assert "has no end: pass the step" in run("account", file).stderr
    assert "two with --diff" in run("account", file, file).stderr
    assert "compares two files" in run("account", "--diff", file).stderr
    windows = headrace.WindowDataset(headrace.open(prepared), seq_len=24)
    save_run(Run(windows, global_batch_size=16), file, position=160)
    result = run("account", file, "--step", 20)
    assert (result.exit_code, "holds 2 runs" in result.stderr) == (2, True)
