"""The samples that records become once their layout is known, as frozen structs of plain Python values.

    Conversation   messages, tools                       sft, and part of the others
    Completion     prompt, completion                    sft, the prompt untrained; kto with a label
    Preference     prompt, chosen, rejected              dpo
    Prompt         prompt, columns passed through        prompts for rollouts
    Group          prompt, responses, rewards            grpo, offline
    Text           text                                  seq

A message is a dict with at least ``role``; ``content`` is a string, None or a list of parts. All other fields
(``tool_calls``, ``name``, ``tool_call_id``, ``reasoning_content``, ...) reach the template unchanged. Our own flags
(``train``, ``train_detail``) are removed from the messages and kept beside them.
"""

from __future__ import annotations

from typing import Any

import msgspec

Message = dict[str, Any]
"""One message as templates see it: ``role``, ``content`` and all other fields of the record's message."""


class TrainSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the characters ``[begin, end)`` of a message's content are trained.

    Axolotl's ``train_detail`` includes its ``end_offset``: ``{"begin_offset": 0, "end_offset": 3}`` is ``[0, 4)``.
    """

    begin: int
    end: int
    train: bool


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in order, with tools and arguments for the template and the record's own flags about training.

    ``train`` holds one flag for each message, None where the record says nothing. ``train_spans`` holds the marked
    spans of the content of each message. Both are empty or as long as ``messages``.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    train: tuple[bool | None, ...] = ()
    train_spans: tuple[tuple[TrainSpan, ...], ...] = ()


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and the answer to learn, each a text or messages.

    For KTO, ``label`` says whether the answer is wanted.
    """

    prompt: Conversation | str
    completion: Conversation | str
    label: bool | None = None


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen and a rejected answer to a prompt.

    If ``prompt`` is None, the prompt is the beginning that both answers share.
    """

    prompt: Conversation | str | None
    chosen: Conversation | str
    rejected: Conversation | str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt without an answer.

    ``columns`` holds the record's other fields unchanged, and under ``prompt`` the messages of a conversation.
    """

    prompt: Conversation | str
    columns: dict[str, Any] = msgspec.field(default_factory=dict)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with responses from earlier rollouts, each with its reward."""

    prompt: Conversation | str
    responses: list[Conversation | str]
    rewards: list[float]


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A document of plain text."""

    text: str
