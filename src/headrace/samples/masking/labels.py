"""For the evidence: which message, and which part of it, each stretch of the text outside of the trained turns is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import InputError
from headrace.samples.masking.closers import Closers
from headrace.samples.masking.decisions import Decision
from headrace.samples.masking.pieces import Piece, Region, Why, cut, lay_out
from headrace.samples.masking.renders import Renders
from headrace.samples.masking.turns import Turn


def labelled(
    renders: Renders,
    count: int,
    turns: Sequence[Turn],
    pieces: Sequence[Piece],
    decisions: Sequence[Decision],
    closers: Closers,
    usual_end: str | None,
) -> list[Piece]:
    """The same pieces, those without a message told apart by message, header and content where the template allows.

    What is trained stays as it was. Cost: a rendering or two a message.
    """
    text = renders.text(count)
    starts = {turn.message: turn.start for turn in reversed(turns)}
    labels: list[Piece] = []
    begin = 0
    for message in range(count):
        try:
            last = message == count - 1
            end = len(text) if last else _agreement(renders, message, text, closers)
            placed = None if message in starts else renders.placed(count, message)
        except InputError:
            continue
        if end is None or end < begin:
            continue
        if message in starts:
            labels.append(_header(begin, starts[message], message))
        else:
            start = placed[0] if placed and begin <= placed[0] <= end else end
            layout = lay_out(text, Turn(message, start, end), {}, closers, usual_end)
            found = decisions[message]
            labels.append(_header(begin, start, message))
            whole = dict.fromkeys(("reasoning", "empty", "end"), True)
            labels += cut(layout, message, train=found.is_trained, why=found.why, rest=False, **whole)
        begin = end
    return _relabelled(pieces, [label for label in labels if label.end > label.begin])


def _agreement(renders: Renders, message: int, text: str, closers: Closers) -> int | None:
    return closers.agreement(renders.text(message + 1), text, 0, with_end=False, usual_end=None)


def _header(begin: int, end: int, message: int) -> Piece:
    return Piece(begin, end, Region.HEADER, message, False, Why.PROMPT)


def _relabelled(pieces: Sequence[Piece], labels: Sequence[Piece]) -> list[Piece]:
    """Pieces without a message take message and region of the labels over them."""
    found = []
    for piece in pieces:
        if piece.message >= 0:
            found.append(piece)
            continue
        at = piece.begin
        for label in labels:
            begin, end = max(label.begin, at), min(label.end, piece.end)
            if begin >= end:
                continue
            if begin > at:
                found.append(msgspec.structs.replace(piece, begin=at, end=begin))
            why = piece.why if piece.is_trained or label.region == Region.HEADER else label.why
            found.append(Piece(begin, end, label.region, label.message, piece.is_trained, why))
            at = end
        if at < piece.end:
            found.append(msgspec.structs.replace(piece, begin=at))
    return found
