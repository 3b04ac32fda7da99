"""No trained text is anybody else's: looked at in every record, by other means than those that placed its turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import Message
from headrace.samples.masking.decisions import Decision
from headrace.samples.masking.pieces import Piece
from headrace.samples.masking.renders import Renders, content_text
from headrace.samples.masking.turns import Comparison, Turn


def check_own(
    renders: Renders,
    how: Comparison,
    count: int,
    turns: Sequence[Turn],
    pieces: Sequence[Piece],
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
