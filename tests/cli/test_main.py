"""What all commands share: help, names, errors, exit codes, start-up."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headrace import __version__, errors
from headrace.cli import COMMANDS
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
    assert run("--version").stdout == f"headrace, version {__version__}\n"


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
