"""Decide which messages of a conversation are trained, and check in another way that no other text is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message, TrainSpan
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.pieces import TextRange, Why
from headrace.samples.masking.renders import Renders, content_text
from headrace.samples.masking.turns import Comparison, Turn


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


def check_own(
    renders: Renders,
    how: Comparison,
    count: int,
    turns: Sequence[Turn],
    pieces: Sequence[TextRange],
    found: Sequence[Decision],
) -> None:
    """Check, whatever the options say, that no trained turn holds text of another message.

    Turns must follow one another; none may hold the content of the message before or after it, and the header of the
    next turn must not begin after the content. Turns that consist of content and end, and blocks that are used as they
    are, need no check.

    Raises:
        InputError: If a turn fails the check.
    """
    text = renders.text(count)
    previous_stop = 0
    for turn in turns:
        if turn.start < previous_stop:
            raise _error(renders, turn, text[turn.start : previous_stop])
        previous_stop = turn.stop
        if turn.exact or turn.content_end >= 0:
            continue
        trained = [piece for piece in pieces if piece.message == turn.message and piece.is_trained]
        if not trained:
            continue
        begin, end = trained[0].begin, trained[-1].end
        message = renders.conversation.messages[turn.message]
        own = "\n".join(_strings(message))
        region = text[begin:end]
        for other, around in ((turn.message - 1, text[:begin]), (turn.message + 1, text[end:])):
            if not 0 <= other < count or found[other].has_trained:
                continue
            content = (content_text(renders.conversation.messages[other]) or "").strip()
            if content and content in region and content not in own and content not in around:
                raise _error(renders, turn, content)
        content = (content_text(message) or "").strip()
        place = region.rfind(content) if content and not message.get("tool_calls") else -1
        header = (how.ending.opening or renders.usual(None).prompt).strip()
        if header and place >= 0 and header in region[place + len(content) :]:
            raise _error(renders, turn, header)


def _strings(value: Message | Any) -> list[str]:
    """Return all strings in a message."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for one in inner for text in _strings(one)]


def _error(renders: Renders, turn: Turn, text: str) -> InputError:
    role = renders.conversation.messages[turn.message].get("role")
    return InputError(
        f"message {turn.message} ({role}) would be trained together with text that is not its own ({text[:60]!r}), so "
        "the record is refused: the template does something that Headrace does not know. Please report it, with the "
        "template"
    )
