"""Layouts with a chosen and a rejected answer to a prompt, which is a field of its own or the beginning of both."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, ClassVar

from headrace.config import describe
from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Preference
from headrace.samples.layouts.layout import Layout, assistant, cut, user
from headrace.samples.layouts.supervised import TaskLayout

_JOINER = "\u200d"
_MARKS = frozenset(("Mn", "Me", "Mc"))


def split_messages(chosen: Conversation, rejected: Conversation) -> Preference:
    """Take the messages with which both begin as the prompt; each side keeps at least one message, as in TRL.

    Raises:
        InputError: If the two share no message, or are the same.
    """
    if chosen.messages == rejected.messages:
        raise InputError("chosen and rejected are the same messages: there is nothing to prefer")
    shorter = min(len(chosen.messages), len(rejected.messages))
    shared = 0
    while shared < shorter - 1 and chosen.messages[shared] == rejected.messages[shared]:
        shared += 1
    if not shared:
        raise InputError(
            "chosen and rejected share no first message, so there is no prompt: begin both with the prompt, or add the "
            "field 'prompt'"
        )
    return Preference(prompt=cut(chosen, 0, shared), chosen=cut(chosen, shared), rejected=cut(rejected, shared))


def split_text(chosen: str, rejected: str) -> Preference:
    """Take the characters with which both begin as the prompt, without a space at its end, as in TRL.

    The border moves back if it would separate what a reader sees as one character: ``e`` and its accent, the parts of a
    family emoji or of a flag, a syllable of Hangul, CR and LF.

    >>> split_text("The sky is blue.", "The sky is black.").chosen
    'ue.'

    Raises:
        InputError: If one text is empty, or the two are the same.
    """
    if chosen == rejected:
        raise InputError("chosen and rejected are the same text: there is nothing to prefer")
    if not chosen or not rejected:
        raise InputError(f"{'rejected' if chosen else 'chosen'} is empty, and there is no field 'prompt'")
    shared = _num_shared(chosen, rejected)
    is_within = shared == min(len(chosen), len(rejected))
    shared -= is_within  # the shorter one keeps a character
    if not is_within and shared and chosen[shared - 1] == " ":
        shared -= 1
    while shared and not (_is_border(chosen, shared) and _is_border(rejected, shared)):
        shared -= 1
    return Preference(prompt=chosen[:shared], chosen=chosen[shared:], rejected=rejected[shared:])


def _num_shared(left: str, right: str) -> int:
    """Return how many characters both texts begin with, by binary search."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_border(text: str, at: int) -> bool:
    """Return whether a text may be cut before character ``at``, which is not the first."""
    left, right = text[at - 1], text[at]
    if left < "\u0300" and right < "\u0300":
        return not (left == "\r" and right == "\n")
    if _JOINER in (left, right) or unicodedata.category(right) in _MARKS:
        return False
    if "\U0001f3fb" <= right <= "\U0001f3ff" or "\U000e0020" <= right <= "\U000e007f":  # skin tones, tags of flags
        return False
    if _is_flag_letter(left) and _is_flag_letter(right):  # two letters make a flag: count from the first of the row
        begin = at
        while begin and _is_flag_letter(text[begin - 1]):
            begin -= 1
        return (at - begin) % 2 == 0
    return not (_is_hangul(left) and ("\u1160" <= right <= "\u11ff" or "\ud7b0" <= right <= "\ud7fb"))


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _is_hangul(char: str) -> bool:
    return "\u1100" <= char <= "\u11ff" or "\uac00" <= char <= "\ud7fb" or "\ua960" <= char <= "\ua97c"


