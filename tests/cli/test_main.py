"""What all commands share: help, names, errors, exit codes, start-up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import __version__, errors
from headrace.cli import COMMANDS, TASKS
from headrace.cli.command import AWAY
from headrace.inspect import figures


def test_help_lists_every_command(run: Any) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command(run: Any, name: str) -> None:
    result = run(name, "-h")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: main {name} [OPTIONS]")
    assert "--json" in result.stdout


def test_version(run: Any) -> None:
    assert run("--version").stdout == f"headrace {__version__}\n"


def test_versions_for_the_report_of_a_bug(run: Any) -> None:
    lines = run("--version", "--verbose").stdout.splitlines()
    assert lines[0] == f"headrace {__version__}"
    assert f"  numpy      {np.__version__}" in lines
    assert any(line.startswith("  [fast]     fastokens ") for line in lines)
    assert not any("pytest" in line for line in lines)
    alone = run("--verbose", "info", "nowhere")
    assert (alone.exit_code, "write headrace --version --verbose" in alone.stderr) == (2, True)


def test_help_has_each_command_below_one_task(run: Any) -> None:
    listed = [name for names in TASKS.values() for name in names if name in COMMANDS]
    assert sorted(listed) == sorted(COMMANDS)
    text = run("--help").stdout
    begins = [text.index(f"\n{task}:\n") for task in TASKS]
    assert begins == sorted(begins)


def test_commands_are_completed() -> None:
    program = "from headrace.cli import main; main(prog_name='headrace')"
    for words, expected in (("headrace prev", "plain,preview"), ("headrace info --pa", "plain,--pack")):
        asked = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        environment = {**os.environ, **asked}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert expected in done.stdout.splitlines(), done.stderr


MISTAKES = """
info nowhere
info empty
info odd
check nowhere
preview nowhere
preview STORE --num 0
preview STORE --documents 5-2
preview STORE --documents 999
ls STORE
ls no.tar
cat STORE key
render no.yaml --record 0
render typo.yaml --record 0
prepare recipe typo.yaml -o out
prepare text nowhere.jsonl -o out --tokenizer TOKENIZER
prepare text bad.jsonl -o out --tokenizer TOKENIZER --workers 1
prepare text bad.jsonl -o out --tokenizer nowhere.json
prepare text bad.jsonl -o out
prepare text bad.jsonl -o out --tokenizer TOKENIZER --workers 0
prepare media empty -o out
prepare energon empty
merge STORE -o STORE
merge STORE nowhere -o out
convert STORE STORE --format keyed
split STORE out
split STORE out --split 0,0
where STORE 999
where nowhere 1
trace step 3 --run nowhere.json
trace step 3 --run typo.json
account typo.json
run show typo.json
measure no.tar --encoder no:Thing
measure no.tar --encoder nothing
quarantine no.tar --from nowhere
export-cache STORE --num-samples x
job status nowhere
job task nowhere
job finish nowhere
info STORE --pack 0
nothing
info
info --nothing
--nothing
"""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_an_error_is_one_line_that_says_what_to_do(
    run: Any, mistake: str, prepared: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in {
        "odd.bin": "1",
        "odd.idx": "2",
        "no.tar": "no tar",
        "typo.yaml": "type: sftt",
        "typo.json": "{}",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bad.jsonl").write_text('{"text": 5}\n')
    arguments = mistake.replace("STORE", str(prepared)).replace("TOKENIZER", str(tokenizer)).split()
    result = run(*arguments)
    said = result.stderr.splitlines()
    assert result.exit_code > 1
    if said[0].startswith("Usage: "):  # click's own form
        assert re.search(r"Try 'main.* --help' for help\.", said[1]), said
        assert said[-1].startswith("Error: ")
    else:
        assert [line.partition(":")[0] for line in said if not line.startswith("note")] == ["error"], said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "ending"), [(errors.StoreAwayError, f"to do: {AWAY}\n"), (errors.StoreError, "")])
def test_only_if_nothing_is_at_fault_a_line_says_what_to_do(
    run: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], ending: str
) -> None:
    def fail(path: str, **options: object) -> None:
        raise kind("s3://b/x: what happened")

    monkeypatch.setattr("headrace.inspect.describe", fail)
    assert run("info", "anything").stderr == f"error: s3://b/x: what happened\n{ending}"


@pytest.mark.parametrize(("typed", "meant"), [("prepar", "prepare"), ("chek", "check"), ("infos", "info")])
def test_did_you_mean(run: Any, typed: str, meant: str) -> None:
    result = run(typed)
    assert result.exit_code == 2
    assert f"no such command '{typed}'; did you mean '{meant}'?" in result.stderr
    assert result.stdout == ""


def test_a_name_like_no_command(run: Any) -> None:
    assert f"no such command 'xyz'; the commands are: {', '.join(COMMANDS)}." in run("xyz").stderr


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from headrace.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('heavy:', [name for name in ('numpy', 'tokenizers', 'msgspec', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")


@pytest.mark.parametrize("command", ["info", "check", "prepare", "preview"])
@pytest.mark.sampled(2)
def test_no_command_imports_torch(command: str, prepared: Any, corpus: Any, tokenizer: Any, tmp_path: Any) -> None:
    arguments = [command, str(prepared)]
    if command == "prepare":
        arguments = [command, str(corpus), "--output", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]
    program = (
        "import sys; from headrace.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 False\n")


@pytest.mark.parametrize(
    "kind",
    [errors.ConfigError, errors.InputError, errors.StoreError, errors.OutputError, errors.WorkerError],
)
def test_each_error_has_its_exit_code(run: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def fail(path: str, **options: object) -> None:
        raise kind("what happened")

    monkeypatch.setattr("headrace.inspect.describe", fail)
    result = run("info", "anything")
    assert (result.exit_code, result.stdout, result.stderr) == (kind.exit_code, "", "error: what happened\n")


def test_an_unexpected_exception_shows_itself(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("headrace.inspect.describe", fail)
    with pytest.raises(ZeroDivisionError):
        run("info", "anything")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (999.6, "1.00 k"),
        (1234, "1.23 k"),
        (56_789, "56.8 k"),
        (999_499, "999 k"),
        (3.2e9, "3.20 G"),
    ],
)
def test_short_numbers(number: float, text: str) -> None:
    assert figures.short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (99.9, "99.9 s"),
        (99.96, "1 min 40 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (98_000, "1 d 03 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text
