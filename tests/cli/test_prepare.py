"""``headrace prepare`` as a user meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace


def test_summary(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "--output", tmp_path / "out", "--tokenizer", tokenizer, "--append-eod")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: complete"
    assert lines[1] == "  documents  100"
    assert re.fullmatch(r"  tokens     [\d,]+ \(uint16\)", lines[2])
    assert "\x1b" not in result.output


def test_json_is_alone_on_stdout(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "-o", tmp_path / "out", "--tokenizer", tokenizer, "--append-eod", "--json")
    found = json.loads(result.stdout)
    with headrace.open(tmp_path / "out") as store:
        assert (found["documents"], found["tokens"]) == (store.num_documents, store.num_tokens)
    assert found["files"] == ["text_document.bin", "text_document.idx"]
    assert (found["vocab_size"], found["eod"], found["inputs"]) == (100, 1, 2)
    assert found["input_bytes"] == sum(path.stat().st_size for path in corpus.iterdir())


def test_quiet_says_nothing(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "-o", tmp_path / "out", "--tokenizer", tokenizer, "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_options_reach_the_run(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"body": "w1 w2"}\n')
    common = ["prepare", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--tokenizer", tokenizer]
    field = ["--text-field", "body", "--append-eod", "--workers", 1]
    assert run(*common, *field, "--eod", "w97").exit_code == 0
    with headrace.open(tmp_path / "out") as store:
        assert store.document(0).tolist() == [3, 4, 99]
    assert run(*common, *field, "--eod", 5, "--overwrite").exit_code == 0
    with headrace.open(tmp_path / "out") as store:
        assert store.document(0).tolist() == [3, 4, 5]
    assert run(*common, *field).exit_code == 6


def test_the_three_forms(run: Any, corpus: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "-o", tmp_path / "out")
    assert result.exit_code == 2
    for form in ("--tokenizer is missing", "text (.jsonl", "--recipe FILE", "folder of .tar", "takes the first alone"):
        assert form in result.stderr
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/000.tar").touch()
    assert (
        "holds .tar shards. prepare has three forms" in run("prepare", tmp_path / "shards", "-o", tmp_path / "o").stderr
    )
    assert not (tmp_path / "out").exists()


def test_errors_name_file_and_line(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "w1"}\n{"text": 3}\n')
    arguments = ["prepare", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--tokenizer", tokenizer]
    result = run(*arguments)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {tmp_path / 'in.jsonl'}, line 2: field 'text' is not a string")
    as_json = run(*arguments, "--json", "--quiet")
    assert as_json.exit_code == 3
    error = json.loads(as_json.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("InputError", 3)
    assert "line 2" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--output'"),
        (["-o", "out", "--workers", "many"], "Invalid value for '--workers'"),
        (["-o", "out", "--tokenizer", "t"], "no INPUT"),
    ],
)
def test_misuse(run: Any, arguments: list[str], message: str) -> None:
    result = run("prepare", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_progress_on_a_terminal(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_bytes(b"".join(path.read_bytes() + b"\n" for path in sorted(corpus.iterdir())) * 150)
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "prepare", str(many)]
    command += ["-o", str(tmp_path / "out"), "--tokenizer", str(tokenizer), "--json", "--workers", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "COLUMNS": "100"}
    ) as run:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # how Linux tells the end of a terminal
                break
            if not piece:
                break
            shown += piece
        os.close(leader)
        output = run.stdout.read() if run.stdout else b""
    assert run.returncode == 0
    assert json.loads(output)["documents"] == 15_000
    lines = shown.decode().split("\r\x1b[K")
    assert re.fullmatch(r" *[\d.]+%  [\d,]+ documents  [\d.]+ [kM]?B/s  [\d.]+ [kM]?tokens/s  .* left", lines[1])
    assert lines[-1] == ""  # the line is clean at the end


def test_progress_off_a_terminal(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("headrace.cli.progress.PLAIN_EVERY_S", 0.0)
    arguments = ["prepare", corpus, "--tokenizer", tokenizer]
    result = run(*arguments, "-o", tmp_path / "out")
    assert "documents" in result.stderr
    assert "\r" not in result.stderr
    assert "\x1b" not in result.stderr
    assert run(*arguments, "-o", tmp_path / "quiet", "--quiet").output == ""
