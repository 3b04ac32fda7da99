"""Notices about the first records: what a template may write differently from what was meant, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from headrace.errors import InputError
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt
from headrace.samples.layouts import Sample
from headrace.samples.layouts.turns import unread_flags, untrained
from headrace.samples.masking.options import MaskOptions, Template
from headrace.samples.masking.results import DroppedError


def notices(samples: Sequence[Sample], template: Template, *, trains_all: bool) -> list[str]:
    """Return one line for each kind of finding, with the first message that shows it.

    ``samples`` are what a layout reads in the first records. Renders at most one conversation.
    """
    found: dict[str, str] = {}
    is_tried = False
    for number, sample in enumerate(samples):
        for conversation in _conversations(sample):
            if "flags" not in found and conversation is not getattr(sample, "prompt", None):
                for place, name in [] if trains_all else unread_flags(conversation)[:1]:
                    found["flags"] = (
                        f"message {place} of record {number} has {name!r}: {conversation.messages[place][name]!r}, "
                        "which is not followed: if it says whether the message is trained, write "
                        f"`fields: {{train: {name}}}`, or `masked` if true means that it is not. All such messages "
                        "are counted as unread_flags"
                    )
                for place in untrained(conversation)[:1] if trains_all else []:
                    found["flags"] = (
                        f"message {place} of record {number} has a flag that says that it is not trained, but type seq "
                        "stores no mask and all its tokens are trained: use type sft. All such messages are counted as "
                        "unread_flags"
                    )
            for place, message in enumerate(conversation.messages):
                where = f"message {place} of record {number}"
                if "arguments" not in found and any(isinstance(one, str) for one in _arguments(message)):
                    found["arguments"] = (
                        f"{where} has the `arguments` of a call as a JSON string, which most templates write "
                        "within quotes: `arguments: parse` turns it into an object"
                    )
                if "nulls" not in found and any(map(_has_null, message.values())):
                    found["nulls"] = (
                        f"{where} has null fields inside its fields, as Arrow fills structs, and the template sees "
                        "them: `drop_nulls: true` removes them"
                    )
            if "tools" not in found and _has_null_property(conversation.tools):
                found["tools"] = (
                    f"the tools of record {number} have properties that are null, as Arrow fills structs, and the "
                    "template sees them: `drop_nulls: true` removes them"
                )
            if not is_tried and _printable(conversation):
                is_tried = True
                if _prints_parts(conversation, template):
                    found["parts"] = (
                        f"record {number} has content in parts, and the template prints them as a Python list "
                        "([{'type': 'text', ...): `parts: join` joins them to one string"
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
    """Return whether a property of a schema is null; elsewhere in a schema, such as in a default, null may be meant."""
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
    except InputError:  # the record is bad, which is reported when it is made
        return False
    return any(str(content) in text or str(content[0]) in text for content in _printable(conversation))


_ALTERNATIVES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mask: {unstable: split}", {"unstable": "split"}),
    ("mask: {unstable: last_turn}", {"unstable": "last_turn"}),
    ("mask: {on_prompt_mismatch: allow}", {"unstable": "split", "on_prompt_mismatch": "allow"}),
    ("mask: {turns: last}", {"turns": "last"}),
)
_SHOWN_RECIPES, _SHOWN_TEXTS, _SHOWN_CHARS = 3, 4, 60


class Takes(Protocol):
    """A maker of samples, such as `SampleMaker`."""

    def explain(self, record: Any) -> Sequence[Any]:
        """Return the sequences of a record, with the evidence for each token."""


def recipes_that_take(record: Any, mask: MaskOptions, make: Callable[[MaskOptions], Takes]) -> list[str]:
    """Return up to three options with which a refused record would be accepted, and what each of them trains.

    ``make`` returns a maker with other options. Cost: one maker and one record for each option.
    """
    lines: list[str] = []
    for words, changes in _ALTERNATIVES:
        other = msgspec.structs.replace(mask, **changes)
        if other == mask or len(lines) == _SHOWN_RECIPES:
            continue
        try:
            explained = make(other).explain(record)
        except (InputError, DroppedError):
            continue
        num_tokens = sum(len(one.sample.ids) for one in explained)
        num_trained = sum(one.sample.num_supervised for one in explained)
        if num_trained:
            lines.append(
                f"`{words}` accepts it: {len(explained)} {'sample' if len(explained) == 1 else 'samples'}, "
                f"{num_tokens:,} tokens, {num_trained:,} of them trained: {_trained(explained)}"
            )
    return lines


def _trained(explained: Sequence[Any]) -> str:
    texts: list[str] = []
    for one in explained:
        data, end = one.text.encode("utf-8", "surrogatepass"), -1
        for token in one.sample.evidence.tokens(one.sample):
            if not token.is_trained:
                continue
            piece = data[token.begin_bytes : token.end_bytes].decode("utf-8", "replace")
            if token.begin_bytes == end:
                texts[-1] += piece
            else:
                texts.append(piece)
            end = token.end_bytes
    shown = [repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...") for text in texts[:_SHOWN_TEXTS]]
    return ", ".join(shown) + (f" and {len(texts) - _SHOWN_TEXTS} more" if len(texts) > _SHOWN_TEXTS else "")
