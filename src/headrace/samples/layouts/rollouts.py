"""Layouts for reinforcement learning: a prompt alone, or a prompt with earlier responses and their rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.config import describe
from headrace.errors import InputError
from headrace.samples.conversation import Conversation, Group, Prompt
from headrace.samples.layouts.fields import check_text
from headrace.samples.layouts.layout import Layout, assistant

ANSWERS = ("completion", "response", "responses", "chosen", "rejected", "output", "rewards")


class PromptLayout(Layout):
    """``{"prompt": ...}``, a string or a list of messages; all other fields are kept unchanged, as in verl and TRL.

    verl's rows have ``data_source``, ``ability``, ``reward_model`` and ``extra_info``.
    """

    name = "prompt"
    says = "prompt: a string or a list of messages; all other fields are kept beside it"
    makes = Prompt
    required = ("prompt",)
    optional = ("system", "tools", "chat_template_kwargs")

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether the record fits, as `Layout.fits` does, and holds no answer."""
        return super().fits(record) and not any(self.fields.has(record, field) for field in ANSWERS)

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether the prompt is a string or a list of messages."""
        return self.is_text_or_messages(record, "prompt")

    def convert(self, record: Mapping[str, Any]) -> Prompt:
        """Convert the record; see `Layout.convert`."""
        prompt = self.text_or_messages(record, "prompt")
        if isinstance(prompt, Conversation):
            if not prompt.messages:
                raise InputError(f"field {self.fields.name('prompt')!r} is an empty list: messages were expected")
            prompt = self.complete(record, prompt)
        name = self.fields.name("prompt")
        return Prompt(prompt=prompt, columns={field: value for field, value in record.items() if field != name})


class GroupLayout(Layout):
    """``{"prompt": ..., "responses": [...], "rewards": [1.0, 0.3]}``, with one reward for each response.

    The prompt and each response are strings or lists of messages; a response may also be a single message. If the
    prompt is messages and a response is a string, the response is the assistant's answer.
    """

    name = "group"
    says = "prompt, responses, rewards: several answers to one prompt, each with its reward"
    makes = Group
    required = ("prompt", "responses", "rewards")
    optional = ("system", "tools", "chat_template_kwargs")

    def looks_right(self, record: Mapping[str, Any]) -> bool:
        """Return whether responses and rewards are lists, and the prompt is a string or a list of messages."""
        is_prompt = self.is_text_or_messages(record, "prompt")
        return is_prompt and all(isinstance(self.fields.get(record, field), list) for field in ("responses", "rewards"))

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
        if not isinstance(value, list | tuple):
            raise self.fields.wrong(field, value, "a list")
        return list(value)

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
