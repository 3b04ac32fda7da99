"""What a template is made of, the plain values that it sees, and what it renders: `TemplateSetup` and `Rendered`.

The values are those that transformers 5 passes to templates.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from typing import Any

import msgspec

from headrace.errors import InputError

MAX_STEPS = 10_000_000
"""The most iterations of loops and calls of macros in one rendering: a second or more of work, and some hundred times
what a conversation of a thousand turns takes.
"""
MAX_CHARS = 1 << 26
"""The most characters of one rendered conversation."""


class TemplateSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a template, what it sees in addition to the messages, and where it came from.

    It is enough to make the template again in another process, or to name it in a manifest.

    Attributes:
        text: The Jinja source.
        tool_use: The source that is used instead if there are tools, like Hugging Face's template of that name.
        special_tokens: ``bos_token``, ``eos_token``, ... as the template sees them.
        now: The time that ``strftime_now`` prints, or None if neither source uses it.
        name: The name of the template: ``default``, or its name in its folder or in our suite.
        source: The file, or ``suite:NAME``, or ``text``.
        end_of_turn: The text that ends an assistant's turn, if it is known: for templates of our suite.
        max_steps: The most steps of loops and macros in one rendering.
        max_chars: The most characters of a rendered text.
    """

    text: str
    tool_use: str | None = None
    special_tokens: dict[str, str] = {}
    now: datetime | None = None
    name: str = "default"
    source: str = "text"
    end_of_turn: str | None = None
    max_steps: int = MAX_STEPS
    max_chars: int = MAX_CHARS

    @property
    def asks_for_time(self) -> bool:
        """Whether the text depends on ``now``."""
        return "strftime_now" in self.text or "strftime_now" in (self.tool_use or "")


REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names for a message's reasoning. Most templates read the first, those of gpt-oss the second."""
MAX_DEPTH = 256
_MAX_PARTS = 200_000
_EXACT = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """Copy ``value`` as dicts, lists, tuples, strings, numbers, booleans and None.

    Any other value (an image, an array) becomes a placeholder with the name of its type, ``<ndarray>``: templates only
    ask whether it is there, and must not reach its methods.

    Raises:
        InputError: If a value is nested too deeply, refers to itself, or has too many parts.
    """
    return value if type(value) in _EXACT else _Copy().of(value, 0)


class _Copy:
    """The copy of one value, with a bound of its parts.

    A list that refers to another one many times, as YAML aliases do, grows with each reference.
    """

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
        numpy = sys.modules.get("numpy")  # if it is not imported, no value can be NumPy's
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
            raise InputError(f"a value has more than {_MAX_PARTS:,} parts, the most that a template may get")
        if depth == MAX_DEPTH:
            raise InputError(
                f"a value is nested more than {MAX_DEPTH} levels deep, the most that a template may get, or refers "
                "to itself"
            )
        return depth + 1


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as new dicts without fields that are None, and with reasoning under each name that is read.

    A field that is None counts as missing, since most templates would print the word. A content that is None is left,
    since templates ask for it.

    Raises:
        InputError: If there is no message, or one is not a dict.
    """
    if not isinstance(messages, list | tuple):
        raise InputError(f"the messages are a {type(messages).__name__}; they must be a list of dicts")
    if not messages:
        raise InputError("the conversation is empty; a chat template needs at least one message")
    found = []
    for number, message in enumerate(messages):
        # Most messages have only a role and a text, and need no further work.
        is_usual = type(message) is dict and len(message) == 2
        if is_usual and type(message.get("role")) is str and type(message.get("content")) is str:
            found.append(dict(message))
        else:
            found.append(_plain_message(message, number))
    return found


def _plain_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"message {number} is a {type(message).__name__}, {message!r:.80}; it must be a dict")
    fields = {
        key: value if type(value) is str else plain(value)
        for key, value in message.items()
        if value is not None or key == "content"
    }
    for name in REASONING:
        if name in fields:
            reasoning = fields[name]
            return {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return fields


def plain_dicts(items: Sequence[Mapping[str, Any]] | None, what: str) -> list[dict[str, Any]] | None:
    """Return tools or documents as plain dicts.

    Raises:
        InputError: If one of them is not a dict.
    """
    if items is None:
        return None
    if not isinstance(items, list | tuple):
        raise InputError(f"{what} are a {type(items).__name__}; they must be a list of dicts")
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise InputError(f"entry {number} of {what} is a {type(item).__name__}; it must be a dict")
    return [plain(item) for item in items]


_MARK = "HEADRACE_CUTS_THE_TEXT_HERE "
"""A mark after the final message, for which the text is searched; the space at its end shows whether the template
trims.
"""


def mark_final(messages: list[dict[str, Any]], field: str, template: str) -> str:
    """Mark the end of ``field`` in the last message, in place, and return the text that is to be continued.

    Raises:
        InputError: If the message has no such text, or the template does not read the field.
    """
    final = messages[-1]
    content = final.get(field)
    if content is None:
        raise InputError(f"the final message has no {field!r} to continue; it has {', '.join(map(repr, final))}")
    fields = [field]
    if field in REASONING:
        fields = [name for name in REASONING if final.get(name) == content]
    if not any(name in template for name in fields):
        raise InputError(f"the template does not read {field!r}, so a message cannot be continued there")
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
    """Return the text up to the mark.

    Raises:
        InputError: If the template left the message out or changed it.
    """
    mark = _MARK.strip()
    if final.strip() not in text or mark not in text:
        raise InputError(
            "the rendered text does not hold the final message unchanged, so it cannot be continued: the template "
            f"leaves out or changes parts of {final.strip()!r:.80}"
        )
    place = text.rindex(mark)
    kept = text[:place]
    return kept if text.startswith(_MARK, place) else kept.rstrip()


def _marked(text: object, field: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{field!r} of the final message is a {type(text).__name__}; only text can be continued")
    return text + _MARK


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The whole text of a conversation.

    Attributes:
        text: The text.
        generation_spans: ``[begin, end)`` in characters of ``text`` for each ``{% generation %}`` block that was
            rendered, in order.
        has_generation: Whether the template has such blocks at all.
        message_begins: Where each message begins in ``text``, for templates that are known to write one message after
            another, whatever follows (see `one_by_one`): what comes before message ``i`` is the text of the messages
            before it, without what closes a text. 0 for a first message that the template writes separately. Empty for
            all other templates.
    """

    text: str
    generation_spans: tuple[tuple[int, int], ...] = ()
    has_generation: bool = False
    message_begins: tuple[int, ...] = ()
