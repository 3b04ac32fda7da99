"""Read the messages of a record as a `Conversation`: names of roles, calls of tools, and flags about training."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.config import describe
from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message, TrainSpan
from headrace.samples.layouts.fields import check_text, is_unicode, wrong

FLAGS = {
    "train": True,  # Axolotl
    "training": True,  # Axolotl, in older data
    "weight": True,  # OpenAI, Mistral, Together
    "masked": False,  # torchtune
    "loss": True,  # ms-swift
    "loss_scale": True,  # ms-swift
    "loss_mask": True,  # verl
    "step_loss_mask": True,  # slime
    "loss_weight": True,
    "trainable": True,  # Tinker
}
"""The names of flags that say whether a message is trained, and whether a true or 1 says that it is."""


def is_flag(value: object) -> bool:
    """Return whether a value is true, false, 1 or 0."""
    return isinstance(value, bool | int | float) and value in (0, 1)


def read_flag(message: Mapping[str, Any], flags: Mapping[str, bool], place: str) -> bool | None:
    """Return what the flags of a message, named as in `FLAGS`, say about it; None if none is set.

    Raises:
        InputError: If one of them has another value, or they contradict each other.
    """
    is_trained: dict[str, bool] = {}
    for name, value in message.items():
        if value is None or name not in flags:
            continue
        if not is_flag(value):
            allowed = "true or false" if isinstance(value, str) else "0 or 1"
            raise InputError(
                f"{name!r} of {place} is {describe(value)}; allowed is {allowed}: it says whether the tokens are "
                "trained, and other weights are not stored. If the field says something else, rename it, or write "
                f"`fields: {{{name}: ANOTHER_NAME}}`"
            )
        is_trained[name] = bool(value) == flags[name]
    if len(set(is_trained.values())) > 1:
        found = ", ".join(f"{name} is {message[name]}" for name in is_trained)
        raise InputError(f"{place} contradicts itself: {found}")
    return next(iter(is_trained.values()), None)


OF_RECORDS = {**FLAGS, "unmask": False}
"""Fields of a record that may say that it is trained in another way. Only ``unmask`` of a conversation is followed."""


def unread_of_record(record: Mapping[str, Any], *, is_conversation: bool) -> list[str]:
    """Return the fields of a record that seem to say that it is not trained as usual, and are not followed."""
    return [
        name
        for name, value in record.items()
        if name in OF_RECORDS
        and is_flag(value)
        and bool(value) != OF_RECORDS[name]
        and not (is_conversation and name == "unmask")
    ]


def untrained(conversation: Conversation) -> list[int]:
    """Return the numbers of the messages that have a flag or a span that is not trained."""
    spans = conversation.train_spans or ((),) * len(conversation.messages)
    flags = conversation.train or (None,) * len(conversation.messages)
    return [
        number
        for number, (flag, marked) in enumerate(zip(flags, spans, strict=True))
        if flag is False or not all(span.train for span in marked)
    ]


def unread_flags(conversation: Conversation) -> list[tuple[int, str]]:
    """Return the number of each message of whose training nothing is known, and a field of it that may tell.

    Such a field has a name that is not in `FLAGS`, and a value as flags have it.
    """
    found = []
    for number, message in enumerate(conversation.messages):
        if len(message) > 2 and (not conversation.train or conversation.train[number] is None):
            found += [(number, name) for name, value in message.items() if is_flag(value)][:1]
    return found


def arguments_of(message: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments of each call of a message."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        if isinstance(inner, Mapping):
            yield inner.get("arguments")


def read_spans(detail: object, content: object, place: str) -> tuple[TrainSpan, ...]:
    """Return the spans of a content, ascending, from ``[{begin_offset, end_offset, train}]``.

    ``end_offset`` is the last character of the span, as in Axolotl; a `TrainSpan` ends after it.

    Raises:
        InputError: If ``detail`` is not such a list, a span lies outside the content, or two spans overlap.
    """
    if not isinstance(detail, list | tuple):
        raise wrong(place, detail, "a list of {begin_offset, end_offset, train}")
    if not isinstance(content, str):
        raise InputError(f"{place} marks characters, but the content is {describe(content)}; it must be a string")
    spans = []
    for number, entry in enumerate(detail):
        here = f"{place}, entry {number},"
        if not isinstance(entry, Mapping):
            raise wrong(here, entry, "an object with begin_offset, end_offset, train")
        begin, end, train = (entry.get(name) for name in ("begin_offset", "end_offset", "train"))
        if type(begin) is not int or type(end) is not int:
            raise InputError(f"{here} goes from {describe(begin)} to {describe(end)}; both must be integers")
        if not isinstance(train, bool):
            raise wrong(f"'train' of {here}", train, "true or false")
        if not 0 <= begin <= end < len(content):
            raise InputError(
                f"{here} goes from character {begin} to {end}, both included; the content has {len(content)} "
                "characters, counted from 0"
            )
        spans.append(TrainSpan(begin=begin, end=end + 1, train=train))
    spans.sort(key=lambda span: span.begin)
    for left, right in itertools.pairwise(spans):
        if right.begin < left.end:
            raise InputError(f"{place}: the spans at characters {left.begin} and {right.begin} overlap")
    return tuple(spans)


def read_parts(parts: Sequence[Any], place: str, *, join: bool) -> tuple[Any, tuple[TrainSpan, ...]]:
    """Read a content that is a list of parts.

    The result is the list itself without spans, or, if the parts are joined, one string with the spans of characters
    that the parts mark. Parts with one of `FLAGS` are always joined, since a flag needs characters to refer to.

    Raises:
        InputError: If a part is not an object, or the parts are to be joined and one is not text.
    """
    flags = []
    for number, part in enumerate(parts):
        if not isinstance(part, Mapping):
            raise wrong(f"part {number} of {place}", part, "an object with 'type', and 'text' where it is text")
        flags.append(read_flag(part, FLAGS, f"part {number} of {place}"))
    if not join and all(flag is None for flag in flags):
        return list(parts), ()
    texts: list[str] = []
    spans = []
    begin = 0
    for number, (part, flag) in enumerate(zip(parts, flags, strict=True)):
        text = part.get("text")
        if not isinstance(text, str) or part.get("type", "text") != "text":
            raise InputError(
                f"part {number} of {place} is {describe(part)} of type {part.get('type', 'text')!r}; `parts: join` and "
                "flags on parts join all parts to one string, so each must be of type 'text'"
            )
        texts.append(check_text(text, f"part {number} of {place}"))
        if flag is not None and text:
            spans.append(TrainSpan(begin=begin, end=begin + len(text), train=flag))
        begin += len(text)
    return "".join(texts), tuple(spans)


ALIASES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function_call": "function_call",
    "tool_call": "function_call",
}
"""Names of roles in data, and what templates call them.

