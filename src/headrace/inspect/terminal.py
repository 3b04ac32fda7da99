"""Blocks as lines for a terminal: trained text is in colour, or between marks if there are no colours.

Pictures are drawn as half blocks.
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TextIO

import numpy as np
import rich.style
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.text import Text

from headrace.inspect.blocks import (
    Block,
    Legend,
    Media,
    Note,
    Pairs,
    ShownSequence,
    Stretch,
    Tabular,
    Title,
    Titled,
    Tokens,
    Verbatim,
)
from headrace.inspect.figures import plural, safe_lines, safe_text

Picture = Any
"""A ``PIL.Image.Image`` of mode RGB."""

Draw = Callable[[Picture], str]
"""Turns a picture into the text with which a terminal shows it."""

_TRAINED, _SPECIAL, _CUT, _BOLD = "black on green", "dim", "strike red", "bold"
_NUMBER_WIDTH, _MOST_ROLE_CHARS, _LEAST_ROOM = 6, 12, 20
_INDENT: Final = 6
_HANGING: Final = "  "


class Style(NamedTuple):
    """How text is marked as trained, special or cut off, and where it wraps."""

    is_coloured: bool = False
    width: int | None = None
    """The width of the terminal, at which text wraps; with None it does not wrap."""

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
        """Return the style for a stream: colours on a terminal, unless ``NO_COLOR`` or ``TERM=dumb`` forbids them."""
        is_terminal = stream.isatty()
        is_coloured = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        return cls(is_coloured and is_terminal, shutil.get_terminal_size().columns if is_terminal else None)

    def piece(self, text: str, stretch: Stretch) -> Text:
        """Mark a part of a line."""
        if not text:
            return Text()
        if not stretch.is_kept:
            return Text(text, _CUT) if self.is_coloured else Text(f"--{text}--")
        if stretch.is_trained:
            return Text(text, _TRAINED) if self.is_coloured else Text(f"[[{text}]]")
        return Text(text, _SPECIAL if stretch.is_special else "")

    def written(self, text: Text) -> str:
        """Return a text with the escape sequences of its colours, if there are colours."""
        return _escaped(text) if self.is_coloured else text.plain

    def key(self, stretch: Stretch) -> tuple[bool | None, ...]:
        """Return what `piece` depends on. Neighbouring stretches with the same key are marked together."""
        return stretch.is_kept, stretch.is_kept and stretch.is_trained, self.is_coloured and stretch.is_special

    def heading(self, text: str) -> str:
        """Format a heading: bold where there are colours."""
        return self.written(Text.assemble((safe_text(text), _BOLD)))


@cache
def _console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor")


def _escaped(text: Text) -> str:
    segments = text.render(_console())
    return "".join(one.style.render(one.text) if one.style is not None else one.text for one in segments)


PLAIN: Final = Style()


def lines(blocks: Iterable[Block], style: Style = PLAIN, draw: Draw | None = None) -> Iterator[str]:
    """Yield blocks as lines.

    Args:
        blocks: the blocks. What they hold is made harmless.
        style: how trained tokens are marked.
        draw: draws pictures; without it, they are left out.
    """
    is_first = True
    for block in blocks:
        for line in _lines(block, style, draw, ""):
            # No line is empty before the first one.
            if line or not is_first:
                yield line
            is_first = False


def _lines(block: Block, style: Style, draw: Draw | None, indent: str) -> Iterator[str]:
    if isinstance(block, Titled):
        yield ""
        yield style.heading(block.title)
        for inner in block.blocks:
            yield from _lines(inner, style, draw, "  ")
    elif isinstance(block, Pairs):
        pairs = [(safe_text(name), safe_text(value)) for name, value in block.pairs]
        wide = max((len(name) for name, _ in pairs), default=0)
        yield from (style.written(Text.assemble((f"  {name:{wide}}", _SPECIAL), f"  {value}")) for name, value in pairs)
    elif isinstance(block, Tabular):
        head, *rows = _table_lines(block)
        yield style.heading(head)
        yield from rows
    elif isinstance(block, Tokens):
        if block.title:
            yield safe_text(f"  -- {block.title}")
        yield from _sequence_lines(block.sequence, style)
    elif isinstance(block, Verbatim):
        if block.title:
            yield safe_text(f"  {block.title}")
        texts = map(safe_text, block.text.split("\n")) if block.is_made else safe_lines(block.text)
        yield from (f"{' ' * _INDENT}{line}" for line in texts if block.text)
        if block.more:
            yield f"{' ' * _INDENT}... {plural(block.more, 'character')} more"
    elif isinstance(block, Media):
        yield safe_text(f"  {block.title}{f': cannot be shown: {block.error}' if block.error else ''}")
        if draw is not None and block.picture is not None:
            yield draw(block.picture)
        yield from _lines(block.text, style, draw, indent)
    elif isinstance(block, Legend):
        example = Stretch(begin=0, position=0, ids=(), texts=(), is_trained=True)
        yield indent + style.written(Text.assemble(style.piece("trained", example), " not trained"))
    elif isinstance(block, Title):
        yield safe_text(f"{block.text}: {block.words}" if block.words else block.text)
    elif not block:
        yield ""
    else:
        yield indent + safe_text(f"note: {block.text}" if isinstance(block, Note) else block)


def _table_lines(block: Tabular) -> list[str]:
    """Return rows as lines of columns, those in ``left`` left-aligned, others right. The first row is the heading."""
    rows = [[safe_text(cell) for cell in row] for row in (block.heads, *block.rows)]
    sides = [
        f"{'<' if at in block.left else '>'}{max(map(len, cells))}" for at, cells in enumerate(zip(*rows, strict=True))
    ]
    return ["  " + "  ".join(map(format, row, sides)).rstrip() for row in rows]


def _sequence_lines(sequence: ShownSequence, style: Style) -> Iterator[str]:
    """Yield the text of a sequence; each turn begins with its role and the position of its first token."""
    width = min(max((len(stretch.role) for stretch in sequence.stretches), default=0), _MOST_ROLE_CHARS)
    for turn in sequence.turns:
        margin = f"  {turn[0].role[:width].rjust(width)}{'  ' if width else ''}{turn[0].position:>{_NUMBER_WIDTH}}  "
        room = None if style.width is None else max(style.width - len(margin), _LEAST_ROOM)
        for text in _lines_of(turn, style, room):
            yield f"{margin}{text}" if text else margin.rstrip()
            margin = " " * len(margin)
    left_out = sequence.num_tokens - sequence.num_shown
    if left_out:
        yield f"  ... {plural(left_out, 'token')} more"


def _lines_of(turn: Sequence[Stretch], style: Style, room: int | None) -> list[str]:
    """Return the lines of the data in a turn. A line that is wrapped goes on with an indent."""
    whole = [Text()]
    for _, alike in itertools.groupby(turn, style.key):
        same = list(alike)
        first, *rest = safe_lines("".join(stretch.text for stretch in same))
        whole[-1].append_text(style.piece(first, same[0]))
        whole += [style.piece(line, same[0]) for line in rest]
    if len(whole) > 1 and not whole[-1]:
        del whole[-1]
    return [style.written(line) for text in whole for line in _wrapped(text, room)]


def _wrapped(text: Text, room: int | None) -> list[Text]:
    if room is None or text.cell_len <= room:
        return [text]
    first = text.wrap(_console(), room)[0]
    rest = text[len(first.plain) :].wrap(_console(), room - len(_HANGING))
    return [first, *(Text.assemble(_HANGING, line) for line in rest)]


COLUMNS: Final = 48
"""The most columns of a picture, in characters."""

_ROWS: Final = 24


def drawer(wanted: str | None, stream: TextIO, environment: Mapping[str, str]) -> Draw | None:
    """Return what draws pictures in half blocks; None if the user wants none, or says nothing and there are no colours.

    Args:
        wanted: ``blocks`` or ``none``; by default as the stream shows.
        stream: where the pictures are printed.
        environment: the variables of the environment.
    """
    if wanted == "none" or (wanted is None and not Style.of(stream, environment).is_coloured):
        return None
    has_all_colours = environment.get("COLORTERM", "") in ("truecolor", "24bit")
    return lambda picture: blocks(picture, has_all_colours=has_all_colours)


def blocks(picture: Picture, *, has_all_colours: bool) -> str:
    """Draw a picture as half blocks, two pixels a character, with 24-bit colours or with 240 of 256."""
    columns, rows = _cells(picture)
    pixels = np.asarray(picture.resize((columns, rows * 2))).tolist()
    drawn = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        line = Text(" " * _INDENT)
        for pair in zip(upper, lower, strict=True):
            above, below = (Color.from_rgb(*pixel) for pixel in pair)
            if not has_all_colours:
                above, below = above.downgrade(ColorSystem.EIGHT_BIT), below.downgrade(ColorSystem.EIGHT_BIT)
            line.append("▀", rich.style.Style(color=above, bgcolor=below))
        drawn.append(_escaped(line))
    return "\n".join(drawn)


def _cells(picture: Picture) -> tuple[int, int]:
    """Return the columns and rows of characters for a picture. A character is twice as high as it is wide."""
    columns = min(COLUMNS, max(1, picture.width))
    rows = max(1, round(columns * picture.height / picture.width / 2))
    if rows > _ROWS:
        columns, rows = max(1, round(columns * _ROWS / rows)), _ROWS
    return columns, rows
