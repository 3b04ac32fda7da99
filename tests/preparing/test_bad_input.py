"""Whatever is wrong with the input: the message names file and line, and nothing is left; a dry run knows it before."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

import faults
import headrace
import recipe_runs
from headrace.engine.job import TaskProgress
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreError
from headrace.preparing import (
    ErrorOptions,
    Estimate,
    FilterSpec,
    PrepareOptions,
    RecordOptions,
    ShardOptions,
    TokenOptions,
    estimate,
    estimate_shards,
    finishing,
    plan,
    prepare,
    prepare_shards,
    read_recipe,
    run,
)
from headrace.preparing.outputs.folder import output_at
from headrace.preparing.parts import PartBuilder
from headrace.preparing.shards.options import PartSpec, ShardSource
from shards_made import write_table

GOOD = b'{"text": "a good line of some length"}\n'
pytestmark = pytest.mark.usefixtures("warm_workers")
REFERENCE = TokenOptions(backend="tokenizers")
SKIP = ErrorOptions(on_error="skip")


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
        (b'{"text": "a"\n', "malformed JSON"),
        (b"[1]\n", "not a JSON object"),
        (b'{"txt": "a"}\n', "no field 'text'"),
        (b'{"text": 7}\n', "field 'text' is not a string"),
        (b'{"text": "caf\xe9"}\n', "not UTF-8: byte 0xe9 at byte 13"),
        (b'{"text": "a", "other": "\xe9"}\n', "not UTF-8: byte 0xe9 at byte 24"),
    ],
)
def test_file_and_line_deep_in_a_large_file(kit: Any, tmp_path: Path, bad: bytes, message: str, workers: int) -> None:
    # 2.3 MB over three spans of the file and several blocks of the reader; blank lines count as lines.
    kit.write(tmp_path / "a.jsonl", [{"text": "fine"}] * 10)
    (tmp_path / "b.jsonl").write_bytes(GOOD * 50_000 + b"\n" + bad + GOOD * 5_000 + bad + GOOD)
    with pytest.raises(InputError) as caught:
        kit.prepare([tmp_path], tmp_path / "out", workers=workers, task_bytes=1 << 20)
    assert str(caught.value).startswith(f"{tmp_path}/b.jsonl, line 50,002: {message}")
    assert not opens(tmp_path / "out")


def test_the_first_bad_line_is_named_whatever_the_workers_do(kit: Any, tmp_path: Path) -> None:
    lines = [GOOD] * 2000
    lines[700] = lines[701] = lines[1500] = b"broken\n"
    (tmp_path / "in.jsonl").write_bytes(b"".join(lines))
    for task_bytes in (1000, 1 << 20):
        with pytest.raises(InputError, match=r"701.*JSON"):
            kit.prepare([tmp_path / "in.jsonl"], tmp_path / str(task_bytes), workers=3, task_bytes=task_bytes)


def test_a_text_that_the_tokeniser_refuses(kit: Any, tmp_path: Path) -> None:
    content = json.loads(kit.tokenizer.read_text())
    content["pre_tokenizer"] = None
    content["added_tokens"] = []
    content["model"] = {"type": "WordLevel", "vocab": {"known": 0}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    kit.write(tmp_path / "in.jsonl", [{"text": "known"}, {"text": "known"}, {"text": "strange"}])
    with pytest.raises(InputError, match=r"in\.jsonl.*3.*'strange'"):
        prepare([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tmp_path)


@pytest.mark.parametrize("change", ["shrink", "vanish"])
def test_a_file_that_changes_during_the_run(kit: Any, tmp_path: Path, change: str) -> None:
    kit.write(tmp_path / "a.jsonl", [{"text": "word " * 2000}] * 100)
    last = kit.write(tmp_path / "b.jsonl", [{"text": "z"}] * 10)

    def meddle(progress: TaskProgress) -> None:
        if progress.phase.startswith("encode") and change == "shrink":
            last.write_bytes(GOOD)
        elif progress.phase.startswith("encode"):
            last.unlink(missing_ok=True)

    with pytest.raises(InputError, match=rf"{last}"):
        kit.prepare([tmp_path], tmp_path / "out", workers=1, task_bytes=100_000, on_progress=meddle)
    assert not (tmp_path / "out").exists()


def test_more_bad_records_than_are_allowed(kit: Any, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes((GOOD * 9 + b"broken\n") * 20)

    def run(max_errors: int | float) -> None:
        errors = ErrorOptions(on_error="skip", max_errors=max_errors)
        kit.prepare([file], tmp_path / f"out-{max_errors}", tokens=REFERENCE, errors=errors, workers=2, task_bytes=1000)

    with pytest.raises(InputError, match=r"max_errors.*5.*in\.jsonl"):
        run(5)
    with pytest.raises(InputError, match=r"20.*200.*10\.00%"):
        run(0.099)
    with pytest.raises(InputError, match=r"line \d+0: .*JSON.*more than 0"):
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
    options = PrepareOptions(tokens=REFERENCE, workers=1)
    with pytest.raises(InputError, match=r"in\.jsonl\.gz") as caught:
        kit.prepare([file], tmp_path / "out", options=options)
    assert "gzip" in str(caught.value)
    assert not opens(tmp_path / "out")
    options = PrepareOptions(tokens=REFERENCE, workers=1, errors=SKIP)
    manifest = kit.prepare([file], tmp_path / "skip", options=options)
    kept = manifest.ledger.documents.kept
    assert 500 < kept < 5000
    assert [error.line for error in manifest.errors] == [kept + 1]
    with headrace.open(tmp_path / "skip") as store:
        ids = Tokenizer.from_file(str(kit.tokenizer)).encode(texts[kept - 1]).ids
        assert store.document(kept - 1).tolist() == ids


def test_a_bad_record_ends_no_proof(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped like in the run: the first 1,000 documents are those behind it, over several blocks of the reader."""
    monkeypatch.setattr(run, "MIN_TEXT_BYTES", 8 << 20)  # of so little text fewer are proved
    file = tmp_path / "in.jsonl"
    lines = [json.dumps({"text": f"{number} " + "some words " * 300}) for number in range(1200)]
    file.write_text("\n".join(["broken", *lines]))
    manifest = kit.prepare([file], tmp_path / "out", errors=SKIP, workers=1)
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
    manifest = kit.prepare([folder], tmp_path / "out", tokens=REFERENCE, errors=SKIP, workers=2)
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
    options = PrepareOptions(tokens=REFERENCE, records=RecordOptions(max_record_bytes=1 << 21))
    with pytest.raises(InputError, match=r"2.*4,500,013.*2,097,152"):
        kit.prepare([file], tmp_path / "out", options=options)
    options = msgspec.structs.replace(options, errors=SKIP)
    assert kit.prepare([file], tmp_path / "out", options=options).ledger.documents.kept == 2


