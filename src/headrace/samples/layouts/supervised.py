"""Layouts with one text or one conversation a record.

``messages`` and ``conversations``: a conversation, each message an object.

``instruction``, ``input`` and ``output``: one task, as Alpaca writes it, with LLaMA-Factory's additions.

``prompt`` and ``completion`` or ``response``: what is given, and what is to be learnt; and whether it was liked.

``text``: a document of plain text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from headrace.errors import InputError
from headrace.samples.conversation import Completion, Conversation, Message, Text
from headrace.samples.layouts.fields import describe
from headrace.samples.layouts.layout import Layout, assistant, join, user


class MessagesLayout(Layout):
    """``{"messages": [{"role": "user", "content": "..."}, ...]}``, as OpenAI, TRL and others write it."""

    name = "messages"
    says = "messages: a conversation of messages with role and content"
    makes = Conversation
    required = ("messages",)
    optional = ("system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether it is a list of messages."""
        return self.is_messages(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """See `Layout.convert`."""
        [field] = self.required
        conversation = self.messages(record, field)
        if not conversation.messages:
            raise InputError(f"field {self.fields.name(field)!r} is an empty list: a conversation has messages")
        return self.complete(record, conversation)


class ConversationsLayout(MessagesLayout):
    """``{"conversations": [{"from": "human", "value": "..."}, ...]}``, as ShareGPT; role and content too."""

    name = "conversations"
    says = "conversations: a conversation of messages with from and value (ShareGPT), or role and content"
    required = ("conversations",)


class TaskLayout(Layout):
    """An ``instruction``, its ``input``, and what is answered.

    Instruction and input are one message of the user, the input on a line of its own, as LLaMA-Factory. ``history`` is
    a list of pairs, what was said and answered before.
    """

    optional = ("input", "system", "history", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether all are strings."""
        return self.is_text(record, *self.required)

    def task(self, record: Mapping[str, Any]) -> Conversation:
        """What comes before the answer: the history, then instruction and input.

        Raises:
            InputError: a field is missing or of another kind.
        """
        instruction = self.fields.text(record, "instruction")
        given = self.fields.optional_text(record, "input")
        return join(
            self._history(record), user(f"{instruction}\n{given}" if instruction and given else instruction or given)
        )

    def _history(self, record: Mapping[str, Any]) -> Conversation:
        messages: list[Message] = []
        for number, pair in enumerate(self.fields.parsed(record, "history", list) or ()):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
                raise InputError(
                    f"{self.fields.name('history')}[{number}] is {describe(pair)}; allowed is a list of two strings, "
                    "what the user said and what was answered"
                )
            messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
        return Conversation(messages=messages)


class AlpacaLayout(TaskLayout):
    """``{"instruction": "...", "input": "...", "output": "..."}``; ``system`` and ``history`` may be there."""

    name = "alpaca"
    says = "instruction, input, output: one task and its answer"
    makes = Conversation
    required = ("instruction", "output")

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """See `Layout.convert`."""
        return self.complete(record, join(self.task(record), assistant(self.fields.text(record, "output"))))


class CompletionLayout(Layout):
    """``{"prompt": ..., "completion": ...}``; each a string, or a list of messages, as TRL.

    Strings stay text, for models without a chat template. Messages are one conversation of which the completion is
    trained; a completion that is a string is then the assistant's answer.
    """

    name = "completion"
    says = "prompt, completion: strings, or lists of messages"
    makes = Completion
    required: ClassVar[tuple[str, ...]] = ("prompt", "completion")
    optional = ("system", "tools", "chat_template_kwargs")
    pair: ClassVar[tuple[str, str]] = ("prompt", "completion")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether each is a string or a list of messages."""
        return all(self.is_text(record, field) or self.is_messages(record, field) for field in self.pair)

    def convert(self, record: Mapping[str, Any]) -> Completion:
        """See `Layout.convert`."""
        prompt_field, answer_field = self.pair
        prompt = self.text_or_messages(record, prompt_field)
        answer = self.text_or_messages(record, answer_field)
        if isinstance(prompt, str):
            if not isinstance(answer, str):
                raise InputError(
                    f"field {self.fields.name(prompt_field)!r} is a string and {self.fields.name(answer_field)!r} is "
                    f"{describe(answer.messages)}: where one is messages, the prompt must be too"
                )
            self.refuse_extras(record, prompt_field)
            return Completion(prompt=prompt, completion=answer)
        if isinstance(answer, str):
            answer = assistant(answer)
        for field, side in ((prompt_field, prompt), (answer_field, answer)):
            if not side.messages:
                raise InputError(f"field {self.fields.name(field)!r} is an empty list: messages were expected")
        return Completion(prompt=self.complete(record, prompt), completion=answer)


class ResponseLayout(CompletionLayout):
    """``{"prompt": ..., "response": ...}``; as `CompletionLayout`."""

    name = "response"
    says = "prompt, response: strings, or lists of messages"
    required = ("prompt", "response")
    pair = ("prompt", "response")


class KtoLayout(CompletionLayout):
    """``{"prompt": ..., "completion": ..., "label": true}``, as TRL's KTO: as `CompletionLayout`, and was it wanted."""

    name = "kto"
    says = "prompt, completion, label: an answer, and whether it is wanted"
    required = ("prompt", "completion", "label")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """As `CompletionLayout`, and the label is true or false."""
        return super().looks_right(record) and isinstance(self.fields.get(record, "label"), bool)

    def convert(self, record: Mapping[str, Any]) -> Completion:
        """See `Layout.convert`."""
        label = self.fields.need(record, "label", "true or false")
        if not isinstance(label, bool):
            raise self.fields.wrong("label", label, "true or false")
        return msgspec.structs.replace(super().convert(record), label=label)


class TextLayout(Layout):
    """``{"text": "..."}``."""

    name = "text"
    says = "text: a document of plain text"
    makes = Text
    required = ("text",)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether it is a string."""
        return self.is_text(record, "text")

    def convert(self, record: Mapping[str, Any]) -> Text:
        """See `Layout.convert`."""
        return Text(text=self.fields.text(record, "text"))
