"""The messages of a record -> a `Conversation`: one name for each role, our flags beside it, the rest untouched."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message, TrainSpan
from headrace.samples.layouts.fields import check_text, is_unicode, wrong
from headrace.samples.layouts.flags import read_flag, read_parts, read_spans
from headrace.samples.layouts.roles import ALIASES, CALL, parse_arguments, read_calls

Parts = Literal["keep", "join"]
"""Content that is a list of parts is handed on as it is; or parts that are text become one string."""

Arguments = Literal["keep", "parse"]
"""The arguments of a call that are a string are handed on as they are; or as the object whose JSON the string is."""

_FLAGS = ("train", "masked", "weight", "train_detail")


class MessageReader:
    """Reads lists of messages.

    ``names`` are the fields of a message where they are not ``role`` and ``content`` (or ``from`` and ``value``), and
    of the flags ``train``, ``masked``, ``weight``, ``train_detail``. ``roles`` are further names of roles, which come
    before our `ALIASES`.
    """

    def __init__(self, names: Mapping[str, str], roles: Mapping[str, str], parts: Parts, arguments: Arguments) -> None:
        self._roles = {**ALIASES, **roles}
        self._parts = parts
        self._parses = arguments == "parse"
        self._role_names = (names["role"],) if "role" in names else ("role", "from")
        self._content_names = (names["content"],) if "content" in names else ("content", "value")
        self._pairs = list(itertools.product(self._role_names, self._content_names))
        self._flag_names = {flag: names.get(flag, flag) for flag in _FLAGS}
        self._flags = tuple(self._flag_names.values())

    def looks_right(self, value: object) -> bool:
        """Whether it looks like a list of messages. Looks at the first one only."""
        return isinstance(value, list | tuple) and bool(value) and self.looks_like_message(value[0])

    def looks_like_message(self, value: object) -> bool:
        """Whether it looks like a message."""
        return isinstance(value, Mapping) and any(isinstance(value.get(name), str) for name in self._role_names)

    def read(self, value: object, place: str) -> Conversation:
        """A list of messages as a conversation.

        Raises:
            InputError: it is none, or a message in it is none; says which and why.
        """
        if not isinstance(value, list | tuple):
            raise wrong(place, value, "a list of messages")
        messages: list[Message] = []
        flags: dict[int, bool] = {}
        spans: dict[int, tuple[TrainSpan, ...]] = {}
        for number, message in enumerate(value):
            plain = self._plain_message(message)
            if plain is not None:
                messages.append(plain)
                continue
            read, flag, marked = self.read_message(message, f"{place}[{number}]")
            messages.append(read)
            if flag is not None:
                flags[number] = flag
            if marked:
                spans[number] = marked
        return Conversation(
            messages=messages,
            train=tuple(flags.get(number) for number in range(len(messages))) if flags else (),
            train_spans=tuple(spans.get(number, ()) for number in range(len(messages))) if spans else (),
        )

    def _plain_message(self, message: object) -> Message | None:
        """What `read_message` makes of a role and a text and nothing else, which most messages are; None: another."""
        if type(message) is not dict or len(message) != 2:
            return None
        for role_name, content_name in self._pairs:
            role, content = message.get(role_name), message.get(content_name)
            if type(role) is str and type(content) is str:
                role = self._roles.get(role, role)
                is_plain = role and role != CALL and (content.isascii() or is_unicode(content))
                return {"role": role, "content": content} if is_plain else None
        return None

    def read_message(self, message: object, place: str) -> tuple[Message, bool | None, tuple[TrainSpan, ...]]:
        """A message without our flags; what ``train`` says of it, None for nothing; the spans of its content.

        Raises:
            InputError: it is none.
        """
        if not isinstance(message, Mapping):
            raise wrong(place, message, "a message, an object with 'role' and 'content'")
        role_name, role = self._first(message, self._role_names)
        if not isinstance(role, str) or not role:
            raise wrong(f"the role {self._said(self._role_names)} of {place}", role, "a string")
        read: Message = {"role": self._roles.get(role, role)}
        content_name, content = self._first(message, self._content_names)
        content_place = f"the content {self._said(self._content_names)} of {place}"
        spans: tuple[TrainSpan, ...] = ()
        if read["role"] == CALL:
            read["role"], read["content"] = "assistant", ""
            read["tool_calls"] = read_calls(content, content_place)
        elif isinstance(content, str):
            read["content"] = check_text(content, content_place)
        elif isinstance(content, list | tuple):
            read["content"], spans = read_parts(content, content_place, join=self._parts == "join")
        elif content is not None:
            raise wrong(content_place, content, "a string, null, or a list of parts")
        elif any(name in message for name in self._content_names):
            read["content"] = None
        elif not any(message.get(name) for name in ("tool_calls", "reasoning_content", "thinking", "function_call")):
            raise InputError(f"{content_place} is missing: a message has a content, or tool_calls")
        for name, value in message.items():
            if value is not None and name not in read and name not in (role_name, content_name, *self._flags):
                read[name] = value
        if self._parses and "tool_calls" in read:
            read["tool_calls"] = parse_arguments(read["tool_calls"], f"'tool_calls' of {place}")
        flag = read_flag(message, self._flag_names, place)
        detail = message.get(self._flag_names["train_detail"])
        if detail is not None:
            if spans:
                raise InputError(f"{place} marks spans by parts of its content and by 'train_detail': choose one")
            spans = read_spans(detail, read.get("content"), f"{self._flag_names['train_detail']!r} of {place}")
        return read, flag, spans

    @staticmethod
    def _first(message: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
        """The first of these fields that is not null: its name and value."""
        for name in names:
            value = message.get(name)
            if value is not None:
                return name, value
        return names[0], None

    @staticmethod
    def _said(names: tuple[str, ...]) -> str:
        return "(" + " or ".join(map(repr, names)) + ")"
