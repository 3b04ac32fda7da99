"""What all commands share: help, names, errors with the nearest right name, exit codes, start-up, progress."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commands_made
import headrace
from headrace import Packing, __version__, errors, inspect
from headrace.cli import COMMANDS, TASKS, progress
from headrace.cli.command import AWAY, print_blocks
from headrace.cli.progress import ProgressBar
from headrace.config import nearest_path
from headrace.errors import ConfigError
from headrace.inspect import figures
from headrace.inspect.blocks import Pairs, Tabular
from headrace.preparing import prepare
from tars_made import write_tar


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command(run: Any, name: str) -> None:
    result = run(name, "-h")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: main {name} [OPTIONS]")
    assert "--json" in result.stdout


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


IMPORTED = """
import json, sys
from headrace.cli import main
commands, heavy = json.loads(sys.argv[1])
codes = []
for arguments in commands:
    try: main(arguments)
    except SystemExit as end: codes.append(end.code)
print(codes, [name for name in heavy if name in sys.modules])
"""


def imported(commands: list[tuple[Any, ...]], *heavy: str) -> str:
    """The last line of a process that runs these commands: their exit codes, and which modules it has."""
    asked = json.dumps([[[str(argument) for argument in command] for command in commands], heavy])
    done = subprocess.run([sys.executable, "-c", IMPORTED, asked], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_help_imports_nothing_heavy() -> None:
    assert imported([("--help",)], "numpy", "tokenizers", "msgspec", "torch") == "[0] []"


def test_no_command_imports_torch(prepared: Path, corpus: Path, tokenizer: Path, folder: Path, tmp_path: Path) -> None:
    """Not even to decode videos."""
    mixed = folder / "mixed"
    commands = [
        *(("info", prepared), ("check", prepared), ("preview", prepared), ("info", mixed)),
        ("prepare", corpus, "--output", tmp_path / "out", "--tokenizer", tokenizer),
        ("check", mixed, "--decode", "--workers", 1),
        ("preview", mixed, "--num", 7, "--images", "blocks"),
        *(("ls", mixed, "-l"), ("cat", mixed, "v/1")),
    ]
    assert imported(commands, "torch") == f"{[0] * len(commands)} []"


@pytest.mark.parametrize(
    "kind",
    [
        *(errors.ConfigError, errors.InputError, errors.StoreError),
        *(errors.OutputError, errors.WorkerError, errors.StoreAwayError),
    ],
)
def test_each_error_has_its_exit_code(run: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """Only if nothing is at fault a line says what to do."""

    def fail(path: str, **options: object) -> None:
        raise kind("what happened")

    run("info", "--help")  # makes its options, of the function that is replaced then
    monkeypatch.setattr("headrace.inspect.describe", fail)
    result = run("info", "anything")
    more = f"to do: {AWAY}\n" if kind is errors.StoreAwayError else ""
    assert (result.exit_code, result.stdout) == (kind.exit_code, "")  # type: ignore[attr-defined]
    assert result.stderr == f"error: what happened\n{more}"


def test_an_unexpected_exception_shows_itself(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, **options: object) -> None:
        raise ZeroDivisionError

    run("info", "--help")  # makes its options, of the function that is replaced then
    monkeypatch.setattr("headrace.inspect.describe", fail)
    with pytest.raises(ZeroDivisionError):
        run("info", "anything")


def test_short_numbers_and_durations() -> None:
    numbers = (0, 999, 999.6, 1234, 56_789, 999_499, 3.2e9)
    assert [*map(figures.short, numbers)] == ["0 ", "999 ", "1.00 k", "1.23 k", "56.8 k", "999 k", "3.20 G"]
    seconds = (0.04, 99.9, 99.96, 3599.6, 7500, 98_000)
    texts = ["0.0 s", "99.9 s", "1 min 40 s", "1 h 00 min", "2 h 05 min", "1 d 03 h"]
    assert [*map(figures.duration, seconds)] == texts


def test_the_nearest_path(tmp_path: Path) -> None:
    (tmp_path / "data/train").mkdir(parents=True)
    for name in ("data/train/part-0.jsonl", "web_text_document.bin", "web_text_document.idx"):
        (tmp_path / name).touch()
    for wrong, near in {
        "data/train/part0.jsonl": "data/train/part-0.jsonl",
        "data/trian/part-0.jsonl": "data/train",
        "dta": "data",
        "web_text_documents": "web_text_document",
        "web_text_document.ixd": "web_text_document.idx",
    }.items():
        assert nearest_path(tmp_path / wrong) == f"; did you mean {str(tmp_path / near)!r}?", wrong
    for wrong in ("quite/another", "data/train/part-0.jsonl/below", "x" * 300, "nul\0"):
        assert nearest_path(f"{tmp_path}/{wrong}") == "", wrong
    assert nearest_path("s3://bucket/key") == ""


def test_the_nearest_key_and_column(prepared: Path, tokenizer: Path, tmp_path: Path) -> None:
    windows = headrace.WindowDataset.open(prepared, seq_len=8)
    children = {"web": windows, "code": windows}
    stages = [headrace.datasets.Stage(weights={"wbe": 1.0})]
    (tmp_path / "in.jsonl").write_text(json.dumps({"texts": "w1"}) + "\n")
    for act, named in (
        (lambda: headrace.Blend(children, weights={"wbe": 1, "code": 1}), r"'wbe'.*'web'"),
        (lambda: headrace.datasets.ScheduledBlend(children, stages), r"'wbe'.*'web'"),
        (
            lambda: prepare([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tokenizer),
            r"'text'.*'texts'.*'texts'",
        ),
    ):
        with pytest.raises(ConfigError, match=named):
            act()


CURSOR_BACK = "\x1b[?25h"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(progress, "BAR_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_terminal_has_a_bar_for_each_phase() -> None:
    stream = Terminal()
    threads = threading.active_count()
    with ProgressBar(quiet=False, stream=stream) as bar:
        bar.update("encoding [b]", 0, 200, text="0 documents", speeds={"B": 0})
        bar.update("encoding [b]", 90, 200, text="1,234 documents", speeds={"B": 50_000})
        shown = stream.getvalue()
        assert "encoding [b]" in shown
        assert " 45.0%  1,234 documents  " in shown
        assert "B/s  " in shown
        assert " left" in shown
        assert "━" in shown
        bar.note("note: one [b] is said")
        bar.update("finishing")
        last = stream.getvalue()[len(shown) :]
        assert last.index("note: one [b] is said\n") < last.index("finishing")
        assert "done" in last
        # Processes may be forked while it is drawn.
        assert threading.active_count() == threads
    assert stream.getvalue().endswith(CURSOR_BACK + "\r\x1b[1A\x1b[2K\x1b[1A\x1b[2K"), "nothing of it is left"


def test_a_phase_has_its_name_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be long before there is more to say, as where a library is loaded."""
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with ProgressBar(quiet=False, stream=stream) as bar:
        bar.update("loading the tokeniser")
        assert "loading the tokeniser" in stream.getvalue()
        bar.update("encoding", 0, 100)
        assert "encoding" in stream.getvalue()
        shown = stream.getvalue()
        bar.update("encoding", 10, 100)
        assert stream.getvalue() == shown


