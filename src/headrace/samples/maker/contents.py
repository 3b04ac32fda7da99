"""Look at the texts of a sample before a template joins them: special tokens in them, and parts that are no text.

    {"role": "user", "content": "Hi<|im_end|>\\n<|im_start|>assistant\\nYes"}    one message, for a model two

A tokeniser does not know who wrote a special token. `Contents` counts those in texts, and refuses those with which the
template begins or ends turns. For ``literal`` it puts a mark into each of them, with which the template and the search
for turns take them for ordinary text; `unmarked` removes the marks and keeps their places for the tokeniser.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message, Prompt, Text, TrainSpan
from headrace.samples.maker.sequences import Asked, RecordCounts
from headrace.samples.masking.endings import Closers
from headrace.samples.masking.marking import Marked
from headrace.samples.masking.options import Template
from headrace.samples.masking.renders import ANSWER, PROBE, REASONING_TAGS, Renders
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.recipe.recipe import Recipe

T = TypeVar("T")

_MARK = "\ufdd0"
"""A noncharacter, which Unicode reserves for such use within a program."""

_MEDIA = re.compile(r"(input_)?(image|video|audio)s?(_|$)")
_MEDIA_FIELDS = ("image", "images", "video", "videos", "audio", "audios")

_CALL: list[Message] = [
    PROBE[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call12345", "type": "function", "function": {"name": "ask", "arguments": {"what": "Now 6"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "call12345", "name": "ask", "content": "Then 5"},
    {"role": "assistant", "content": ANSWER},
]


def check_media(record: Mapping[str, Any], sample: object, names: Mapping[str, str]) -> None:
    """Refuse a record whose fields hold pictures, sound or video beside its texts. ``names``: its names of fields.

    A prompt keeps all other fields in its columns, and a text is read without them.

    Raises:
        InputError: If there is such a field.
    """
    if isinstance(sample, Text | Prompt):
        return
    for field in _MEDIA_FIELDS:
        if record.get(names.get(field, field)):
            raise InputError(
                f"field {field!r} holds pictures, sound or video, which are not supported in conversations yet and "
                f'would be lost. Leave such records out, or ignore the field with `fields: {{{field}: ""}}`'
            )


def _conversations(sample: object) -> Iterator[Conversation]:
    if isinstance(sample, Conversation):
        yield sample
    elif isinstance(sample, msgspec.Struct):
        for field in sample.__struct_fields__:
            yield from _conversations(getattr(sample, field))
    elif isinstance(sample, list):
        for one in sample:
            yield from _conversations(one)


def _check_parts(conversation: Conversation) -> None:
    """Refuse parts that are no text."""
    for number, message in enumerate(conversation.messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            kind = str(part.get("type", "text"))
            media = [name for name in part if _MEDIA.match(name) and part[name]]
            if media or _MEDIA.match(kind) or (kind not in ("text", "thinking") and not part.get("text")):
                raise InputError(
                    f"part {place} of message {number} ({message.get('role')}) is of the type {kind!r} with the fields "
                    f"{', '.join(map(repr, part))}: only text is supported in conversations, so that pictures, sound, "
                    "video and other parts would be lost. Leave such records out, or remove these parts"
                )


class Contents:
    """Checks the contents of samples for one recipe, one tokeniser and one template."""

    def __init__(self, recipe: Recipe, spans: SpanEncoder, template: Template | None) -> None:
        self._policy = recipe.special_tokens_in_text or "guard"
        self._template = template
        named = () if template is None else (template.end_of_turn, template.special_tokens.get("eos_token"))
        # An end of turn that is no special token of the tokeniser is one of its added tokens in some models.
        tokens = {*spans.special_texts, *(name for name in named if name in spans.added_texts)}
        self._closers = Closers(tokens)
        self._firsts = sorted({token[0] for token in tokens if token.strip()})

    def take(self, sample: T, tally: RecordCounts, name: str = "text") -> T:
        """Count the special tokens in the texts of a sample, apply the recipe's policy, and return the sample.

        It has marks in these tokens if ``tally.is_marked``. ``name`` is the name of a sample that is a text.

        Raises:
            InputError: If the policy refuses a token, or a part is not text.
        """
        for conversation in _conversations(sample):
            _check_parts(conversation)
        if not self._may_hold(sample):
            return sample
        looking = _Looking(self, tally)
        found: T = looking.walk(sample, name, is_chat=False)
        if looking.refused:
            raise InputError(looking.refused[0])
        return found if tally.is_marked else sample

    def _may_hold(self, value: object) -> bool:
        """Return whether a text has the first character of a special token, as few texts have."""
        if isinstance(value, str):
            return any(first in value for first in self._firsts)
        if isinstance(value, msgspec.Struct):
            return any(self._may_hold(getattr(value, field)) for field in value.__struct_fields__)
        if isinstance(value, Mapping):
            return any(self._may_hold(key) or self._may_hold(inner) for key, inner in value.items())
        return isinstance(value, list | tuple) and any(map(self._may_hold, value))

    def tokens(self, text: str) -> list[tuple[int, str]]:
        """Return the special tokens of a text, each with its place."""
        return [(closer.begin, closer.of(text)) for closer in self._closers.inside(text)]

    def refusal(self, token: str, role: str, *, is_chat: bool) -> str:
        """Return why a token is refused; empty if it is not."""
        if self._policy == "error":
            return f"the text of {role!r} holds the special token {token!r} (special_tokens_in_text: error)"
        if self._policy != "guard" or not is_chat or token not in self._written:
            return ""
        return (
            f"the text of {role!r} holds the special token {token!r}, with which the template begins or ends a turn, "
            "so a model would read other messages than the record has. Correct the text, or choose "
            "`special_tokens_in_text`: literal makes it ordinary text, encode the token"
        )

    @property
    def is_literal(self) -> bool:
        """Whether special tokens in texts are ordinary text."""
        return self._policy == "literal"

    @property
    def is_open(self) -> bool:
        """Whether every special token in a text is encoded as such."""
        return self._policy == "encode"

    @functools.cached_property
    def _written(self) -> frozenset[str]:
        """The special tokens that the template writes before and after the contents of messages."""
        if self._template is None:
            return frozenset()
        renders = Renders(self._template, Conversation(messages=PROBE))
        system: Message = {"role": "system", "content": "Be 9."}

        def text(messages: Sequence[Message], *, prompt: bool = False) -> str:
            try:
                found = renders.render(list(messages), prompt=prompt).text
            except InputError:
                return ""
            # A BOS at the beginning opens no turn; some templates write it before every turn.
            return found.removeprefix(self._bos)

        called, answered = text(_CALL[:2]), text(_CALL)
        # Within a call, tokens are not those of turns: only the last one ends it.
        closers = self._closers.trailing(called, 0, len(called))
        last = "".join([closer.of(called) for closer in closers if closer.is_special][-1:])
        after = answered[len(called) :] if answered.startswith(called) else answered.rpartition("Then 5")[2]
        texts = (text(PROBE[:2]), text(PROBE, prompt=True), text([system, *PROBE], prompt=True), last, after)
        found = {token for one in texts for _, token in self.tokens(one)}
        return frozenset(found.difference(*REASONING_TAGS))

    @functools.cached_property
    def _bos(self) -> str:
        return "" if self._template is None else self._template.special_tokens.get("bos_token") or ""


class _Looking:
    """The look at the texts of one sample."""

    def __init__(self, contents: Contents, tally: RecordCounts) -> None:
        self.refused: list[str] = []
        self._contents = contents
        self._tally = tally

    def walk(self, value: Any, role: str, *, is_chat: bool) -> Any:
        """Return the value with marks in the special tokens of its texts, if these are to be literal."""
        if isinstance(value, str):
            return self._text(value, role, is_chat=is_chat)
        if isinstance(value, Conversation):
            messages = [self.walk(message, str(message.get("role")), is_chat=True) for message in value.messages]
            return replace(
                value,
                messages=messages,
                tools=self.walk(value.tools, "tools", is_chat=True),
                template_kwargs=self.walk(value.template_kwargs, "template_kwargs", is_chat=True),
                train_spans=tuple(map(_moved, value.train_spans, (message.get("content") for message in messages))),
            )
        if isinstance(value, msgspec.Struct):
            fields = [field for field in value.__struct_fields__ if field != "columns"]
            return replace(
                value, **{field: self.walk(getattr(value, field), field, is_chat=is_chat) for field in fields}
            )
        if isinstance(value, Mapping):
            self._check_joined(value.get("content"), role)
            pairs = value.items()
            return {self.walk(k, role, is_chat=is_chat): self.walk(v, role, is_chat=is_chat) for k, v in pairs}
        if isinstance(value, list | tuple):
            return [self.walk(inner, role, is_chat=is_chat) for inner in value]
        return value

    def _text(self, text: str, role: str, *, is_chat: bool) -> str:
        contents = self._contents
        tokens = contents.tokens(text)
        for _, token in tokens:
            self._tally.special[f"special token {token} ({role})"] += 1
            self._refuse(contents.refusal(token, role, is_chat=is_chat))
        if not contents.is_literal:
            return text
        if _MARK in text:
            self._refuse(f"the text of {role!r} holds U+FDD0, with which Headrace marks special tokens: remove it")
        self._tally.is_marked |= bool(tokens)
        for begin, _ in reversed(tokens):
            text = f"{text[: begin + 1]}{_MARK}{text[begin + 1 :]}"
        return text

    def _check_joined(self, content: object, role: str) -> None:
        """Refuse special tokens that only come about when a template joins the parts of a content."""
        if self._contents.is_open or not isinstance(content, list | tuple):
            return
        texts = [str(part.get("text") or "") for part in content if isinstance(part, Mapping)]
        joined = self._contents.tokens("".join(texts))
        if len(joined) > sum(len(self._contents.tokens(text)) for text in texts):
            self._refuse(f"two parts of the content of {role!r} make a special token together: correct the text")

    def _refuse(self, message: str) -> None:
        if message:
            self.refused.append(message)


def _moved(spans: tuple[TrainSpan, ...], content: object) -> tuple[TrainSpan, ...]:
    """Return the spans of a content in the content with marks."""
    marks = re.finditer(_MARK, content) if isinstance(content, str) else ()
    places = [mark.start() - number for number, mark in enumerate(marks)]
    return tuple(
        replace(one, begin=one.begin + bisect_right(places, one.begin), end=one.end + bisect_left(places, one.end))
        for one in spans
    )


def unmarked(asked: Asked) -> Asked:
    """Return a sequence without marks; `Marked.literal` holds their places."""
    marked = asked.marked
    places = [mark.start() for mark in re.finditer(_MARK, marked.text)]

    def at(place: int) -> int:
        return place - bisect_left(places, place)

    text = Marked(
        marked.text.replace(_MARK, ""),
        [replace(piece, begin=at(piece.begin), end=at(piece.end)) for piece in marked.pieces],
        [(at(begin), at(end)) for begin, end in marked.ends],
        marked.is_partly_trained,
        tuple(map(at, places)),
    )
    return replace(asked, marked=text, begin=at(asked.begin), end=None if asked.end is None else at(asked.end))
