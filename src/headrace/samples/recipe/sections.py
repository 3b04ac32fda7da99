"""Samples put together field by field: the form in which AstrAI's configurations say what a record is."""

from __future__ import annotations

from typing import Literal

import msgspec

Action = Literal["train", "mask"]
SectionAction = Literal["train", "mask", "$role", "value"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one field gives to a sequence. The texts of all sections are encoded as one, never one by one."""

    field: str

    action: SectionAction
    """``train`` or ``mask`` all of it; ``$role``: what ``role_actions`` says of each message's role; ``value``: the
    field holds numbers, not text."""

    template: bool = False
    """The field is a list of messages, which the chat template renders as one conversation."""

    add_special_tokens: bool | None = None
    """Whether the tokeniser puts its own tokens around the text; None: where the first section is text."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one key of the store is made of."""

    sections: tuple[Section, ...] = ()

    list_field: bool = False
    """The field holds a list, each element of it is a sequence: the responses to a prompt."""

    mask_key: str | None = None
    """Key of the mask; None: that of the source, with ``_mask``."""

    @property
    def is_value(self) -> bool:
        """Whether it holds numbers."""
        return any(section.action == "value" for section in self.sections)


def mask_key(key: str, source: Source) -> str:
    """The key under which the mask of a source is stored."""
    return source.mask_key or f"{key}_mask"


def lengths_key(key: str) -> str:
    """The key under which the lengths of a list of sequences are stored: ``response_lengths`` of ``responses``."""
    return f"{key.removesuffix('s')}_lengths"
