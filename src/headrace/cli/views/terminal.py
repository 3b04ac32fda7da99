"""Samples as lines for a terminal: what is trained in colour, or between marks where there are no colours."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

from rich.cells import cell_len

from headrace.cli.figures import count, plural
from headrace.cli.views.safe_text import safe_lines, safe_text
from headrace.cli.views.shown import Preview, ShownSample, ShownSequence, Stretch

_TRAINED, _SPECIAL, _CUT, _BOLD, _END = "\x1b[30;42m", "\x1b[2m", "\x1b[9;31m", "\x1b[1m", "\x1b[0m"
_NUMBER_WIDTH, _MOST_ROLE_CHARS = 6, 12
_HANGING, _LEAST_ROOM = "  ", 20


class Style(NamedTuple):
    """How trained text is told from the rest."""

    is_coloured: bool
    width: int | None = None
    """Of the terminal, at which text wraps; None: it does not."""

    @classmethod
    def of(cls, stream: TextIO, *, plain: bool) -> Style:
        """Colours on a terminal, unless the user or ``NO_COLOR`` says otherwise."""
        is_terminal = stream.isatty()
        is_coloured = not plain and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(is_coloured and is_terminal, shutil.get_terminal_size().columns if is_terminal else None)

    def piece(self, text: str, stretch: Stretch) -> str:
        """A part of a line."""
        if not text:
            return ""
        if not stretch.is_kept:
            return f"{_CUT}{text}{_END}" if self.is_coloured else f"--{text}--"
        if stretch.is_trained:
            return f"{_TRAINED}{text}{_END}" if self.is_coloured else f"[[{text}]]"
        return f"{_SPECIAL}{text}{_END}" if self.is_coloured and stretch.is_special else text

    def key(self, stretch: Stretch) -> tuple[bool | None, ...]:
        """What `piece` looks at, so that neighbours that are equal in it are one piece."""
        if not stretch.is_kept:
            return (False,)
        return True, stretch.is_trained, self.is_coloured and stretch.is_special

    def heading(self, text: str) -> str:
        """A line that begins something."""
        return f"{_BOLD}{text}{_END}" if self.is_coloured else text

    @property
    def legend(self) -> str:
        """What the colours mean."""
        if self.is_coloured:
            return f"{_TRAINED}trained{_END} not trained"
        return "[[trained]] not trained"


def preview_lines(preview: Preview, style: Style) -> list[str]:
    """All that `headrace preview` prints."""
    unit = "document" if preview.max_seq_len is None else f"pack of {count(preview.max_seq_len)} tokens"
    lines = [
        f"{safe_text(preview.path)}: {preview.kind}, {preview.format}, keys {', '.join(map(safe_text, preview.keys))}",
        f"{count(len(preview.samples))} of {plural(preview.num_samples, unit.split()[0])}"
        + (f" of {count(preview.max_seq_len)} tokens" if preview.max_seq_len is not None else "")
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
    """A line about a document or a pack."""
    trained = [sequence.num_trained for sequence in sample.sequences if sequence.num_trained is not None]
    if preview.max_seq_len is None:
        text = f"document {count(sample.number)}: {plural(sample.num_tokens, 'token')}"
        text += trained_share(sum(trained), sample.num_tokens) if trained else ""
        source = next((sequence.source for sequence in sample.sequences if sequence.source), "")
        text += f", from {safe_text(source)}" if source else ""
        return text + ("" if sample.label is None else ", wanted" if sample.label else ", not wanted")
    pieces = len(sample.sequences)
    return (
        f"pack {count(sample.number)}: {plural(pieces, 'document')}, {plural(sample.num_tokens, 'token')}"
        f"{trained_share(sum(trained), sample.num_tokens) if trained else ''}, {plural(sample.num_pads, 'pad')}, "
        f"fill {sample.num_tokens / preview.max_seq_len:.2%}"
    )


def trained_share(trained: int, num_tokens: int) -> str:
    """Words for how much of some tokens is trained."""
    return f", {count(trained)} trained ({trained / max(num_tokens, 1):.1%})"


def sequence_heading(sequence: ShownSequence, *, is_piece: bool) -> str:
    """A line about one of several sequences."""
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
    """The sequences of a sample, each with a heading where there are several."""
    is_pack = preview.max_seq_len is not None
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


def as_json(value: object) -> str:
    """A value of a record in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def sequence_lines(sequence: ShownSequence, style: Style) -> list[str]:
    """The text, with the role and the position of what begins in a line before it."""
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
    """Stretches in groups: a new one begins with a role, and where positions do not count on."""
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
    """A line of the data as lines that fit, all but the first a little further to the right."""
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
    """How many characters of a text fit into so many cells of a terminal."""
    for place, character in enumerate(text):
        room -= cell_len(character)
        if room < 0:
            return place
    return len(text)
