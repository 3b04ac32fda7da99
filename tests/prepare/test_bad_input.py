"""Whatever is wrong with the input: the message names file and line, and nothing is left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InputError, OutputError
from headrace.prepare import TextOptions, TextProgress, prepare_text

GOOD = b'{"text": "a good line of some length"}\n'


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"text": "a"\n', "malformed JSON: Expecting ',' delimiter"),
        (b"[1]\n", "not a JSON object but an array; found '[1]'"),
        (b'{"txt": "a"}\n', "no field 'text'; its fields are: 'txt'"),
        (b'{"text": 7}\n', "field 'text' is not a string but a number"),
        (b'{"text": "caf\xe9"}\n', "not UTF-8: byte 0xe9 at byte 13 of the line"),
        (b'{"text": "a", "other": "\xe9"}\n', "not UTF-8: byte 0xe9 at byte 24 of the line"),
    ],
)
def test_file_and_line_deep_in_a_large_file(kit: Any, tmp_path: Path, bad: bytes, message: str, workers: int) -> None:
    # 2.3 MB over three spans of the file and several blocks of the reader; blank lines count as lines.
    kit.write(tmp_path / "a.jsonl", [{"text": "fine"}] * 10)
    (tmp_path / "b.jsonl").write_bytes(GOOD * 50_000 + b"\n" + bad + GOOD * 5_000 + bad + GOOD)
    options = TextOptions(workers=workers, task_bytes=1 << 20)
    with pytest.raises(InputError) as caught:
        prepare_text([tmp_path], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/b.jsonl, line 50,002: {message}")
    assert "Nothing was written" in text
    assert not (tmp_path / "out").exists()


def test_the_first_bad_line_is_named_whatever_the_workers_do(kit: Any, tmp_path: Path) -> None:
    lines = [GOOD] * 2000
    lines[700] = lines[701] = lines[1500] = b"broken\n"
    (tmp_path / "in.jsonl").write_bytes(b"".join(lines))
    for task_bytes in (1000, 7000, 1 << 20):
        options = TextOptions(workers=3, task_bytes=task_bytes)
        with pytest.raises(InputError, match="line 701: malformed JSON"):
            prepare_text([tmp_path], tmp_path / "out", tokenizer=kit.tokenizer, options=options)


def test_a_file_that_is_something_else(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps([{"text": "a"}], indent=1))
    with pytest.raises(InputError, match=r"in\.jsonl, line 1: malformed JSON"):
        prepare_text([tmp_path], tmp_path / "out", tokenizer=kit.tokenizer)


def test_no_documents(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n\n")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="no documents: 2 files with 2 lines, all of them blank"):
        prepare_text([tmp_path], tmp_path / "out", tokenizer=kit.tokenizer)
    assert not (tmp_path / "out").exists()


def test_only_empty_documents(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "in.jsonl", [{"text": ""}] * 3)
    with pytest.raises(InputError, match="no tokens: all 3 documents are empty"):
        prepare_text([tmp_path], tmp_path / "out", tokenizer=kit.tokenizer)
    assert not (tmp_path / "out").exists()


def test_a_text_that_the_tokeniser_refuses(kit: Any, tmp_path: Path) -> None:
    content = json.loads(kit.tokenizer.read_text())
    content["pre_tokenizer"] = None
    content["added_tokens"] = []
    content["model"] = {"type": "WordLevel", "vocab": {"known": 0}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    kit.write(tmp_path / "in.jsonl", [{"text": "known"}, {"text": "known"}, {"text": "strange"}])
    with pytest.raises(InputError, match=r"in\.jsonl, line 3: the tokeniser refuses the text: .*found 'strange'"):
        prepare_text([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tmp_path)


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "vanish"])
def test_a_file_that_changes_during_the_run(kit: Any, tmp_path: Path, change: str) -> None:
    kit.write(tmp_path / "a.jsonl", [{"text": "word " * 2000}] * 100)
    last = kit.write(tmp_path / "b.jsonl", [{"text": "z"}] * 10)
    status = last.stat()
    done = False

    def meddle(progress: TextProgress) -> None:
        nonlocal done
        if done:
            return
        done = True
        if change == "grow":
            last.write_bytes(last.read_bytes() + GOOD)
        elif change == "shrink":
            last.write_bytes(last.read_bytes()[:-20])
        elif change == "touch":
            os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        else:
            last.unlink()

    options = TextOptions(workers=1, task_bytes=100_000)
    with pytest.raises(InputError) as caught:
        prepare_text([tmp_path], tmp_path / "out", tokenizer=kit.tokenizer, options=options, on_progress=meddle)
    text = str(caught.value)
    assert f"{last}: " in text
    assert "changed during the run" in text or "cannot be read: No such file" in text or "vanished" in text
    assert not (tmp_path / "out").exists()


def test_an_output_folder_with_content_is_left_alone(kit: Any, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"is not empty: it holds 'notes\.txt'; choose a new or an empty folder"):
        prepare_text([corpus], tmp_path, tokenizer=kit.tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
