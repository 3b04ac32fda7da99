"""Render one conversation as a whole, its beginnings, and with a stand-in for a content."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Message
from headrace.samples.templates.chat_template import ChatTemplate
from headrace.samples.templates.messages import REASONING, Rendered

_FIRST_STAND_IN, _LAST_STAND_IN = 0xE000, 0xF8FF
"""Characters for private use, which have no meaning in texts."""

REASONING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""The tags that enclose a thought in the templates of public families."""

QUESTION, ANSWER, NEXT_QUESTION = "Is it?", "Yes 7", "Who 8?"
PROBE: list[Message] = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": NEXT_QUESTION},
]
"""One question, its answer, and another question, on which templates are tried."""
RESULT = "Then 5"
CALLS: list[Message] = [
    PROBE[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call12345", "type": "function", "function": {"name": "ask", "arguments": {"what": "Now 6"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "call12345", "name": "ask", "content": RESULT},
    PROBE[1],
]
"""A question, a call of a tool, its result, and the answer."""

_OPENERS = tuple(opener for opener, _ in REASONING_TAGS)
_FIELDS_BESIDE_CONTENT = frozenset((*REASONING, "tool_calls"))


class Usual(NamedTuple):
    """What a template does with one question and its answer."""

    prompt: str
    """The generation prompt that it adds; empty if it has none."""
    is_plain: bool
    """Whether the answer is the prompt, the content and the token that ends it, with nothing between them."""
    is_known: bool
    """Whether the template writes one message after another, and this prompt after any of them
    (`Rendered.message_begins`).
    """


def opens(text: str, *, at_end: bool = False) -> bool:
    """Return whether a text begins (or ends) with a tag that opens a thought."""
    return text.endswith(_OPENERS) if at_end else text.startswith(_OPENERS)


class Renders:
    """Makes each rendering of a conversation once, when it is first needed. Each costs one run of the template."""

    def __init__(
        self,
        template: ChatTemplate,
        conversation: Conversation,
        usuals: dict[tuple[str | None, str], Usual] | None = None,
    ) -> None:
        self.conversation = conversation
        self._template = template
        self._usuals = {} if usuals is None else usuals
        self._texts: dict[int, Rendered] = {}
        self._prompts: dict[int, str] = {}
        self._headers: dict[int, str | None] = {}
        self._arounds: dict[tuple[int, int, bool], tuple[str, str] | None] = {}

    @property
    def arguments(self) -> str:
        """The template's arguments of this conversation, for keys; empty if there are none."""
        kwargs = self.conversation.template_kwargs
        return repr(sorted(kwargs.items())) if kwargs else ""

    def rendered(self, count: int) -> Rendered:
        """Render the first ``count`` messages.

        Raises:
            InputError: If the template refuses them.
        """
        found = self._texts.get(count)
        if found is None:
            found = self._texts[count] = self.render(self.conversation.messages[:count])
        return found

    def text(self, count: int) -> str:
        """Return the text of the first ``count`` messages."""
        return self.rendered(count).text

    def prompt(self, count: int) -> str:
        """Return the text of the first ``count`` messages and the generation prompt.

        This is what a model sees before it writes the next message.
        """
        found = self._prompts.get(count)
        if found is None:
            found = self._prompts[count] = self.render(self.conversation.messages[:count], prompt=True).text
        return found

    def prompt_end(self, count: int, message: int, end: str) -> int | None:
        """Return where the generation prompt before a message ends in the text of the first ``count``.

        This needs no rendering. None if only a rendering shows it, or if the turn is not a plain one (`Usual`).
        """
        begins = self.rendered(count).message_begins
        usual = self.usual(end)
        if not begins or not usual.is_plain or not usual.is_known:
            return None
        place = begins[message]
        return place + len(usual.prompt) if self.text(count).startswith(usual.prompt, place) else None

    def placed(self, count: int, message: int) -> tuple[int, int] | None:
        """Return where the content of a message stands in the text of the first ``count``: ``[begin, end)``.

        The content is replaced by a character that occurs nowhere else, and the conversation is rendered again: what
        comes before and after that character must be the beginning and the end of the true text. So the place follows
        from the structure, whatever the content holds. None if the content is not used exactly once, or the text around
        it depends on it.
        """
        whole = self.text(count)
        changed = self.around(count, message)
        if changed is None:
            return None
        before, after = changed
        if len(before) + len(after) > len(whole) or not (whole.startswith(before) and whole.endswith(after)):
            return None
        return len(before), len(whole) - len(after)

    def around(self, count: int, message: int, *, prompt: bool = False) -> tuple[str, str] | None:
        """Return the text before and after the content of a message, with a stand-in in place of the content.

        ``prompt`` renders the text with the generation prompt.
        """
        key = count, message, prompt
        if key not in self._arounds:
            messages = list(self.conversation.messages[:count])
            stand_in = self.unused(self.text(count))
            messages[message] = _replaced(messages[message], stand_in)
            pieces: list[str] = []
            with contextlib.suppress(InputError):
                pieces = self.render(messages, prompt=prompt).text.split(stand_in)
            self._arounds[key] = (pieces[0], pieces[1]) if len(pieces) == 2 else None
        return self._arounds[key]

    def header(self, message: int) -> str | None:
        """Return the text before the content of a message without reasoning and tool calls."""
        if message not in self._headers:
            messages = self.conversation.messages[: message + 1]
            stand_in = self.unused(self.text(len(self.conversation.messages)))
            bare = {name: value for name, value in messages[message].items() if name not in _FIELDS_BESIDE_CONTENT}
            pieces: list[str] = []
            with contextlib.suppress(InputError):
                pieces = self.render([*messages[:message], {**bare, "content": stand_in}]).text.split(stand_in)
            self._headers[message] = pieces[0] if len(pieces) == 2 else None
        return self._headers[message]

    def usual(self, end: str | None) -> Usual:
        """Return what the template does with one question and its answer, with the arguments of this conversation.

        ``end`` is the token that ends the answer. The result is kept in ``usuals`` for all conversations with the same
        arguments.
        """
        key = end, self.arguments
        if key not in self._usuals:
            probe = Renders(
                self._template, Conversation(messages=PROBE, template_kwargs=self.conversation.template_kwargs)
            )
            begins: tuple[int, ...] = ()
            try:
                plain, prompt, answered = probe.text(1), probe.prompt(1), probe.text(2)
                begins = probe.rendered(2).message_begins
            except InputError:
                plain = prompt = answered = ""
            added = prompt[len(plain) :] if prompt.startswith(plain) else ""
            is_plain = bool(end and added.strip()) and answered.startswith(f"{prompt}{ANSWER}{end}")
            is_known = bool(begins) and prompt[begins[1] :] == added
            self._usuals[key] = Usual(added, is_plain and not opens(prompt.rstrip(), at_end=True), is_known)
        return self._usuals[key]

    def render(self, messages: list[Message], *, prompt: bool = False, tools: list[Any] | None = None) -> Rendered:
        """Render other messages with the arguments of the conversation, and with its tools if there are no others.

        Raises:
            InputError: If the template refuses them.
        """
        return self._template.render(
            messages,
            tools=self.conversation.tools if tools is None else tools,
            add_generation_prompt=prompt,
            **self.conversation.template_kwargs,
        )

    @staticmethod
    def unused(text: str) -> str:
        """Return a character for private use that does not occur in a text."""
        for code in range(_FIRST_STAND_IN, _LAST_STAND_IN + 1):
            if chr(code) not in text:
                return chr(code)
        raise InputError(
            "the conversation holds every character for private use, so none is left to mark a place: remove some"
        )


def content_of(message: Message) -> str:
    """Return the content of a message as text, with its parts joined and without the white space around them."""
    return "".join(_texts(message)).strip()


def _replaced(message: Message, text: str) -> Message:
    content: Any = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": text}
    texts = [number for number, item in enumerate(content) if isinstance(item, dict) and "text" in item]
    parts = [
        {**item, "text": text if number == texts[0] else ""} if number in texts else item
        for number, item in enumerate(content)
    ]
    return {**message, "content": parts}


def thought_of(message: Message) -> str:
    """Return the reasoning of a message, from the field that holds it; empty if there is none."""
    for name in REASONING:
        if name in message and isinstance(message[name], str):
            return str(message[name]).strip()
    return ""


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
