"""Divide a turn into pieces of its text, each with its region, whether it is trained, and why.

    <|im_start|>assistant\\n   <think>\\nhm\\n</think>\\n\\n   Yes.      <|im_end|>     \\n
    header                    reasoning                   content    end of turn    after

The end of the turn is the token that is proved to end it (`endings`, `turns.turn_end`). In a generation block that is
used as it is, it is the token that ends the template's usual turn: the first one after the content, or the last one if
the content does not stand there unchanged (tool calls, only a thought). If the block has no such token, it is its last
special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from headrace.samples.conversation import Message, TrainSpan
from headrace.samples.masking.endings import Closer, Closers
from headrace.samples.masking.renders import REASONING_TAGS, thought_of
from headrace.samples.masking.turns import Turn, content_place


class Region(IntEnum):
    """What part of the rendered text a token is."""

    PROMPT = 0
    """Text of the template outside of the turns that were examined."""
    HEADER = 1
    REASONING = 2
    CONTENT = 3
    END_OF_TURN = 4
    AFTER = 5
    """After the end of a turn, usually a line feed."""


class Why(IntEnum):
    """Why a token is trained or not."""

    PROMPT = 0
    ROLE = 1
    FLAG = 2
    SPAN = 3
    TURNS = 4
    REASONING = 5
    EMPTY_REASONING = 6
    END_OF_TURN = 7
    AFTER = 8
    TRAIN_ON_PROMPT = 9
    STRADDLE = 10


WORDS = {
    Why.PROMPT: "text of the template, no turn of its own",
    Why.ROLE: "by the role of its message",
    Why.FLAG: "by the flag of its message",
    Why.SPAN: "by a span of its message's content",
    Why.TURNS: "not the last turn",
    Why.REASONING: "reasoning, which the options do not train",
    Why.EMPTY_REASONING: "a reasoning block without a thought",
    Why.END_OF_TURN: "by the option end_of_turn",
    Why.AFTER: "after the end of the turn",
    Why.TRAIN_ON_PROMPT: "everything is trained",
    Why.STRADDLE: "the token has trained and untrained bytes",
}


class TextRange(msgspec.Struct, frozen=True, gc=False):
    """A stretch ``[begin, end)`` of the text, in characters."""

    begin: int
    end: int
    region: Region
    message: int
    is_trained: bool
    why: Why


class TurnBorders(NamedTuple):
    """The borders inside a turn, in characters, ascending."""

    start: int
    reasoning_end: int
    is_empty_reasoning: bool
    content_end: int
    end_of_turn: tuple[int, int] | None
    stop: int


def lay_out(text: str, turn: Turn, message: Message, closers: Closers, usual_end: str | None) -> TurnBorders:
    """Find where thought, content and end of a turn lie."""
    if turn.exact:
        return TurnBorders(turn.start, turn.start, False, turn.stop, None, turn.stop)
    if turn.content_end >= 0:
        return TurnBorders(turn.start, turn.start, False, turn.content_end, (turn.content_end, turn.stop), turn.stop)
    stop = turn.stop if turn.end is None else turn.end[0]
    found = content_place(text, turn.start, stop, message, closers)
    end = found.end_of_turn(text, found.special, usual_end)
    if turn.end is not None:
        end = Closer(*turn.end, True) if turn.end[0] < turn.end[1] else None
    elif end is None and usual_end and text.startswith(usual_end, turn.stop):
        # Generation blocks of some templates stop before the token that ends the turn.
        end = Closer(turn.stop, turn.stop + len(usual_end), True)
    limit = end.begin if end else found.end
    content_begin = found.begin if found.begin >= 0 else limit
    reasoning_end, is_empty = _reasoning(text, turn.start, content_begin, limit, message, closers)
    stop = max(turn.stop, end.end) if end else turn.stop
    return TurnBorders(turn.start, reasoning_end, is_empty, limit, end[:2] if end else None, stop)


def _reasoning(
    text: str, start: int, content_begin: int, limit: int, message: Message, closers: Closers
) -> tuple[int, bool]:
    """Return where the thought ends, including the line feeds after it, and whether it is empty.

    The thought stands in a pair of known tags, before the content or at its beginning. Or the message has a field for
    it and the template writes it before the content (a channel), up to the special token that follows it. Without a
    thought, the result is ``start``.
    """
    thought = thought_of(message)
    before = text[max(start - 64, 0) : start].rstrip()
    first = _past_space(text, start, limit)
    for opener, closer in REASONING_TAGS:
        if text.startswith(opener, first, limit):
            begin = first + len(opener)
        elif before.endswith(opener):
            begin = start
        else:
            continue
        inner = _past_space(text, begin, limit)
        # A thought may mention its own tags, so the closing tag is searched after it.
        known = inner + len(thought) if thought and text.startswith(thought, inner) else begin
        close = text.find(closer, known, limit)
        if close >= 0:
            end = close + len(closer)
            while end < limit and text[end] == "\n":  # spaces belong to the word that follows
                end += 1
            return end, not text[begin:close].strip()
    place = text.find(thought, start, content_begin) if thought else -1
    if place < 0:
        return start, False
    closing = closers.at(text, place + len(thought))
    return closing.end if closing else place + len(thought), False


def _past_space(text: str, place: int, limit: int) -> int:
    while place < limit and text[place].isspace():
        place += 1
    return place


def cut(
    layout: TurnBorders, message: int, *, train: bool, why: Why, reasoning: bool, empty: bool, end: bool, rest: bool
) -> list[TextRange]:
    """Return the pieces of a turn.

    ``train`` decides about the content; ``reasoning``, ``empty`` and ``end`` about these parts if the content is
    trained; ``rest`` about what follows the end.
    """
    pieces = []
    if layout.reasoning_end > layout.start:
        wanted = empty if layout.is_empty_reasoning else reasoning
        reason = why if wanted or not train else (Why.EMPTY_REASONING if layout.is_empty_reasoning else Why.REASONING)
        pieces.append(
            TextRange(layout.start, layout.reasoning_end, Region.REASONING, message, train and wanted, reason)
        )
    pieces.append(TextRange(layout.reasoning_end, layout.content_end, Region.CONTENT, message, train, why))
    after = layout.content_end
    if layout.end_of_turn is not None:
        begin, after = layout.end_of_turn
        reason = why if end or not train else Why.END_OF_TURN
        pieces.append(TextRange(begin, after, Region.END_OF_TURN, message, train and end, reason))
    behind = Why.TRAIN_ON_PROMPT if rest else Why.AFTER
    pieces.append(TextRange(after, layout.stop, Region.AFTER, message, rest, behind))
    return [piece for piece in pieces if piece.end > piece.begin]


def overlay(pieces: Sequence[TextRange], over: Sequence[TextRange]) -> list[TextRange]:
    """Return the pieces with others laid over them.

    Both are ascending and do not overlap among themselves; the same holds for the result.
    """
    result = []
    rest = list(over)[::-1]
    for piece in pieces:
        at = piece.begin
        while rest and rest[-1].begin < piece.end:
            top = rest[-1]
            if top.begin > at:
                result.append(msgspec.structs.replace(piece, begin=at, end=top.begin))
            if top.begin >= piece.begin:
                result.append(top)
            at = max(at, top.end)
            if top.end > piece.end:
                break
            rest.pop()
        if at < piece.end:
            result.append(msgspec.structs.replace(piece, begin=at))
    return result


def spans_of(spans: Sequence[TrainSpan], place: int, message: int) -> list[TextRange]:
    """Return the pieces for spans of a content that begins at character ``place`` of the text."""
    return [
        TextRange(place + span.begin, place + span.end, Region.CONTENT, message, span.train, Why.SPAN)
        for span in sorted(spans, key=lambda span: span.begin)
        if span.end > span.begin
    ]