@pytest.mark.usefixtures("at_once")
def test_elsewhere_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    times = iter([100.0, 110.0, 130.0, 140.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with ProgressBar(quiet=False, stream=stream) as bar:
        # Of the first 1,000 nobody knows how long they took: an earlier run did them.
        bar.update("encoding", 1_000, 4_000, text="5 documents", speeds={"B": 1_000})
        bar.update("encoding", 2_000, 4_000, text="9 documents", speeds={"B": 2_000, "tokens": 0})
        bar.update("sorting", text="three")
    assert stream.getvalue().splitlines() == [
        "encoding  25.0%  5 documents",
        "encoding  50.0%  9 documents  50 B/s  40.0 s left",
        "sorting  three",
    ]


def test_the_first_plain_line_waits() -> None:
    stream = io.StringIO()
    with ProgressBar(quiet=False, stream=stream) as bar:
        bar.update("encoding", 1, 4)
        bar.update("sorting", 1, 4)
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_quiet(stream: io.StringIO) -> None:
    with ProgressBar(quiet=True, stream=stream) as bar:
        bar.update("encoding", 1, 4)
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("at_once")
def test_a_dumb_terminal_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressBar(quiet=False, stream=stream) as bar:
        bar.update("encoding", 1, 4)
    assert stream.getvalue() == "encoding  25.0%\n"


def test_reports_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ["a [b] c", Pairs([("name", "value")]), Tabular(("one", "two"), [("1", "2")])]
    print_blocks(shown)
    plain = "a [b] c\n  name  value\n  one  two\n    1    2\n"
    assert capsys.readouterr().out == plain
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_blocks(shown)
    assert isinstance(sys.stdout, Terminal)
    assert sys.stdout.getvalue().splitlines() == [
        "a [b] c",
        "\x1b[2m  name\x1b[0m  value",
        "\x1b[1m  one  two\x1b[0m",
        "    1    2",
    ]


# What commands print with ``--json`` is what version 0.1 printed, and what `headrace.inspect` returns.


GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "commands.json").read_text())


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("commands"))
    try:
        return commands_made.made()
    finally:
        os.chdir(here)