Every other role reaches the template unchanged. ``function_call`` becomes an assistant's message whose content, the
JSON of one or several calls, moves to ``tool_calls``.
"""

CALL = "function_call"


def read_calls(content: object, place: str) -> list[dict[str, Any]]:
    """Return the ``tool_calls`` that the text of a ``function_call`` turn holds.

    Raises:
        InputError: If the text is not the JSON of an object with ``name`` and ``arguments``, or of a list of them.
    """
    value = content
    if isinstance(content, str):
        try:
            value = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            value = None
    calls = value if isinstance(value, list) else [value]
    read = []
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise InputError(
                f"{place} is {describe(content)}; a call of a function is the JSON of an object with 'name' and "
                "'arguments', or of a list of such objects (if it is plain text, use `roles: {function_call: "
                "assistant}`)"
            )
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):  # the argument of some tools is one string
                arguments = msgspec.json.decode(arguments)
        read.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
    if not read:
        raise InputError(f"{place} is an empty list: at least one call of a function was expected")
    return read


def parse_arguments(calls: object, place: str) -> object:
    """Return the ``tool_calls`` with each ``arguments`` string replaced by the value whose JSON it is.

    Raises:
        InputError: If a string is not JSON.
    """
    if not isinstance(calls, list | tuple):
        return calls
    read: list[Any] = []
    for number, call in enumerate(calls):
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(inner, dict) or not isinstance(inner.get("arguments"), str):
            read.append(call)
            continue
        try:
            parsed = {**inner, "arguments": msgspec.json.decode(inner["arguments"] or "{}")}
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(
                f"the arguments of call {number} of {place} are {describe(inner['arguments'])}, which is not JSON "
                f"({error}); `arguments: keep` leaves them as they are"
            ) from None
        read.append({**call, "function": parsed} if "function" in call else parsed)
    return read


AUTO = "auto"
EACH = "each"


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of records of one layout, and how the records are read."""

    paths: str | tuple[str, ...] = ()
    """Files, folders, globs and brace patterns."""

    layout: str = AUTO
    """The name of a layout. ``auto`` recognises it from the first records and reports it; ``each`` recognises the
    layout of every record separately, for files of mixed layouts.
    """

    fields: dict[str, str] = {}
    """The data's names of fields, by the layout's names: ``{"messages": "dialog"}``; a path such as ``data.turns`` goes
    into objects. This includes the fields of messages: ``role``, ``content``, ``train_detail``, and the names of
    `FLAGS`.
    """

    roles: dict[str, str] = {}
    """The role that templates know, by the data's role, in addition to `ALIASES`: ``{"Kunde": "user"}``."""

    parts: Literal["keep", "join"] = "keep"
    """Whether content that is a list of parts reaches the template as it is, or its text parts are joined to one
    string.
    """

    arguments: Literal["keep", "parse"] = "keep"
    """Whether arguments of calls that are strings reach the template as they are, or parsed from JSON."""

    drop_nulls: bool = False
    """Remove null fields, at any depth: structs of Parquet and Arrow hold every field of every record."""


