"""``headrace quarantine``, and a check that leaves bad samples out, at URLs: as on disk, in words and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from energon_prepared import prepared
from headrace.errors import ConfigError, OutputError
from headrace.stores.quarantine import QUARANTINE_NAME, BadSample, add_bad_samples, bad_samples, remove_bad_samples
from memory_stores import MemoryBucket
from tars_made import write_tar


def members(shard: int) -> list[tuple[str, bytes]]:
    return [(f"{shard}{n}.json", b"{" if n == 2 else b'{"n": 1}') for n in range(4)]


def tars(root: Path) -> Path:
    for shard in range(2):
        write_tar(root / f"{shard}.tar", members(shard))
    return root


def energon(root: Path) -> Path:
    root.mkdir()
    return prepared(root, {f"{shard}.tar": members(shard) for shard in range(2)})


def lines(root: Path) -> Path:
    root.mkdir()
    (root / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(6)))
    return root / "a.jsonl"


def files(root: Path) -> dict[str, bytes]:
    return {one.relative_to(root).as_posix(): one.read_bytes() for one in root.rglob("*") if one.is_file()}


STEPS = {
    "tars": [
        ("quarantine", "--key", "03", "--reason", "torn", "--key", "10", "--json"),
        ("quarantine", "--key", "03"),
        ("info",),
        ("ls",),
        ("check", "--decode", "--workers", "1", "--quarantine"),
        ("quarantine", "--key", "03", "--remove", "--list"),
        ("quarantine", "--key", "10", "--key", "02", "--key", "12", "--remove"),
        ("quarantine", "--key", "00", "--remove"),
    ],
    "lines": [("quarantine", "--key", "3", "--list"), ("info",), ("quarantine", "--key", "3", "--remove")],
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
    done = run("quarantine", f"{url}/", "--from", report)
    assert done.exit_code == 0, done.output
    (listed,) = json.loads(bucket.content("ds")[QUARANTINE_NAME])["samples"]
    assert (listed["shard"], listed["index"], listed["key"]) == ("0.tar", 2, "02")
    local = run("quarantine", tmp_path / "ds", "--from", report)
    assert (local.exit_code, "no fault is in" in local.stderr) == (3, True)


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
    with pytest.raises(OutputError, match="no room"):
        add_bad_samples(store, [BadSample(shard="0.tar", key="00")])
    assert QUARANTINE_NAME not in bucket.content("ds")


def test_a_web_server() -> None:
    from headrace.io import path_at, remove_file, replace_file

    for act in (lambda path: replace_file(path, b""), remove_file):
        with pytest.raises(ConfigError, match="not to a web server"):
            act(path_at("http://127.0.0.1:9/headrace.quarantine.json"))
