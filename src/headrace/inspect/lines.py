"""Previews and renderings as lines for a terminal: trained text is in colour, or between marks if there are none.

Samples with named parts are shown part by part. Their pictures are drawn in the terminal's own way if the extra
``view`` is installed, otherwise as half blocks.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO

import numpy as np
from rich.cells import cell_len

from headrace.errors import ConfigError, MissingExtraError
from headrace.inspect.figures import as_json, count, duration, listing, noted, plural, safe_lines, safe_text, size
from headrace.inspect.shown import (
    EvidenceRow,
    Preview,
    RecordPart,
    RenderedSequence,
    Rendering,
    ShownSample,
    ShownSequence,
    Stretch,
)

if TYPE_CHECKING:
    from headrace.inspect.sample_preview import OpenPreview
    from headrace.inspect.samples import Boxes, LookedAtSample, Picture, ShownPart, ShownParts


_TRAINED, _SPECIAL, _CUT, _BOLD, _END = "\x1b[30;42m", "\x1b[2m", "\x1b[9;31m", "\x1b[1m", "\x1b[0m"
_NUMBER_WIDTH, _MOST_ROLE_CHARS = 6, 12
_HANGING, _LEAST_ROOM = "  ", 20


class Style(NamedTuple):
    """How text is marked as trained, special or cut off, and where it wraps."""

    is_coloured: bool
    width: int | None = None
    """The width of the terminal, at which text wraps; with None it does not wrap."""

    @classmethod
    def of(cls, stream: TextIO, *, plain: bool) -> Style:
        """Return the style for a stream: colours on a terminal, unless ``plain`` or ``NO_COLOR`` forbids them."""
        is_terminal = stream.isatty()
        is_coloured = not plain and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(is_coloured and is_terminal, shutil.get_terminal_size().columns if is_terminal else None)

    def piece(self, text: str, stretch: Stretch) -> str:
        """Format a part of a line."""
        if not text:
            return ""
        if not stretch.is_kept:
            return f"{_CUT}{text}{_END}" if self.is_coloured else f"--{text}--"
        if stretch.is_trained:
            return f"{_TRAINED}{text}{_END}" if self.is_coloured else f"[[{text}]]"
        return f"{_SPECIAL}{text}{_END}" if self.is_coloured and stretch.is_special else text

    def key(self, stretch: Stretch) -> tuple[bool | None, ...]:
        """Return what `piece` depends on. Neighbouring stretches with the same key are formatted together."""
        if not stretch.is_kept:
            return (False,)
        return True, stretch.is_trained, self.is_coloured and stretch.is_special

    def heading(self, text: str) -> str:
        """Format a heading: bold where there are colours."""
        return f"{_BOLD}{text}{_END}" if self.is_coloured else text

    @property
    def legend(self) -> str:
        """The line that explains the colours or marks."""
        if self.is_coloured:
            return f"{_TRAINED}trained{_END} not trained"
        return "[[trained]] not trained"


Draw = Callable[[Any], str]
"""Turns a picture into the text with which a terminal shows it."""


def preview_lines(found: Preview | OpenPreview, style: Style, draw: Draw | None = None) -> Iterator[str]:
    """Yield all lines that ``headrace preview`` prints, and read samples with named parts while doing so.

    Args:
        found: what `open_preview` opened.
        style: how trained tokens are marked.
        draw: draws pictures; without it, they are left out.
    """
    if isinstance(found, Preview):
        yield from _token_lines(found, style)
        return
    yield safe_text(f"{found.facts.path}: {found.facts.words}")
    yield found.how_many
    for sample in found:
        yield ""
        yield parts_heading(sample.shown)
        yield from parts_lines(sample, draw)


def _token_lines(preview: Preview, style: Style) -> list[str]:
    unit = "document" if preview.seq_len is None else f"pack of {count(preview.seq_len)} tokens"
    lines = [
        f"{safe_text(preview.path)}: {preview.kind}, {preview.format}, keys {', '.join(map(safe_text, preview.keys))}",
        f"{count(len(preview.samples))} of {plural(preview.num_samples, unit.split()[0])}"
        + (f" of {count(preview.seq_len)} tokens" if preview.seq_len is not None else "")
        + (f", tokeniser {safe_text(preview.tokenizer)}" if preview.tokenizer is not None else ""),
    ]
    if preview.note:
        lines.append(f"note: {safe_text(preview.note)}")
    if any(sequence.num_trained is not None for sample in preview.samples for sequence in sample.sequences):
        lines.append(style.legend)
    if preview.chosen_by:
        lines.append(f"chosen: {safe_text(preview.chosen_by)}")
    for sample in preview.samples:
        lines += ["", style.heading(sample_heading(preview, sample))]
        lines += sample_lines(preview, sample, style)
    if preview.left_out:
        lines += ["", style.heading("left out")]
        lines += [f"  {safe_text(line)}" for line in preview.left_out]
    return lines


def sample_heading(preview: Preview, sample: ShownSample) -> str:
    """Return the heading of a document or a pack."""
    trained = [sequence.num_trained for sequence in sample.sequences if sequence.num_trained is not None]
    if preview.seq_len is None:
        text = f"document {count(sample.number)}: {plural(sample.num_tokens, 'token')}"
        text += trained_share(sum(trained), sample.num_tokens) if trained else ""
        source = next((sequence.source for sequence in sample.sequences if sequence.source), "")
        text += f", from {safe_text(source)}" if source else ""
        return text + ("" if sample.label is None else ", wanted" if sample.label else ", not wanted")
    pieces = len(sample.sequences)
    return (
        f"pack {count(sample.number)}: {plural(pieces, 'document')}, {plural(sample.num_tokens, 'token')}"
        f"{trained_share(sum(trained), sample.num_tokens) if trained else ''}, {plural(sample.num_pads, 'pad')}, "
        f"fill {sample.num_tokens / preview.seq_len:.2%}"
    )


def trained_share(trained: int, num_tokens: int) -> str:
    """Return words for the trained share of a number of tokens."""
    return f", {count(trained)} trained ({trained / max(num_tokens, 1):.1%})"


def sequence_heading(sequence: ShownSequence, *, is_piece: bool) -> str:
    """Return the heading of one of several sequences."""
    if is_piece:
        span = f"tokens {count(sequence.begin)} to {count(sequence.begin + sequence.num_tokens)}"
        source = f" (from {safe_text(sequence.source)})" if sequence.source else ""
        text = f"document {count(sequence.document)}{source}, {span}"
    else:
        text = f"{safe_text(sequence.name)}: {plural(sequence.num_tokens, 'token')}"
    if sequence.num_trained is not None:
        text += trained_share(sequence.num_trained, sequence.num_tokens)
    return text + ("" if sequence.reward is None else f", reward {sequence.reward:g}")


def sample_lines(preview: Preview, sample: ShownSample, style: Style) -> list[str]:
    """Return the lines of a sample: its sequences, with headings if there are several, pads, and columns."""
    is_pack = preview.seq_len is not None
    lines = []
    for sequence in sample.sequences:
        if is_pack or len(sample.sequences) > 1:
            lines.append(f"  -- {sequence_heading(sequence, is_piece=is_pack)}")
        lines += sequence_lines(sequence, style)
    if sample.num_pads:
        lines.append(f"  -- {plural(sample.num_pads, 'pad')}")
    for name, value in (sample.columns or {}).items():
        lines.append(f"  {safe_text(name)}: {safe_text(as_json(value))}")
    return lines


def sequence_lines(sequence: ShownSequence, style: Style) -> list[str]:
    """Return the text of a sequence in lines; each turn begins with its role and the position of its first token."""
    width = max((len(stretch.role) for stretch in sequence.stretches), default=0)
    width = min(width, _MOST_ROLE_CHARS)
    lines: list[str] = []
    for turn in turns(sequence.stretches):
        margin = f"  {turn[0].role[:width].rjust(width)}{'  ' if width else ''}{turn[0].position:>{_NUMBER_WIDTH}}  "
        room = None if style.width is None else max(style.width - len(margin), _LEAST_ROOM)
        for text in _lines_of(turn, style, room):
            lines.append(f"{margin}{text}".rstrip() if not text else margin + text)
            margin = " " * len(margin)
    left_out = sequence.num_tokens - sequence.num_shown
    if left_out:
        lines.append(f"  ... {plural(left_out, 'token')} more")
    return lines


def turns(stretches: Sequence[Stretch]) -> Iterable[list[Stretch]]:
    """Group stretches into turns. A turn begins with a new role, or where positions begin anew."""
    turn: list[Stretch] = []
    for stretch in stretches:
        if turn and (stretch.role != turn[-1].role or stretch.position != turn[-1].position + len(turn[-1].ids)):
            yield turn
            turn = []
        turn.append(stretch)
    if turn:
        yield turn


def _lines_of(turn: Sequence[Stretch], style: Style, room: int | None) -> list[str]:
    lines: list[list[tuple[str, Stretch]]] = [[]]
    for _, alike in itertools.groupby(turn, style.key):
        same = list(alike)
        first, *rest = safe_lines("".join(stretch.text for stretch in same))
        lines[-1].append((first, same[0]))
        lines += [[(line, same[0])] for line in rest]
    drawn = [text for line in lines for text in _wrapped(line, style, room)]
    return drawn if drawn[-1] or len(drawn) == 1 else drawn[:-1]


def _wrapped(line: Sequence[tuple[str, Stretch]], style: Style, room: int | None) -> list[str]:
    """Wrap a line of the data. All lines except the first are indented."""
    if room is None:
        return ["".join(style.piece(text, stretch) for text, stretch in line)]
    found, left, is_empty = [""], room, True
    for text, stretch in line:
        marks = 0 if style.is_coloured else len(style.piece("x", stretch)) - 1
        while text:
            fits = _fitting(text, left - marks)
            if fits < len(text):
                fits = text.rfind(" ", 0, fits + 1) + 1 or (fits if is_empty else 0)
            if fits:
                found[-1] += style.piece(text[:fits], stretch)
                left -= marks + sum(map(cell_len, text[:fits]))
                text, is_empty = text[fits:], False
            if text:
                if is_empty:  # not even one character fits
                    found[-1] += style.piece(text[0], stretch)
                    text = text[1:]
                found.append(_HANGING)
                left, is_empty = room - len(_HANGING), True
    return found if found[-1] != _HANGING else found[:-1]


def _fitting(text: str, room: int) -> int:
    """Return how many characters of a text fit into ``room`` cells of a terminal."""
    for place, character in enumerate(text):
        room -= cell_len(character)
        if room < 0:
            return place
    return len(text)


def parts_heading(shown: ShownParts) -> str:
    """Return the number, key and place of a sample; in a mix also its position, source and epoch."""
    if shown.place is not None:
        shard = f", {shown.shard}, {count(shown.index)}" if shown.shard else ""
        at = f"position {count(shown.place.position)}: {shown.place.source or '.'}, epoch {count(shown.place.epoch)}"
        return safe_text(f"{at}, sample {count(shown.number)}: {shown.key}  ({shown.place.path}{shard})")
    return safe_text(f"sample {count(shown.number)}: {shown.key}  ({shown.shard}, {count(shown.index)})")


def parts_lines(sample: LookedAtSample, draw: Draw | None) -> Iterator[str]:
    """Yield the lines of a sample: its parts, pictures, boxes and fields."""
    for part in sample.shown.parts:
        yield from part_lines(part)
        if draw is not None and part.name in sample.pictures:
            yield draw(sample.drawn(part.name))
    for boxes in sample.shown.boxes:
        yield f"  {boxes_line(boxes)}"
    for field, value in sample.shown.fields.items():
        yield f"  {safe_text(field)} = {safe_text(value)}"


def part_lines(part: ShownPart) -> Iterator[str]:
    """Yield the lines of a part: one about it, then its text."""
    yield f"  {part_line(part)}"
    if part.text and part.kind != "bytes":
        for line in safe_lines(part.text) if part.kind == "text" else map(safe_text, part.text.split("\n")):
            yield f"      {line}"
    if part.left_out:
        yield f"      ... {plural(part.left_out, 'character')} more"


def part_line(part: ShownPart) -> str:
    """Return name, kind, facts and size of a part, or its error, in one line."""
    words = f": {part.text} ..." if part.kind == "bytes" and part.text else ""
    error = f": cannot be shown: {part.error}" if part.error else ""
    facts = "".join(f", {fact}" for fact in facts_of(part))
    return safe_text(f"{part.name or '(no name)'}: {part.kind}{facts}, {size(part.size)}{words}{error}")


def facts_of(part: ShownPart) -> list[str]:
    """Return the facts of a part in words: ``640 x 480``, ``2.0 s``, ``25 frames/s``."""
    facts = part.facts
    words = []
    for begin in ("", "video_"):
        if f"{begin}width" in facts:
            words.append(f"{facts[f'{begin}width']} x {facts[f'{begin}height']}")
    seconds = facts.get("video_duration", facts.get("audio_duration"))
    if isinstance(seconds, int | float):
        words.append(duration(seconds))
    if "video_fps" in facts:
        words.append(f"{facts['video_fps']:.4g} frames/s")
    if "audio_sample_rate" in facts:
        channels = facts.get("audio_channels", 1)
        words.append(f"sound {facts['audio_sample_rate']} Hz, {channels} channel{'' if channels == 1 else 's'}")
    if "dtype" in facts:
        words.append(f"{facts['dtype']} {facts['shape']}")
    return words


def boxes_line(boxes: Boxes) -> str:
    """Say how many boxes there are, with their first texts."""
    texts = f": {' | '.join(boxes.texts[:8])}{' ...' if len(boxes.texts) > 8 else ''}" if boxes.texts else ""
    number = len(boxes.boxes) + boxes.left_out
    return safe_text(f"{count(number)} {'box' if number == 1 else 'boxes'} of {boxes.kind} on {boxes.picture}{texts}")


_MOST_CHARS = 48
EVIDENCE_HEADS = ("tokens", "bytes", "turn", "role", "region", "trained", "why", "text")


def rendering_lines(rendering: Rendering, style: Style) -> list[str]:
    """Return all lines that `headrace render` prints."""
    lines = [safe_text(f"{rendering.input}, {rendering.place}: record {count(rendering.record)}")]
    lines += listing([(name, safe_text(value)) for name, value in rendering_summary(rendering)])
    for part in rendering.parts:
        lines += ["", style.heading(safe_text(part_heading(part))), *_part_lines(part)]
    for name, value in (rendering.columns or {}).items():
        lines += [f"  {safe_text(name)}: {safe_text(as_json(value))}"]
    for sequence in rendering.sequences:
        lines += ["", style.heading(safe_text(rendered_heading(sequence))), f"  {style.legend}"]
        lines += sequence_lines(sequence.shown, style)
        lines += [f"  {safe_text(text)}" for text in remarks(sequence)]
        lines += ["", *_table(sequence.evidence)]
    return lines


def rendering_summary(rendering: Rendering) -> list[tuple[str, str]]:
    """Return pairs of name and value that summarise a record. The values hold text of the data."""
    pairs = [
        ("recipe", f"{rendering.recipe}, type {rendering.type}"),
        ("layout", f"{rendering.layout} ({rendering.layout_why})" if rendering.layout else rendering.layout_why),
        ("template", rendering.template or "none"),
    ]
    if rendering.outcome == "kept":
        keys = ", ".join(f"{name} {count(number)}" for name, number in rendering.stored.items())
        pairs.append(("stored", f"{plural(rendering.num_documents, 'document')}: {keys}"))
    else:
        reason = f"{rendering.reason}: " if rendering.reason else ""
        pairs.append(("dropped" if rendering.outcome == "dropped" else "refused", f"{reason}{rendering.message}"))
    if rendering.notes:
        pairs.append(("counted", ", ".join(f"{noted(name)} {n:,}" for name, n in rendering.notes.items())))
    return pairs


def part_heading(part: RecordPart) -> str:
    """Return the heading of a text or a conversation."""
    text = f"{part.name}: {plural(len(part.messages), 'message')}" if part.messages is not None else part.name
    return text + ("" if part.reward is None else f", reward {part.reward:g}")


def message_heading(part: RecordPart, number: int) -> str:
    """Return the role of a message, and its ``train`` flag if the record has one."""
    role = str((part.messages or [])[number].get("role"))
    flag = part.train[number] if part.train else None
    return role + ("" if flag is None else " (train: true)" if flag else " (train: false)")


def message_fields(message: dict[str, object]) -> list[str]:
    """Return the fields of a message without its role: the content as it is, others as JSON."""
    content = message.get("content")
    lines = [content if isinstance(content, str) else as_json(content)] if "content" in message else []
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    return lines + [f"{name}: {as_json(value)}" for name, value in others.items()]


def extras(part: RecordPart) -> list[tuple[str, str]]:
    """Return what the template gets in addition to the messages: tools and arguments."""
    named = (("tools", part.tools), ("template arguments", part.template_kwargs))
    return [(name, as_json(value)) for name, value in named if value]


def rendered_heading(sequence: RenderedSequence) -> str:
    """Return the heading of a sequence."""
    shown = sequence.shown
    text = f"{shown.name}: {plural(shown.num_tokens, 'token')}"
    return text + trained_share(shown.num_trained or 0, shown.num_tokens)


def remarks(sequence: RenderedSequence) -> list[str]:
    """Return remarks on what is stored of a sequence, if that is not simply all of it."""
    found = []
    for tokens, where in ((sequence.added_before, "before"), (sequence.added_after, "after")):
        if tokens:
            found.append(f"added {where} it: {' '.join(tokens)}")
    cut = sum(len(stretch.ids) for stretch in sequence.shown.stretches if not stretch.is_kept)
    if cut:
        found.append(f"not stored: {plural(cut, 'token')}")
    return found + ([sequence.note] if sequence.note else [])


def evidence_cells(row: EvidenceRow) -> tuple[str, ...]:
    """Return the cells of a row of the evidence table, without its text."""
    return (
        f"{row.begin:,} to {row.end:,}",
        f"{row.begin_bytes:,} to {row.end_bytes:,}",
        str(row.message) if row.message >= 0 else "",
        row.role,
        row.region,
        ("yes" if row.is_trained else "no") + ("" if row.is_kept else ", not stored"),
        row.why,
    )


def _part_lines(part: RecordPart) -> list[str]:
    lines = []
    for number, message in enumerate(part.messages or []):
        heading = safe_text(message_heading(part, number))
        lines.append(f"  {number} {heading}")
        lines += [f"      {line}" for field in message_fields(message) for line in safe_lines(field)]
    if part.text is not None:
        lines += [f"  {line}" for line in safe_lines(part.text)]
    lines += [f"  {name}: {safe_text(value)}" for name, value in extras(part)]
    if part.rendered is not None:
        lines += ["  rendered:", *(f"      {line}" for line in safe_lines(part.rendered))]
    return lines


def _table(rows: Sequence[EvidenceRow]) -> list[str]:
    texts = [safe_text(row.text) for row in rows]
    shown = [text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 4]} ..." for text in texts]
    cells = [
        EVIDENCE_HEADS,
        *((*map(safe_text, evidence_cells(row)), text) for row, text in zip(rows, shown, strict=True)),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


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
