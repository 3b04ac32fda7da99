"""What a run without output says and leaves, and what a dry run knows of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError, InputError, OutputError
from headrace.preparing import (
    ErrorOptions,
    Estimate,
    FilterSpec,
    TextOptions,
    estimate_shards,
    estimate_text,
    plan_text,
    prepare_recipe,
    prepare_shards,
    prepare_text,
    read_recipe,
)
from headrace.preparing.output_folder import look_at_output
from headrace.preparing.shards import ShardOptions

SKIP = ErrorOptions(on_error="skip")
UTF_16 = r"a\.jsonl, line 1: not UTF-8: byte 0xff at byte 0 of the line \(it looks like UTF-16: convert it to UTF-8\)"


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def utf_16(folder: Path) -> Path:
    """Six records, of which the reader of UTF-8 finds seven bad ones, at most."""
    (folder / "in").mkdir()
    path = folder / "in/a.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(6)), encoding="utf-16")
    return path


def nothing_left(folder: Path, tokenizer: Path) -> dict[str, Callable[[Path], object]]:
    """Runs that find nothing to store, or are refused, by what they say."""
    (folder / "in").mkdir()
    for name, text in {
        "blank.txt": "\n \n",
        "empty.jsonl": "",
        "none.jsonl": '{"text": ""}\n',
        "good.jsonl": '{"text": "a"}\n',
        "bad.jsonl": '{"text": 5}\n',
        "sft.yaml": f"type: sft\ntokenizer: {tokenizer}\ninputs: [{{paths: {folder}/in/bad.jsonl}}]\n",
    }.items():
        (folder / "in" / name).write_text(text)
    (folder / "tars").mkdir()
    (folder / "tars/0.tar").touch()
    (folder / "u16.jsonl").write_text('{"text": "a"}\n', encoding="utf-16")
    (folder / "u16.yaml").write_text(f"type: sft\ntokenizer: {tokenizer}\ninputs: [{{paths: {folder}/u16.jsonl}}]\n")
    (folder / "dots").mkdir()
    (folder / "dots/a.b.jpg").write_bytes(b"no picture")
    none = TextOptions(filters=FilterSpec(min_chars=9), errors=SKIP)

    def text(name: str, options: TextOptions | None = None, run: Callable[..., Any] = prepare_text) -> Any:
        return lambda output: run([folder / "in" / name], output, tokenizer=tokenizer, options=options)

    skipped = ShardOptions(errors=SKIP)
    return {
        r"no documents: 1 files with 1 lines, all of them blank\. Nothing was written\.": text("blank.txt"),
        r"no documents: 1 files, all empty\. Nothing was written\.": text("empty.jsonl"),
        r"no tokens: all 1 documents are empty \(field 'text'\)\. Nothing was written\.": text("none.jsonl"),
        r"no documents are left of 1 records: min_chars 1\. Nothing was written\.": text("good.jsonl", none),
        r"bad\.jsonl, line 1: field 'text' is not a string.*Nothing was written; correct": text("bad.jsonl"),
        r"'.*nowhere\.jsonl' does not exist": text("nowhere.jsonl"),
        r"'.*missing\.jsonl' does not exist": text("missing.jsonl", run=plan_text),
        r"u16\.jsonl, line 1: not UTF-8.* Nothing was written\.": (
            lambda output: prepare_recipe(read_recipe(folder / "u16.yaml"), output)
        ),
        r"is a folder of tar shards, which headrace prepare energon indexes in place": (
            lambda output: prepare_shards([folder / "tars"], output)
        ),
        r"record 0 fits no layout": lambda output: prepare_recipe(read_recipe(folder / "in/sft.yaml"), output),
        r"none of 1 samples is left: bad 1; the first bad one: .*/dots, sample 1: a\.b: .* Nothing was written\.": (
            lambda output: prepare_shards([folder / "dots"], output, options=skipped)
        ),
    }


@pytest.mark.parametrize("number", range(11))
def test_a_run_without_output_leaves_nothing(kit: Any, tmp_path: Path, number: int) -> None:
    message, run = list(nothing_left(tmp_path, kit.tokenizer).items())[number]
    before = everything(tmp_path)
    with pytest.raises(HeadraceError, match=message):
        run(tmp_path / "new/folder/out")
    assert everything(tmp_path) == before
    (tmp_path / "there").mkdir()
    with pytest.raises(HeadraceError, match=message):
        run(tmp_path / "there")
    assert everything(tmp_path) == sorted([*before, tmp_path / "there"])


def test_the_first_bad_record_is_named_if_nothing_is_left(kit: Any, tmp_path: Path) -> None:
    path = utf_16(tmp_path)
    with pytest.raises(InputError, match=rf"no documents are left of 7 records: bad 7; the first bad one: .*{UTF_16}"):
        prepare_text([path], tmp_path / "out", tokenizer=kit.tokenizer, options=TextOptions(errors=SKIP))
    assert everything(tmp_path) == [tmp_path / "in", path]


def test_what_is_kept_is_said(kit: Any, tmp_path: Path) -> None:
    """A run that stops late keeps its work, so it must not say that nothing was written."""
    path, output = tmp_path / "a.jsonl", tmp_path / "new/out"
    path.write_text('{"text": "some words"}\n' * 500 + '{"text": 5}\n')
    options = TextOptions(task_bytes=1000, workers=1)
    with pytest.raises(InputError, match=r"line 501: field 'text' is not a string") as caught:
        prepare_text([path], output, tokenizer=kit.tokenizer, options=options)
    kept = re.escape(f"What is done so far is kept in {output}/.headrace; correct or remove this record and run again")
    assert re.search(kept, str(caught.value))
    assert "Nothing was written" not in str(caught.value)
    assert look_at_output(output, overwrite=False, restart=False).startswith(f"{output} holds an unfinished run")
    assert look_at_output(output, overwrite=False, restart=True) == ""
    skipping = TextOptions(task_bytes=1000, workers=1, errors=SKIP)
    assert prepare_text([path], output, tokenizer=kit.tokenizer, options=skipping).ledger.documents.kept == 500


STOPS = {
    '{"text": "a"}\n': "",
    '{"text": "a"}\n{"text": 5}\n': r"a\.jsonl, line 2: field 'text' is not a string.*leave such records out with",
    '{"text": ""}\n': r"no tokens: all 1 documents are empty",
}


@pytest.mark.parametrize("content", STOPS)
def test_a_dry_run_says_why_the_run_would_stop(kit: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    estimate = estimate_text([path], tokenizer=kit.tokenizer)
    assert re.search(STOPS[content], estimate.stops) if STOPS[content] else estimate.stops == ""
    if estimate.stops:
        with pytest.raises(InputError, match=re.escape(estimate.stops)):
            prepare_text([path], tmp_path / "out", tokenizer=kit.tokenizer)
    assert everything(tmp_path) == [path]


def test_a_dry_run_knows_how_much_may_be_bad(kit: Any, tmp_path: Path) -> None:
    path = utf_16(tmp_path)

    def estimate(max_errors: float) -> Estimate:
        errors = ErrorOptions(on_error="skip", max_errors=max_errors)
        return estimate_text([path], tokenizer=kit.tokenizer, options=TextOptions(errors=errors))

    assert re.match(r"7 bad records, but --max-errors allows 3; the last one: .*a\.jsonl, line 4", estimate(3).stops)
    assert re.match(r"7 bad records of 7 \(100\.00%\), but --max-errors allows 10\.00%", estimate(0.1).stops)
    assert re.match(rf"no documents are left of 7 records: bad 7; the first bad one: .*{UTF_16}", estimate(9).stops)


def test_a_dry_run_of_media_says_why_the_run_would_stop(tmp_path: Path) -> None:
    (tmp_path / "a.b.jpg").write_bytes(b"no picture")
    before = everything(tmp_path)
    assert re.search(r"sample 1: a\.b: the key", estimate_shards([tmp_path]).stops)
    skipping = ShardOptions(errors=SKIP)
    assert estimate_shards([tmp_path], options=skipping).stops.startswith("none of 1 samples is left: bad 1; the first")
    assert everything(tmp_path) == before
    (tmp_path / "a.b.jpg").rename(tmp_path / "a.jpg")
    assert estimate_shards([tmp_path]).stops == ""


def test_a_look_at_the_output_writes_nothing(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    prepare_text([tmp_path / "in.jsonl"], tmp_path / "made", tokenizer=kit.tokenizer)
    before = everything(tmp_path)
    assert look_at_output(tmp_path / "new/folder", overwrite=False, restart=False) == ""
    assert look_at_output("s3://bucket/out", overwrite=False, restart=False) == ""
    found = look_at_output(tmp_path / "made", overwrite=False, restart=False)
    assert found.startswith(f"{tmp_path}/made holds the output of an earlier run")
    assert look_at_output(tmp_path / "made", overwrite=True, restart=False) == ""
    with pytest.raises(OutputError, match=r"the output folder is not empty: it holds 'in\.jsonl'"):
        look_at_output(tmp_path, overwrite=False, restart=False)
    with pytest.raises(OutputError, match=r"no output can be made there: .*in\.jsonl is not a folder"):
        look_at_output(tmp_path / "in.jsonl/out", overwrite=False, restart=False)
    assert everything(tmp_path) == before
