"""Which messages of a conversation are trained, and a second check, by other means, that nothing else is.

No trained text is anybody else's: looked at in every record, by other means than those that placed its turns.
"""

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
    """Of one message."""

    is_trained: bool
    why: Why
    spans: tuple[TrainSpan, ...]
    """Of its content, laid over ``is_trained``."""

    @property
    def has_trained(self) -> bool:
        """Whether anything of the message is trained."""
        return self.is_trained or any(span.train for span in self.spans)


def decisions(conversation: Conversation, options: MaskOptions) -> list[Decision]:
    """One a message. A flag comes before the options.

    Where spans of a message say what to train and nothing else does, the rest of it is not trained; where they say
    what to leave out, the rest is as its role.
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
    """Whatever the options say: turns follow one another, none holds what the message before or behind it says, and
    behind the content of none begins the header of the next.

    Turns whose characters are content and end, and blocks that are taken as they are, need no look.

    Raises:
        InputError: a turn does.
    """
    text = renders.text(count)
    behind = 0
    for turn in turns:
        if turn.start < behind:
            raise _error(renders, turn, text[turn.start : behind])
        behind = turn.stop
        if turn.exact or turn.content_end >= 0:
            continue
        trained = [piece for piece in pieces if piece.message == turn.message and piece.is_trained]
        if not trained:
            continue
        begin, end = trained[0].begin, trained[-1].end
        said = renders.conversation.messages[turn.message]
        own = "\n".join(_strings(said))
        region = text[begin:end]
        for other, around in ((turn.message - 1, text[:begin]), (turn.message + 1, text[end:])):
            if not 0 <= other < count or found[other].has_trained:
                continue
            content = (content_text(renders.conversation.messages[other]) or "").strip()
            if content and content in region and content not in own and content not in around:
                raise _error(renders, turn, content)
        content = (content_text(said) or "").strip()
        place = region.rfind(content) if content and not said.get("tool_calls") else -1
        header = (how.ending.opening or renders.usual(None).prompt).strip()
        if header and place >= 0 and header in region[place + len(content) :]:
            raise _error(renders, turn, header)


def _strings(value: Message | Any) -> list[str]:
    """All text in a message."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for one in inner for text in _strings(one)]


def _error(renders: Renders, turn: Turn, text: str) -> InputError:
    role = renders.conversation.messages[turn.message].get("role")
    return InputError(
        f"message {turn.message} ({role}) would be trained together with text that is not its own ({text[:60]!r}), so "
        "that the record is not taken: the template does something that Headrace does not know. Please report it, "
        "with the template"
    )
