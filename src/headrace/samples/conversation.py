"""What a record holds, once its layout is known: plain Python in frozen structs, as templates see it.

    Conversation   messages, tools                       sft, and the parts of the others
    Completion     prompt, completion                    sft, the prompt untrained; kto with a label
    Preference     prompt, chosen, rejected              dpo
    Prompt         prompt, columns passed through        prompts for rollouts
    Group          prompt, responses, rewards            grpo, offline
    Text           text                                  seq

A message is a dict with at least ``role``; ``content`` is a string, None or a list of parts; all other fields
(``tool_calls``, ``name``, ``tool_call_id``, ``reasoning_content``, ...) pass through to the template untouched. What
our own flags say (``train``, ``train_detail``) is taken off the messages and stands beside them.
"""

from __future__ import annotations

from typing import Any

import msgspec

Message = dict[str, Any]
"""One message as templates see it: ``role``, ``content`` and whatever else the record has."""


class TrainSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The characters ``[begin, end)`` of a message's content are trained, or are not.

    Axolotl's ``train_detail`` counts its ``end_offset`` in: ``{"begin_offset": 0, "end_offset": 3}`` is ``[0, 4)``.
    """

    begin: int
    end: int
    train: bool


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in order, with what the template needs besides and what is said about training.

    ``train``: one flag a message, None where the record says nothing; ``train_spans``: spans of the content of each
    message. Both are empty or as long as ``messages``.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    train: tuple[bool | None, ...] = ()
    train_spans: tuple[tuple[TrainSpan, ...], ...] = ()


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and the answer to be learnt, both text or both messages; ``label``, for KTO: whether it is wanted."""

    prompt: Conversation | str
    completion: Conversation | str
    label: bool | None = None


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen and a rejected answer; where ``prompt`` is None, both begin with the prompt they share."""

    prompt: Conversation | str | None
    chosen: Conversation | str
    rejected: Conversation | str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt without an answer; ``columns`` are the record's other fields, untouched."""

    prompt: Conversation | str
    columns: dict[str, Any] = msgspec.field(default_factory=dict)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one prompt that were rolled out before, each with its reward."""

    prompt: Conversation | str
    responses: list[Conversation | str]
    rewards: list[float]


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A document of plain text."""

    text: str
