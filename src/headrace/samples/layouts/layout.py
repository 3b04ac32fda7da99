"""What all layouts have in common: names of fields, reading of messages, what stands beside a conversation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from headrace.errors import InputError
from headrace.samples.conversation import Completion, Conversation, Group, Message, Preference, Prompt, Text, TrainSpan
from headrace.samples.layouts.fields import Fields, describe
from headrace.samples.layouts.turns import Arguments, MessageReader, Parts

Sample = Conversation | Completion | Preference | Prompt | Group | Text
"""What a record may become."""


_BESIDE = ("system", "tools", "chat_template_kwargs")
"""Fields of a record that stand beside its conversation."""


class LayoutOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the caller says about the fields of the records, whatever their layout."""

    fields: dict[str, str] = {}
    """Fields by the name that the layout gives them: ``{"messages": "dialog.turns"}``; also of messages: ``role``,
    ``content``, ``train``, ``masked``, ``weight``, ``train_detail``."""

    roles: dict[str, str] = {}
    """Roles of the data by the name that templates give them, besides `roles.ALIASES`: ``{"Kunde": "user"}``."""

    parts: Parts = "keep"
    """Content that is a list of parts is handed to the template as it is, or text parts are joined."""

    arguments: Arguments = "keep"
    """The arguments of calls that are strings are handed on as they are, or as the objects whose JSON they are."""


class Layout(ABC):
    """One way to write a sample as a record.

    Attributes:
        name: as the user says it.
        says: what such a record is, in a line.
        makes: the sample that `convert` returns.
        required: the fields without which it is not this layout. A layout whose ``required`` are among those of
            another that fits too gives way to it.
        optional: further fields that it reads.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    makes: ClassVar[type[Sample]]
    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: LayoutOptions | None = None) -> None:
        options = options or LayoutOptions()
        self.fields = Fields(self.name, options.fields)
        beside = [self.fields.name(field) for field in _BESIDE]
        # A path into objects is looked for where it leads.
        self._beside = None if any("." in name for name in beside) else frozenset(beside)
        self.reader = MessageReader(options.fields, options.roles, options.parts, options.arguments)

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Whether the record looks like one of this layout: its fields, and the kinds of their values."""
        return self.fields.has(record, *self.required) and self.looks_right(record)

    @abstractmethod
    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether the values of the required fields, which are there, are of the right kinds."""

    @abstractmethod
    def convert(self, record: Mapping[str, Any]) -> Sample:
        """The record as a sample.

        Raises:
            InputError: it is not of this layout; the message names the field, what was found and what is allowed.
        """

    def is_text(self, record: Mapping[str, Any], *fields: str) -> bool:
        """Whether these fields are strings."""
        return all(isinstance(self.fields.get(record, field), str) for field in fields)

    def is_messages(self, record: Mapping[str, Any], *fields: str) -> bool:
        """Whether these fields look like lists of messages."""
        return all(self.reader.looks_right(self.fields.get(record, field)) for field in fields)

    def messages(self, record: Mapping[str, Any], field: str) -> Conversation:
        """A field that is a list of messages.

        Raises:
            InputError: it is missing, or none.
        """
        value = self.fields.need(record, field, "a list of messages")
        return self.reader.read(value, self.fields.name(field))

    def text_or_messages(self, record: Mapping[str, Any], field: str) -> Conversation | str:
        """A field that is a string or a list of messages.

        Raises:
            InputError: it is missing, or neither.
        """
        value = self.fields.need(record, field, "a string or a list of messages")
        if isinstance(value, str):
            return self.fields.text(record, field)
        if isinstance(value, list | tuple):
            return self.reader.read(value, self.fields.name(field))
        raise self.fields.wrong(field, value, "a string or a list of messages")

    def complete(self, record: Mapping[str, Any], conversation: Conversation) -> Conversation:
        """The conversation with the record's ``system``, ``tools`` and ``chat_template_kwargs``.

        Raises:
            InputError: one of them is not what it should be, or the messages begin with another system message.
        """
        if self._beside is not None and self._beside.isdisjoint(record):
            return conversation
        system = self.fields.optional_text(record, "system")
        if system:
            conversation = self._with_system(conversation, system)
        tools = self.fields.parsed(record, "tools", list)
        for number, tool in enumerate(tools or ()):
            if not isinstance(tool, Mapping):
                raise InputError(
                    f"tool {number} of {self.fields.name('tools')!r} is {describe(tool)}; allowed is an object"
                )
        kwargs = self.fields.parsed(record, "chat_template_kwargs", dict)
        if not tools and not kwargs:
            return conversation
        return msgspec.structs.replace(conversation, tools=tools or None, template_kwargs=kwargs or {})

    def refuse_extras(self, record: Mapping[str, Any], field: str) -> None:
        """Refuse what only a conversation can have, beside a ``field`` that is a string.

        Raises:
            InputError: the record has ``system``, ``tools`` or ``chat_template_kwargs``.
        """
        for extra in _BESIDE:
            if self.fields.get(record, extra):
                raise InputError(
                    f"field {self.fields.name(extra)!r} is for conversations, and {self.fields.name(field)!r} is a "
                    "string: make that a list of messages, or leave the other out"
                )

    def _with_system(self, conversation: Conversation, system: str) -> Conversation:
        first = conversation.messages[0] if conversation.messages else {}
        if first.get("role") == "system":
            if first.get("content") == system:
                return conversation
            raise InputError(
                f"field {self.fields.name('system')!r} and the first message say different things to the system: "
                f"{describe(system)} and {describe(first.get('content'))}; leave one of them out"
            )
        return join(Conversation(messages=[{"role": "system", "content": system}]), conversation)


def join(first: Conversation, second: Conversation) -> Conversation:
    """One conversation after the other; the tools and arguments of the first come before those of the second."""
    flags: tuple[bool | None, ...] = ()
    spans: tuple[tuple[TrainSpan, ...], ...] = ()
    if first.train or second.train:
        flags = (*_flags(first), *_flags(second))
    if first.train_spans or second.train_spans:
        spans = (*_spans(first), *_spans(second))
    return Conversation(
        messages=[*first.messages, *second.messages],
        tools=first.tools or second.tools,
        template_kwargs={**second.template_kwargs, **first.template_kwargs},
        train=flags,
        train_spans=spans,
    )


def cut(conversation: Conversation, begin: int, end: int | None = None) -> Conversation:
    """Messages ``begin`` to ``end``, with their flags, and the tools and arguments of the whole."""
    return msgspec.structs.replace(
        conversation,
        messages=conversation.messages[begin:end],
        train=conversation.train[begin:end],
        train_spans=conversation.train_spans[begin:end],
    )


def user(text: str) -> Conversation:
    """A conversation of one message of the user."""
    return Conversation(messages=[_message("user", text)])


def assistant(text: str) -> Conversation:
    """A conversation of one message of the assistant."""
    return Conversation(messages=[_message("assistant", text)])


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _flags(conversation: Conversation) -> tuple[bool | None, ...]:
    return conversation.train or (None,) * len(conversation.messages)


def _spans(conversation: Conversation) -> tuple[tuple[TrainSpan, ...], ...]:
    return conversation.train_spans or ((),) * len(conversation.messages)
