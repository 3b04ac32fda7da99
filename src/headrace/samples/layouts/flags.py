"""What a record says itself about training: flags of messages, spans of characters, flags of parts of a content."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import TrainSpan
from headrace.samples.layouts.fields import check_text, describe, wrong


def read_flag(message: Mapping[str, Any], names: Mapping[str, str], place: str) -> bool | None:
    """What ``train``, its opposite ``masked`` and ``weight`` (0 or 1) of a message say; None for nothing.

    Raises:
        InputError: one of them is something else, or they contradict each other.
    """
    said: dict[str, bool] = {}
    for flag in ("train", "masked", "weight"):
        name = names[flag]
        value = message.get(name)
        if value is None:
            continue
        if value not in (0, 1) or not isinstance(value, bool | int | float):
            raise wrong(f"{name!r} of {place}", value, "true or false" if flag != "weight" else "0 or 1")
        said[name] = bool(value) != (flag == "masked")
    if len(set(said.values())) > 1:
        raise InputError(f"{place} contradicts itself: {', '.join(f'{name} is {message[name]}' for name in said)}")
    return next(iter(said.values()), None)


def read_spans(detail: object, content: object, place: str) -> tuple[TrainSpan, ...]:
    """Spans of characters of a content, ascending, from ``[{begin_offset, end_offset, train}]``.

    ``end_offset`` is the last character of the span, as in Axolotl; a `TrainSpan` ends behind it.

    Raises:
        InputError: it is no such list, a span is outside the content, or two overlap.
    """
    if not isinstance(detail, list | tuple):
        raise wrong(place, detail, "a list of {begin_offset, end_offset, train}")
    if not isinstance(content, str):
        raise InputError(f"{place} marks characters of a content that is {describe(content)}; it must be a string")
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
                f"{here} goes from character {begin} to {end}, which is its last one; the content has {len(content)} "
                "characters, counted from 0"
            )
        spans.append(TrainSpan(begin=begin, end=end + 1, train=train))
    spans.sort(key=lambda span: span.begin)
    for left, right in itertools.pairwise(spans):
        if right.begin < left.end:
            raise InputError(f"{place}: the spans at characters {left.begin} and {right.begin} overlap")
    return tuple(spans)


def read_parts(parts: Sequence[Any], place: str, *, join: bool) -> tuple[Any, tuple[TrainSpan, ...]]:
    """A content that is a list of parts: as it is; or one string and the spans of its characters that the parts mark.

    Parts that say ``train`` or ``weight`` are always joined, since a flag needs characters to stand on.

    Raises:
        InputError: a part is no object; or they are to be joined, and one is not text.
    """
    flags = []
    for number, part in enumerate(parts):
        if not isinstance(part, Mapping):
            raise wrong(f"part {number} of {place}", part, "an object with 'type', and 'text' where it is text")
        flags.append(read_flag(part, {"train": "train", "masked": "masked", "weight": "weight"}, f"part {number}"))
    if not join and all(flag is None for flag in flags):
        return list(parts), ()
    texts: list[str] = []
    spans = []
    begin = 0
    for number, (part, flag) in enumerate(zip(parts, flags, strict=True)):
        text = part.get("text")
        if not isinstance(text, str) or part.get("type", "text") != "text":
            raise InputError(
                f"part {number} of {place} is {describe(part)} of type {part.get('type', 'text')!r}; only parts of "
                "type 'text' can be joined to one string, which `parts: join` and flags on parts need"
            )
        texts.append(check_text(text, f"part {number} of {place}"))
        if flag is not None and text:
            spans.append(TrainSpan(begin=begin, end=begin + len(text), train=flag))
        begin += len(text)
    return "".join(texts), tuple(spans)
