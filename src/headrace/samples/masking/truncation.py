"""Samples longer than the model takes: cut by tokens, or shortened by whole turns."""

from __future__ import annotations

from typing import Literal, NoReturn

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Conversation
from headrace.samples.masking.options import check_choice
from headrace.samples.masking.results import SUPERVISION_CUT, TOO_LONG, DroppedError, Masked

OverLong = Literal["error", "drop", "keep_start", "keep_end", "keep_first_turns", "keep_last_turns"]
_HEAD_ROLES = ("system", "developer")


class Truncation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a sample of more than ``max_tokens``.

    ``error``, ``drop``: the record is refused, or dropped as ``too_long``;
    ``keep_start``, ``keep_end``: its first or last tokens, wherever that cuts;
    ``keep_first_turns``, ``keep_last_turns``: whole exchanges are taken away from the end or the beginning until the
    rest, rendered anew, fits. An exchange is a user's message and all up to the next one, so that no question is left
    without its answer; what stands before the first user's message (a system prompt) is kept. Where not even one
    exchange fits, the record is dropped as ``too_long``.

    ``on_supervision_cut``: a sample that had trained tokens, and has none after the cut, is dropped as
    ``supervision_cut``, or refused.

    Raises:
        ConfigError: an unknown value.
    """

    max_tokens: int
    over_long: OverLong = "error"
    on_supervision_cut: Literal["error", "drop"] = "drop"

    def __post_init__(self) -> None:
        """Check each value."""
        if not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens!r}; expected an integer of 1 or more")
        check_choice("over_long", self.over_long, OverLong)
        check_choice("on_supervision_cut", self.on_supervision_cut, Literal["error", "drop"])

    @property
    def by_turns(self) -> bool:
        """Whether whole exchanges are taken away, before rendering."""
        return self.over_long in ("keep_first_turns", "keep_last_turns")

    def refuse_cut(self, num_tokens: int, num_supervised: int) -> NoReturn:
        """A sample lost all of its trained tokens: it is dropped or refused.

        Raises:
            DroppedError: as ``on_supervision_cut`` says.
            InputError: as ``on_supervision_cut`` says.
        """
        message = (
            f"the sample has {num_tokens:,} tokens, and max_tokens is {self.max_tokens:,}; none of its "
            f"{num_supervised:,} trained tokens is among those that are kept"
        )
        if self.on_supervision_cut == "error":
            raise InputError(f"{message}: choose another over_long, or on_supervision_cut: drop")
        raise DroppedError(SUPERVISION_CUT, message)


def truncate(sample: Masked, truncation: Truncation) -> Masked:
    """The sample itself where it fits; else its first or last tokens, ids, mask and evidence alike.

    Raises:
        InputError: it is longer and must not be, or a policy refuses what is left.
        DroppedError: a policy drops it.
        ConfigError: ``keep_first_turns`` and ``keep_last_turns`` need the conversation: give them to the masker.
    """
    most, found = truncation.max_tokens, len(sample.ids)
    if found <= most:
        return sample
    message = f"the sample has {found:,} tokens, and max_tokens is {most:,}"
    if truncation.over_long == "error":
        raise InputError(f"{message}: raise it, or choose over_long: drop, keep_start, keep_last_turns or another")
    if truncation.over_long == "drop":
        raise DroppedError(TOO_LONG, message)
    if truncation.by_turns:
        raise ConfigError(
            f"over_long {truncation.over_long!r} takes turns out of a conversation, not tokens of a sample"
        )
    kept = slice(0, most) if truncation.over_long == "keep_start" else slice(found - most, found)
    cut = Masked(
        record=sample.record,
        ids=sample.ids[kept],
        loss_mask=sample.loss_mask[kept],
        evidence=None if sample.evidence is None else sample.evidence.cut(kept),
    )
    if sample.num_supervised and not cut.num_supervised:
        truncation.refuse_cut(found, sample.num_supervised)
    return cut


def exchanges(conversation: Conversation) -> list[int]:
    """Numbers of the messages at which an exchange begins: user messages whose predecessor is no user message.

    What stands before the first of them is its head, and kept; where that is an answer, it is an exchange of its own.
    """
    roles = [message.get("role") for message in conversation.messages]
    head = next((number for number, role in enumerate(roles) if role not in _HEAD_ROLES), len(roles))
    begins = [
        number for number, role in enumerate(roles) if role == "user" and (number == 0 or roles[number - 1] != role)
    ]
    return begins if not begins or begins[0] <= head or head == len(roles) else [head, *begins]


def shortened(conversation: Conversation, kept: int, *, first: bool) -> Conversation:
    """The head of a conversation and its ``kept`` first or last exchanges."""
    begins = [*exchanges(conversation), len(conversation.messages)]
    head = range(begins[0])
    rest = range(begins[0], begins[kept]) if first else range(begins[len(begins) - 1 - kept], begins[-1])
    chosen = [*head, *rest]
    return msgspec.structs.replace(
        conversation,
        messages=[conversation.messages[number] for number in chosen],
        train=tuple(conversation.train[number] for number in chosen) if conversation.train else (),
        train_spans=tuple(conversation.train_spans[number] for number in chosen) if conversation.train_spans else (),
    )
