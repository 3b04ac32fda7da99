"""Find what a conversation says and its rendering does not show: messages, texts, calls, tools, and other fields.

Templates silently leave out unknown roles, a system message in the middle, tools, all calls but the first, or what is
said beside a call. No list of fields decides what is lost, but comparisons of renderings:

* The conversation is rendered once more with a stand-in for every string. A thing whose stand-in is found is written.
* What is left is changed once more. It is lost if the text stays the same. What is not text, such as a picture, is
  taken out instead, since a template shows only that it is there.

Most conversations hold only a role and a text for each message, and a template that writes one message after another
needs the first rendering only once for each kind of message: then it is known what it writes before such a content,
and the content must follow it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message
from headrace.samples.masking.renders import Renders, content_of
from headrace.samples.masking.results import (
    UNWRITTEN_CONTENT,
    UNWRITTEN_FIELDS,
    UNWRITTEN_MESSAGE,
    UNWRITTEN_PARTS,
    UNWRITTEN_REASONING,
    UNWRITTEN_TOOL_CALLS,
    UNWRITTEN_TOOLS,
)
from headrace.samples.templates.messages import REASONING, Rendered

Prefixes = dict[tuple[str, int, str], str]
"""What a template writes before the content of a message: by role, place (first, second, later) and arguments."""

_NAMES = {
    "content": UNWRITTEN_CONTENT,
    **dict.fromkeys(REASONING, UNWRITTEN_REASONING),
    **dict.fromkeys(("tool_calls", "function_call"), UNWRITTEN_TOOL_CALLS),
    **dict.fromkeys(("tools", "functions"), UNWRITTEN_TOOLS),
}
"""The count of each field that is lost, which says how bad that is; `UNWRITTEN_FIELDS` for all others."""


class Unwritten(NamedTuple):
    """A thing that the template leaves out."""

    name: str
    """One of the counts ``unwritten_...``."""
    message: int
    """-1 for the tools of the conversation."""
    field: str
    item: int | None
    """Its number in the list that the field holds; None if it is the whole field."""
    value: Any


def find_unwritten(renders: Renders, prefixes: Prefixes, *, proved: bool) -> list[Unwritten]:
    """Return what the template leaves out of a conversation. A message that is lost as a whole is one thing.

    ``proved`` says that the contents of assistants are known to be written.
    """
    if _stand_as_known(renders, prefixes, proved=proved):
        return []
    things = _things(renders.conversation)
    lost = _without_effect(renders, _hidden(renders, things, prefixes))
    # What a message says beside its lost content may be written.
    said = Counter(thing.message for thing in things) - Counter(thing.message for thing in lost)
    whole = {thing.message for thing in lost if thing.field == "content" and not said[thing.message]}
    contents = [(message, renders.conversation.messages[message].get("content")) for message in sorted(whole)]
    found = [Unwritten(UNWRITTEN_MESSAGE, message, "content", None, content) for message, content in contents]
    return found + [thing for thing in lost if thing.message not in whole]


def _stand_as_known(renders: Renders, prefixes: Prefixes, *, proved: bool) -> bool:
    """Return whether every content stands where contents of its kind are known to stand, and nothing else is said.

    This needs no rendering.
    """
    messages, arguments = renders.conversation.messages, renders.arguments
    rendered = renders.rendered(len(messages))
    begins = rendered.message_begins
    return (
        bool(begins)
        and not renders.conversation.tools
        and all(
            _stands(rendered.text, begins[number], message, prefixes.get(_kind(message, number, arguments)))
            for number, message in enumerate(messages)
            if len(message) > 2 or not (proved and message.get("role") == "assistant")
        )
    )


def _kind(message: Message, number: int, arguments: str) -> tuple[str, int, str]:
    return str(message.get("role")), min(number, 2), arguments


def _stands(text: str, begin: int, message: Message, prefix: str | None) -> bool:
    """Return whether the content of a message stands where such contents do: after ``prefix``, from ``begin`` on.

    False if the message says anything else.
    """
    content = message.get("content")
    if len(message) > 2 and any(_says(value) for name, value in message.items() if name not in ("role", "content")):
        return False
    if not content or (isinstance(content, str) and not content.strip()):
        return True
    if prefix is None or not isinstance(content, str) or not text.startswith(prefix, begin):
        return False
    return text.startswith((content, content.strip()), begin + len(prefix))


def _says(value: Any) -> bool:
    """Return whether a value holds a text or a number; a ``type`` only says what else it holds."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, dict):
        return any(_says(part) for name, part in value.items() if name != "type")
    if isinstance(value, list | tuple):
        return any(map(_says, value))
    return isinstance(value, bool | int | float)


def _things(conversation: Conversation) -> list[Unwritten]:
    """Return everything that the conversation says, as if it were lost."""
    things = []
    for message, fields in enumerate(_holders(conversation), start=-1):
        for field, value in fields.items():
            name = _NAMES.get(field, UNWRITTEN_FIELDS)
            if field == "role":
                continue
            if not isinstance(value, list | tuple) or name == UNWRITTEN_FIELDS:
                things += [Unwritten(name, message, field, None, value)] if _says(value) else []
                continue
            for number, item in enumerate(value):
                is_part = field == "content" and isinstance(item, dict) and not isinstance(item.get("text"), str)
                if is_part or _says(item):
                    things.append(Unwritten(UNWRITTEN_PARTS if is_part else name, message, field, number, item))
    return things


