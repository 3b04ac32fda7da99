"""All layouts by name, in three families, each after the form of its samples.

Supervised layouts have one text, one conversation, or one prompt and answer in each record. Preferences have a chosen
and a rejected answer to a prompt, which is a field of its own or the beginning of both. For reinforcement learning,
there is a prompt alone, or a prompt with earlier responses and their rewards.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from headrace.config import describe, nearest
from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Completion, Conversation, Group, Message, Preference, Prompt, Text
from headrace.samples.layouts.fields import check_text
from headrace.samples.layouts.layout import Layout, assistant, cut, join, user, with_messages
from headrace.samples.layouts.turns import InputSpec, is_flag


class MessagesLayout(Layout):
    """``{"messages": [{"role": "user", "content": "..."}, ...]}``, as OpenAI, TRL and others write it."""

    name = "messages"
    says = "messages: a conversation of messages with role and content"
    makes = Conversation
    required = ("messages",)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the field looks like a list of messages."""
        return self.is_messages(record, *self.required)

    def convert(self, record: Mapping[str, Any]) -> Conversation:
        """Convert the record; see `Layout.convert`."""
        [field] = self.required
        conversation = self.messages(record, field)
        if not conversation.messages:
            raise InputError(f"field {self.fields.name(field)!r} is an empty list: a conversation has messages")
        return self.unmasked(record, self.complete(record, conversation))


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
        whole = join(self.task(record), assistant(self.fields.text(record, "output")))
        return self.unmasked(record, self.complete(record, whole))


