"""One answer chosen, one rejected, to a question, to a task, or to a conversation so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from headrace.samples.conversation import Conversation, Preference
from headrace.samples.layouts.alpaca import TaskLayout
from headrace.samples.layouts.layout import Layout, assistant, user
from headrace.samples.layouts.preference import check_answers


class IntelLayout(Layout):
    """``{"system": "...", "question": "...", "chosen": "...", "rejected": "..."}``, as Intel's orca pairs."""

    name = "intel"
    says = "question, chosen, rejected, and mostly system: strings"
    makes = Preference
    required = ("question", "chosen", "rejected")
    optional = ("system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether all are strings."""
        return self.is_text(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """See `Layout.convert`."""
        question, chosen, rejected = (self.fields.text(record, field) for field in self.required)
        prompt = self.complete(record, user(question))
        return check_answers(Preference(prompt=prompt, chosen=assistant(chosen), rejected=assistant(rejected)))


class ArgillaLayout(IntelLayout):
    """``{"instruction": "...", "chosen_response": "...", "rejected_response": "..."}``; ``system`` may be there."""

    name = "argilla"
    says = "instruction, chosen_response, rejected_response: strings"
    required = ("instruction", "chosen_response", "rejected_response")


class RankedAlpacaLayout(TaskLayout):
    """``{"instruction": "...", "input": "...", "chosen": "...", "rejected": "..."}``, as LLaMA-Factory ranks."""

    name = "ranked_alpaca"
    says = "instruction, chosen, rejected, and mostly input: strings"
    makes = Preference
    required = ("instruction", "chosen", "rejected")

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """See `Layout.convert`."""
        return check_answers(
            Preference(
                prompt=self.complete(record, self.task(record)),
                chosen=assistant(self.fields.text(record, "chosen")),
                rejected=assistant(self.fields.text(record, "rejected")),
            )
        )


class RankedLayout(Layout):
    """``{"conversations": [...], "chosen": {...}, "rejected": {...}}``: one message each, as LLaMA-Factory."""

    name = "ranked"
    says = "conversations, and one message each in chosen and rejected"
    makes = Preference
    required = ("conversations", "chosen", "rejected")
    optional = ("system", "tools", "chat_template_kwargs")
    turns: ClassVar[str] = "conversations"

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether there are messages, and one in each of the others."""
        chosen, rejected = (self._only(self.fields.get(record, field)) for field in ("chosen", "rejected"))
        looks = self.reader.looks_like_message
        return self.is_messages(record, self.turns) and looks(chosen) and looks(rejected)

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """See `Layout.convert`."""
        prompt = self.complete(record, self.messages(record, self.turns))
        chosen, rejected = (self._answer(record, field) for field in ("chosen", "rejected"))
        return check_answers(Preference(prompt=prompt, chosen=chosen, rejected=rejected))

    def _answer(self, record: Mapping[str, Any], field: str) -> Conversation:
        value = self.fields.need(record, field, "a message")
        only = self._only(value)
        if not isinstance(only, Mapping):
            raise self.fields.wrong(field, value, "one message, an object with a role and a content")
        return self.reader.read([only], self.fields.name(field))

    @staticmethod
    def _only(value: object) -> object:
        return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


class RankedMessagesLayout(RankedLayout):
    """``{"messages": [...], "chosen": {...}, "rejected": {...}}``: one message each, as Axolotl."""

    name = "ranked_messages"
    says = "messages, and one message each in chosen and rejected"
    required = ("messages", "chosen", "rejected")
    turns = "messages"
