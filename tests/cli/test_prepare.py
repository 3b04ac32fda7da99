"""``headrace prepare`` as a user meets it: its forms, dry runs, and a run that is ended and given again."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

from copies_made import content, documents, files
from counts import PATIENCE_S
from headrace.cli import main, progress
from headrace.cli.command import Command
from headrace.cli.options import is_given
from headrace.cli.prepare import prepare as command
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import ConfigError
from headrace.preparing import (
    ErrorOptions,
    Estimate,
    FilterSpec,
    OutputOptions,
    PrepareOptions,
    RecordOptions,
    TokenOptions,
)

pytestmark = pytest.mark.usefixtures("warm_workers")


def test_summary(run: Any, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    result = run("prepare", corpus, "--output", tmp_path / "out", "--tokenizer", tokenizer, "--append-eod")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: complete"
    assert lines[1] == "  documents  100"
    assert re.fullmatch(r"  input      2 files, [\d.]+ kB", lines[3])
    assert lines[4] == f"  tokeniser  {tokenizer}, vocabulary 100, end of document 1"
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
    result = run(*common, "--shard-tokens", 3, "--filter", "min_tokens=2", "--deduplicate", "--on-error", "skip")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "  documents  3 (bad 2, duplicate 1, min_tokens 1 dropped)" in lines
    assert "  special    1 text with the name of a special token: literal" in lines
    assert any(line.startswith("  files      text_document_00000.bin ") for line in lines)
    assert next(line for line in lines if "files" in line).endswith(" and 2 more")
    assert lines[-3] == "  2 bad records skipped, all listed in headrace.json:"
    assert lines[-2].startswith(f"    {tmp_path / 'in.jsonl'}, line 6: no field 'text'")
    assert lines[-1].startswith(f"    {tmp_path / 'in.jsonl'}, line 7: malformed JSON")


STAGE = ("in.jsonl", "-o", "out", "--tokenizer", "t")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("", PrepareOptions()),
        ("--field body", PrepareOptions(records=RecordOptions(fields=("body",)))),
        ("--field a --field b", PrepareOptions(records=RecordOptions(fields=("a", "b")))),
        ("--field a --field b --join ;", PrepareOptions(records=RecordOptions(fields=("a", "b"), join=";"))),
        ("--id-field url", PrepareOptions(records=RecordOptions(id_field="url"))),
        ("--sample-by paragraph", PrepareOptions(records=RecordOptions(sample_by="paragraph"))),
        ("--max-record-bytes 2000000", PrepareOptions(records=RecordOptions(max_record_bytes=2_000_000))),
        ("--append-eod --eod 07", PrepareOptions(tokens=TokenOptions(append_eod=True, eod=7))),
        ("--append-eod --eod </s>", PrepareOptions(tokens=TokenOptions(append_eod=True, eod="</s>"))),
        ("--bos auto", PrepareOptions(tokens=TokenOptions(bos="auto"))),
        ("--bos 0", PrepareOptions(tokens=TokenOptions(bos=0))),
        ("--bos <s>", PrepareOptions(tokens=TokenOptions(bos="<s>"))),
        ("--special-tokens-in-text encode", PrepareOptions(tokens=TokenOptions(special_tokens_in_text="encode"))),
        ("--backend fastokens", PrepareOptions(tokens=TokenOptions(backend="fastokens"))),
        ("--filter min_chars=1,max_chars=9", PrepareOptions(filters=FilterSpec(min_chars=1, max_chars=9))),
        ("--filter min_tokens=0,max_tokens=5", PrepareOptions(filters=FilterSpec(min_tokens=0, max_tokens=5))),
        ("--filter mine:keep", PrepareOptions(filters=FilterSpec(function="mine:keep"))),
        ("--deduplicate", PrepareOptions(deduplicate=True)),
        ("--format keyed", PrepareOptions(output=OutputOptions(format="keyed"))),
        ("--shard-tokens 7", PrepareOptions(output=OutputOptions(shard_tokens=7))),
        ("--shard-tokens none", PrepareOptions(output=OutputOptions(shard_tokens=None))),
        ("--on-error skip", PrepareOptions(errors=ErrorOptions(on_error="skip"))),
        ("--on-error skip,max_errors=0", PrepareOptions(errors=ErrorOptions(on_error="skip", max_errors=0))),
        ("--on-error skip,max_errors=0.25", PrepareOptions(errors=ErrorOptions(on_error="skip", max_errors=0.25))),
        ("--on-error skip,max_errors=0.5%", PrepareOptions(errors=ErrorOptions(on_error="skip", max_errors=0.005))),
        ("--on-error skip,max_errors=0%", PrepareOptions(errors=ErrorOptions(on_error="skip", max_errors=0.0))),
        ("--workers 3", PrepareOptions(workers=3)),
        ("--overwrite", PrepareOptions(overwrite=True)),
        ("--restart", PrepareOptions(restart=True)),
    ],
)
@pytest.mark.parametrize("function", ["prepare", "estimate"])
def test_options_reach_the_run(
    run: Any, monkeypatch: pytest.MonkeyPatch, function: str, arguments: str, options: PrepareOptions
) -> None:
    given: list[Any] = []

    def stand_in(inputs: Any, *output: Any, tokenizer: Any, options: PrepareOptions, **callbacks: Any) -> None:
        given.extend([inputs, *output, tokenizer, options])
        raise ConfigError("enough")

    monkeypatch.setattr(f"headrace.preparing.{function}", stand_in)
    is_dry = function == "estimate"
    assert run("prepare", *STAGE, *arguments.split(), *["--dry-run"] * is_dry).stderr.startswith("error: enough\n")
    assert given == [("in.jsonl",), *["out"] * (not is_dry), "t", options]


def test_options_do_what_they_say(run: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = [{"title": "w1", "body": "w2 w3", "n": 1}, {"title": "w4", "body": "w5", "n": 2}]
    Path("in.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    common = ["prepare", "in.jsonl.gz", "--tokenizer", tokenizer, "--workers", 1, "-o"]
    both = ["--field", "title", "--field", "body"]
    with monkeypatch.context() as patch:
        patch.setattr(progress, "PLAIN_EVERY_S", 0)
        made = run(*common, "two", *both, "--append-eod", "--eod", "w97", "--bos", 0)
    assert made.exit_code == 0
    phases = dict.fromkeys(line.partition("  ")[0].rstrip(" 0123456789.%") for line in made.stderr.splitlines())
    assert list(phases) == ["loading the tokeniser", "encoding", "cutting shards", "joining shards"]
    assert content(tmp_path / "two")["title"] == [[0, 3, 99], [0, 6, 99]]
    assert content(tmp_path / "two")["body"] == [[0, 4, 5, 99], [0, 7, 99]]
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


KEEP = """import sys
from pathlib import Path


