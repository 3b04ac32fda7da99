"""``headrace quarantine``: from a report of faults, by key, by a check, on disk and at URLs; and a run after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import framed_encoders
import headrace
from energon_prepared import prepared
from headrace import Order, Run
from headrace.datasets import MediaDataset
from headrace.datasets.encoded import EncodedDataset
from headrace.encoders import Cooker, ErrorPolicy, SkipSample, TaskEncoder, stateless
from headrace.errors import ConfigError, OutputError, StateError
from headrace.io import path_at, remove_file, replace_file
from headrace.loader import Loader, Reading
from headrace.stores.quarantine import QUARANTINE_NAME, BadSample, add_bad_samples, bad_samples, remove_bad_samples
from memory_stores import MemoryBucket
from stored import files
from tars_made import write_tar

HERE = Reading(num_threads=0)


pytestmark = pytest.mark.usefixtures("fresh_cache")


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


def members(shard: int) -> list[tuple[str, bytes]]:
    return [(f"{shard}{n}.json", b"{" if n == 2 else b'{"n": 1}') for n in range(4)]


def tars(root: Path) -> Path:
    for shard in range(2):
        write_tar(root / f"{shard}.tar", members(shard))
    return root


def test_a_report_takes_bad_samples_out_of_the_next_run(tmp_path: Path, run: Any, of_json: Any) -> None:
    place, report = framed_encoders.numbers(tmp_path / "a", 18, broken=(3, 11)), tmp_path / "faults.jsonl"
    loader = Loader(run_of(place), micro_batch_size=2, reading=HERE, fault_report=report)
    assert sum(len(batch["n"]) for batch in loader) == 36
    assert loader.ledger().num_substituted == 8
    done = run("quarantine", place, "--faults", report)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [f"{place}: 3 samples added", f"{place}: 3 samples left out"]
    listed = run("quarantine", place).stdout.splitlines()
    assert listed == ["000.tar  0003", "006.tar  0008", "006.tar  0011", f"{place}: 3 samples left out"]
    assert len(MediaDataset.open(place)) == 15
    again = Loader(run_of(place), micro_batch_size=2, reading=HERE)
    with pytest.raises(StateError, match="dataset"):
        again.load_state_dict(loader.state_dict())
    assert sum(len(batch["n"]) for batch in again) == 30
    assert again.ledger().substituted == {"SkipSample in encode_sample": 2}
    found = of_json("quarantine", place, "--key", "0008", "--remove")
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


def test_by_key(tmp_path: Path, run: Any, of_json: Any) -> None:
    root = tars(tmp_path / "tars")
    assert run("quarantine", root).stdout == f"{root}: 0 samples left out\n"
    samples = [{"shard": f"{key[0]}.tar", "key": key, "reason": "torn"} for key in ("03", "10")]
    done = of_json("quarantine", root, "--key", "03", "--reason", "torn", "--key", "10")
    assert done == {"path": str(root), "changed": 2, "left_out": 2, "samples": samples}
    assert run("ls", root).stdout.count("\n") == run("ls", root, "0*").stdout.count("\n") * 2
    for arguments, code, named in (
        (("--key", "03"), 2, "'03'"),
        (("--remove",), 2, "--key or --faults"),
        (("--faults", tmp_path / "none"), 3, "none"),
    ):
        refused = run("quarantine", root, *arguments)
        assert (refused.exit_code, named in refused.stderr) == (code, True), refused.stderr
    run("quarantine", root, "--key", "03", "--key", "10", "--remove")
    assert not (root / QUARANTINE_NAME).exists()


def test_a_report_of_something_else(tmp_path: Path, run: Any) -> None:
    root, report = tars(tmp_path / "tars"), tmp_path / "faults.jsonl"
    fault = {"source": "/other", "index": 2, "shard": None, "key": None, "address": 2, "attempt": 0}
    fault |= {"hook": "read", "kind": "DecodeError", "reason": "x"}
    report.write_text(json.dumps(fault) + "\n")
    done = run("quarantine", root, "--faults", report)
    assert (done.exit_code, f"no fault is in {root}; they are in /other" in done.stderr) == (3, True)
    report.write_text(json.dumps(fault | {"source": str(root)}) + "\n")
    done = run("quarantine", root, "--faults", report)
    assert (done.exit_code, "do not identify it; name it with --key" in done.stderr) == (3, True)


def energon(root: Path) -> Path:
    root.mkdir()
    return prepared(root, {f"{shard}.tar": members(shard) for shard in range(2)})


def lines(root: Path) -> Path:
    root.mkdir()
    (root / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(6)))
    return root / "a.jsonl"


STEPS = {
    "tars": [
        ("quarantine", "--key", "03", "--reason", "torn", "--key", "10", "--json"),
        ("quarantine", "--key", "03"),
        ("info",),
        ("ls",),
        ("check", "--decode", "--workers", "1", "--quarantine"),
        ("quarantine", "--key", "03", "--remove"),
        ("quarantine", "--key", "10", "--key", "02", "--key", "12", "--remove"),
        ("quarantine", "--key", "00", "--remove"),
    ],
    "lines": [("quarantine", "--key", "3"), ("info",), ("quarantine", "--key", "3", "--remove")],
}
STEPS["energon"] = STEPS["tars"]
MAKE = {"tars": tars, "energon": energon, "lines": lines}


@pytest.mark.parametrize("kind", MAKE)
def test_the_commands(bucket: MemoryBucket, tmp_path: Path, run: Any, kind: str) -> None:
    root = tmp_path / "ds"
    here = MAKE[kind](root)
    there = f"{bucket.upload(root, 'ds')}/{here.relative_to(root)}".removesuffix("/.")
    for name, *options in STEPS[kind]:
        wanted, found = run(name, here, *options), run(name, there, *options)
        assert found.exit_code == wanted.exit_code, found.output
        if name not in ("info", "check"):  # which tell how long it took, and of the place
            assert found.output.replace(there, str(here)) == wanted.output
        assert bucket.content("ds") == files(root), (name, options)
    assert QUARANTINE_NAME not in bucket.content("ds")


def test_a_report_of_faults(bucket: MemoryBucket, tmp_path: Path, run: Any) -> None:
    url = bucket.upload(tars(tmp_path / "ds"), "ds")
    report = tmp_path / "faults.jsonl"
    fault = {"source": url, "index": 2, "shard": "0.tar", "key": "02", "address": 2, "attempt": 0}
    fault |= {"hook": "read", "kind": "DecodeError", "reason": "x"}
    report.write_text(json.dumps(fault) + "\n")
    done = run("quarantine", f"{url}/", "--faults", report)
    assert done.exit_code == 0, done.output
    (listed,) = json.loads(bucket.content("ds")[QUARANTINE_NAME])["samples"]
    assert (listed["shard"], listed["index"], listed["key"]) == ("0.tar", 2, "02")


@pytest.mark.parametrize("kind", ["tars", "energon"])
def test_what_others_have_listed_stays(bucket: MemoryBucket, tmp_path: Path, kind: str) -> None:
    """Two processes that opened the dataset before change the list one after the other."""
    root = tmp_path / "ds"
    MAKE[kind](root)
    url = bucket.upload(root, "ds")
    first, second = headrace.open(url), headrace.open(url)
    assert isinstance(first, headrace.stores.SampleStore)
    assert isinstance(second, headrace.stores.SampleStore)
    assert bad_samples(first) == bad_samples(second) == []
    one, other = BadSample(shard="0.tar", key="00"), BadSample(shard="1.tar", key="11")
    assert (add_bad_samples(first, [one]), add_bad_samples(second, [other])) == (1, 1)
    opened = headrace.open(url)
    assert isinstance(opened, headrace.stores.SampleStore)
    assert [bad.key for bad in bad_samples(opened)] == ["00", "11"]
    assert len(opened) == (8 if kind == "energon" else 6)
    assert remove_bad_samples(opened, [one]) == 1


def test_the_store_refuses(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = bucket.upload(tars(tmp_path / "ds"), "ds")
    store = headrace.open(url)
    assert isinstance(store, headrace.stores.SampleStore)

    def put(self: Any, data: Any) -> None:
        raise OutputError("no room")

    monkeypatch.setattr("headrace.io.objects.writer.ObjectWriter.put", put)
    with pytest.raises(OutputError, match="room"):
        add_bad_samples(store, [BadSample(shard="0.tar", key="00")])
    assert QUARANTINE_NAME not in bucket.content("ds")


def test_a_web_server() -> None:
    for act in (lambda path: replace_file(path, b""), remove_file):
        with pytest.raises(ConfigError, match="server"):
            act(path_at("http://127.0.0.1:9/headrace.quarantine.json"))