class CompletionLayout(Layout):
    """``{"prompt": ..., "completion": ...}``, each a string or a list of messages, as in TRL.

    Strings stay text, for models without a chat template. Messages make one conversation in which only the completion
    is trained; if the completion is then a string, it is the assistant's answer.
    """

    name = "completion"
    says = "prompt, completion: strings, or lists of messages"
    makes = Completion
    required: ClassVar[tuple[str, ...]] = ("prompt", "completion")
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
    """``{"prompt": ..., "completion": ..., "label": true}``, as in TRL's KTO; the label is true for a wanted answer.

    1 and 0 are read as true and false.
    """

    name = "kto"
    says = "prompt, completion, label: an answer, and whether it is wanted"
    required = ("prompt", "completion", "label")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the fields look right for `CompletionLayout`, and the label is true or false, or 1 or 0."""
        return super().looks_right(record) and is_flag(self.fields.get(record, "label"))

    def convert(self, record: Mapping[str, Any]) -> Completion:
        """Convert the record; see `Layout.convert`."""
        label = self.fields.need(record, "label", "true or false")
        if not is_flag(label):
            raise self.fields.wrong("label", label, "true or false, or 1 or 0")
        return msgspec.structs.replace(super().convert(record), label=bool(label))


class TextLayout(Layout):
    """``{"text": "..."}``, a document of plain text."""

    name = "text"
    says = "text: a document of plain text"
    makes = Text
    required = ("text",)

    def convert(self, record: Mapping[str, Any]) -> Text:
        """Convert the record; see `Layout.convert`."""
        return Text(text=self.fields.text(record, "text"))


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


ANSWERS = ("completion", "response", "responses", "chosen", "rejected", "output", "rewards")


class PromptLayout(Layout):
    """``{"prompt": ...}``, a string or a list of messages; all other fields are kept unchanged, as in verl and TRL.

    Messages are kept, too, see `with_messages`. verl's rows have ``data_source``, ``ability``, ``reward_model`` and
    ``extra_info``.
    """

    name = "prompt"
    says = "prompt: a string or a list of messages; all other fields are kept beside it"
    makes = Prompt
    required = ("prompt",)

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether the record fits, as `Layout.fits` does, and holds no answer."""
        return super().fits(record) and not any(self.fields.has(record, field) for field in ANSWERS)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the prompt is a string or a list of messages."""
        return self.is_text_or_messages(record, "prompt")

    def convert(self, record: Mapping[str, Any]) -> Prompt:
        """Convert the record; see `Layout.convert`."""
        prompt = self.text_or_messages(record, "prompt")
        name = self.fields.name("prompt")
        columns = {field: value for field, value in record.items() if field != name}
        if isinstance(prompt, Conversation):
            if not prompt.messages:
                raise InputError(f"field {name!r} is an empty list: messages were expected")
            prompt = self.complete(record, prompt)
            columns = with_messages(columns, prompt)
        return Prompt(prompt=prompt, columns=columns)


class GroupLayout(Layout):
    """``{"prompt": ..., "responses": [...], "rewards": [1.0, 0.3]}``, with one reward for each response.

    The prompt and each response are strings or lists of messages; a response may also be a single message. If the
    prompt is messages and a response is a string, the response is the assistant's answer.
    """

    name = "group"
    says = "prompt, responses, rewards: several answers to one prompt, each with its reward"
    makes = Group
    required = ("prompt", "responses", "rewards")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether responses and rewards are lists, and the prompt is a string or a list of messages."""
        try:
            lists = [self.fields.parsed(record, field, list) for field in ("responses", "rewards")]
        except InputError:
            return False
        return None not in lists and self.is_text_or_messages(record, "prompt")

    def convert(self, record: Mapping[str, Any]) -> Group:
        """Convert the record; see `Layout.convert`."""
        prompt = self.text_or_messages(record, "prompt")
        is_chat = isinstance(prompt, Conversation)
        responses = self._listed(record, "responses")
        rewards = self._listed(record, "rewards")
        if len(responses) != len(rewards):
            raise InputError(
                f"there are {len(responses)} responses and {len(rewards)} rewards: each response needs exactly one"
            )
        if not responses:
            raise InputError(
                f"field {self.fields.name('responses')!r} is an empty list: at least one response is needed"
            )
        if isinstance(prompt, Conversation):
            prompt = self.complete(record, prompt)
        else:
            self.refuse_extras(record, "prompt")
        return Group(
            prompt=prompt,
            responses=[self._response(value, number, is_chat) for number, value in enumerate(responses)],
            rewards=[self._reward(value, number) for number, value in enumerate(rewards)],
        )

    def _listed(self, record: Mapping[str, Any], field: str) -> list[Any]:
        value = self.fields.need(record, field, "a list")
        return list(value if isinstance(value, tuple) else self.fields.parsed(record, field, list) or ())

    def _response(self, value: object, number: int, is_chat: bool) -> Conversation | str:
        place = f"{self.fields.name('responses')}[{number}]"
        if isinstance(value, str):
            text = check_text(value, place)
            return assistant(text) if is_chat else text
        read = self.reader.read([value] if isinstance(value, Mapping) else value, place)
        if not read.messages:
            raise InputError(f"{place} is an empty list: messages were expected")
        if not is_chat:
            raise InputError(
                f"{place} is {describe(value)} and the prompt is a string: if a response is messages, the prompt must "
                "be messages too"
            )
        return read

    def _reward(self, value: object, number: int) -> float:
        place = f"{self.fields.name('rewards')}[{number}]"
        if not isinstance(value, bool | int | float):
            raise InputError(f"{place} is {describe(value)}; allowed is a number")
        try:
            reward = float(value)
        except OverflowError:
            reward = math.inf
        if not math.isfinite(reward):
            raise InputError(f"{place} is {describe(value)}; allowed is a finite number")
        return reward


_ALL: tuple[type[Layout], ...] = (
    MessagesLayout,
    ConversationsLayout,
    TextLayout,
    CompletionLayout,
    ResponseLayout,
    AlpacaLayout,
    KtoLayout,
    PreferenceLayout,
    IntelLayout,
    ArgillaLayout,
    RankedAlpacaLayout,
    RankedLayout,
    RankedMessagesLayout,
    PromptLayout,
    GroupLayout,
)

LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in _ALL}
"""All layouts by their names."""


SAID = {
    "sharegpt": "conversations",
    "openai": "messages",
    "chat": "messages",
    "chatml": "messages",
    "chat_template": "messages",
    "dpo": "preference",
    "grpo": "group",
    "pretraining": "text",
}
"""The names that other tools use for some layouts."""


def make_layout(name: str, options: InputSpec | None = None) -> Layout:
    """Make the layout of this name; names that other tools use are accepted too.

    Raises:
        ConfigError: If no layout has this name.
    """
    own_name = SAID.get(name.lower(), name)
    if own_name not in LAYOUTS:
        near = nearest(name.lower(), [*LAYOUTS, *SAID])
        raise ConfigError(f"layout {name!r} is unknown{near}; allowed are {', '.join(LAYOUTS)}, auto and each")
    return LAYOUTS[own_name](options)