def keep(record):
    Path("argv").write_text(" ".join(sys.argv))
    return True
"""


def test_workers_are_forks_of_the_command(tokenizer: Path, tmp_path: Path) -> None:
    """A worker that starts anew has other arguments."""
    (tmp_path / "seen.py").write_text(KEEP)
    (tmp_path / "in.jsonl").write_text('{"text": "w1 w2"}\n')
    options = ("--tokenizer", tokenizer, "--output", "out", "--filter", "seen:keep", "--workers", "1", "--quiet")
    command = [sys.executable, "-m", "headrace", "prepare", "in.jsonl", *map(str, options)]
    path = os.pathsep.join([str(tmp_path), *(str(Path(one).resolve()) for one in sys.path if one)])
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True)
    assert (tmp_path / "argv").read_text().endswith(" ".join(map(str, ("in.jsonl", *options))))


def test_standard_input(tokenizer: Path, tmp_path: Path) -> None:
    arguments = ["prepare", "-", "-o", str(tmp_path / "out"), "--tokenizer", str(tokenizer), "--json"]
    result = CliRunner().invoke(main, arguments, input=b'{"text": "w1 w2"}\n', catch_exceptions=False)
    assert json.loads(result.stdout)["documents"] == 1
    assert documents(tmp_path / "out") == [[3, 4]]
    empty = CliRunner().invoke(main, [*arguments, "--overwrite"], input=b"", catch_exceptions=False)
    assert empty.exit_code == 3
    assert "standard input is empty" in json.loads(empty.stdout)["error"]["message"]


def test_the_forms(run: Any, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/000.tar").touch()
    result = run("prepare", corpus, "-o", tmp_path / "out")
    assert result.exit_code == 2
    for form in ("text (files, ", "--recipe FILE", "folder of .tar", "--format tar"):
        assert form in result.stderr
    assert "holds .tar shards" in run("prepare", tmp_path / "shards", "-o", tmp_path / "o").stderr
    assert not (tmp_path / "out").exists()


def test_errors_name_file_and_line(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "w1"}\n{"text": 3}\n')
    result = run("prepare", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--tokenizer", tokenizer)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"error: {tmp_path / 'in.jsonl'}, line 2: field 'text'")
    assert "--on-error skip.\n" in result.stderr


def test_misuse_as_json(run: Any) -> None:
    for arguments, named in (("-o out --tokenizer t", "no INPUT"), ("in.jsonl -o out --shufle 3", "'--shufle'")):
        result = run("prepare", *arguments.split(), "--json")
        error = json.loads(result.stdout)["error"]
        assert (result.exit_code, error["kind"], error["exit_code"]) == (2, "ConfigError", 2)
        assert named in result.stderr
        assert named in error["message"]


@pytest.mark.parametrize("quiet", [False, True])
def test_notices(run: Any, monkeypatch: pytest.MonkeyPatch, prepared: Path, quiet: bool) -> None:
    from headrace.stores import load_manifest

    def stand_in(inputs: Any, output: Any, *, on_notice: Any, **rest: Any) -> Any:
        on_notice("continuing the unfinished run in this folder")
        return load_manifest(prepared)

    monkeypatch.setattr("headrace.preparing.prepare", stand_in)
    result = run("prepare", *STAGE, *["--quiet"] * quiet)
    if quiet:
        assert result.output == ""
        return
    assert result.stderr == "note: continuing the unfinished run in this folder\n"
    # Speeds of a run of which only the end was seen would be too good to be true.
    assert re.fullmatch(r"  time       [\d.]+ s since the run continued", result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 MB, of which a dry run reads less than half; documents of 0 to 900 words."""
    path = tmp_path_factory.mktemp("large") / "in.jsonl"
    words = " ".join(f"w{number % 98}" for number in range(900)) + " "
    lines = [json.dumps({"text": words[: 7 * (number * 61 % 503)]}) + "\n" for number in range(12_000)]
    path.write_text("".join(lines))
    return path


