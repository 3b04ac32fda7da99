"""``prompt`` alone: what a model is to answer while it is trained, with whatever the reward functions need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Prompt
from headrace.samples.layouts.layout import Layout

ANSWERS = ("completion", "response", "responses", "chosen", "rejected", "output", "rewards")


class PromptLayout(Layout):
    """``{"prompt": ...}``, a string or a list of messages; all other fields are kept as they are, as verl and TRL do.

    verl's rows have ``data_source``, ``ability``, ``reward_model`` and ``extra_info``.
    """

    name = "prompt"
    says = "prompt: a string or a list of messages; all other fields are kept beside it"
    makes = Prompt
    required = ("prompt",)
    optional = ("system", "tools", "chat_template_kwargs")

    def fits(self, record: Mapping[str, Any]) -> bool:
        """As `Layout.fits`, and there is no answer in the record."""
        return super().fits(record) and not any(self.fields.has(record, field) for field in ANSWERS)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether it is a string or a list of messages."""
        return self.is_text(record, "prompt") or self.is_messages(record, "prompt")

    def convert(self, record: Mapping[str, Any]) -> Prompt:
        """See `Layout.convert`."""
        prompt = self.text_or_messages(record, "prompt")
        if isinstance(prompt, Conversation):
            if not prompt.messages:
                raise InputError(f"field {self.fields.name('prompt')!r} is an empty list: messages were expected")
            prompt = self.complete(record, prompt)
        name = self.fields.name("prompt")
        return Prompt(prompt=prompt, columns={field: value for field, value in record.items() if field != name})
