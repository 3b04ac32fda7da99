"""Layouts with one text, one conversation, or one prompt and answer in each record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from headrace.config import describe
from headrace.errors import InputError
from headrace.samples.conversation import Completion, Conversation, Message, Text
from headrace.samples.layouts.layout import Layout, assistant, join, user


class MessagesLayout(Layout):
    """``{"messages": [{"role": "user", "content": "..."}, ...]}``, as OpenAI, TRL and others write it."""

    name = "messages"
    says = "messages: a conversation of messages with role and content"
    makes = Conversation
    required = ("messages",)
    optional = ("system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the field looks like a list of messages."""
        return self.is_messages(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """Convert the record; see `Layout.convert`."""
        [field] = self.required
        conversation = self.messages(record, field)
        if not conversation.messages:
            raise InputError(f"field {self.fields.name(field)!r} is an empty list: a conversation has messages")
        return self.complete(record, conversation)


class ConversationsLayout(MessagesLayout):
    """``{"conversations": [{"from": "human", "value": "..."}, ...]}``, as in ShareGPT; role and content work too."""

    name = "conversations"
    says = "conversations: a conversation of messages with from and value (ShareGPT), or role and content"
    required = ("conversations",)


class TaskLayout(Layout):
    """The base of layouts with an ``instruction``, its ``input`` and an answer.

    Instruction and input make one user message, with the input on a line of its own, as in LLaMA-Factory. ``history``
    is a list of pairs: what the user said before, and what was answered.
    """

    optional = ("input", "system", "history", "tools", "chat_template_kwargs")

    def task(self, record: Mapping[str, Any]) -> Conversation:
        """Return what comes before the answer: the history, then instruction and input.

        Raises:
            InputError: If a field is missing or of another kind.
        """
        instruction = self.fields.text(record, "instruction")
        task_input = self.fields.optional_text(record, "input")
        is_both = instruction and task_input
        text = f"{instruction}\n{task_input}" if is_both else instruction or task_input
        return join(self._history(record), user(text))

    def _history(self, record: Mapping[str, Any]) -> Conversation:
        messages: list[Message] = []
        for number, pair in enumerate(self.fields.parsed(record, "history", list) or ()):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
                raise InputError(
                    f"{self.fields.name('history')}[{number}] is {describe(pair)}; allowed is a list of two strings: "
                    "what the user said and what was answered"
                )
            messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
        return Conversation(messages=messages)


class AlpacaLayout(TaskLayout):
    """``{"instruction": "...", "input": "...", "output": "..."}``; ``system`` and ``history`` are optional."""

    name = "alpaca"
    says = "instruction, input, output: one task and its answer"
    makes = Conversation
    required = ("instruction", "output")

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """Convert the record; see `Layout.convert`."""
        return self.complete(record, join(self.task(record), assistant(self.fields.text(record, "output"))))


class CompletionLayout(Layout):
    """``{"prompt": ..., "completion": ...}``, each a string or a list of messages, as in TRL.

    Strings stay text, for models without a chat template. Messages make one conversation in which only the completion
    is trained; if the completion is then a string, it is the assistant's answer.
    """

    name = "completion"
    says = "prompt, completion: strings, or lists of messages"
    makes = Completion
    required: ClassVar[tuple[str, ...]] = ("prompt", "completion")
    optional = ("system", "tools", "chat_template_kwargs")
    pair: ClassVar[tuple[str, str]] = ("prompt", "completion")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether each of the two fields is a string or a list of messages."""
        return all(self.is_text_or_messages(record, field) for field in self.pair)

    def convert(self, record: Mapping[str, Any]) -> Completion:
        """Convert the record; see `Layout.convert`."""
        prompt_field, answer_field = self.pair
        prompt = self.text_or_messages(record, prompt_field)
        answer = self.text_or_messages(record, answer_field)
        if isinstance(prompt, str):
            if not isinstance(answer, str):
                raise InputError(
                    f"field {self.fields.name(prompt_field)!r} is a string and {self.fields.name(answer_field)!r} is "
                    f"{describe(answer.messages)}: if the answer is messages, the prompt must be messages too"
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
    """``{"prompt": ..., "response": ...}``, read as by `CompletionLayout`."""

    name = "response"
    says = "prompt, response: strings, or lists of messages"
    required = ("prompt", "response")
    pair = ("prompt", "response")


class KtoLayout(CompletionLayout):
    """``{"prompt": ..., "completion": ..., "label": true}``, as in TRL's KTO; the label is true for a wanted answer."""

    name = "kto"
    says = "prompt, completion, label: an answer, and whether it is wanted"
    required = ("prompt", "completion", "label")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the fields look right for `CompletionLayout`, and the label is true or false."""
        return super().looks_right(record) and isinstance(self.fields.get(record, "label"), bool)

    def convert(self, record: Mapping[str, Any]) -> Completion:
        """Convert the record; see `Layout.convert`."""
        label = self.fields.need(record, "label", "true or false")
        if not isinstance(label, bool):
            raise self.fields.wrong("label", label, "true or false")
        return msgspec.structs.replace(super().convert(record), label=label)


class TextLayout(Layout):
    """``{"text": "..."}``, a document of plain text."""

    name = "text"
    says = "text: a document of plain text"
    makes = Text
    required = ("text",)

    def convert(self, record: Mapping[str, Any]) -> Text:
        """Convert the record; see `Layout.convert`."""
        return Text(text=self.fields.text(record, "text"))
