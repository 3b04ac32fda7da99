"""Pictures in terminals, read back from what the protocols say."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import media_made
from counts import cases
from headrace.cli.media.terminal_images import blocks, choose_protocol, detected, drawer, iterm, kitty, sixel
from headrace.errors import ConfigError

SIZES = st.tuples(st.integers(1, 700), st.integers(1, 700))


def picture(size: tuple[int, int] = (600, 400)) -> Any:
    return Image.fromarray(media_made.pixels(size[1], size[0]))


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "foot-extra"}, "sixel"),
        ({"TERM": "mlterm"}, "sixel"),
        ({"TERM": "yaft-sixel"}, "sixel"),
        ({"TERM": "xterm-256color"}, "blocks"),
        ({}, "blocks"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, "blocks"),
        ({"TERM": "screen", "STY": "1", "LC_TERMINAL": "iTerm2"}, "blocks"),
    ],
)
def test_what_terminals_can(environment: dict[str, str], protocol: str) -> None:
    assert detected(environment) == protocol
    assert choose_protocol(None, Stream(True), environment, plain=False) == protocol
    assert choose_protocol(None, Stream(False), environment, plain=False) == "none"
    assert choose_protocol(None, Stream(True), environment, plain=True) == "none"
    assert choose_protocol(None, Stream(True), {**environment, "NO_COLOR": "1"}, plain=False) == "none"
    assert choose_protocol("sixel", Stream(False), environment, plain=True) == "sixel"


def test_what_the_user_says() -> None:
    with pytest.raises(ConfigError, match="--images png: known are kitty, iterm, sixel, blocks, none"):
        choose_protocol("png", Stream(True), {}, plain=False)
    assert drawer("none") is None
    assert all(drawer(name) is not None for name in ("kitty", "iterm", "sixel", "blocks"))


def test_kitty() -> None:
    text = kitty(picture())
    chunks = re.findall("\x1b_G([^;]*);([^\x1b]*)\x1b\\\\", text)
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in chunks) == text
    assert len(chunks) > 2
    assert chunks[0][0] == "a=T,f=100,q=2,c=48,m=1"
    assert [keys for keys, _ in chunks[1:]] == ["m=1"] * (len(chunks) - 2) + ["m=0"]
    assert all(len(data) == 4096 for _, data in chunks[:-1])
    shown = Image.open(io.BytesIO(base64.b64decode("".join(data for _, data in chunks))))
    assert (shown.format, shown.size) == ("PNG", (480, 320))
    assert kitty(picture((2, 2))).startswith("\x1b_Ga=T,f=100,q=2,c=2,m=0;")


def test_iterm() -> None:
    found = re.fullmatch(
        "\x1b]1337;File=inline=1;size=(\\d+);width=48;preserveAspectRatio=1:([^\x07]*)\x07", iterm(picture())
    )
    assert found is not None
    data = base64.b64decode(found[2])
    assert len(data) == int(found[1])
    assert Image.open(io.BytesIO(data)).size == (480, 320)


def read_sixel(text: str) -> np.ndarray[Any, Any]:
    """(H, W, 3) of what a terminal draws; -1 where it draws nothing."""
    head = re.match('\x1bP0;1q"1;1;(\\d+);(\\d+)', text)
    assert head is not None
    assert text.endswith("\x1b\\")
    width, height = int(head[1]), int(head[2])
    shown = np.full((height + 6, width, 3), -1)
    palette: dict[str, list[int]] = {}
    top = column = 0
    colour = ""
    for token in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+.|\$|-|[?-~]", text[head.end() : -2]):
        if token.startswith("#"):
            colour, *facts = token[1:].split(";")
            if facts:
                palette[colour] = [round(int(value) * 255 / 100) for value in facts[1:]]
        elif token == "$":
            column = 0
        elif token == "-":
            top, column = top + 6, 0
        else:
            length = int(token[1:-1]) if len(token) > 1 else 1
            for row in range(6):
                if ord(token[-1]) - 63 >> row & 1:
                    assert (shown[top + row, column : column + length] == -1).all()  # no pixel twice
                    shown[top + row, column : column + length] = palette[colour]
            column += length
    assert (shown[height:] == -1).all()
    return shown[:height]


@given(SIZES)
@settings(max_examples=cases(4, 200), deadline=None)
def test_sixel_draws_every_pixel_once(size: tuple[int, int]) -> None:
    whole = picture(size).quantize(7).convert("RGB")  # few colours, which quantising again keeps
    shown = read_sixel(sixel(whole))
    assert (shown >= 0).all()
    if max(size) <= 400:  # not scaled
        assert np.abs(shown - np.asarray(whole).astype(int)).max() <= 3  # sixels count colours in percent


@given(SIZES, st.booleans())
@settings(max_examples=cases(10, 500), deadline=None)
def test_blocks_are_a_rectangle(size: tuple[int, int], has_all_colours: bool) -> None:
    lines = blocks(picture(size), has_all_colours=has_all_colours).split("\n")
    assert 1 <= len(lines) <= 24
    widths = {len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in lines}
    assert len(widths) == 1
    assert 1 <= widths.pop() - 6 <= 48
    assert all(line.endswith("\x1b[0m") for line in lines)
    numbers = re.findall(r"[34]8;5;(\d+)", "".join(lines))
    assert bool(numbers) != has_all_colours
    assert all(16 <= int(number) <= 255 for number in numbers)


def test_colours_of_blocks() -> None:
    pixels = np.zeros((2, 1, 3), np.uint8)
    pixels[0, 0] = [255, 128, 0]
    image = Image.fromarray(pixels)
    assert blocks(image, has_all_colours=True) == "      \x1b[38;2;255;128;0;48;2;0;0;0m▀\x1b[0m"
    assert blocks(image, has_all_colours=False) == f"      \x1b[38;5;{16 + 36 * 5 + 6 * 3};48;5;232m▀\x1b[0m"
    white = Image.fromarray(np.full((2, 1, 3), 255, np.uint8))
    assert "38;5;255;48;5;255" in blocks(white, has_all_colours=False)
