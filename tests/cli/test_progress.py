"""Progress and reports: bars and colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.cli import progress
from headrace.cli.command import print_report
from headrace.cli.progress import ProgressBar
from headrace.inspect.figures import listing, table

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


def test_a_note_before_all_else() -> None:
    stream = Terminal()
    with ProgressBar(quiet=False, stream=stream) as bar:
        bar.note("note: one")
    assert stream.getvalue() == "note: one\n"


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
    lines = ["a [b] c", *listing([("name", "value")]), *table([("one", "two"), ("1", "2")])]
    print_report(lines)
    plain = "a [b] c\n  name  value\n  one  two\n    1    2\n"
    assert capsys.readouterr().out == plain
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_report(lines)
    assert isinstance(sys.stdout, Terminal)
    assert sys.stdout.getvalue().splitlines() == [
        "a [b] c",
        "\x1b[2m  name\x1b[0m  value",
        "\x1b[1m  one  two\x1b[0m",
        "    1    2",
    ]


def in_terminal(command: list[str], cwd: Path) -> tuple[int, str, str]:
    """The exit code of a command, its output, and what it wrote to the terminal that was its standard error."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "110"}
    output = cwd / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=its, env=environment)
    os.close(its)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # how Linux tells the end of a terminal
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    return process.wait(), output.read_text(), shown.decode()


def test_a_run_on_a_real_terminal(tmp_path: Path, tokenizer: Path) -> None:
    """Bars while it runs, its workers being forks, and a clean terminal behind it."""
    (tmp_path / "texts.jsonl").write_text('{"text": "word1 word2"}\n' * 2_000)
    arguments = ["prepare", tmp_path / "texts.jsonl", "--output", tmp_path / "store", "--tokenizer", tokenizer]
    program = "from headrace.cli import main, progress; progress.BAR_EVERY_S = 0; main()"
    command = [sys.executable, "-c", program, *map(str, arguments), "--workers", "2", "--json"]
    code, output, shown = in_terminal(command, tmp_path)
    assert code == 0, shown
    assert json.loads(output)["documents"] == 2_000
    frames = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\x1b|━|╸|╺", "", line).strip() for line in re.split(r"[\r\n]+", shown)]
    phases = list(dict.fromkeys(re.sub(r"  .*| +[\d.]+%.*| done", "", line) for line in frames if line))
    assert phases[0] == "loading the tokeniser"
    assert phases[-2:] == ["encoding", "finishing"]
    encoding = [line for line in frames if line.startswith("encoding") and "documents" in line]
    shape = r"encoding +[\d.]+%  [\d,]+ documents(  [\d.]+ [kM]?B/s  [\d.]+ [kM]?tokens/s)?(  .* left)?"
    assert encoding
    assert all(re.fullmatch(shape, line) for line in encoding), encoding
    assert frames[-1] == "", "the terminal is clean behind it"