def test_a_filter_that_fails(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wanted.py").write_text("def check(record):\n    return 'too old' if record['year'] < 2000 else True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = kit.write(tmp_path / "in.jsonl", [{"text": "a", "year": 2001}, {"text": "b", "year": 1}, {"text": "c"}])
    options = PrepareOptions(tokens=REFERENCE, filters=FilterSpec(function="wanted:check"), workers=1)
    with pytest.raises(InputError, match=r"3.*KeyError.*'year'"):
        kit.prepare([file], tmp_path / "out", options=options)
    options = msgspec.structs.replace(options, errors=SKIP)
    manifest = kit.prepare([file], tmp_path / "out", options=options)
    assert manifest.ledger.documents.dropped == {"bad": 1, "filter:too old": 1}
    assert manifest.ledger.documents.kept == 1


@pytest.mark.parametrize("place", ["worker", "join"])
def test_a_lost_document_does_not_go_unseen(
    kit: Any, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A document taken away on the way from text to store: the books do not balance, and nothing is written."""
    to_part, rows_of = PartBuilder.add, finishing._rows

    def lose_in_worker(builder: PartBuilder, block: Any, documents: Any) -> None:
        if len(documents.lines) > 3:
            [(tokens, lengths)] = documents.rows
            documents.rows = [(tokens[lengths[0] :], lengths[1:])]
            documents.lines = documents.lines[1:]
        to_part(builder, block, documents)

    def lose_in_join(setup: Any, columns: Any, order: Any, parts: Any) -> Any:
        for rows in rows_of(setup, columns, order, parts):
            yield [(values[: lengths[:-1].sum()], lengths[:-1]) for values, lengths in rows]

    with faults.small_run():
        monkeypatch.setattr(PartBuilder, "add", lose_in_worker if place == "worker" else to_part)
        monkeypatch.setattr(finishing, "_rows", lose_in_join if place == "join" else rows_of)
        with pytest.raises(HeadraceError, match="balance"):
            kit.prepare([inputs], tmp_path / "out", tokens=REFERENCE, workers=1)
    assert not opens(tmp_path / "out")


# Runs without output, and what a dry run knows of them.


UTF_16 = r"a\.jsonl.*1.*UTF-8.*0xff.*UTF-16"


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def utf_16(folder: Path) -> Path:
    """Six records, of which the reader of UTF-8 finds seven bad ones, at most."""
    (folder / "in").mkdir()
    path = folder / "in/a.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(6)), encoding="utf-16")
    return path


RECIPE = "type: sft\ntokenizer: {tokenizer}\ninputs: [{{paths: {path}}}]\n"


def nothing_left(folder: Path, tokenizer: Path) -> list[tuple[str, Callable[[Path], object]]]:
    """Runs that find nothing to store, or are refused, with what they name."""
    (folder / "in").mkdir()
    for name, text in {
        "blank.txt": "\n \n",
        "empty.jsonl": "",
        "none.jsonl": '{"text": ""}\n',
        "good.jsonl": '{"text": "a"}\n',
        "bad.jsonl": '{"text": 5}\n',
        "sft.yaml": RECIPE.format(tokenizer=tokenizer, path=folder / "in/bad.jsonl"),
    }.items():
        (folder / "in" / name).write_text(text)
    (folder / "tars").mkdir()
    (folder / "tars/0.tar").touch()
    (folder / "u16.jsonl").write_text('{"text": "a"}\n', encoding="utf-16")
    (folder / "u16.yaml").write_text(RECIPE.format(tokenizer=tokenizer, path=folder / "u16.jsonl"))
    (folder / "dots").mkdir()
    (folder / "dots/a.b.jpg").write_bytes(b"no picture")
    none = PrepareOptions(filters=FilterSpec(min_chars=9), errors=SKIP)

    def text(name: str, options: PrepareOptions | None = None, run: Callable[..., Any] = prepare) -> Any:
        return lambda output: run([folder / "in" / name], output, tokenizer=tokenizer, options=options)

    def recipe(name: str) -> Any:
        return lambda output: prepare([], output, recipe=read_recipe(folder / name))

    def shards(name: str, options: ShardOptions | None = None) -> Any:
        return lambda output: prepare_shards([folder / name], output, options=options)

    return [
        (r"1.*1.*blank.*Nothing", text("blank.txt")),
        (r"1.*empty.*Nothing", text("empty.jsonl")),
        (r"1.*empty.*'text'.*Nothing", text("none.jsonl")),
        (r"1.*min_chars.1.*Nothing", text("good.jsonl", none)),
        (r"bad\.jsonl.*1.*'text'.*Nothing", text("bad.jsonl")),
        (r"nowhere\.jsonl'", text("nowhere.jsonl")),
        (r"missing\.jsonl'", text("missing.jsonl", run=plan)),
        (r"u16\.jsonl.*1.*UTF-8.*Nothing", recipe("u16.yaml")),
        (r"tar.*prepare.energon", shards("tars")),
        (r"record.0.*layout", recipe("in/sft.yaml")),
        (r"1.*bad.1.*dots.*1.*a\.b.*Nothing", shards("dots", ShardOptions(errors=SKIP))),
    ]


@pytest.mark.parametrize("number", range(11))
def test_a_run_without_output_leaves_nothing(kit: Any, tmp_path: Path, number: int) -> None:
    message, run = nothing_left(tmp_path, kit.tokenizer)[number]
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
    with pytest.raises(InputError, match=rf"7.*{UTF_16}"):
        kit.prepare([path], tmp_path / "out", errors=SKIP)
    assert everything(tmp_path) == [tmp_path / "in", path]


def test_what_is_kept_is_said(kit: Any, tmp_path: Path) -> None:
    """A run that stops late keeps its work, so it must not say that nothing was written."""
    path, output = tmp_path / "a.jsonl", tmp_path / "new/out"
    path.write_text('{"text": "some words"}\n' * 500 + '{"text": 5}\n')
    with pytest.raises(InputError, match=r"501.*'text'") as caught:
        kit.prepare([path], output, task_bytes=1000, workers=1)
    assert f"kept in {output}/.headrace" in str(caught.value)
    assert "Nothing was written" not in str(caught.value)
    assert output_at(output, overwrite=False, restart=False).look().startswith(f"{output} holds an unfinished run")
    assert output_at(output, overwrite=False, restart=True).look() == ""
    assert kit.prepare([path], output, task_bytes=1000, workers=1, errors=SKIP).ledger.documents.kept == 500


STOPS = {
    '{"text": "a"}\n': "^$",
    '{"text": "a"}\n{"text": 5}\n': r"a\.jsonl, line 2: field 'text'",
    '{"text": ""}\n': r"all 1 documents are empty",
}


@pytest.mark.parametrize("content", STOPS)
def test_a_dry_run_says_why_the_run_would_stop(kit: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    found = estimate([path], tokenizer=kit.tokenizer)
    assert re.search(STOPS[content], found.stops)
    if found.stops:
        with pytest.raises(InputError) as caught:
            kit.prepare([path], tmp_path / "out")
        assert found.stops in str(caught.value)
    assert everything(tmp_path) == [path]


def test_a_dry_run_knows_how_much_may_be_bad(kit: Any, tmp_path: Path) -> None:
    path = utf_16(tmp_path)

    def estimated(max_errors: float) -> Estimate:
        errors = ErrorOptions(on_error="skip", max_errors=max_errors)
        return estimate([path], tokenizer=kit.tokenizer, options=PrepareOptions(errors=errors))

    assert re.match(r"7 bad .* allows 3; .*a\.jsonl, line 4", estimated(3).stops)
    assert re.match(r"7 bad records of 7 \(100\.00%\), .* 10\.00%", estimated(0.1).stops)
    assert re.match(rf"no documents are left of 7 records: bad 7; .*{UTF_16}", estimated(9).stops)
    assert (estimated(9).bad_records, "line 1: not UTF-8" in estimated(9).first_error) == (7, True)


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
    kit.prepare([tmp_path / "in.jsonl"], tmp_path / "made")
    before = everything(tmp_path)
    assert output_at(tmp_path / "new/folder", overwrite=False, restart=False).look() == ""
    found = output_at(tmp_path / "made", overwrite=False, restart=False).look()
    assert found.startswith(f"{tmp_path}/made holds the output of an earlier run")
    assert output_at(tmp_path / "made", overwrite=True, restart=False).look() == ""
    with pytest.raises(OutputError, match=r"'in\.jsonl'"):
        output_at(tmp_path, overwrite=False, restart=False).look()
    with pytest.raises(OutputError, match=r"in\.jsonl"):
        output_at(tmp_path / "in.jsonl/out", overwrite=False, restart=False).look()
    assert everything(tmp_path) == before


# A field that a file lacks is an error of configuration in every format.


LENIENT = PrepareOptions(tokens=REFERENCE, errors=ErrorOptions(on_error="skip", max_errors=0.99), workers=1)
RECORDS = [{"text": f"line {number}", "id": str(number)} for number in range(100)]
OTHER = [{"content": f"row {number}", "id": str(number)} for number in range(5000)]


ENDINGS = ["jsonl", "jsonl.gz", "parquet", "arrow"]


def write(folder: Path, ending: str, rows: list[Any] = OTHER) -> list[Path]:
    folder.mkdir(exist_ok=True)
    good, path = folder / "a.jsonl", folder / f"b.{ending.removesuffix('.gz')}"
    write_table(good, RECORDS)
    write_table(path, rows)
    if ending.endswith(".gz"):
        path = path.rename(folder / f"b.{ending}")
        path.write_bytes(gzip.compress(path.read_bytes()))
    return [good, path]


@pytest.mark.parametrize("ending", ENDINGS)
def test_texts_without_the_field_or_ids(kit: Any, tmp_path: Path, ending: str) -> None:
    inputs = write(tmp_path / "in", ending)
    for call in (prepare, plan):
        with pytest.raises(ConfigError, match=rf"b\.{ending}.*'text'.*'content'"):
            call(inputs, tmp_path / call.__name__, tokenizer=kit.tokenizer, options=LENIENT)
    with pytest.raises(ConfigError, match="'text'"):
        estimate(inputs, tokenizer=kit.tokenizer, options=LENIENT)
    inputs = write(tmp_path / "ids", ending, [{"text": "a"}] * 101)
    options = msgspec.structs.replace(LENIENT, records=RecordOptions(id_field="id"))
    with pytest.raises(ConfigError, match=rf"b\.{ending}.*'id'.*--id-field"):
        kit.prepare(inputs, tmp_path / "out", options=options)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_field_that_comes_among_the_first_100_records(kit: Any, tmp_path: Path, ending: str) -> None:
    rows: list[Any] = [{"content": "a"}] * 99 + [{"text": "b"}]
    manifest = kit.prepare(write(tmp_path / "in", ending, rows), tmp_path / "out", options=LENIENT)
    assert manifest.ledger.documents.dropped == {"bad": 99}
    late: list[Any] = [{"content": "a"}] * 100 + [{"text": "b"}]
    with pytest.raises(ConfigError, match=r"100.*'text'"):
        kit.prepare(write(tmp_path / "late", ending, late), tmp_path / "no", options=LENIENT)
    with pytest.raises(ConfigError, match=r"3.*'text'"):
        kit.prepare(write(tmp_path / "few", ending, late[:3]), tmp_path / "no", options=LENIENT)


def test_null_is_a_bad_record_and_no_missing_field(kit: Any, tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", "jsonl", [{"text": None}] * 3)
    manifest = kit.prepare(inputs, tmp_path / "out", options=LENIENT)
    assert manifest.ledger.documents.dropped == {"bad": 3}


@pytest.mark.parametrize("ending", ENDINGS)
def test_records_without_the_field(tmp_path: Path, ending: str) -> None:
    recipe_runs.make_model(tmp_path / "model")
    write(tmp_path / "in", ending)
    head = f"tokenizer: {tmp_path}/model\nerrors: {{on_error: skip, max_errors: 0.99}}\n"
    files = f"{{paths: [{tmp_path}/in/a.jsonl, {tmp_path}/in/b.{ending}], layout: text}}"
    inputs = f"{{paths: [{tmp_path}/in/a.jsonl, {tmp_path}/in/b.{ending}]}}"
    for number, (recipe, needing) in enumerate(
        [
            (f"type: seq\ninputs: {files}\n", "layout"),
            (f"type: seq\ninputs: {inputs}\nsections: [{{field: text, action: train}}]\n", "sections"),
        ]
    ):
        (tmp_path / "r.yaml").write_text(head + recipe)
        with pytest.raises(ConfigError, match=rf"b\.{ending}.*100.*'text'.*{needing}"):
            prepare([], tmp_path / f"out{number}", recipe=tmp_path / "r.yaml")


@pytest.mark.parametrize("ending", ["jsonl", "arrow", "parquet", "csv"])
def test_tables_of_media(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.{ending}"
    write_table(path, [{"caption": "a", "key": "k"}] * 3)
    for source in (
        ShardSource(parts=(PartSpec(part="txt", kind="column", column="text"),)),
        ShardSource(parts=(PartSpec(part="txt", kind="column", column="caption"),), key_field="name"),
    ):
        options = ShardOptions(source=source, errors=ErrorOptions(on_error="skip", max_errors=0.99))
        with pytest.raises(HeadraceError) as caught:
            prepare_shards([path], tmp_path / "out", options=options)
        assert isinstance(caught.value, ConfigError)
        assert "none of its first 3 records has the field" in str(caught.value)
