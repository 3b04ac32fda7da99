"""Whatever is wrong with the input: the message names file and line, and nothing is left behind."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

import headrace
from headrace.errors import HeadraceError, InputError, OutputError, StoreError
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    RecordOptions,
    TextOptions,
    TextProgress,
    TokenOptions,
    prepare_text,
)
from headrace.preparing.backends import first_documents
from headrace.preparing.store_output import StoreOutput
from headrace.stores import load_manifest

GOOD = b'{"text": "a good line of some length"}\n'
pytestmark = pytest.mark.usefixtures("warm_workers")
REFERENCE = TokenOptions(backend="tokenizers")


def opens(folder: Path) -> bool:
    """Whether anything in a folder, hidden or not, could be read as whole."""
    if not folder.exists():
        return False
    for path in [folder, *folder.rglob("*")]:
        try:
            headrace.open(path)
        except StoreError:
            continue
        return True
    return False


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"text": "a"\n', "malformed JSON: Expecting ',' delimiter"),
        (b"[1]\n", "not a JSON object but an array; found '[1]'"),
        (b'{"txt": "a"}\n', "no field 'text'; did you mean 'txt'?; its fields are: 'txt'"),
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
    assert not opens(tmp_path / "out")


def test_the_first_bad_line_is_named_whatever_the_workers_do(kit: Any, tmp_path: Path) -> None:
    lines = [GOOD] * 2000
    lines[700] = lines[701] = lines[1500] = b"broken\n"
    (tmp_path / "in.jsonl").write_bytes(b"".join(lines))
    for task_bytes in (1000, 7000, 1 << 20):
        options = TextOptions(workers=3, task_bytes=task_bytes)
        with pytest.raises(InputError, match="line 701: malformed JSON"):
            prepare_text([tmp_path / "in.jsonl"], tmp_path / str(task_bytes), tokenizer=kit.tokenizer, options=options)


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
        if done or progress.phase != "encode":
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
    assert not (tmp_path / "out").exists()
    assert "changed during the run" in text or "cannot be read: No such file" in text or "vanished" in text
    assert not opens(tmp_path / "out")


def test_an_output_folder_with_content_is_left_alone(kit: Any, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"is not empty: it holds 'notes\.txt'; choose a new or an empty folder"):
        prepare_text([corpus], tmp_path, tokenizer=kit.tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


BAD_LINES = [
    (b'{"text": "a"\n', "malformed JSON"),
    (b'{"txt": "a"}\n', "no field 'text'"),
    (b'{"text": null}\n', "field 'text' is not a string but null"),
    (b'{"text": "caf\xe9"}\n', "not UTF-8"),
    (b'{"text": "\\ud800"}\n', "unpaired surrogate"),
]


def test_bad_records_are_skipped_and_listed(kit: Any, tmp_path: Path) -> None:
    """Each is named with its file and line; all others are there."""
    content = b""
    for bad, _ in BAD_LINES:
        content += GOOD * 7 + b"\n" + bad
    (tmp_path / "a.jsonl").write_bytes(GOOD * 3)
    (tmp_path / "b.jsonl").write_bytes(content)
    found = []
    for workers, task_bytes in ((1, 1 << 20), (3, 300)):
        options = TextOptions(
            tokens=REFERENCE,
            errors=ErrorOptions(on_error="skip"),
            workers=workers,
            task_bytes=task_bytes,
        )
        inputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        manifest = prepare_text(inputs, tmp_path / str(workers), tokenizer=kit.tokenizer, options=options)
        found.append(load_manifest(tmp_path / str(workers)).errors)
        assert (manifest.ledger.documents.read, manifest.ledger.documents.kept) == (3 + 5 * 8, 3 + 5 * 7)
        assert manifest.ledger.documents.dropped == {"bad": 5}
        assert manifest.ledger.documents.blank_lines == 5
    assert found[0] == found[1]
    assert [error.line for error in found[0]] == [9, 18, 27, 36, 45]
    for error, (_, message) in zip(found[0], BAD_LINES, strict=True):
        assert error.file == str(tmp_path / "b.jsonl")
        assert message in error.message


def test_more_bad_records_than_are_allowed(kit: Any, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes((GOOD * 9 + b"broken\n") * 20)

    def run(max_errors: int | float) -> None:
        errors = ErrorOptions(on_error="skip", max_errors=max_errors)
        options = TextOptions(tokens=REFERENCE, errors=errors, workers=2, task_bytes=1000)
        prepare_text([file], tmp_path / f"out-{max_errors}", tokenizer=kit.tokenizer, options=options)

    with pytest.raises(
        InputError, match=r"bad records, but --max-errors allows 5; the last one: .*in\.jsonl, line 60: malf"
    ):
        run(5)
    with pytest.raises(InputError, match=r"20 bad records of 200 \(10\.00%\), but --max-errors allows 9\.90%"):
        run(0.099)
    with pytest.raises(
        InputError,
        match=r"line 10: malformed JSON.* more than 0 bad records, which is what --max-errors allows\. Nothing",
    ):
        run(0)
    assert not any(opens(tmp_path / f"out-{allowed}") for allowed in (5, 0.099, 0))
    run(20)
    run(0.1)


@pytest.mark.parametrize("cut", [0.3, 0.97])
def test_a_torn_gzip(kit: Any, tmp_path: Path, cut: float) -> None:
    """By default it stops the run; when skipped, all that could be read is kept and the loss is named."""
    texts = [f"document {number} of some length" for number in range(5000)]
    data = gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    file = tmp_path / "in.jsonl.gz"
    file.write_bytes(data[: int(len(data) * cut)])
    options = TextOptions(tokens=REFERENCE, workers=1)
    with pytest.raises(InputError, match=r"in\.jsonl\.gz, line [\d,]+: .*") as caught:
        prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert "gzip" in str(caught.value)
    assert not opens(tmp_path / "out")
    options = TextOptions(tokens=REFERENCE, workers=1, errors=ErrorOptions(on_error="skip"))
    manifest = prepare_text([file], tmp_path / "skip", tokenizer=kit.tokenizer, options=options)
    kept = manifest.ledger.documents.kept
    assert 500 < kept < 5000
    assert [error.line for error in manifest.errors] == [kept + 1]
    with headrace.open(tmp_path / "skip") as store:
        ids = Tokenizer.from_file(str(kit.tokenizer)).encode(texts[kept - 1]).ids
        assert store.document(kept - 1).tolist() == ids


def test_a_bad_record_ends_no_proof(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped like in the run: the first 1,000 documents are those behind it, over several blocks of the reader."""
    monkeypatch.setattr(first_documents, "MIN_TEXT_BYTES", 8 << 20)  # of so little text fewer are proved
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"text": f"{number} " + "some words " * 300}) for number in range(1200)]
    file.write_text("\n".join(["broken", *lines]))
    options = TextOptions(errors=ErrorOptions(on_error="skip"), workers=1)
    manifest = prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert manifest.backend is not None
    assert (manifest.backend.name, manifest.backend.proved["first_documents"]) == ("fastokens", 1000)