def test_a_dry_run_for_people(
    run: Any, large: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("prepare", large, "--tokenizer", tokenizer, "--dry-run", "-o", "out", "--filter", "min_chars=50")
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


def test_the_library_that_encodes_is_another(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"first_error": "", "dtype": "int32", "backend": "tokenizers", "fallback": "fastokens differs"}
    numbers = dict.fromkeys(Estimate.__struct_fields__, 0)
    estimate = Estimate(**{**numbers, **words, "dropped": {}, "is_exact": False})
    monkeypatch.setattr("headrace.preparing.estimate", lambda *inputs, **options: estimate)
    lines = run("prepare", "in.jsonl", "--tokenizer", "t", "--dry-run").stdout.splitlines()
    assert lines[-1] == "  backend    tokenizers, since fastokens differs"


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


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, list[str], dict[str, Any]]:
    """The subcommand that these arguments call, its inputs, and the options that are given."""
    seen: list[Any] = []

    def stand_in(self: Command, context: click.Context) -> None:
        given = {param.opts[-1]: context.params[param.name] for param in self.params if is_given(param, context)}
        seen.append((self.name, list(given.pop("inputs", ())), given))

    monkeypatch.setattr(Command, "invoke", stand_in)
    command.main(list(arguments), standalone_mode=False, help_option_names=["-h", "--help"])
    assert len(seen) == 1
    found: tuple[str, list[str], dict[str, Any]] = seen[0]
    return found


