"""A sample as the layout reads it -> its texts and conversations by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.cli.views.steps import Part
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt, Text


def parts_of(sample: object) -> tuple[Part, ...]:
    """All of it; nothing of a record that is read field by field."""
    if isinstance(sample, Text):
        return (_part("text", sample.text),)
    if isinstance(sample, Conversation):
        return (_part("messages", sample),)
    if isinstance(sample, Completion):
        return (_part("prompt", sample.prompt), _part("completion", sample.completion))
    if isinstance(sample, Preference):
        prompt = () if sample.prompt is None else (_part("prompt", sample.prompt),)
        return (*prompt, _part("chosen", sample.chosen), _part("rejected", sample.rejected))
    if isinstance(sample, Prompt):
        return (_part("prompt", sample.prompt),)
    if isinstance(sample, Group):
        responses = zip(sample.responses, sample.rewards, strict=True)
        return (
            _part("prompt", sample.prompt),
            *(_part(f"response {number}", text, reward) for number, (text, reward) in enumerate(responses)),
        )
    return ()


def columns_of(sample: object) -> dict[str, Any] | None:
    """What is passed through beside a prompt; of a record that is read field by field all of it."""
    if isinstance(sample, Prompt):
        return sample.columns
    return dict(sample) if isinstance(sample, Mapping) else None


def _part(name: str, value: Conversation | str, reward: float | None = None) -> Part:
    if isinstance(value, str):
        return Part(name=name, text=value, reward=reward)
    return Part(
        name=name,
        messages=value.messages,
        tools=value.tools,
        template_kwargs=value.template_kwargs,
        train=value.train,
        reward=reward,
    )
