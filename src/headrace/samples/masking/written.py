"""Text that a template leaves out: contents of messages that stand nowhere in the text it makes.

Unknown roles, a system message in the middle, parts of a content, what is said beside calls of tools: templates drop
them without a word. The conversation is rendered once more with a stand-in for every content, and each must be found.
Of templates that write one message after another that is needed once for a kind of message: then it is known what
they write before such a content, and the content has to stand behind it.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Message
from headrace.samples.masking.renders import Renders, content_text, thought_of
from headrace.samples.templates.rendered import Rendered

Prefixes = dict[tuple[str, int, str], str]
"""What a template writes before the content of a message: by role, place (first, second, later) and its arguments."""


class Unwritten(NamedTuple):
    """A message some of whose text is left out."""

    message: int
    is_whole: bool
    """Nothing of it is written: neither text nor calls of tools nor a thought."""


def find_unwritten(renders: Renders, prefixes: Prefixes, *, proved: bool) -> list[Unwritten]:
    """The messages of a conversation of which the template leaves text out.

    ``proved``: the contents of assistants are known to be written.
    """
    messages = renders.conversation.messages
    rendered = renders.rendered(len(messages))
    kind = repr(sorted(renders.conversation.template_kwargs.items())) if renders.conversation.template_kwargs else ""
    begins = rendered.message_begins
    if begins and all(
        (proved and message.get("role") == "assistant")
        or _stands(rendered, begins[number], message, prefixes.get((str(message.get("role")), min(number, 2), kind)))
        for number, message in enumerate(messages)
    ):
        return []
    marks = _marks(messages, renders.unused(rendered.text))
    try:
        shown = renders.replaced([_with_marks(message, own) for message, own in zip(messages, marks, strict=True)])
    except InputError:
        # The template looks into the contents: all that can be said is whether they stand anywhere.
        return [
            Unwritten(number, _says_nothing_else(message))
            for number, message in enumerate(messages)
            if (content_text(message) or "").strip() not in rendered.text
        ]
    found = []
    for number, (message, own) in enumerate(zip(messages, marks, strict=True)):
        places = [shown.text.find(mark) for mark in own]
        if own and min(places) < 0:
            found.append(Unwritten(number, max(places) < 0 and _says_nothing_else(message)))
        elif own and shown.message_begins and places[0] >= shown.message_begins[number]:
            prefix = shown.text[shown.message_begins[number] : places[0]]
            prefixes[str(message.get("role")), min(number, 2), kind] = prefix
    return found


def _stands(rendered: Rendered, begin: int, message: Message, prefix: str | None) -> bool:
    """Whether the content of a message stands where such a one does."""
    content = message.get("content")
    if not content or (isinstance(content, str) and not content.strip()):
        return True
    if prefix is None or not isinstance(content, str) or not rendered.text.startswith(prefix, begin):
        return False
    place = begin + len(prefix)
    return rendered.text.startswith(content, place) or rendered.text.startswith(content.strip(), place)


def _says_nothing_else(message: Message) -> bool:
    return not message.get("tool_calls") and not thought_of(message)


def _marks(messages: list[Message], unused: str) -> list[list[str]]:
    """Stand-ins for the texts of each message; none for what is blank."""
    found = []
    for number, message in enumerate(messages):
        content = message.get("content")
        texts = [content] if isinstance(content, str) else _texts(content)
        found.append([f"{unused}{number}.{part}{unused}" for part, text in enumerate(texts) if text.strip()])
    return found


def _texts(content: object) -> list[str]:
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _with_marks(message: Message, marks: list[str]) -> Message:
    content = message.get("content")
    if not marks:
        return message
    if isinstance(content, str):
        return {**message, "content": marks[0]}
    rest = iter(marks)
    parts = [
        {**part, "text": next(rest)}
        if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"].strip()
        else part
        for part in (content if isinstance(content, list) else [])
    ]
    return {**message, "content": parts}
