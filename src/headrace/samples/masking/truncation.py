"""Samples that are longer than the model's context: cut by tokens, or shortened by whole turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NoReturn, TypeVar

import msgspec

from headrace.config import check_fields
from headrace.errors import ConfigError, InputError
from headrace.samples.conversation import Conversation
from headrace.samples.masking.results import SUPERVISION_CUT, TOO_LONG, DroppedError, Masked

OverLong = Literal["error", "drop", "keep_start", "keep_end", "keep_first_turns", "keep_last_turns"]
_HEAD_ROLES = ("system", "developer")


class Truncation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a sample of more than ``max_tokens``.

    Attributes:
        max_tokens: The most tokens that a sample may have.
        over_long: ``error`` refuses the record; ``drop`` drops it as ``too_long``; ``keep_start`` and ``keep_end`` keep
            its first or last tokens, wherever that cuts; ``keep_first_turns`` and ``keep_last_turns`` remove whole
            exchanges from the end or the beginning until the rest, rendered again, fits. An exchange is a user's
            message and everything up to the next one, so that no question loses its answer. Messages before the first
            user's message (a system prompt) are kept. If not even one exchange fits, the record is dropped as
            ``too_long``.
        on_supervision_cut: What happens to a sample that loses all its trained tokens: ``drop`` drops it as
            ``supervision_cut``, ``error`` refuses it.

    Raises:
        ConfigError: If an option has an unknown value.
    """

    max_tokens: int
    over_long: OverLong = "error"
    on_supervision_cut: Literal["error", "drop"] = "drop"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; expected an integer of 1 or more")

    @property
    def by_turns(self) -> bool:
        """Whether whole exchanges are removed, before rendering."""
        return self.over_long in ("keep_first_turns", "keep_last_turns")

    def refuse_cut(self, num_tokens: int, num_supervised: int) -> NoReturn:
        """Drop or refuse a sample that has lost all of its trained tokens.

        Raises:
            DroppedError: If ``on_supervision_cut`` is ``drop``.
            InputError: If ``on_supervision_cut`` is ``error``.
        """
        message = (
            f"the sample has {num_tokens:,} tokens, but max_tokens is {self.max_tokens:,}; none of its "
            f"{num_supervised:,} trained tokens is among those that are kept"
        )
        if self.on_supervision_cut == "error":
            raise InputError(f"{message}: choose another over_long, or on_supervision_cut: drop")
        raise DroppedError(SUPERVISION_CUT, message)


def truncate(sample: Masked, truncation: Truncation) -> Masked:
    """Return the sample if it fits; otherwise its first or last tokens, with their mask and evidence.

    Raises:
        InputError: If the sample is too long and ``over_long`` or ``on_supervision_cut`` is ``error``.
        DroppedError: If a policy drops it.
        ConfigError: If ``over_long`` is ``keep_first_turns`` or ``keep_last_turns``, which need the conversation: pass
            them to the masker.
    """
    most, found = truncation.max_tokens, len(sample.ids)
    if found <= most:
        return sample
    message = f"the sample has {found:,} tokens, but max_tokens is {most:,}"
    if truncation.over_long == "error":
        raise InputError(
            f"{message}: raise max_tokens, or choose over_long: drop, keep_start, keep_last_turns or another"
        )
    if truncation.over_long == "drop":
        raise DroppedError(TOO_LONG, message)
    if truncation.by_turns:
        raise ConfigError(
            f"over_long {truncation.over_long!r} removes turns from a conversation, not tokens from a sample: pass it "
            "to the masker"
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


T = TypeVar("T")


def most_exchanges(conversation: Conversation, make: Callable[[Conversation], T | None], *, first: bool) -> T | None:
    """Return what ``make`` returns for the most exchanges that fit, or None if not even one does.

    ``make`` is called with the conversation shortened to its first or last exchanges, a logarithmic number of times,
    and returns None if the result is too long.
    """
    best: T | None = None
    low, high = 0, len(exchanges(conversation)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        made = make(shortened(conversation, middle, first=first))
        if made is None:
            high = middle - 1
        else:
            low, best = middle, made
    return best


def exchanges(conversation: Conversation) -> list[int]:
    """Return the messages at which an exchange begins: user messages that do not follow another user message.

    Messages before the first of them are the head, which is kept; but if they hold an answer, it is an exchange too.
    """
    roles = [message.get("role") for message in conversation.messages]
    head = next((number for number, role in enumerate(roles) if role not in _HEAD_ROLES), len(roles))
    begins = [
        number for number, role in enumerate(roles) if role == "user" and (number == 0 or roles[number - 1] != role)
    ]
    return begins if not begins or begins[0] <= head or head == len(roles) else [head, *begins]


def shortened(conversation: Conversation, kept: int, *, first: bool) -> Conversation:
    """Return the head of a conversation and its ``kept`` first or last exchanges."""
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
