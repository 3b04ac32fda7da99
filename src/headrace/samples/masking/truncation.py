"""Samples that are longer than the model's context: cut by tokens, or shortened by whole turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.samples.conversation import Conversation
from headrace.samples.masking.results import SUPERVISION_CUT, TOO_LONG, DroppedError

OverLong = Literal["error", "drop", "keep_start", "keep_end", "keep_first_turns", "keep_last_turns"]
_HEAD_ROLES = ("system", "developer")


def truncated(
    ids: NDArray[np.uint32],
    mask: NDArray[np.uint8],
    most: int,
    truncate: OverLong,
    on_supervision_cut: Literal["error", "drop"],
    *,
    limit: str = "max_tokens",
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return ids and mask of a sample of at most ``most`` tokens: the sample if it fits, else its first or last tokens.

    Raises:
        InputError: If the sample is too long and ``truncate`` is ``error``; or it loses all its trained tokens and
            ``on_supervision_cut`` is ``error``. The messages give the names of the options in a recipe, and ``limit``.
        DroppedError: If one of the two is ``drop`` in such a case.
    """
    found = len(ids)
    if found <= most:
        return ids, mask
    message = f"the sample has {found:,} tokens, but {limit} is {most:,}"
    if truncate == "error":
        raise InputError(f"{message}: raise {limit}, or choose truncate: drop, keep_start, keep_last_turns or another")
    if truncate == "drop":
        raise DroppedError(TOO_LONG, message)
    kept = slice(0, most) if truncate == "keep_start" else slice(found - most, found)
    num_supervised = np.count_nonzero(mask)
    if num_supervised and not mask[kept].any():
        message += f"; none of its {num_supervised:,} trained tokens is among those that are kept"
        if on_supervision_cut == "error":
            raise InputError(f"{message}: raise {limit}, choose another truncate, or on_supervision_cut: drop")
        raise DroppedError(SUPERVISION_CUT, message)
    return ids[kept], mask[kept]


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
