"""``headrace merge``, ``convert`` and ``split``: what they print, ``--json``, ``--dry-run``, errors and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from copies_made import content, documents, drawn, pair
from counts import PATIENCE_S
from headrace.cli import progress


def test_merge_prints_a_summary(run: Any, tmp_path: Path) -> None:
    a, b = drawn(tmp_path / "a", 1, 20), drawn(tmp_path / "b", 2, 30)
    result = run("merge", a, b, "--output", tmp_path / "out")
    assert result.exit_code == 0
    assert "format     indexed, uint16" in result.stdout
    assert "documents  50" in result.stdout
    assert "2 stores, 4 files" in result.stdout
    assert "read back and compared" in result.stdout
    assert documents(tmp_path / "out") == documents(a) + documents(b)
    assert run("check", tmp_path / "out").exit_code == 0
    assert run("merge", a, "-o", tmp_path / "quiet", "--quiet").output == ""


def test_json_says_all(run: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1], [2]], [[3]]])
    result = run("convert", source, tmp_path / "out", "--format", "keyed", "--json")
    found = json.loads(result.stdout)
    assert (found["tool"], found["format"], found["keys"]) == ("convert", "keyed", {"sequence": "uint16"})
    assert (found["documents"], found["tokens"], found["is_dry_run"]) == (2, 3, False)
    assert "the result lacks 1 inner borders" in found["warnings"][0]
    assert f"note: {found['warnings'][0]}" in result.stderr
    [store] = found["stores"]
    assert store["shards"][0]["prefix"] == "shard_0000"
    assert [Path(file["path"]).name for file in found["inputs"]] == ["a.bin", "a.idx"]
    assert found["seconds"] >= 0


@pytest.mark.parametrize("how", [("--split", "2,1,1"), ("--parts", "3", "--names", "train,valid,test")])
def test_split_dry_run_then_run(run: Any, tmp_path: Path, how: tuple[str, ...]) -> None:
    source = drawn(tmp_path / "a", 1, 40)
    plan = json.loads(run("split", source, tmp_path / "out", *how, "--dry-run", "--json").stdout)
    assert not (tmp_path / "out").exists()
    assert plan["is_dry_run"]
    shown = run("split", source, tmp_path / "out", *how, "--dry-run").stdout
    assert "nothing was written" in shown
    made = json.loads(run("split", source, tmp_path / "out", *how, "--json").stdout)
    for planned, store in zip(plan["stores"], made["stores"], strict=True):
        assert {**planned, "shards": (), "bytes": 0} == {**store, "shards": (), "bytes": 0}
        assert f"{store['path']}: {store['documents']} documents, {store['tokens']} tokens, 1 shard, about" in shown
        assert len(documents(Path(store["path"]))) == store["documents"]
    assert [store["name"] for store in made["stores"]] == ["train", "valid", "test"]


def test_many_parts_are_shortened(run: Any, tmp_path: Path) -> None:
    result = run("split", drawn(tmp_path / "a", 1, 40), tmp_path / "out", "--parts", "20")
    assert "part_00011: " in result.stdout
    assert result.stdout.endswith("and 8 more\n")


def test_options_reach_the_copy(run: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1, 0]], [[1]], [[0, 1]]])
    arguments = ("--format", "keyed", "--dtype", "uint32", "--shard-tokens", "3", "--documents", "sequences")
    run("convert", source, tmp_path / "out", *arguments)
    found = json.loads(run("info", tmp_path / "out", "--json").stdout)
    assert (found["shards"], found["keys"][0]["dtype"], found["format"]) == (2, "uint32", "keyed")
    run("convert", tmp_path / "out", tmp_path / "one", "--format", "keyed", "--single", "--dtype", "sequence=bool")
    assert content(tmp_path / "one") == {"sequence": [[True, False], [True], [False, True]]}


def test_errors_and_exit_codes(run: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]], [[700]]])
    out = tmp_path / "out"
    for arguments, code, message in [
        (("merge", "-o", out), 2, "no SRC"),
        (("merge", source), 2, "--output DIR is missing"),
        (("merge", tmp_path / "nowhere", "-o", out), 4, "nothing is there"),
        (("convert", source, out), 2, "--format"),
        (
            ("convert", source, out, "--format", "keyed", "--dtype", "uint8"),
            3,
            "document 1: the value 700 does not fit",
        ),
        (("convert", source, out, "--format", "keyed", "--single", "--shard-tokens", "5"), 2, "use only one of them"),
        (("convert", source, out, "--format", "keyed", "--shard-tokens", "0"), 2, "at least 1"),
        (
            ("convert", source, out, "--format", "keyed", "--dtype", "a=int8", "--dtype", "int8"),
            2,
            "or KEY=NAME for each",
        ),
        (("convert", source, out, "--format", "keyed", "--dtype", "int8", "--dtype", "int8"), 2, "for the same key"),
        (
            ("convert", source, out, "--format", "keyed", "--dialect", "mega"),
            2,
            "dialect is 'mega'; did you mean 'megatron'?",
        ),
        (("split", source, out), 2, "give either --split"),
        (("split", source, out, "--split", "1,1", "--parts", "2"), 2, "give either --split"),
        (("split", source, out, "--parts", "2", "--names", "a"), 2, "1 names are given for 2 parts"),
        (("split", source, f"{source}.bin", "--parts", "2"), 6, "is a file"),
    ]:
        result = run(*arguments, "--json")
        assert result.exit_code == code, (arguments, result.output)
        assert message in json.loads(result.stdout)["error"]["message"]
        assert not out.exists()


def test_overwrite(run: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    assert run("merge", source, "-o", tmp_path / "out").exit_code == 0
    assert run("merge", source, "-o", tmp_path / "out").exit_code == 0  # it is complete
    refused = run("merge", source, source, "-o", tmp_path / "out")
    assert (refused.exit_code, "--overwrite replaces it" in refused.stderr) == (6, True)
    assert run("merge", source, source, "-o", tmp_path / "out", "--dry-run").exit_code == 6
    assert run("merge", source, source, "-o", tmp_path / "out", "--overwrite").exit_code == 0
    assert documents(tmp_path / "out") == [[1], [1]]


def test_progress_says_how_far_it_is(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0)
    result = run("merge", drawn(tmp_path / "a", 1, 20), "-o", tmp_path / "out")
    assert "100.0%  20 documents" in result.stderr
    assert "checking 100.0%  20 documents" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.sampled(1)
def test_ended_by_a_signal_leaves_nothing_half(tmp_path: Path, number: signal.Signals) -> None:
    """A real process, stopped while it copies; the same command then does it all."""
    source = drawn(tmp_path / "a", 1, 40)
    slow = (
        "import sys, time; import headrace.copying.sources as s; s.CHUNK_DOCUMENTS = 1\n"
        "real = s.read_rows\n"
        "def read(*args):\n"
        "    print('reading', flush=True); time.sleep(0.05); return real(*args)\n"
        "s.read_rows = read\n"
        "from headrace.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", slow, "merge", str(source), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[number]
    assert not (tmp_path / "out").exists()
    hidden = tmp_path / ".out.headrace-copying"
    assert hidden.exists() == (number == signal.SIGKILL)
    done = subprocess.run([sys.executable, "-m", "headrace", *command[3:]], capture_output=True, check=True)
    assert b"documents  40" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "out"]


def test_names_that_are_too_long(run: Any, tmp_path: Path) -> None:
    store = drawn(tmp_path / "a", 1, 4)
    result = run("merge", store, "--output", tmp_path / ("a" * 250))
    assert (result.exit_code, "would have a name of 268 bytes" in result.stderr) == (6, True), result.stderr
    result = run("info", tmp_path / ("a" * 300))
    assert (result.exit_code, "is too long for the file system" in result.stderr) == (2, True), result.stderr