def _holders(conversation: Conversation) -> list[dict[str, Any]]:
    """Return what holds the things of a conversation: its tools, then its messages."""
    return [{"tools": conversation.tools or []}, *conversation.messages]


def _hidden(renders: Renders, things: list[Unwritten], prefixes: Prefixes) -> list[Unwritten]:
    """Return the things of which no string is found in a rendering with stand-ins, and learn the prefixes of contents.

    A string outside of contents has the same stand-in wherever it stands, since templates look up calls by their ids;
    it shows that a thing is written only if no other thing has it.
    """
    text = renders.text(len(renders.conversation.messages))
    unused = renders.unused(text)
    stand_ins: dict[tuple[str, int], str] = {}
    owners: dict[str, set[int]] = {}

    def replaced(number: int, thing: Unwritten) -> Any:
        place = number if thing.name == UNWRITTEN_CONTENT else -1

        def replace(value: Any) -> Any:
            if not isinstance(value, str):
                return value
            stand_in = stand_ins.setdefault((value, place), _stand_in(unused, len(stand_ins)))
            owners.setdefault(stand_in, set()).add(number)
            return stand_in

        return _changed(thing.value, replace)

    others = [(thing, replaced(number, thing)) for number, thing in enumerate(things)]
    try:
        shown = _rendered(renders, others)
    except InputError:
        # The template depends on the strings, so it is only known which contents occur anywhere.
        return [thing for thing in things if not _occurs(thing, text)]
    found = set(re.findall(_stand_in(unused, None), shown.text))
    begins, written = shown.message_begins, {next(iter(owners[one])) for one in found if len(owners[one]) == 1}
    for number, (thing, stand_in) in enumerate(others):
        if begins and number in written and thing.field == "content" and isinstance(stand_in, str):
            begin, place = begins[thing.message], shown.text.find(stand_in)
            if place >= begin:
                message = renders.conversation.messages[thing.message]
                prefixes[_kind(message, thing.message, renders.arguments)] = shown.text[begin:place]
    return [thing for number, thing in enumerate(things) if number not in written]


def _without_effect(renders: Renders, things: list[Unwritten]) -> list[Unwritten]:
    """Return the things that can be changed without a change of the text.

    All are changed at once, each to a stand-in of its own. If that changes the text, those whose stand-in is found are
    left out, or each half is tried: one rendering if all of them are lost.
    """
    if not things:
        return []
    text = renders.text(len(renders.conversation.messages))
    stand_ins = [_stand_in(renders.unused(text), number) for number in range(len(things))]
    try:
        changed = _rendered(renders, list(map(_without, things, stand_ins))).text
    except InputError:
        if len(things) == 1:
            return things if things[0].name == UNWRITTEN_CONTENT and not _occurs(things[0], text) else []
        changed = ""
    if changed == text:
        return things
    left = [thing for thing, stand_in in zip(things, stand_ins, strict=True) if stand_in not in changed]
    if len(left) < len(things):
        return _without_effect(renders, left)
    half = len(things) // 2
    return _without_effect(renders, things[:half]) + _without_effect(renders, things[half:]) if half else []


def _without(thing: Unwritten, stand_in: str) -> tuple[Unwritten, Any]:
    """Return a thing with its value changed, or taken out if it is not text."""

    def other(value: Any) -> Any:
        return stand_in if isinstance(value, str) else not value if isinstance(value, bool) else -value - 1

    is_part = thing.name == UNWRITTEN_PARTS
    return thing, {"type": "text", "text": ""} if is_part else _changed(thing.value, other)


def _rendered(renders: Renders, others: Sequence[tuple[Unwritten, Any]]) -> Rendered:
    """Render the conversation with other values in place of some things."""
    holders = _holders(renders.conversation)
    for thing, value in others:
        fields = holders[thing.message + 1] = dict(holders[thing.message + 1])
        if thing.item is None:
            fields[thing.field] = value
        else:
            fields[thing.field] = [*fields[thing.field]]
            fields[thing.field][thing.item] = value
    return renders.render(holders[1:], tools=holders[0]["tools"] or None)


def _stand_in(unused: str, number: int | None) -> str:
    """Return a stand-in, or the pattern of all. It has nine characters, as Mistral's templates demand of ids."""
    return f"{unused}{r'[0-9]{7}' if number is None else f'{number:07}'}{unused}"


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with each text and number in it changed; a ``type`` stays, since templates ask for it."""
    if isinstance(value, dict):
        return {name: part if name == "type" else _changed(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(part, change) for part in value]
    return change(value) if _says(value) else value


def _occurs(thing: Unwritten, text: str) -> bool:
    return thing.name == UNWRITTEN_CONTENT and content_of({"content": thing.value}) in text
