"""``headrace prepare`` ended by Ctrl-C or by SIGTERM, and given again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from counts import PATIENCE_S
from headrace.preparing.output_folder import WORK_NAME

SLOW = """
import time
from pathlib import Path

def keep(record):
    if record["n"] > 9000 and Path("slow").exists():
        time.sleep(0.02)
    return True
"""


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.sampled(1)
def test_ended_and_continued(
    run: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "slow_filter", raising=False)
    Path("slow_filter.py").write_text(SLOW)
    text = " ".join(f"w{word}" for word in range(98)) + " "
    Path("in.jsonl").write_text("".join(json.dumps({"n": n, "text": text * (n % 3)}) + "\n" for n in range(12_000)))
    arguments = [
        "prepare",
        "in.jsonl",
        "--tokenizer",
        str(tokenizer),
        "--filter",
        "slow_filter:keep",
        "--workers",
        "1",
        "-o",
    ]
    assert run(*arguments, "whole").exit_code == 0

    Path("slow").touch()
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments, "out", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until_s = time.monotonic() + PATIENCE_S
        while not Path("out", WORK_NAME, "state").exists() and time.monotonic() < until_s:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    kept = "note: what is done so far is kept: the same command goes on from there\n"
    # On a slow machine it also said how far it was.
    said = "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("encoding "))
    assert (output, said) == ("", kept + {2: "interrupted\n", 15: "terminated\n"}[number])
    assert [path.name for path in Path("out").iterdir()] == [WORK_NAME]

    Path("slow").unlink()
    refused = run(*arguments, "out", "--append-eod")
    assert refused.exit_code == 6
    assert "tokens.append_eod was False, is True" in refused.stderr
    result = run(*arguments, "out")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: continuing the unfinished run in this folder: ")
    assert content(Path("out")) == content(Path("whole"))