def test_all_commands_are_known(printed: dict[str, Any]) -> None:
    assert list(printed) == list(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_command_prints_what_it_printed(printed: dict[str, Any], name: str) -> None:
    assert printed[name] == GOLDEN[name]


@pytest.fixture(scope="module")
def paths(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A path of each kind."""
    root = tmp_path_factory.mktemp("kinds")
    write_tar(root / "a.tar", [(f"{number}.txt", b"text %d" % number) for number in range(5)])
    mix = {"splits": {"train": {"path": str(prepared), "windows": {"window_tokens": 16}}}}
    (root / "mix.yaml").write_text(json.dumps(mix))
    return {"tokens": str(prepared), "samples": str(root / "a.tar"), "metadataset": str(root / "mix.yaml")}


@pytest.mark.parametrize("kind", ["tokens", "samples", "metadataset"])
def test_answers_are_what_is_printed(run: Any, of_json: Any, paths: dict[str, str], kind: str) -> None:
    path = paths[kind]
    assert inspect.kind_of(path) == kind
    assert inspect.describe(path).to_dict() == of_json("info", path)
    assert run("info", path).stdout.splitlines() == inspect.describe(path).lines()
    checked = inspect.check(path)
    assert {**checked.to_dict(), "seconds": 0} == {**of_json("check", path), "seconds": 0}
    assert (checked.ok, checked.fault_lines()) == (True, [])
    assert run("check", path).stdout.splitlines()[:-1] == checked.lines()[:-1]
    figures = {"with_figures": True} if kind == "tokens" else {}
    assert inspect.preview(path, num=2, **figures).to_dict() == of_json("preview", path, "--num", 2)


def test_origins_are_what_is_printed(run: Any, of_json: Any, paths: dict[str, str]) -> None:
    found = inspect.where(paths["tokens"], [3, 70])
    assert found.to_dict() == of_json("where", paths["tokens"], 3, 70)
    assert run("where", paths["tokens"], 3, 70).stdout.splitlines() == found.lines()
    with pytest.raises(ConfigError, match="'three'"):
        inspect.where(paths["tokens"], "three")


def test_packs_are_a_part_of_the_answer(of_json: Any, paths: dict[str, str]) -> None:
    packing = Packing(seq_len=64, over_long="truncate_right")
    found = inspect.check(paths["tokens"], packing=packing).to_dict()
    arguments = ("check", paths["tokens"], "--pack", "64,over_long=truncate_right")
    assert found["packs"] == of_json(*arguments)["packs"]
    assert inspect.describe(paths["tokens"], packs=[64]).to_dict() == of_json("info", paths["tokens"], "--pack", 64)


REFUSED = [
    ("check", "samples", {"key": "text"}, "`key`"),
    ("check", "samples", {"workers": 2}, "`workers=2`"),
    ("preview", "tokens", {"order": "none"}, "`order`"),
    ("preview", "samples", {"order": "random"}, "`order`"),
    ("preview", "tokens", {"order": "longest", "samples": [0]}, "`order` and `samples`"),
    ("preview", "metadataset", {"order": "longest"}, "`order` is 'longest'"),
    ("preview", "tokens", {"nmu": 3}, "nmu.*'num'"),
    ("preview", "samples", {"num": 0}, "`num=0`.*1,000"),
    ("describe", "samples", {"steps": 3}, "`steps` is for metadatasets"),
]


@pytest.mark.parametrize(("function", "kind", "options", "named"), REFUSED)
def test_what_is_refused(paths: dict[str, str], function: str, kind: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        getattr(inspect, function)(paths[kind], **options)


def test_options_that_ask_for_nothing_are_for_all_kinds(paths: dict[str, str]) -> None:
    assert inspect.check(paths["tokens"], decode=False, workers=None).ok
