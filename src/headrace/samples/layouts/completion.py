"""``prompt`` and ``completion`` or ``response``: what is given, and what is to be learnt; and whether it was liked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from headrace.errors import InputError
from headrace.samples.conversation import Completion
from headrace.samples.layouts.fields import describe
from headrace.samples.layouts.layout import Layout, assistant


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
