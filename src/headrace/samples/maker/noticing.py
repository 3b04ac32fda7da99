"""Notices about the first records: what a template may write differently from what was meant, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from headrace.errors import InputError
from headrace.samples.conversation import Conversation
from headrace.samples.layouts import Sample
from headrace.samples.layouts.fields import has_null, has_null_property
from headrace.samples.layouts.turns import arguments_of, unread_flags, untrained
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.results import DroppedError
from headrace.samples.recipe.recipe import Recipe
from headrace.samples.templates.chat_template import ChatTemplate


def notices(samples: Sequence[Sample], template: ChatTemplate, *, trains_all: bool, drops_nulls: bool) -> list[str]:
    """Return one line for each kind of finding, with the first message that shows it.

    ``samples`` are what a layout reads in the first records. Renders at most one conversation.
    """
    found: dict[str, str] = {}
    is_tried = False
    for number, sample in enumerate(samples):
        for conversation in conversations_of(sample):
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
                if "arguments" not in found and any(isinstance(one, str) for one in arguments_of(message)):
                    found["arguments"] = (
                        f"{where} has the `arguments` of a call as a JSON string, which most templates write "
                        "within quotes: `arguments: parse` turns it into an object. All that the template writes "
                        "within quotes are counted as quoted_arguments"
                    )
                if "nulls" not in found and not drops_nulls and any(map(has_null, message.values())):
                    found["nulls"] = (
                        f"{where} has null fields inside its fields, as Arrow fills structs, and the template sees "
                        "them: `drop_nulls: true` removes them. All such messages are counted as null_fields"
                    )
            if "tools" not in found and has_null_property(conversation.tools):
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


def conversations_of(sample: Sample) -> Iterator[Conversation]:
    """Yield the conversations of a sample."""
    if isinstance(sample, Conversation):
        yield sample
    sides = (getattr(sample, name, None) for name in ("prompt", "completion", "chosen", "rejected"))
    yield from (one for one in sides if isinstance(one, Conversation))


def _printable(conversation: Conversation) -> list[Any]:
    return [one["content"] for one in conversation.messages if isinstance(one.get("content"), list) and one["content"]]


def _prints_parts(conversation: Conversation, template: ChatTemplate) -> bool:
    try:
        text = template.render_conversation(conversation).text
    except InputError:  # the record is bad, which is reported when it is made
        return False
    return any(str(content) in text or str(content[0]) in text for content in _printable(conversation))


_POLICIES: Final = [name for name in MaskOptions.__struct_fields__ if name.startswith("on_")]


def unused_options(recipe: Recipe, *, has_chats: bool) -> list[str]:
    """Return the options of a recipe that cannot change any sample. ``has_chats``: some records are conversations.

    Policies that allow or drop what does not come are no mistake.
    """
    usual = MaskOptions()
    names = [one for one in MaskOptions.__struct_fields__ if getattr(recipe.mask, one) != getattr(usual, one)]
    names = [one for one in names if not one.startswith("on_") or getattr(recipe.mask, one) == "error"]
    has_mask = recipe.type not in ("seq", "prompt")
    used = {"straddle"} if has_mask else set()
    if has_chats:
        used |= set(MaskOptions.__struct_fields__ if has_mask else _POLICIES)
    elif recipe.ends.bos == "never":
        used.add("on_missing_bos")
    unused = [f"mask.{name}" for name in names if name not in used]
    if not has_chats:
        unused += ["template"] if recipe.template is not None and recipe.template.path is not None else []
        unused += ["header"] if recipe.header == "train" else []
    return unused + (["ends.append_eos"] if recipe.type == "prompt" and recipe.ends.append_eos else [])


_ALTERNATIVES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mask: {unstable: split}", {"unstable": "split"}),
    ("mask: {unstable: last_turn}", {"unstable": "last_turn"}),
    ("mask: {on_prompt_mismatch: allow}", {"unstable": "split", "on_prompt_mismatch": "allow"}),
    ("mask: {turns: last}", {"turns": "last"}),
)
_SHOWN_RECIPES, _SHOWN_TEXTS, _SHOWN_CHARS = 3, 4, 60


def recipes_that_take(record: Any, mask: MaskOptions, make: Callable[[MaskOptions], Any]) -> list[str]:
    """Return up to three options with which a refused record would be accepted, and what each of them trains.

    ``make`` returns a `SampleMaker` with other options. Cost: one maker and one record for each option.
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
