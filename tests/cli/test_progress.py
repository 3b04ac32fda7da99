"""The moving line."""

from __future__ import annotations

import io

import pytest

from headrace.cli.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_each_text_takes_the_place_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    with ProgressLine(quiet=False, stream=stream) as line:
        line.show("one")
        assert not line.is_due
        line.show("x" * 50)
    assert stream.getvalue() == "\r\x1b[Kone\r\x1b[K" + "x" * 19 + "\r\x1b[K"


def test_elsewhere_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with ProgressLine(quiet=False, stream=stream) as line:
        assert not line.is_due
        monkeypatch.setattr("headrace.cli.progress.PLAIN_EVERY_S", 0.0)
        assert line.is_due
        line.show("one")
    assert stream.getvalue() == "one\n"


def test_quiet() -> None:
    stream = Terminal()
    with ProgressLine(quiet=True, stream=stream) as line:
        line.show("one")
        assert not line.is_due
    assert stream.getvalue() == ""