def test_files_that_cannot_be_read_are_skipped_and_listed(kit: Any, tmp_path: Path) -> None:
    """One of several files is torn: the others are there, and the manifest names it."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        parquet.write_table(pyarrow.table({"text": [f"words of file {number}"] * 100}), folder / f"{number}.parquet")
    torn = folder / "1.parquet"
    torn.write_bytes(torn.read_bytes()[:-10])
    (folder / "3.jsonl.gz").touch()
    options = TextOptions(tokens=REFERENCE, errors=ErrorOptions(on_error="skip"), workers=2)
    manifest = prepare_text([folder], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert (manifest.ledger.documents.read, manifest.ledger.documents.kept) == (202, 200)
    assert [(Path(error.file).name, error.unit) for error in manifest.errors] == [
        ("1.parquet", "row"),
        ("3.jsonl.gz", "line"),
    ]
    assert "arquet" in manifest.errors[0].message
    with headrace.open(tmp_path / "out") as store:
        assert store.num_documents == 200


def test_a_record_that_is_too_long(kit: Any, tmp_path: Path) -> None:
    file = kit.write(tmp_path / "in.jsonl", [{"text": "fine"}, {"text": "long " * 900_000}, {"text": "good"}])
    options = TextOptions(tokens=REFERENCE, records=RecordOptions(max_record_bytes=1 << 21))
    with pytest.raises(
        InputError,
        match=r"line 2: a line of 4,500,013 bytes; at most 2,097,152 are allowed;.*one object a line\? Nothing",
    ):
        prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    options = msgspec.structs.replace(options, errors=ErrorOptions(on_error="skip"))
    assert prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options).ledger.documents.kept == 2


def test_a_truncated_parquet(kit: Any, tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"text": ["a word"] * 1000}), file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"in\.parquet"):
        prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=TextOptions(tokens=REFERENCE))
    assert not (tmp_path / "out").exists()


def test_a_special_token_in_a_text(kit: Any, tmp_path: Path) -> None:
    file = kit.write(tmp_path / "in.jsonl", [{"text": "fine"}, {"text": "so <|im_start|> it is"}])
    tokens = TokenOptions(special_tokens_in_text="error")
    with pytest.raises(InputError, match=r"line 2: the text holds the special token '<\|im_start\|>' \(see --special"):
        prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=TextOptions(tokens=tokens))
    options = TextOptions(tokens=tokens, errors=ErrorOptions(on_error="skip"))
    assert prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options).ledger.documents.kept == 1


def test_filters_that_leave_nothing(kit: Any, corpus: Path, tmp_path: Path) -> None:
    options = TextOptions(tokens=REFERENCE, filters=FilterSpec(min_chars=10**6))
    with pytest.raises(InputError, match=r"no documents are left of [\d,]+ records: min_chars [\d,]+"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert not opens(tmp_path / "out")


def test_a_filter_that_fails(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wanted.py").write_text("def check(record):\n    return 'too old' if record['year'] < 2000 else True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = kit.write(tmp_path / "in.jsonl", [{"text": "a", "year": 2001}, {"text": "b", "year": 1}, {"text": "c"}])
    options = TextOptions(tokens=REFERENCE, filters=FilterSpec(function="wanted:check"), workers=1)
    with pytest.raises(InputError, match=r"line 3: .*wanted:check.*KeyError: 'year'"):
        prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    options = msgspec.structs.replace(options, errors=ErrorOptions(on_error="skip"))
    manifest = prepare_text([file], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert manifest.ledger.documents.dropped == {"bad": 1, "filter:too old": 1}
    assert manifest.ledger.documents.kept == 1


@pytest.mark.parametrize("place", ["worker", "output"])
def test_a_lost_document_does_not_go_unseen(
    kit: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A document taken away on the way from text to store: the books do not balance, and nothing is written."""
    if place == "worker":
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(LOSING_ENCODER)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr("headrace.engine.processes.subprocess", subprocess)  # a real start, that reads its path
    else:
        add = StoreOutput.add
        monkeypatch.setattr(
            StoreOutput,
            "add",
            lambda self, rows, ordinals: add(
                self, [(row[0][: row[1][:-1].sum()], row[1][:-1]) for row in rows], ordinals[:-1]
            ),
        )
    options = TextOptions(tokens=REFERENCE, workers=1)
    with pytest.raises(HeadraceError, match=r"does not balance|This is a defect"):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert not opens(tmp_path / "out")


LOSING_ENCODER = """
import headrace.preparing.piece as builder
add = builder.PieceBuilder.add
def losing(self, block, documents):
    if len(documents.lines) > 3:
        for name in ("tokens", "lengths"):
            setattr(documents, name, list(getattr(documents, name)))
        cut = int(documents.lengths[0][0])
        documents.tokens[0] = documents.tokens[0][cut:]
        documents.lengths[0] = documents.lengths[0][1:]
        documents.lines, documents.places = documents.lines[1:], documents.places[1:]
    add(self, block, documents)
builder.PieceBuilder.add = losing
"""