@pytest.mark.parametrize(
    ("bare", "named"),
    [
        ("a b --tokenizer t -o out --append-eod -q", "text a b --tokenizer t -o out --append-eod -q"),
        ("-q --field x --field y a --output=out --tokenizer t", "text a -o out --tokenizer t --field x --field y -q"),
        ("a -o out --tokenizer t --join --field --field x", "text a -o out --tokenizer t --join --field --field x"),
        ("-o out -- -a", "text -o out -- -a"),
        ("- -o out --append-eod --eod -1", "text - -o out --append-eod --eod -1"),
        ("a --recipe r -o out --now 2026-03-01", "text a --recipe r -o out --now 2026-03-01"),
        ("--recipe r --format hdf5 --json", "text --recipe r --format hdf5 --json"),
        ("a --format tar -o out --part a=row --part b=row", "media a -o out --part a=row --part b=row"),
        ("a --format=tar --overwrite --shuffle 1", "media a --overwrite --shuffle 1"),
        ("--executor slurm,time=3 a -o out --tokenizer t", "text a -o out --tokenizer t --executor slurm,time=3"),
        ("a --tar-index-only --workers 3", "energon a --tar-index-only --workers 3"),
        ("tars --split-ratio 8,1,1", "energon tars --split-ratio 8,1,1"),
        ("texts.jsonl", "energon texts.jsonl"),
        ("texts.jsonl -o out", "text texts.jsonl -o out"),
        ("tars -o out", "text tars -o out"),
    ],
)
def test_the_bare_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: str, named: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tars").mkdir()
    Path("tars/a.tar").touch()
    Path("texts.jsonl").touch()
    found = called(monkeypatch, *bare.split())
    assert found == called(monkeypatch, *named.split())
    assert found[0] == named.split()[0]


def test_a_path_that_is_called_like_a_subcommand(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in command.commands:
        Path(name).mkdir()
    Path("energon/a.tar").touch()
    assert called(monkeypatch, "text", "more", "-o", "out")[:2] == ("text", ["more"])
    assert capsys.readouterr().err == "note: text is the subcommand here; for the path write ./text\n"
    assert called(monkeypatch, "energon", "./energon")[:2] == ("energon", ["./energon"])
    capsys.readouterr()
    assert called(monkeypatch, "./energon")[:2] == ("energon", ["./energon"])
    assert capsys.readouterr().err == ""


def test_several_files_without_a_tokeniser_are_told_what_is_missing(run: Any, tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        file.write_text('{"text": "a"}\n')
    assert "--tokenizer is missing" in run("prepare", *map(str, files)).stderr


def test_a_subcommand_has_its_own_help(run: Any) -> None:
    assert run("prepare", "media", "--help").stdout.startswith("Usage: main prepare media [OPTIONS] INPUT...")
    assert run("prepare", "--tokenizer", "t", "-h").stdout.startswith("Usage: main prepare [OPTIONS]")
    assert "No such option '--bogus'" in run("prepare", "media", "--bogus").stderr


GROUPS = {"text": ["Records", "Tokens", "Output"], "media": ["Source", "Output"], "energon": ["Split", "Dataset"]}


@pytest.mark.parametrize("name", GROUPS)
def test_help_is_in_groups(run: Any, name: str) -> None:
    shown = run("prepare", name, "--help").stdout
    assert all(shown.count(f"\n{heading}:\n") == 1 for heading in ("Options", *GROUPS[name]))
    options = [one for one in command.commands[name].params if isinstance(one, click.Option)]
    assert [one.opts[-1] for one in options if f" {one.opts[-1]}" not in shown] == []


SLOW = """
import time
from pathlib import Path

def keep(record):
    if record["n"] > 9000 and Path("slow").exists():
        time.sleep(0.02)
    return True
"""


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
    arguments = f"prepare in.jsonl --tokenizer {tokenizer} --filter slow_filter:keep --workers 1 -o".split()
    assert run(*arguments, "whole").exit_code == 0

    Path("slow").touch()
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments, "out", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until_s = time.monotonic() + PATIENCE_S
        while not any(Path("out").glob(f"{WORK_NAME}/phase-*/receipts/*/*.json")) and time.monotonic() < until_s:
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
    assert (refused.exit_code, "tokens.append_eod was False, is True" in refused.stderr) == (6, True)
    result = run(*arguments, "out")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("note: continuing the unfinished run in this folder: ")
    assert files(Path("out")) == files(Path("whole"))
