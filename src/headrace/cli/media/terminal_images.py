"""Pictures in terminals: by the protocols of kitty, iTerm2 and sixel, else as half blocks in colour."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from typing import Final, Literal, TextIO, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.cli.media.lines import Draw
from headrace.cli.media.parts import Picture
from headrace.errors import ConfigError

Protocol = Literal["kitty", "iterm", "sixel", "blocks", "none"]

COLUMNS: Final = 48
"""Width of a picture in characters, or less."""

_ROWS: Final = 24
_CELL_PIXELS: Final = (10, 20)
"""Width and height that a character is taken to have, where sizes must be in pixels."""

_KITTY_CHUNK: Final = 4096
_SIXEL_COLOURS: Final = 256


def choose_protocol(wanted: str | None, stream: TextIO, environment: Mapping[str, str], *, plain: bool) -> Protocol:
    """How pictures are drawn: as the user says; else by what the terminal says of itself.

    Raises:
        ConfigError: there is no such protocol.
    """
    if wanted is not None:
        allowed: tuple[Protocol, ...] = get_args(Protocol)
        for protocol in allowed:
            if protocol == wanted:
                return protocol
        raise ConfigError(f"--images {wanted}: known are {', '.join(allowed)}")
    if plain or not stream.isatty() or environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return "none"
    return detected(environment)


def detected(environment: Mapping[str, str]) -> Protocol:
    """What a terminal can, by its variables. Within tmux and screen, which swallow pictures, half blocks."""
    terminal, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("TMUX") or environment.get("STY"):
        return "blocks"
    if environment.get("KITTY_WINDOW_ID") or "kitty" in terminal or "ghostty" in terminal or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    if "sixel" in terminal or terminal.split("-")[0] in ("foot", "mlterm", "contour"):
        return "sixel"
    return "blocks"


def drawer(protocol: Protocol, environment: Mapping[str, str] = os.environ) -> Draw | None:
    """What draws pictures by a protocol; None for ``none``."""
    if protocol == "blocks":
        has_all_colours = environment.get("COLORTERM", "") in ("truecolor", "24bit")
        return lambda picture: blocks(picture, has_all_colours=has_all_colours)
    drawers: dict[str, Draw] = {"kitty": kitty, "iterm": iterm, "sixel": sixel}
    return drawers.get(protocol)


def kitty(picture: Picture) -> str:
    """The graphics protocol of kitty: a PNG in chunks of base64."""
    columns, _ = _cells(picture)
    data = base64.b64encode(_png(_fitting(picture))).decode()
    chunks = [data[at : at + _KITTY_CHUNK] for at in range(0, len(data), _KITTY_CHUNK)]
    said = [f"a=T,f=100,q=2,c={columns},m={int(len(chunks) > 1)}"]
    said += [f"m={int(at + 1 < len(chunks))}" for at in range(1, len(chunks))]
    return "".join(f"\x1b_G{keys};{chunk}\x1b\\" for keys, chunk in zip(said, chunks, strict=True))


def iterm(picture: Picture) -> str:
    """The inline images of iTerm2."""
    columns, _ = _cells(picture)
    data = _png(_fitting(picture))
    keys = f"inline=1;size={len(data)};width={columns};preserveAspectRatio=1"
    return f"\x1b]1337;File={keys}:{base64.b64encode(data).decode()}\x07"


def sixel(picture: Picture) -> str:
    """DEC's sixels: bands of six rows, in each of which every colour is drawn over the ones before."""
    small = _fitting(picture)
    indexed = small.quantize(_SIXEL_COLOURS)
    palette = indexed.getpalette() or []
    pixels = np.asarray(indexed)
    height, width = pixels.shape
    parts = [f'\x1bP0;1q"1;1;{width};{height}']
    for colour in np.unique(pixels).tolist():
        red, green, blue = (round(value * 100 / 255) for value in palette[3 * colour : 3 * colour + 3])
        parts.append(f"#{colour};2;{red};{green};{blue}")
    for top in range(0, height, 6):
        band = pixels[top : top + 6]
        bits = (1 << np.arange(len(band)))[:, None]
        rows = []
        for colour in np.unique(band).tolist():
            rows.append(f"#{colour}{_runs(((band == colour) * bits).sum(0) + 63)}")
        parts.append("$".join(rows) + "-")
    return "".join(parts) + "\x1b\\"


def blocks(picture: Picture, *, has_all_colours: bool) -> str:
    """Half blocks, two pixels a character: 24-bit colours, or the 240 that a terminal of 256 shares with all others."""
    columns, rows = _cells(picture)
    pixels = np.asarray(picture.resize((columns, rows * 2)))
    lines = []
    for row in range(rows):
        line, before = [], ""
        for upper, lower in zip(pixels[2 * row].tolist(), pixels[2 * row + 1].tolist(), strict=True):
            colours = f"\x1b[38;{_colour(upper, has_all_colours)};48;{_colour(lower, has_all_colours)}m"
            line.append(("" if colours == before else colours) + "▀")
            before = colours
        lines.append("      " + "".join(line) + "\x1b[0m")
    return "\n".join(lines)


def _colour(pixel: list[int], has_all_colours: bool) -> str:
    if has_all_colours:
        return f"2;{pixel[0]};{pixel[1]};{pixel[2]}"
    if max(pixel) - min(pixel) < 8:  # greys: 24 of them
        return f"5;{232 + min(23, sum(pixel) // 3 * 24 // 256)}"
    red, green, blue = (round(value * 5 / 255) for value in pixel)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def _cells(picture: Picture) -> tuple[int, int]:
    """Columns and rows of characters that a picture takes, a character being twice as high as wide."""
    columns = min(COLUMNS, max(1, picture.width))
    rows = max(1, round(columns * picture.height / picture.width / 2))
    if rows > _ROWS:
        columns, rows = max(1, round(columns * _ROWS / rows)), _ROWS
    return columns, rows


def _fitting(picture: Picture) -> Picture:
    """The picture, no larger than its characters."""
    columns, rows = _cells(picture)
    small = picture.copy()
    small.thumbnail((columns * _CELL_PIXELS[0], rows * _CELL_PIXELS[1]))
    return small


def _png(picture: Picture) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _runs(codes: NDArray[np.int64]) -> str:
    """Characters with runs as ``!n``."""
    starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    lengths = np.diff(np.append(starts, len(codes)))
    return "".join(
        chr(code) * length if length < 4 else f"!{length}{chr(code)}"
        for code, length in zip(codes[starts].tolist(), lengths.tolist(), strict=True)
    )
