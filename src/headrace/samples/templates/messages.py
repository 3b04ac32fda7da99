"""Messages as templates see them, plain JSON values as transformers 5 hands them over, and what a template returns.

``continue_final_message``: the text ends where the final message ends, so that a model goes on with it.

What a template made of a conversation.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import msgspec

from headrace.errors import InputError

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that a message's reasoning goes by. Templates read the first; those of gpt-oss the second."""
MAX_DEPTH = 256
_MAX_PARTS = 200_000
_EXACT = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """``value`` built anew of dicts, lists, tuples, strings, numbers, booleans and None.

    Anything else (an image, an array) becomes a placeholder with the name of its type, ``<ndarray>``: templates ask
    only whether it is there, and its methods are none of their business.

    Raises :class:`InputError` for a value that is nested too deeply, or refers to itself, or has too many parts.
    """
    return value if type(value) in _EXACT else _Copy().of(value, 0)


class _Copy:
    """The copy of one value. A list that holds another one many times over, as aliases of YAML do, grows with each."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MAX_PARTS

    def of(self, value: Any, depth: int) -> Any:
        if type(value) in _EXACT:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, Mapping):
            below = self._below(depth, value)
            return {self.of(key, below): self.of(item, below) for key, item in value.items()}
        if isinstance(value, list | tuple):
            below = self._below(depth, value)
            items = [self.of(item, below) for item in value]
            return items if isinstance(value, list) else tuple(items)
        numpy = sys.modules.get("numpy")  # where nobody has imported it, no value is of it
        if numpy is not None and isinstance(value, numpy.generic):
            return self.of(value.item(), depth + 1)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            below = self._below(depth, fields)
            return {field.name: self.of(getattr(value, field.name), below) for field in fields}
        return f"<{type(value).__name__}>"

    def _below(self, depth: int, parts: Sized) -> int:
        self.left -= len(parts)
        if self.left < 0:
            raise InputError(f"a value has more than {_MAX_PARTS:,} parts, the most that a template is given")
        if depth == MAX_DEPTH:
            raise InputError(
                f"a value is nested more than {MAX_DEPTH} levels deep, the most that a template is given, or refers "
                "to itself"
            )
        return depth + 1


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as new dicts, without fields that are None, the reasoning under each name that templates read.

    A field that is None counts as missing, since most templates would print the word. Raises :class:`InputError` where
    there is no message, or one is no dict.
    """
    if not isinstance(messages, list | tuple):
        raise InputError(f"the messages are a {type(messages).__name__}; a list of dicts is needed")
    if not messages:
        raise InputError("the conversation is empty; a chat template needs at least one message")
    found = []
    for number, message in enumerate(messages):
        # Most messages are a role and a text.
        is_usual = type(message) is dict and len(message) == 2
        if is_usual and type(message.get("role")) is str and type(message.get("content")) is str:
            found.append(dict(message))
        else:
            found.append(_plain_message(message, number))
    return found


def _plain_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"message {number} is a {type(message).__name__}, {message!r:.80}; a dict is needed")
    fields = {key: value if type(value) is str else plain(value) for key, value in message.items() if value is not None}
    for name in REASONING:
        if name in fields:
            reasoning = fields[name]
            return {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return fields


def plain_dicts(items: Sequence[Mapping[str, Any]] | None, what: str) -> list[dict[str, Any]] | None:
    """Tools or documents as plain dicts. Raises :class:`InputError` where one of them is no dict."""
    if items is None:
        return None
    if not isinstance(items, list | tuple):
        raise InputError(f"{what} are a {type(items).__name__}; a list of dicts is needed")
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InputError(f"entry {number} of {what} is a {type(item).__name__}; a dict is needed")
    return [plain(item) for item in items]


_MARK = "HEADRACE_CUTS_THE_TEXT_HERE "
"""Put after the final message and looked for in the text; the space at its end tells whether the template trims."""


def mark_final(messages: list[dict[str, Any]], field: str, template: str) -> str:
    """Mark the end of ``field`` in the last message, in place; returns the text that goes on.

    Raises :class:`InputError` where the message has no such text, or the template does not read that field.
    """
    final = messages[-1]
    content = final.get(field)
    if content is None:
        raise InputError(f"the final message has no {field!r} to continue; it has {', '.join(map(repr, final))}")
    fields = [field]
    if field in REASONING:
        fields = [name for name in REASONING if final.get(name) == content]
    if not any(name in template for name in fields):
        raise InputError(f"the template reads no {field!r}, so that a message cannot be continued there")
    if isinstance(content, list | tuple):
        for part in reversed(content):
            if isinstance(part, dict) and "text" in part:
                text = part["text"]
                part["text"] = _marked(text, field)
                return str(text)
        raise InputError("the parts of the final message hold no text to continue")
    for name in fields:
        final[name] = _marked(content, name)
    return str(content)


def cut_at_mark(text: str, final: str) -> str:
    """The text up to the mark. Raises :class:`InputError` where the template has left out or changed the message."""
    mark = _MARK.strip()
    if final.strip() not in text or mark not in text:
        raise InputError(
            "the final message does not stand in the rendered text as it is, and cannot be continued: the template "
            f"leaves out or changes parts of {final.strip()!r:.80}"
        )
    place = text.rindex(mark)
    kept = text[:place]
    return kept if text.startswith(_MARK, place) else kept.rstrip()


def _marked(text: object, field: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{field!r} of the final message is a {type(text).__name__}; text is needed to continue it")
    return text + _MARK


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The whole text of a conversation.

    ``generation_spans``: ``[begin, end)`` in characters of ``text``, one for each ``{% generation %}`` block that was
    rendered, in order; ``has_generation``: the template has such blocks at all.

    ``message_begins``: where each message begins in ``text``, of templates that are known to write one after another,
    whatever follows (`one_by_one`): what stands before message ``i`` is what the messages before it alone become, less
    what closes a text. 0 for a first message that the template writes apart. Empty for all other templates.
    """

    text: str
    generation_spans: tuple[tuple[int, int], ...] = ()
    has_generation: bool = False
    message_begins: tuple[int, ...] = ()
