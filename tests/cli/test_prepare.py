"""``headrace prepare`` as a user meets it."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

import headrace
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
)

pytestmark = pytest.mark.usefixtures("warm_workers")


def documents(folder: Path, key: str | None = None) -> list[list[int]]:
    with headrace.open(folder, key=key) as store:
        return [store.document(number).tolist() for number in range(store.num_documents)]


def test_summary(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "--output", tmp_path / "out", "--tokenizer", tokenizer, "--append-eod")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: complete"
    assert lines[1] == "  documents  100"
    assert re.fullmatch(r"  tokens     [\d,]+ \(uint16\)", lines[2])
    assert re.fullmatch(r"  input      2 files, [\d.]+ kB", lines[3])
    assert lines[4] == f"  tokeniser  {tokenizer}, vocabulary 100, end of document 1"
    assert re.fullmatch(r"  backend    tokenizers [\d.]+", lines[5])
    assert re.fullmatch(r"  files      text_document.bin [\d.]+ kB, text_document.idx [\d.]+ kB", lines[6])
    assert re.fullmatch(r"  time       [\d.]+ s, [\d.]+ [kM]?B/s, [\d.]+ [kM]?tokens/s", lines[7])
    assert len(lines) == 8
    assert "\x1b" not in result.output


def test_summary_of_all_that_may_happen(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    texts = ["w1", "w2 w3", "w4 w5 w6", "w1 <|endoftext|> w2", "w4 w5 w6"]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "{}", "no"]))
    special = Tokenizer.from_file(str(tokenizer))
    special.add_special_tokens(["<|endoftext|>"])
    special.save(str(tmp_path / "tokenizer.json"))
    common = ["prepare", tmp_path / "in.jsonl", "-o", tmp_path / "o", "--tokenizer", tmp_path]
    result = run(*common, "--shard-tokens", 3, "--min-tokens", 2, "--deduplicate", "--on-error", "skip")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "  documents  3 (bad 2, duplicate 1, min_tokens 1 dropped)" in lines
    assert "  special    1 text with the name of a special token: literal" in lines
    assert any(line.startswith("  files      text_document_00000.bin ") for line in lines)
    assert next(line for line in lines if "files" in line).endswith(" and 2 more")
    assert lines[-3] == "  2 bad records skipped, all listed in headrace.json:"
    assert lines[-2].startswith(f"    {tmp_path / 'in.jsonl'}, line 6: no field 'text'")
    assert lines[-1].startswith(f"    {tmp_path / 'in.jsonl'}, line 7: malformed JSON")


def test_json_is_alone_on_stdout(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "-o", tmp_path / "out", "--tokenizer", tokenizer, "--append-eod", "--json")
    found = json.loads(result.stdout)
    with headrace.open(tmp_path / "out") as store:
        assert (found["documents"], found["tokens"]) == (store.num_documents, store.num_tokens)
    assert found["files"] == ["text_document.bin", "text_document.idx"]
    assert (found["vocab_size"], found["eod"], found["bos"], found["inputs"]) == (100, 1, None, 2)
    assert (found["format"], found["keys"], found["shards"], found["dtype"]) == ("indexed", ["text"], 1, "uint16")
    assert (found["documents_read"], found["documents_dropped"], found["errors"]) == (100, {}, 0)
    assert found["backend"] == "tokenizers"
    assert found["input_bytes"] == sum(path.stat().st_size for path in corpus.iterdir())
    assert found["seconds"] > 0


def test_quiet_says_nothing(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "-o", tmp_path / "out", "--tokenizer", tokenizer, "--quiet")
    assert (result.exit_code, result.output) == (0, "")


STAGE = ("in.jsonl", "-o", "out", "--tokenizer", "t")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("", TextOptions()),
        ("--field body", TextOptions(records=RecordOptions(fields=("body",)))),
        ("--text-field body", TextOptions(records=RecordOptions(fields=("body",)))),
        ("--field a --text-field b", TextOptions(records=RecordOptions(fields=("a", "b")))),
        ("--field a --field b --join ;", TextOptions(records=RecordOptions(fields=("a", "b"), join=";"))),
        ("--id-field url", TextOptions(records=RecordOptions(id_field="url"))),
        ("--sample-by paragraph", TextOptions(records=RecordOptions(sample_by="paragraph"))),
        ("--max-record-bytes 2000000", TextOptions(records=RecordOptions(max_record_bytes=2_000_000))),
        ("--append-eod", TextOptions(tokens=TokenOptions(append_eod=True))),
        ("--append-eod --eod 07", TextOptions(tokens=TokenOptions(append_eod=True, eod=7))),
        ("--append-eod --eod </s>", TextOptions(tokens=TokenOptions(append_eod=True, eod="</s>"))),
        ("--bos auto", TextOptions(tokens=TokenOptions(bos="auto"))),
        ("--bos 0", TextOptions(tokens=TokenOptions(bos=0))),
        ("--bos <s>", TextOptions(tokens=TokenOptions(bos="<s>"))),
        ("--special-tokens-in-text encode", TextOptions(tokens=TokenOptions(special_tokens_in_text="encode"))),
        ("--special-tokens-in-text error", TextOptions(tokens=TokenOptions(special_tokens_in_text="error"))),
        ("--backend tiktoken", TextOptions(tokens=TokenOptions(backend="tiktoken"))),
        ("--min-chars 1 --max-chars 9", TextOptions(filters=FilterSpec(min_chars=1, max_chars=9))),
        ("--min-tokens 0 --max-tokens 5", TextOptions(filters=FilterSpec(min_tokens=0, max_tokens=5))),
        ("--filter mine:keep", TextOptions(filters=FilterSpec(function="mine:keep"))),
        ("--deduplicate", TextOptions(deduplicate=True)),
        ("--format keyed", TextOptions(output=OutputOptions(format="keyed"))),
        ("--shard-tokens 7", TextOptions(output=OutputOptions(shard_tokens=7))),
        ("--single", TextOptions(output=OutputOptions(shard_tokens=None))),
        ("--on-error skip", TextOptions(errors=ErrorOptions(on_error="skip"))),
        ("--on-error skip --max-errors 0", TextOptions(errors=ErrorOptions(on_error="skip", max_errors=0))),
        ("--on-error skip --max-errors 0.25", TextOptions(errors=ErrorOptions(on_error="skip", max_errors=0.25))),
        ("--on-error skip --max-errors 0.5%", TextOptions(errors=ErrorOptions(on_error="skip", max_errors=0.005))),
        ("--on-error skip --max-errors 0%", TextOptions(errors=ErrorOptions(on_error="skip", max_errors=0.0))),
        ("--workers 3", TextOptions(workers=3)),
        ("--overwrite", TextOptions(overwrite=True)),
        ("--restart", TextOptions(restart=True)),
    ],
)
@pytest.mark.parametrize("function", ["prepare_text", "estimate_text"])
def test_options_reach_the_run(
    run: Any, monkeypatch: pytest.MonkeyPatch, function: str, arguments: str, options: TextOptions
) -> None:
    given: list[Any] = []

    def stand_in(inputs: Any, *output: Any, tokenizer: Any, options: TextOptions, **callbacks: Any) -> None:
        given.extend([inputs, *output, tokenizer, options])
        raise ConfigError("enough")

    monkeypatch.setattr(f"headrace.preparing.{function}", stand_in)
    is_dry = function == "estimate_text"
    assert run("prepare", *STAGE, *arguments.split(), *["--dry-run"] * is_dry).stderr.startswith("error: enough\n")
    assert given == [("in.jsonl",), *["out"] * (not is_dry), "t", options]


def test_options_do_what_they_say(run: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = [{"title": "w1", "body": "w2 w3", "n": 1}, {"title": "w4", "body": "w5", "n": 2}]
    Path("in.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    common = ["prepare", "in.jsonl.gz", "--tokenizer", tokenizer, "--workers", 1, "-o"]
    both = ["--field", "title", "--field", "body"]
    assert run(*common, "two", *both, "--append-eod", "--eod", "w97", "--bos", 0).exit_code == 0
    assert documents(tmp_path / "two", "title") == [[0, 3, 99], [0, 6, 99]]
    assert documents(tmp_path / "two", "body") == [[0, 4, 5, 99], [0, 7, 99]]
    assert run(*common, "joined", *both, "--join", " w9 ", "--format", "keyed").exit_code == 0
    assert documents(tmp_path / "joined") == [[3, 11, 4, 5], [6, 11, 7]]
    assert sorted(path.name for path in Path("joined/shard_0000").iterdir()) == ["meta.json", "sequence.bin"]
    Path("my_filter.py").write_text("def keep(record):\n    return record['n'] == 2 or 'other'\n")
    result = run(*common, "filtered", "--field", "body", "--filter", "my_filter:keep")
    assert "  documents  1 (filter:other 1 dropped)" in result.stdout.splitlines()
    assert documents(tmp_path / "filtered") == [[7]]
    assert run(*common, "filtered", "--field", "body").exit_code == 6
    assert run(*common, "filtered", "--field", "body", "--overwrite").exit_code == 0
    assert documents(tmp_path / "filtered") == [[4, 5], [7]]


def test_standard_input(tokenizer: Path, tmp_path: Path) -> None:
    arguments = ["prepare", "-", "-o", str(tmp_path / "out"), "--tokenizer", str(tokenizer), "--json"]
    result = CliRunner().invoke(main, arguments, input=b'{"text": "w1 w2"}\n', catch_exceptions=False)
    assert json.loads(result.stdout)["documents"] == 1
    assert documents(tmp_path / "out") == [[3, 4]]
    empty = CliRunner().invoke(main, [*arguments, "--overwrite"], input=b"", catch_exceptions=False)
    assert empty.exit_code == 3
    assert "standard input is empty" in json.loads(empty.stdout)["error"]["message"]


def test_the_forms(run: Any, corpus: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "-o", tmp_path / "out")
    assert result.exit_code == 2
    for form in ("--tokenizer is missing", "text (files, ", "--recipe FILE", "folder of .tar", "--format tar"):
        assert form in result.stderr
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/000.tar").touch()
    assert (
        "holds .tar shards. prepare has four forms" in run("prepare", tmp_path / "shards", "-o", tmp_path / "o").stderr
    )
    assert not (tmp_path / "out").exists()


def test_errors_name_file_and_line(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "w1"}\n{"text": 3}\n')
    arguments = ["prepare", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--tokenizer", tokenizer]
    result = run(*arguments)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {tmp_path / 'in.jsonl'}, line 2: field 'text' is not a string")
    assert "leave such records out with --on-error skip.\n" in result.stderr
    as_json = run(*arguments, "--json", "--quiet")
    assert as_json.exit_code == 3
    error = json.loads(as_json.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("InputError", 3)
    assert "line 2" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-o out --tokenizer t", "no INPUT is given: name at least one file, folder or glob"),
        ("in.jsonl --tokenizer t", "--output DIR is missing: name the folder for the result"),
        ("in.jsonl -o out", "--tokenizer is missing. prepare has four forms"),
        ("in.jsonl -o out --workers many", "Invalid value for '--workers'"),
        ("in.jsonl -o out --shufle 3", "No such option '--shufle'"),
        ("in.jsonl -o out --format zip", "Invalid value for '--format'"),
        (
            "in.jsonl -o out --tokenizer t --single --shard-tokens 5",
            "--single writes one shard and --shard-tokens cuts it into several",
        ),
        ("in.jsonl -o out --tokenizer t --max-errors 5", "--max-errors needs --on-error skip"),
        ("in.jsonl -o out --tokenizer t --eod 5", "eod is 5, but nothing is appended: give --append-eod"),
        ("in.jsonl -o out --tokenizer t --bos w999", "--bos 'w999': not in the vocabulary"),
        ("in.jsonl -o out --tokenizer t --join ;", "--join needs several fields: give --field twice or more"),
        ("in.jsonl -o out --tokenizer t --field a --field a", "a field is named twice: a, a"),
        ("in.jsonl -o out --tokenizer t --shard-tokens 0", "shard_tokens is 0: at least 1 is needed, or --single"),
        ("in.jsonl -o out --tokenizer t --min-tokens 9 --max-tokens 3", "min_tokens is 9, above max_tokens"),
        ("in.jsonl -o out --tokenizer t --filter nowhere", "'nowhere' does not name a function: write module:function"),
        ("in.jsonl -o out --tokenizer t --max-record-bytes 9", "max_record_bytes is 9: it must be at least 1,048,576"),
        ("in.jsonl -o out --tokenizer t --workers 0", "workers is 0: at least 1 is needed"),
        ("in.jsonl -o out --tokenizer t --append-eod --eod w999", "--eod 'w999': not in the vocabulary"),
        ("in.jsonl -o out --tokenizer t --append-eod --eod 100", "--eod 100: no token has this id"),
        ("in.jsonl -o out --tokenizer t --bos always", "cannot tell which begin-of-sequence token"),
        ("in.jsonl -o out --tokenizer t --prepend-bos", "No such option '--prepend-bos'"),
        ("missing.jsonl -o out --tokenizer t", "input 'missing.jsonl' does not exist"),
        ("in.jsonl in.jsonl -o out --tokenizer t", "the same file"),
        ("in.jsonl -o out --tokenizer missing", "tokenizer 'missing' does not exist"),
        ("in.jsonl -o out --tokenizer t --backend numba", "'numba' is not one of 'auto', 'tokenizers', 'gigatoken', "),
        ("- --tokenizer t --dry-run", "standard input cannot be sampled; a dry run needs files"),
        *(
            (
                f"in.jsonl -o out --tokenizer t --on-error skip --max-errors {given}",
                f"--max-errors {given}: write a number",
            )
            for given in ("many", "1.0", "100%", "nan", "-3", "1_000", "%")
        ),
    ],
)
def test_misuse(
    run: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"text": "w1"}\n')
    Path("t").symlink_to(tokenizer)
    result = run("prepare", *arguments.split(), "--json")
    assert result.exit_code == 2
    assert message in result.stderr
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("ConfigError", 2)
    assert message in error["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "t"]


def test_progress_off_a_terminal(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("headrace.cli.progress.PLAIN_EVERY_S", 0.0)
    arguments = ["prepare", corpus, "--tokenizer", tokenizer]
    result = run(*arguments, "-o", tmp_path / "out")
    assert "documents" in result.stderr
    assert any(re.fullmatch(r"encoding +[\d.]+%  [\d,]+ documents.*", line) for line in result.stderr.splitlines())
    assert "\r" not in result.stderr
    assert "\x1b" not in result.stderr
    assert run(*arguments, "-o", tmp_path / "quiet", "--quiet").output == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_notices(run: Any, monkeypatch: pytest.MonkeyPatch, prepared: Path, quiet: bool) -> None:
    from headrace.stores import load_manifest

    def stand_in(inputs: Any, output: Any, *, on_notice: Any, **rest: Any) -> Any:
        on_notice("continuing the unfinished run in this folder")
        return load_manifest(prepared)

    monkeypatch.setattr("headrace.preparing.prepare_text", stand_in)
    result = run("prepare", *STAGE, *["--quiet"] * quiet)
    if quiet:
        assert result.output == ""
        return
    assert result.stderr == "note: continuing the unfinished run in this folder\n"
    # Speeds of a run of which only the end was seen would be too good to be true.
    assert re.fullmatch(r"  time       [\d.]+ s since the run continued", result.stdout.splitlines()[-1])
