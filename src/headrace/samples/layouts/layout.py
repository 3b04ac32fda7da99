"""The base class of all layouts, with the names of fields, the reading of messages, and system prompts and tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from headrace.config import describe
from headrace.errors import InputError
from headrace.samples.conversation import Completion, Conversation, Group, Message, Preference, Prompt, Text, TrainSpan
from headrace.samples.layouts.fields import Fields
from headrace.samples.layouts.turns import InputSpec, MessageReader, is_flag

Sample = Conversation | Completion | Preference | Prompt | Group | Text
"""The samples that a record may become."""


BESIDE = ("system", "tools", "chat_template_kwargs")
"""Fields of a record that belong to its conversation but are not among its messages."""


class Layout(ABC):
    """One way in which a record writes a sample.

    Attributes:
        name: The name by which the user chooses the layout.
        says: A description of such a record, in one line.
        makes: The type of sample that `convert` returns.
        required: The fields that every record of the layout has. If two layouts fit, the one whose ``required`` fields
            are a subset of the other's gives way.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    makes: ClassVar[type[Sample]]
    required: ClassVar[tuple[str, ...]]

    def __init__(self, options: InputSpec | None = None) -> None:
        options = options or InputSpec()
        self.fields = Fields(self.name, options.fields)
        beside = [self.fields.name(field) for field in BESIDE]
        # A path into objects is no top-level field, so the quick test for missing fields does not work for it.
        self._beside = None if any("." in name for name in beside) else frozenset(beside)
        self.reader = MessageReader(options)

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether the record looks like one of this layout, by its fields and the kinds of their values."""
        return self.fields.has(record, *self.required) and self.looks_right(record)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the values of the required fields, all of which are present, have the right kinds.

        If a layout says nothing else, all of them are strings.
        """
        return self.is_text(record, *self.required)

    @abstractmethod
    def convert(self, record: Mapping[str, Any]) -> Sample:
        """Convert the record to a sample.

        Raises:
            InputError: If the record is not of this layout; the message says which field is wrong, what was found and
                what is allowed.
        """

    def is_text(self, record: Mapping[str, Any], *fields: str) -> bool:
        """Return whether all of these fields are strings."""
        return all(isinstance(self.fields.get(record, field), str) for field in fields)

    def is_text_or_messages(self, record: Mapping[str, Any], field: str) -> bool:
        """Return whether a field is a string or looks like a list of messages."""
        return self.is_text(record, field) or self.is_messages(record, field)

    def is_messages(self, record: Mapping[str, Any], *fields: str) -> bool:
        """Return whether all of these fields look like lists of messages."""
        return all(self.reader.looks_right(self.reader.unpacked(self.fields.get(record, field))) for field in fields)

    def messages(self, record: Mapping[str, Any], field: str) -> Conversation:
        """Read a field that is a list of messages.

        Raises:
            InputError: If the field is missing or is not a list of messages.
        """
        value = self.fields.need(record, field, "a list of messages")
        return self.reader.read(value, self.fields.name(field))

    def text_or_messages(self, record: Mapping[str, Any], field: str) -> Conversation | str:
        """Read a field that is a string or a list of messages.

        Raises:
            InputError: If the field is missing or is neither.
        """
        value = self.reader.unpacked(self.fields.need(record, field, "a string or a list of messages"))
        if isinstance(value, str):
            return self.fields.text(record, field)
        if isinstance(value, list | tuple):
            return self.reader.read(value, self.fields.name(field))
        raise self.fields.wrong(field, value, "a string or a list of messages")

    def complete(self, record: Mapping[str, Any], conversation: Conversation) -> Conversation:
        """Return the conversation with the record's ``system``, ``tools`` and ``chat_template_kwargs``.

        Raises:
            InputError: If one of these fields has the wrong kind, or the messages begin with another system message.
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

    def unmasked(self, record: Mapping[str, Any], conversation: Conversation) -> Conversation:
        """Return the conversation with all roles but system trained if the record has ``unmask: true`` (InstructLab).

        Flags of messages take precedence.

        Raises:
            InputError: If ``unmask`` has another value.
        """
        unmask = self.fields.get(record, "unmask")
        if unmask is not None and not is_flag(unmask):
            raise self.fields.wrong("unmask", unmask, "true or false")
        if not unmask:
            return conversation
        own = conversation.train or (None,) * len(conversation.messages)
        flags = (
            message["role"] != "system" if flag is None else flag
            for message, flag in zip(conversation.messages, own, strict=True)
        )
        return msgspec.structs.replace(conversation, train=tuple(flags))

    def refuse_extras(self, record: Mapping[str, Any], field: str) -> None:
        """Refuse fields that only a conversation can have, because ``field`` is a string.

        Raises:
            InputError: If the record has ``system``, ``tools`` or ``chat_template_kwargs``.
        """
        for extra in BESIDE:
            if self.fields.get(record, extra):
                raise InputError(
                    f"field {self.fields.name(extra)!r} is for conversations, but {self.fields.name(field)!r} is a "
                    f"string: make {self.fields.name(field)!r} a list of messages, or remove "
                    f"{self.fields.name(extra)!r}"
                )

    def _with_system(self, conversation: Conversation, system: str) -> Conversation:
        first = conversation.messages[0] if conversation.messages else {}
        if first.get("role") == "system":
            if first.get("content") == system:
                return conversation
            raise InputError(
                f"field {self.fields.name('system')!r} and the first message are different system prompts: "
                f"{describe(system)} and {describe(first.get('content'))}; remove one of them"
            )
        return join(Conversation(messages=[{"role": "system", "content": system}]), conversation)


def join(first: Conversation, second: Conversation) -> Conversation:
    """Append the second conversation to the first; tools and arguments of the first take precedence."""
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
    """Return messages ``begin`` to ``end`` with their flags, and the tools and arguments of the whole conversation."""
    return msgspec.structs.replace(
        conversation,
        messages=conversation.messages[begin:end],
        train=conversation.train[begin:end],
        train_spans=conversation.train_spans[begin:end],
    )


def with_messages(columns: Mapping[str, Any], prompt: Conversation) -> dict[str, Any]:
    """Return the columns and, under ``prompt``, the messages of the prompt; a column of this name takes precedence.

    TRL hands them to reward functions, and verl has them as the raw prompt.
    """
    return {"prompt": prompt.messages, **columns}


def user(text: str) -> Conversation:
    """Return a conversation of one user message."""
    return Conversation(messages=[_message("user", text)])


def assistant(text: str) -> Conversation:
    """Return a conversation of one assistant message."""
    return Conversation(messages=[_message("assistant", text)])


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _flags(conversation: Conversation) -> tuple[bool | None, ...]:
    return conversation.train or (None,) * len(conversation.messages)


def _spans(conversation: Conversation) -> tuple[tuple[TrainSpan, ...], ...]:
    return conversation.train_spans or ((),) * len(conversation.messages)
