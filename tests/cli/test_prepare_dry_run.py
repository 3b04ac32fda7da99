"""``headrace prepare --dry-run``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.preparing import Estimate, estimate_text


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 MB, of which a dry run reads less than half; documents of 0 to 900 words."""
    path = tmp_path_factory.mktemp("large") / "in.jsonl"
    words = " ".join(f"w{number % 98}" for number in range(900)) + " "
    lines = [json.dumps({"text": words[: 7 * (number * 61 % 503)]}) + "\n" for number in range(12_000)]
    path.write_text("".join(lines))
    return path


def test_for_people(run: Any, large: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("prepare", large, "--tokenizer", tokenizer, "--dry-run", "-o", "out", "--min-chars", 50)
    assert (result.exit_code, result.stderr) == (0, "")
    patterns = [
        r"dry run: nothing was written",
        r"  input      1 file, 2\d\.\d MB",
        r"  sample     [\d.]+ MB \([34]\d\.\d\d%\), [\d,]+ documents, scaled up",
        r"  documents  about 11,[789]\d\d",
        r"  tokens     about [\d,]+ \(uint16\)",
        r"  output     about [\d.]+ MB",
        r"  backend    tokenizers",
        r"  filters    of the sample \(min_chars \d+ dropped\)",
    ]
    lines = result.stdout.splitlines()
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line
    assert list(tmp_path.iterdir()) == []


def test_json(run: Any, large: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("prepare", large, "--tokenizer", tokenizer, "--dry-run", "--json")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert set(found) == set(Estimate.__struct_fields__)
    assert found == msgspec.to_builtins(estimate_text([large], tokenizer=tokenizer))
    assert list(tmp_path.iterdir()) == []


def test_a_small_input_is_no_estimate(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(path.read_text() + "\n" for path in corpus.iterdir()) + "{}\n")
    arguments = ["prepare", tmp_path / "in.jsonl", "--tokenizer", tokenizer, "--on-error", "skip"]
    lines = run(*arguments, "--dry-run").stdout.splitlines()
    made = json.loads(run(*arguments, "-o", tmp_path / "out", "--json").stdout)
    assert "  sample     all of it" in lines
    assert "  documents  100" in lines
    assert f"  tokens     {made['tokens']:,} (uint16)" in lines
    assert lines[-1].startswith(f"  errors     1 bad record in the sample: {tmp_path / 'in.jsonl'}, line 101: no field")


def test_the_library_that_encodes_is_another(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = dict.fromkeys(Estimate.__struct_fields__, 0)
    words = {
        "first_error": "",
        "dtype": "int32",
        "backend": "tokenizers",
        "fallback": "gigatoken differs",
        "dropped": {},
    }
    estimate = Estimate(**{**numbers, **words, "is_exact": False})
    monkeypatch.setattr("headrace.preparing.estimate_text", lambda *inputs, **options: estimate)
    lines = run("prepare", "in.jsonl", "--tokenizer", "t", "--dry-run").stdout.splitlines()
    assert lines[-1] == "  backend    tokenizers, since gigatoken differs"


def test_what_stands_in_the_way_is_said(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "w1"}\n{"text": 5}\n')
    arguments = ["prepare", "text", tmp_path / "in.jsonl", "--tokenizer", tokenizer, "-o", tmp_path / "out"]
    before = sorted(tmp_path.rglob("*"))
    result = run(*arguments, "--dry-run")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2] == "  errors     1 bad record in the sample"
    assert result.stdout.splitlines()[-1].startswith(
        f"  stops      {tmp_path / 'in.jsonl'}, line 2: field 'text' is not"
    )
    assert json.loads(run(*arguments, "--dry-run", "--json").stdout)["stops"]
    assert sorted(tmp_path.rglob("*")) == before
    assert run(*arguments, "--on-error", "skip").exit_code == 0
    result = run(*arguments, "--on-error", "skip", "--dry-run")
    assert (result.exit_code, result.stderr[:6]) == (0, "note: ")
    assert "holds the output of an earlier run" in result.stderr
    result = run(*arguments[:-1], tmp_path, "--dry-run")
    assert result.exit_code == 6
    assert "the output folder is not empty: it holds 'in.jsonl'" in result.stderr


def test_what_stands_in_the_way_of_media_is_said(run: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.b.jpg").write_bytes(b"no picture")
    result = run("prepare", "media", tmp_path / "in", "-o", tmp_path / "out", "--dry-run")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith(f"  stops    {tmp_path / 'in'}, sample 1: a.b: the key 'a.b' has")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "in"]
