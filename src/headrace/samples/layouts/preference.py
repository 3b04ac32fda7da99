"""``chosen`` and ``rejected``, with the prompt beside them or inside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Preference
from headrace.samples.layouts.fields import describe
from headrace.samples.layouts.implicit import split_messages, split_text
from headrace.samples.layouts.layout import Layout, assistant, cut, user


class PreferenceLayout(Layout):
    """``{"prompt": ..., "chosen": ..., "rejected": ...}``; each a string, or a list of messages, as TRL.

    Without ``prompt``, it is what chosen and rejected begin with. Answers that repeat a prompt of messages at their
    begin, as in Argilla's data, are cut behind it. A prompt that is a string beside answers of messages is what the
    user said, and may stand in them again, as in UltraFeedback.
    """

    name = "preference"
    says = "chosen, rejected, and mostly prompt: strings, or lists of messages"
    makes = Preference
    required = ("chosen", "rejected")
    optional = ("prompt", "system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Whether both are strings, or both lists of messages."""
        return self.is_text(record, *self.required) or self.is_messages(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """See `Layout.convert`."""
        chosen, rejected = (self.text_or_messages(record, field) for field in self.required)
        prompt = None if self.fields.get(record, "prompt") is None else self.text_or_messages(record, "prompt")
        if isinstance(chosen, str) and isinstance(rejected, str):
            if isinstance(prompt, Conversation):
                preference = Preference(prompt=prompt, chosen=assistant(chosen), rejected=assistant(rejected))
            else:
                self.refuse_extras(record, "chosen")
                if prompt is None:
                    return split_text(chosen, rejected)
                return check_answers(Preference(prompt=prompt, chosen=chosen, rejected=rejected))
        elif isinstance(chosen, Conversation) and isinstance(rejected, Conversation):
            preference = self._of_messages(prompt, chosen, rejected)
        else:
            raise InputError(
                f"field {self.fields.name('chosen')!r} is {describe(self.fields.get(record, 'chosen'))}, "
                f"{self.fields.name('rejected')!r} is {describe(self.fields.get(record, 'rejected'))}: both must be "
                "strings, or both lists of messages"
            )
        check_answers(preference)
        if isinstance(preference.prompt, Conversation):
            completed = self.complete(record, preference.prompt)
            preference = Preference(prompt=completed, chosen=preference.chosen, rejected=preference.rejected)
        return preference

    def _of_messages(
        self, prompt: Conversation | str | None, chosen: Conversation, rejected: Conversation
    ) -> Preference:
        if isinstance(prompt, Conversation):
            num = len(prompt.messages)
            if all(side.messages[:num] == prompt.messages and len(side.messages) > num for side in (chosen, rejected)):
                chosen, rejected = cut(chosen, num), cut(rejected, num)
            return Preference(prompt=prompt, chosen=chosen, rejected=rejected)
        if prompt is None or _begins(chosen, prompt):
            return split_messages(chosen, rejected)
        if chosen.messages and chosen.messages[0]["role"] == "assistant":
            return Preference(prompt=user(prompt), chosen=chosen, rejected=rejected)
        raise InputError(
            f"field {self.fields.name('prompt')!r} is {describe(prompt)}, which is not what the user says in "
            f'{self.fields.name("chosen")!r}: leave it out with `fields: {{prompt: ""}}`, or correct it'
        )


def check_answers(preference: Preference) -> Preference:
    """The preference, where both answers are something, and not the same.

    Raises:
        InputError: an answer of messages is an empty list; or both answers are the same.
    """
    for name, side in (("chosen", preference.chosen), ("rejected", preference.rejected)):
        if isinstance(side, Conversation) and not side.messages:
            raise InputError(f"field {name!r} has no message behind the prompt")
    if _plain(preference.chosen) == _plain(preference.rejected):
        raise InputError("chosen and rejected are the same: there is nothing to prefer")
    return preference


def _plain(side: Conversation | str) -> object:
    return side if isinstance(side, str) else side.messages


def _begins(conversation: Conversation, prompt: str) -> bool:
    """Whether the first message of the user in it is this one."""
    said = [message for message in conversation.messages if message["role"] == "user"]
    return bool(said) and said[0].get("content") == prompt