_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "thinking", "function_call")


class MessageReader:
    """Reads lists of messages.

    Without other names in the options, a message has ``role`` and ``content``, or ``from`` and ``value``.
    """

    def __init__(self, options: InputSpec) -> None:
        names = options.fields
        self._roles = {**ALIASES, **options.roles}
        self._parts = options.parts
        self._parses = options.arguments == "parse"
        self._role_names = (names["role"],) if "role" in names else ("role", "from")
        self._content_names = (names["content"],) if "content" in names else ("content", "value")
        self._pairs = list(itertools.product(self._role_names, self._content_names))
        given = {names[flag]: trains for flag, trains in FLAGS.items() if flag in names}
        self._flags = {flag: trains for flag, trains in FLAGS.items() if flag not in names} | given
        self._detail = names.get("train_detail", "train_detail")

    def unpacked(self, value: object) -> object:
        """Return the list of messages whose JSON a value is, as Arrow needs it for messages of several forms.

        Any other value is returned as it is.
        """
        if isinstance(value, str) and value.lstrip()[:1] == "[":
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                read = msgspec.json.decode(value)
                if self.looks_right(read):
                    return read
        return value

    def looks_right(self, value: object) -> bool:
        """Return whether a value looks like a list of messages. Only the first one is read."""
        return isinstance(value, list | tuple) and bool(value) and self.looks_like_message(value[0])

    def looks_like_message(self, value: object) -> bool:
        """Return whether a value looks like a message: an object with a role that is a string."""
        return isinstance(value, Mapping) and any(isinstance(value.get(name), str) for name in self._role_names)

    def read(self, value: object, place: str) -> Conversation:
        """Read a list of messages as a conversation.

        Raises:
            InputError: If ``value`` is not a list, or one of its entries is not a message; the error says which and
                why.
        """
        value = self.unpacked(value)
        if not isinstance(value, list | tuple):
            raise wrong(place, value, "a list of messages, or the JSON of one")
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
        """Read a message of one role and one text, as most are, as `read_message` does; None for any other."""
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
        """Read one message: the message without our flags, its ``train`` flag (or None), and the spans of its content.

        Raises:
            InputError: If ``message`` is not a message.
        """
        if not isinstance(message, Mapping):
            raise wrong(place, message, "a message, an object with 'role' and 'content'")
        role_name, role = self._first(message, self._role_names)
        if not isinstance(role, str) or not role:
            raise wrong(f"the role {_either(self._role_names)} of {place}", role, "a string")
        read: Message = {"role": self._roles.get(role, role)}
        content_name, content = self._first(message, self._content_names)
        spans = self._add_content(read, message, content, f"the content {_either(self._content_names)} of {place}")
        for name, value in message.items():
            if (
                value is not None
                and name not in read
                and name not in (role_name, content_name, self._detail, *self._flags)
            ):
                read[name] = value
        if self._parses and "tool_calls" in read:
            read["tool_calls"] = parse_arguments(read["tool_calls"], f"'tool_calls' of {place}")
        flag = read_flag(message, self._flags, place)
        detail = message.get(self._detail)
        if detail is not None:
            if spans:
                raise InputError(f"{place} marks spans both by parts of its content and by 'train_detail': choose one")
            spans = read_spans(detail, read.get("content"), f"{self._detail!r} of {place}")
        return read, flag, spans

    def _add_content(
        self, read: Message, message: Mapping[str, Any], content: object, place: str
    ) -> tuple[TrainSpan, ...]:
        """Add the content of a message, or the calls that it holds, and return the spans that its parts mark."""
        if read["role"] == CALL:
            read.update(role="assistant", content="", tool_calls=read_calls(content, place))
        elif isinstance(content, str):
            read["content"] = check_text(content, place)
        elif isinstance(content, list | tuple):
            read["content"], spans = read_parts(content, place, join=self._parts == "join")
            return spans
        elif content is not None:
            raise wrong(place, content, "a string, null, or a list of parts")
        elif any(name in message for name in self._content_names):
            read["content"] = None
        elif not any(message.get(name) for name in _INSTEAD_OF_CONTENT):
            raise InputError(f"{place} is missing: a message needs a content or tool_calls")
        return ()

    @staticmethod
    def _first(message: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
        """Return the name and value of the first of these fields that is not null."""
        for name in names:
            value = message.get(name)
            if value is not None:
                return name, value
        return names[0], None


def _either(names: tuple[str, ...]) -> str:
    return "(" + " or ".join(map(repr, names)) + ")"
