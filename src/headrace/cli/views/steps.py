"""What is shown of one record on its way from the input to the store."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.cli.views.shown import ShownSequence

Outcome = Literal["kept", "dropped", "bad"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A text or a conversation of the record, as the layout reads it."""

    name: str
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    """As the template sees them."""

    tools: list[Any] | None = None
    template_kwargs: dict[str, Any] = {}
    train: tuple[bool | None, ...] = ()
    """What the record itself says of each message; empty where it says nothing."""

    reward: float | None = None
    rendered: str | None = None
    """Its text, where no sequence shows it."""


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in a row for which all of this is the same."""

    begin: int
    end: int
    """``[begin, end)`` of the sequence's tokens."""

    begin_bytes: int
    end_bytes: int
    """Of the rendered text in UTF-8."""

    message: int
    """Number of the message; -1 for text of the template."""

    role: str
    region: str
    is_trained: bool
    why: str
    is_kept: bool
    text: str


class RenderedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence: the whole of it, and what is stored."""

    text: str
    """As it was rendered."""

    shown: ShownSequence
    """Its tokens, whole; those that are cut off are not ``is_kept``."""

    evidence: tuple[EvidenceRow, ...]
    num_stored: int | None = None
    """Tokens in the store; None: nothing is stored."""

    added_before: tuple[str, ...] = ()
    added_after: tuple[str, ...] = ()
    """Tokens that are put at its ends, which the text does not have."""

    note: str = ""


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """One record, step by step."""

    recipe: str
    type: str
    input: str
    record: int
    """Counted over the records of the input, from 0."""

    place: str
    """In words: ``line 12``."""

    layout: str
    """Empty for recipes with sections."""

    layout_why: str
    template: str
    """Where it came from; empty: none."""

    source: Any
    """The record as it was read."""

    parts: tuple[Part, ...]
    columns: dict[str, Any] | None = None
    outcome: Outcome
    reason: str = ""
    message: str = ""
    """Why it is not kept."""

    sequences: tuple[RenderedSequence, ...]
    notes: dict[str, int] = {}
    """What was counted, by name."""

    stored: dict[str, int] = {}
    """Values of each key in the store; of several documents together."""

    num_documents: int = 0
