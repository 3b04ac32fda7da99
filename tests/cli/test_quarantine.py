"""``headrace quarantine``: from a report of faults, by key, by a check; and a run over what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import framed_encoders
from headrace import Order, Run
from headrace.datasets import MediaDataset
from headrace.datasets.encoded import EncodedDataset
from headrace.encoders import Cooker, ErrorPolicy, SkipSample, TaskEncoder, stateless
from headrace.errors import StateError
from headrace.loader import Loader, Reading
from headrace.stores.quarantine import QUARANTINE_NAME
from tars_made import write_tar

HERE = Reading(num_threads=0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


class Choosy(TaskEncoder[Any, Any, Any, Any]):
    """Does not like some numbers, and skips another."""

    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample["n"] == 8:
            raise ValueError("eight")
        if sample["n"] == 9:
            raise SkipSample
        return sample


def run_of(place: Path) -> Run:
    dataset = EncodedDataset.open(place, Choosy(), errors=ErrorPolicy(on_error="substitute"))
    return Run(dataset, global_batch_size=4, order=Order(kind="full"), epochs=2)


def tars(root: Path) -> Path:
    for shard in range(2):
        write_tar(root / f"{shard}.tar", [(f"{shard}{n}.json", b"{" if n == 2 else b'{"n": 1}') for n in range(4)])
    return root


def test_a_report_takes_bad_samples_out_of_the_next_run(tmp_path: Path, run: Any) -> None:
    place, report = framed_encoders.numbers(tmp_path / "a", 18, broken=(3, 11)), tmp_path / "faults.jsonl"
    loader = Loader(run_of(place), micro_batch_size=2, reading=HERE, fault_report=report)
    assert sum(len(batch["n"]) for batch in loader) == 36
    assert loader.ledger().num_substituted == 8
    done = run("quarantine", place, "--from", report, "--list")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "000.tar  0003",
        "006.tar  0008",
        "006.tar  0011",
        f"{place}: 3 samples added",
        f"{place}: 3 samples left out",
    ]
    assert len(MediaDataset.open(place)) == 15
    again = Loader(run_of(place), micro_batch_size=2, reading=HERE)
    with pytest.raises(StateError, match="dataset"):
        again.load_state_dict(loader.state_dict())
    assert sum(len(batch["n"]) for batch in again) == 30
    assert again.ledger().substituted == {"SkipSample in encode_sample": 2}
    found = json.loads(run("quarantine", place, "--key", "0008", "--remove", "--json").stdout)
    assert (found["changed"], found["left_out"]) == (1, 2)
    assert len(MediaDataset.open(place)) == 16


def test_a_check_finds_them_by_itself(tmp_path: Path, run: Any) -> None:
    root = tars(tmp_path / "tars")
    refused = run("check", root, "--quarantine")
    assert (refused.exit_code, "needs --decode" in refused.stderr) == (2, True)
    done = run("check", root, "--decode", "--workers", 1, "--quarantine")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == f"{root}: 2 samples left out from now on"
    listed = json.loads((root / QUARANTINE_NAME).read_text())["samples"]
    assert [(one["shard"], one["index"], one["key"]) for one in listed] == [("0.tar", 2, "02"), ("1.tar", 2, "12")]
    assert all("JSON" in one["reason"] for one in listed)
    done = run("check", root, "--decode", "--workers", 1, "--quarantine")
    assert (done.exit_code, f"{root}: no sample has to be left out" in done.stdout) == (0, True)
    assert "6, 2 bad ones left out" in run("info", root).stdout
    assert json.loads(run("info", root, "--json").stdout)["left_out"] == 2


def test_by_key(tmp_path: Path, run: Any) -> None:
    root = tars(tmp_path / "tars")
    assert run("quarantine", root).stdout == f"{root}: 0 samples left out\n"
    done = run("quarantine", root, "--key", "03", "--reason", "torn", "--key", "10", "--json")
    assert json.loads(done.stdout) == {
        "path": str(root),
        "changed": 2,
        "left_out": 2,
        "samples": [
            {"shard": "0.tar", "key": "03", "reason": "torn"},
            {"shard": "1.tar", "key": "10", "reason": "torn"},
        ],
    }
    assert run("ls", root).stdout.count("\n") == run("ls", root, "0*").stdout.count("\n") * 2
    refused = [
        (("--key", "03"), 2, "has no sample with the key '03', or it is left out already"),
        (("--key", "00", "--remove"), 2, "no sample with the key '00' is left out"),
        (("--remove",), 2, "puts samples back: name them with --key or --from"),
        (("--from", tmp_path / "none"), 3, "cannot be read"),
    ]
    for arguments, code, words in refused:
        done = run("quarantine", root, *arguments)
        assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    run("quarantine", root, "--key", "03", "--key", "10", "--remove")
    assert not (root / QUARANTINE_NAME).exists()


def test_a_report_of_something_else(tmp_path: Path, run: Any) -> None:
    root, report = tars(tmp_path / "tars"), tmp_path / "faults.jsonl"
    fault = {"source": "/other", "index": 2, "shard": None, "key": None, "address": 2, "attempt": 0}
    fault |= {"hook": "read", "kind": "DecodeError", "reason": "x"}
    report.write_text(json.dumps(fault) + "\n")
    done = run("quarantine", root, "--from", report)
    assert (done.exit_code, f"no fault is in {root}; they are in /other" in done.stderr) == (3, True)
    report.write_text(json.dumps(fault | {"source": str(root)}) + "\n")
    done = run("quarantine", root, "--from", report)
    assert (done.exit_code, "do not identify it; name it with --key" in done.stderr) == (3, True)
