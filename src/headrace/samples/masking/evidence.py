"""Explain masking to people: labels for every stretch of a text, and the messages of errors."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import InputError
from headrace.samples.masking.decisions import Decision
from headrace.samples.masking.endings import Closers
from headrace.samples.masking.pieces import Region, TextRange, Why, cut, lay_out
from headrace.samples.masking.renders import Renders
from headrace.samples.masking.turns import MisplacedTurn, Turn


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


def _header(begin: int, end: int, message: int) -> TextRange:
    return TextRange(begin, end, Region.HEADER, message, False, Why.PROMPT)


def _relabelled(pieces: Sequence[TextRange], labels: Sequence[TextRange]) -> list[TextRange]:
    """Give pieces without a message the message and region of the labels over them."""
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
            found.append(TextRange(begin, end, label.region, label.message, piece.is_trained, why))
            at = end
        if at < piece.end:
            found.append(msgspec.structs.replace(piece, begin=at))
    return found


def _named(renders: Renders, message: int) -> str:
    return f"message {message} ({renders.conversation.messages[message].get('role')})"


def history(renders: Renders, fault: MisplacedTurn) -> str:
    """The message for a turn that is written differently when more follows."""
    return (
        f"the template writes {_named(renders, fault.message)} differently when more messages follow, so a model would "
        f"be trained on a text that it never sees when it writes: {fault.text}. The usual reason is reasoning that is "
        "stripped from earlier turns. Choose unstable: split (samples that show each turn as it was written), "
        "last_turn or drop, or a template that keeps what it wrote"
    )


def prompt(renders: Renders, fault: MisplacedTurn) -> str:
    """The message for a turn that does not begin with the generation prompt."""
    return (
        f"the template's generation prompt is not how it writes {_named(renders, fault.message)}: {fault.text}. A "
        "model would be asked to continue a text that it was not trained on. Set template arguments that suit the "
        "reasoning of the records, or choose on_prompt_mismatch: allow or drop"
    )


def untrained_end(renders: Renders, turn: Turn, text: str) -> str:
    """The message for a turn without a token that ends it."""
    found = text[max(turn.stop - 30, 0) : turn.stop]
    return (
        f"{_named(renders, turn.message)} ends without a special token ({found!r}), or with one that is not proved to "
        "end the turn, so a model would never learn to stop: use a template or tokeniser that has such a token, name "
        "it (eos_token of the tokeniser, `ends: {eos: TOKEN}` of a recipe), or choose on_untrained_end: allow or drop"
    )


def empty_turn(renders: Renders, message: int) -> str:
    """The message for a trained turn without content."""
    calls = renders.conversation.messages[message].get("tool_calls")
    what = "says nothing except for tool calls, which the template does not write" if calls else "says nothing"
    return (
        f"{_named(renders, message)} is trained and {what}: a model would learn to stop at once. Use a template that "
        "writes it, remove the message, or choose on_empty_turn: allow or drop"
    )


def unwritten(renders: Renders, message: int) -> str:
    """The message for a message that the template leaves out."""
    content = renders.conversation.messages[message].get("content")
    return (
        f"the template writes nothing of {_named(renders, message)}, which says {str(content)[:60]!r}: the model would "
        "never see it. Give it a role or a form that the template writes (`roles` renames roles, `parts: join` "
        "joins parts to one text), use another template, or choose on_unwritten_message: allow or drop"
    )


def no_block(renders: Renders, message: int) -> str:
    """The message for a turn without its generation block."""
    return (
        f"the template has generation blocks, but rendered none for {_named(renders, message)}, which should be "
        "trained: choose generation_tags: ignore, or trusted, which leaves such messages untrained"
    )


def spans(renders: Renders, message: int) -> str:
    """The message for spans of a content that cannot be located."""
    content = renders.conversation.messages[message].get("content")
    return (
        f"{_named(renders, message)} has spans to train, and the template does not write its content unchanged "
        f"({content!r:.60}), so the spans cannot be located: remove them, or use a template that writes the content "
        "unchanged"
    )
