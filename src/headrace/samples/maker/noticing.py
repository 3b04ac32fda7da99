"""What in the first records a template may write otherwise than its author thought, and the option that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt
from headrace.samples.layouts import Sample
from headrace.samples.masking.faces import Template


def notices(samples: Sequence[Sample], template: Template) -> list[str]:
    """One line for each kind of finding, with the first message that shows it. At most one rendering.

    The samples are what a layout reads in the first records.
    """
    found: dict[str, str] = {}
    is_tried = False
    for number, sample in enumerate(samples):
        for conversation in _conversations(sample):
            for place, message in enumerate(conversation.messages):
                where = f"message {place} of record {number}"
                if "arguments" not in found and any(isinstance(one, str) for one in _arguments(message)):
                    found["arguments"] = (
                        f"{where} has the `arguments` of a call as a JSON string, which most templates write "
                        "within quotes: `arguments: parse` makes an object of it"
                    )
                if "nulls" not in found and any(map(_has_null, message.values())):
                    found["nulls"] = (
                        f"{where} has fields inside its fields that are null, as Arrow fills structs, and the template "
                        "sees them: `drop_nulls: true` leaves them out"
                    )
            if "tools" not in found and _has_null_property(conversation.tools):
                found["tools"] = (
                    f"the tools of record {number} have properties that are null, as Arrow fills structs, and the "
                    "template sees them: `drop_nulls: true` leaves them out"
                )
            if not is_tried and _printable(conversation):
                is_tried = True
                if _prints_parts(conversation, template):
                    found["parts"] = (
                        f"record {number} has content in parts, and the template prints them as Python writes a list "
                        "([{'type': 'text', ...): `parts: join` makes one string of them"
                    )
    return list(found.values())


def _conversations(sample: Sample) -> Iterator[Conversation]:
    if isinstance(sample, Conversation):
        yield sample
    elif isinstance(sample, Completion):
        yield from (one for one in (sample.prompt, sample.completion) if isinstance(one, Conversation))
    elif isinstance(sample, Preference):
        sides = (sample.prompt, sample.chosen, sample.rejected)
        yield from (one for one in sides if isinstance(one, Conversation))
    elif isinstance(sample, Prompt | Group) and isinstance(sample.prompt, Conversation):
        yield sample.prompt


def _arguments(message: Mapping[str, Any]) -> Iterable[Any]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        if isinstance(inner, Mapping):
            yield inner.get("arguments")


def _has_null(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Mapping):
        return any(part is None or _has_null(part, depth + 1) for part in value.values()) if depth < 50 else False
    if isinstance(value, list | tuple):
        return any(_has_null(part, depth + 1) for part in value) if depth < 50 else False
    return False


def _has_null_property(value: Any, depth: int = 0) -> bool:
    """A property of a schema that is null; elsewhere in a schema, as a default, null may be meant."""
    if isinstance(value, Mapping) and depth < 50:
        properties = value.get("properties")
        if isinstance(properties, Mapping) and any(one is None for one in properties.values()):
            return True
        return any(_has_null_property(part, depth + 1) for part in value.values())
    return isinstance(value, list | tuple) and depth < 50 and any(_has_null_property(part, depth + 1) for part in value)


def _printable(conversation: Conversation) -> list[Any]:
    return [one["content"] for one in conversation.messages if isinstance(one.get("content"), list) and one["content"]]


def _prints_parts(conversation: Conversation, template: Template) -> bool:
    try:
        text = template.render(
            conversation.messages,
            tools=conversation.tools,
            add_generation_prompt=False,
            **conversation.template_kwargs,
        ).text
    except InputError:  # the record is a bad one, and says so itself
        return False
    return any(str(content) in text or str(content[0]) in text for content in _printable(conversation))