class PreferenceLayout(Layout):
    """``{"prompt": ..., "chosen": ..., "rejected": ...}``, each a string or a list of messages, as in TRL.

    If ``prompt`` is missing, it is the common beginning of chosen and rejected. Answers that repeat a prompt of
    messages, as in Argilla's data, are cut after it. If the prompt is a string and the answers are messages, the prompt
    is the user's first message; the answers may repeat it, as in UltraFeedback.
    """

    name = "preference"
    says = "chosen, rejected, and usually prompt: strings, or lists of messages"
    makes = Preference
    required = ("chosen", "rejected")
    optional = ("prompt", "system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether both answers are strings, or both are lists of messages."""
        return self.is_text(record, *self.required) or self.is_messages(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """Convert the record; see `Layout.convert`."""
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
                f"field {self.fields.name('chosen')!r} is {describe(self.fields.get(record, 'chosen'))} and "
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
            f"field {self.fields.name('prompt')!r} is {describe(prompt)}, which is not the first user message of "
            f'{self.fields.name("chosen")!r}: correct it, or ignore the field with `fields: {{prompt: ""}}`'
        )


def check_answers(preference: Preference) -> Preference:
    """Return the preference if both answers have content and they differ.

    Raises:
        InputError: If an answer is an empty list of messages, or both answers are the same.
    """
    for name, side in (("chosen", preference.chosen), ("rejected", preference.rejected)):
        if isinstance(side, Conversation) and not side.messages:
            raise InputError(f"field {name!r} has no message after the prompt")
    if _plain(preference.chosen) == _plain(preference.rejected):
        raise InputError("chosen and rejected are the same: there is nothing to prefer")
    return preference


def _plain(side: Conversation | str) -> object:
    return side if isinstance(side, str) else side.messages


def _begins(conversation: Conversation, prompt: str) -> bool:
    """Return whether the first user message of the conversation is this prompt."""
    of_user = [message for message in conversation.messages if message["role"] == "user"]
    return bool(of_user) and of_user[0].get("content") == prompt


class IntelLayout(Layout):
    """``{"system": "...", "question": "...", "chosen": "...", "rejected": "..."}``, as in Intel's Orca pairs."""

    name = "intel"
    says = "question, chosen, rejected, and usually system: strings"
    makes = Preference
    required = ("question", "chosen", "rejected")
    optional = ("system", "tools", "chat_template_kwargs")

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """Convert the record; see `Layout.convert`."""
        question, chosen, rejected = (self.fields.text(record, field) for field in self.required)
        prompt = self.complete(record, user(question))
        return check_answers(Preference(prompt=prompt, chosen=assistant(chosen), rejected=assistant(rejected)))


class ArgillaLayout(IntelLayout):
    """``{"instruction": "...", "chosen_response": "...", "rejected_response": "..."}``; ``system`` is optional."""

    name = "argilla"
    says = "instruction, chosen_response, rejected_response: strings"
    required = ("instruction", "chosen_response", "rejected_response")


class RankedAlpacaLayout(TaskLayout):
    """``{"instruction": "...", "input": "...", "chosen": "...", "rejected": "..."}``, as LLaMA-Factory ranks them."""

    name = "ranked_alpaca"
    says = "instruction, chosen, rejected, and usually input: strings"
    makes = Preference
    required = ("instruction", "chosen", "rejected")

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """Convert the record; see `Layout.convert`."""
        return check_answers(
            Preference(
                prompt=self.complete(record, self.task(record)),
                chosen=assistant(self.fields.text(record, "chosen")),
                rejected=assistant(self.fields.text(record, "rejected")),
            )
        )


class RankedLayout(Layout):
    """``{"conversations": [...], "chosen": {...}, "rejected": {...}}``, one message in each answer (LLaMA-Factory)."""

    name = "ranked"
    says = "conversations, and one message each in chosen and rejected"
    makes = Preference
    required = ("conversations", "chosen", "rejected")
    optional = ("system", "tools", "chat_template_kwargs")
    turns: ClassVar[str] = "conversations"

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether there is a list of messages, and one message each in chosen and rejected."""
        chosen, rejected = (self._only(self.fields.get(record, field)) for field in ("chosen", "rejected"))
        looks = self.reader.looks_like_message
        return self.is_messages(record, self.turns) and looks(chosen) and looks(rejected)

    def convert(self, record: Mapping[str, Any]) -> Preference:
        """Convert the record; see `Layout.convert`."""
        prompt = self.complete(record, self.messages(record, self.turns))
        chosen, rejected = (self._answer(record, field) for field in ("chosen", "rejected"))
        return check_answers(Preference(prompt=prompt, chosen=chosen, rejected=rejected))

    def _answer(self, record: Mapping[str, Any], field: str) -> Conversation:
        value = self.fields.need(record, field, "a message")
        message = self._only(value)
        if not isinstance(message, Mapping):
            raise self.fields.wrong(field, value, "one message, an object with a role and a content")
        return self.reader.read([message], self.fields.name(field))

    @staticmethod
    def _only(value: object) -> object:
        return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


class RankedMessagesLayout(RankedLayout):
    """``{"messages": [...], "chosen": {...}, "rejected": {...}}``, one message in each answer (Axolotl)."""

    name = "ranked_messages"
    says = "messages, and one message each in chosen and rejected"
    required = ("messages", "chosen", "rejected")
    turns = "messages"
