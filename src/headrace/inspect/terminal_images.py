"""Pictures in terminals: in the terminal's own way if the extra ``view`` is installed, otherwise as half blocks."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Mapping
from typing import Final, Literal, TextIO

import numpy as np

from headrace.errors import ConfigError, MissingExtraError
from headrace.inspect.lines import Draw
from headrace.inspect.samples import Picture

Images = Literal["terminal", "blocks", "none"]

COLUMNS: Final = 48
"""The most columns of a picture, in characters."""

_ROWS: Final = 24
_INDENT: Final = 6


def choose_images(wanted: str | None, stream: TextIO, environment: Mapping[str, str], *, plain: bool) -> Images:
    """Choose how pictures are drawn: as the user says, or else as well as the terminal can; not at all without one.

    Raises:
        ConfigError: there is no such way to draw, or no terminal.
        MissingExtraError: ``terminal`` was chosen, and the extra ``view`` is not installed.
    """
    if wanted not in (None, "terminal", "blocks", "none"):
        raise ConfigError(f"`images={wanted}`: allowed are terminal, blocks, none")
    if wanted == "terminal" and not _has_extra():
        raise MissingExtraError(
            "`images=terminal` needs textual-image: pip install 'headrace[view]'; `images=blocks` works without it"
        )
    if wanted == "terminal" and not _is_talking(stream):
        raise ConfigError(
            "`images=terminal` asks the terminal what it can show, so standard input and output must be a terminal"
        )
    if wanted is not None:
        return wanted  # type: ignore[return-value]
    if plain or not stream.isatty() or environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return "none"
    return "terminal" if _is_talking(stream) and _has_extra() else "blocks"


def _has_extra() -> bool:
    return importlib.util.find_spec("textual_image") is not None


def _is_talking(stream: TextIO) -> bool:
    """Whether there is a terminal that can answer a question."""
    return stream is sys.__stdout__ and stream.isatty() and sys.__stdin__ is not None and sys.__stdin__.isatty()


def drawer(images: Images, environment: Mapping[str, str] = os.environ) -> Draw | None:
    """Return a function that draws pictures; None for ``none``. For ``terminal``, the terminal is asked once, now."""
    if images == "terminal":
        return _terminal_drawer()
    if images == "blocks":
        has_all_colours = environment.get("COLORTERM", "") in ("truecolor", "24bit")
        return lambda picture: blocks(picture, has_all_colours=has_all_colours)
    return None


def _terminal_drawer() -> Draw:
    from rich.console import Console
    from rich.padding import Padding
    from textual_image.renderable import Image

    def draw(picture: Picture) -> str:
        columns, rows = _cells(picture)
        buffer = io.StringIO()
        console = Console(file=buffer, force_terminal=True, color_system="truecolor", width=_INDENT + COLUMNS)
        console.print(Padding(Image(picture, width=columns, height=rows), (0, 0, 0, _INDENT), expand=False), end="")
        return buffer.getvalue().removesuffix("\n")

    return draw


def blocks(picture: Picture, *, has_all_colours: bool) -> str:
    """Draw a picture as half blocks, two pixels a character.

    It uses 24-bit colours, or the 240 of 256 colours that are the same in all terminals.
    """
    columns, rows = _cells(picture)
    pixels = np.asarray(picture.resize((columns, rows * 2)))
    lines = []
    for row in range(rows):
        line, before = [], ""
        for upper, lower in zip(pixels[2 * row].tolist(), pixels[2 * row + 1].tolist(), strict=True):
            colours = f"\x1b[38;{_colour(upper, has_all_colours)};48;{_colour(lower, has_all_colours)}m"
            line.append(("" if colours == before else colours) + "▀")
            before = colours
        lines.append(" " * _INDENT + "".join(line) + "\x1b[0m")
    return "\n".join(lines)


def _colour(pixel: list[int], has_all_colours: bool) -> str:
    if has_all_colours:
        return f"2;{pixel[0]};{pixel[1]};{pixel[2]}"
    if max(pixel) - min(pixel) < 8:  # greys: 24 of them
        return f"5;{232 + min(23, sum(pixel) // 3 * 24 // 256)}"
    red, green, blue = (round(value * 5 / 255) for value in pixel)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def _cells(picture: Picture) -> tuple[int, int]:
    """Return the columns and rows of characters for a picture. A character is twice as high as it is wide."""
    columns = min(COLUMNS, max(1, picture.width))
    rows = max(1, round(columns * picture.height / picture.width / 2))
    if rows > _ROWS:
        columns, rows = max(1, round(columns * _ROWS / rows)), _ROWS
    return columns, rows
