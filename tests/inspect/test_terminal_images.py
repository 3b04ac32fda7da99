"""Pictures in terminals: half blocks to the colour, and a terminal of our own that says what it can."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

import media_made
from counts import cases
from headrace.errors import ConfigError, MissingExtraError
from headrace.inspect import terminal as terminal_images
from headrace.inspect.terminal import blocks, choose_images, drawer

SIZES = st.tuples(st.integers(1, 700), st.integers(1, 700))
PATIENCE_S = 120
PROGRAM = """
import sys
from PIL import Image
from headrace.inspect.terminal import choose_images, drawer
if {without}:
    sys.modules["textual_image"] = None
    import importlib.util as found
    found.find_spec = lambda name: None
how = choose_images(None, sys.stdout, {{}})
print("how", how, flush=True)
print(drawer(how, {{}})(Image.new("RGB", (40, 20), (255, 0, 0))), flush=True)
print("after", flush=True)
"""


def picture(size: tuple[int, int] = (600, 400)) -> Any:
    return Image.fromarray(media_made.pixels(size[1], size[0]))


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize("environment", [{"TERM": "xterm-kitty"}, {}])
def test_what_is_chosen(environment: dict[str, str]) -> None:
    assert choose_images(None, Stream(True), environment) == "blocks"  # nobody there who could be asked
    assert choose_images(None, Stream(False), environment) == "none"
    assert choose_images(None, Stream(True), {**environment, "NO_COLOR": "1"}) == "none"
    assert choose_images(None, Stream(True), {"TERM": "dumb"}) == "none"
    assert choose_images("blocks", Stream(False), environment) == "blocks"


def test_what_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="`images=png`"):
        choose_images("png", Stream(True), {})
    with pytest.raises(ConfigError, match="terminal"):
        choose_images("terminal", Stream(True), {})
    monkeypatch.setattr(terminal_images, "_has_extra", lambda: False)
    with pytest.raises(MissingExtraError, match=r"'headrace\[view\]'"):
        choose_images("terminal", Stream(True), {})
    assert drawer("none") is None


def on_a_terminal(folder: Path, answers: dict[bytes, bytes], *, without: bool = False) -> str:
    """What the program writes on a terminal that answers questions, each with the first answer that it has."""
    program = folder / "program.py"
    program.write_text(PROGRAM.format(without=without))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 1000, 800))
    process = subprocess.Popen(
        [sys.executable, str(program)], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    written = b""
    asked = 0
    try:
        while b"after" not in written:
            assert select.select([ours], [], [], PATIENCE_S)[0], written
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # it has ended
                break
            written += data
            for question, answer in answers.items():
                if question in written[asked:]:
                    asked = written.index(question, asked) + len(question)
                    os.write(ours, answer)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return written.decode()


DEVICE_ATTRIBUTES = b"\x1b[c"


def test_a_terminal_with_sixels(tmp_path: Path) -> None:
    said = on_a_terminal(tmp_path, {DEVICE_ATTRIBUTES: b"\x1b[?62;4;22c"})
    assert "how terminal" in said
    assert "\x1bP" in said  # a band of sixels
    assert said.rstrip().endswith("after")


def test_without_the_extra_half_blocks(tmp_path: Path) -> None:
    said = on_a_terminal(tmp_path, {}, without=True)
    assert "how blocks" in said
    assert "▀" in said
    assert said.rstrip().endswith("after")


@given(SIZES, st.booleans())
@settings(max_examples=cases(10, 500), deadline=None)
def test_blocks_are_a_rectangle(size: tuple[int, int], has_all_colours: bool) -> None:
    lines = blocks(picture(size), has_all_colours=has_all_colours).split("\n")
    assert 1 <= len(lines) <= 24
    widths = {len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in lines}
    assert len(widths) == 1
    assert 1 <= widths.pop() - 6 <= 48
    assert all(line.endswith("\x1b[0m") for line in lines)
    colours = re.findall(r"\x1b\[38;5;(\d+);48;5;(\d+)m", "".join(lines))
    assert bool(colours) != has_all_colours
    assert all(16 <= int(number) <= 255 for pair in colours for number in pair)


def test_colours_of_blocks() -> None:
    pixels = np.zeros((2, 1, 3), np.uint8)
    pixels[0, 0] = [255, 128, 0]
    image = Image.fromarray(pixels)
    assert blocks(image, has_all_colours=True) == "      \x1b[38;2;255;128;0;48;2;0;0;0m▀\x1b[0m"
    assert blocks(image, has_all_colours=False) == f"      \x1b[38;5;{16 + 36 * 5 + 6 * 2};48;5;16m▀\x1b[0m"
    white = Image.fromarray(np.full((2, 1, 3), 255, np.uint8))
    assert "38;5;231;48;5;231" in blocks(white, has_all_colours=False)
