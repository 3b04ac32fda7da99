"""Decide which messages are trained, and divide each turn into pieces: region, whether it is trained, and why.

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
from msgspec.structs import replace

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message, TrainSpan
from headrace.samples.masking.endings import Closer, Closers
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.renders import REASONING_TAGS, Renders, thought_of
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


class Decision(NamedTuple):
    """Whether one message is trained, and why."""

    is_trained: bool
    why: Why
    spans: tuple[TrainSpan, ...]
    """Spans of its content that override ``is_trained``."""

    @property
    def has_trained(self) -> bool:
        """Whether any part of the message is trained."""
        return self.is_trained or any(span.train for span in self.spans)


def decisions(conversation: Conversation, options: MaskOptions) -> list[Decision]:
    """Return one decision for each message. A message's flag overrides the options.

    If spans of a message say only what to train, the rest of the message is not trained; if they say what to leave out,
    the rest is decided by its role.
    """
    found = []
    is_last = True
    for message in range(len(conversation.messages) - 1, -1, -1):
        spans = conversation.train_spans[message] if conversation.train_spans else ()
        flag = conversation.train[message] if conversation.train else None
        has_role = conversation.messages[message].get("role") in options.roles
        if flag is not None:
            found.append(Decision(flag, Why.FLAG, spans))
        elif options.train_on_prompt:
            found.append(Decision(True, Why.TRAIN_ON_PROMPT, spans))
        elif not has_role:
            found.append(Decision(False, Why.ROLE, spans))
        elif options.turns == "last" and not is_last:
            found.append(Decision(False, Why.TURNS, spans))
        else:
            chosen = any(span.train for span in spans)
            found.append(Decision(not chosen, Why.SPAN if chosen else Why.ROLE, spans))
        is_last = is_last and not has_role
    return found[::-1]


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


class TrainedParts(NamedTuple):
    """Which parts of a trained turn are trained beside its content."""

    reasoning: bool
    empty: bool
    """A reasoning block without a thought."""
    end: bool
    rest: bool
    """What follows the end; also in turns that are not trained."""


def cut(layout: TurnBorders, message: int, decision: Decision, parts: TrainedParts) -> list[TextRange]:
    """Return the pieces of a turn, whatever the spans of its content say."""
    train, why = decision.is_trained, decision.why
    pieces = []
    if layout.reasoning_end > layout.start:
        is_empty = layout.is_empty_reasoning
        wanted = parts.empty if is_empty else parts.reasoning
        reason = why if wanted or not train else (Why.EMPTY_REASONING if is_empty else Why.REASONING)
        pieces.append(
            TextRange(layout.start, layout.reasoning_end, Region.REASONING, message, train and wanted, reason)
        )
    pieces.append(TextRange(layout.reasoning_end, layout.content_end, Region.CONTENT, message, train, why))
    after = layout.content_end
    if layout.end_of_turn is not None:
        begin, after = layout.end_of_turn
        reason = why if parts.end or not train else Why.END_OF_TURN
        pieces.append(TextRange(begin, after, Region.END_OF_TURN, message, train and parts.end, reason))
    behind = Why.TRAIN_ON_PROMPT if parts.rest else Why.AFTER
    pieces.append(TextRange(after, layout.stop, Region.AFTER, message, parts.rest, behind))
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
                result.append(replace(piece, begin=at, end=top.begin))
            if top.begin >= piece.begin:
                result.append(top)
            at = max(at, top.end)
            if top.end > piece.end:
                break
            rest.pop()
        if at < piece.end:
            result.append(replace(piece, begin=at))
    return result


def spans_of(spans: Sequence[TrainSpan], place: int, message: int) -> list[TextRange]:
    """Return the pieces for spans of a content that begins at character ``place`` of the text."""
    return [
        TextRange(place + span.begin, place + span.end, Region.CONTENT, message, span.train, Why.SPAN)
        for span in sorted(spans, key=lambda span: span.begin)
        if span.end > span.begin
    ]


def labelled(
    renders: Renders,
    count: int,
    turns: Sequence[Turn],
    pieces: Sequence[TextRange],
    decisions: Sequence[Decision],
    closers: Closers,
    usual_end: str | None,
) -> list[TextRange]:
    """Return the pieces with those outside of the messages divided into messages, headers and contents where possible.

    What is trained does not change. Cost: one or two renderings for each message.
    """
    text = renders.text(count)
    starts = {turn.message: turn.start for turn in reversed(turns)}
    labels: list[TextRange] = []
    begin = 0
    for message in range(count):
        try:
            last = message == count - 1
            end = len(text) if last else closers.agreement(renders.text(message + 1), text)
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
            everything = TrainedParts(reasoning=True, empty=True, end=True, rest=False)
            labels += cut(layout, message, found, everything)
        begin = end
    return _relabelled(pieces, [label for label in labels if label.end > label.begin])


def _header(begin: int, end: int, message: int) -> TextRange:
    return TextRange(begin, end, Region.HEADER, message, False, Why.PROMPT)


def _relabelled(pieces: Sequence[TextRange], labels: Sequence[TextRange]) -> list[TextRange]:
    """Give pieces without a message the message and region of the labels over them."""
    found: list[TextRange] = []
    for piece in pieces:
        own = []
        for label in labels if piece.message < 0 else ():
            begin, end = max(label.begin, piece.begin), min(label.end, piece.end)
            if begin < end:
                why = piece.why if piece.is_trained or label.region == Region.HEADER else label.why
                own.append(TextRange(begin, end, label.region, label.message, piece.is_trained, why))
        found += overlay([piece], own)
    return found
