"""What masking returns: ids and masks, records that are dropped or refused, and the evidence."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.samples.masking.pieces import WORDS, Region, Why

UNSTABLE, PROMPT_MISMATCH = "unstable_template", "prompt_mismatch"
NO_SUPERVISED, ALL_SUPERVISED = "no_supervised", "all_supervised"
DOUBLED_BOS, MISSING_BOS, UNTRAINED_END, EMPTY_TURN = "doubled_bos", "missing_bos", "untrained_end", "empty_turn"
TOO_LONG, SUPERVISION_CUT, UNWRITTEN_MESSAGE = "too_long", "supervision_cut", "unwritten_message"
OPENED_THOUGHT = "opened_thought"
UNWRITTEN_TOOLS, UNWRITTEN_TOOL_CALLS, UNWRITTEN_PARTS = "unwritten_tools", "unwritten_tool_calls", "unwritten_parts"
"""The reasons for which a record is dropped: these names and those above."""

SWITCHED = "template argument "
"""The beginning of the counts of records that are rendered with an argument of the template which they did not set."""

APPENDED_END = "appended_ends"
"""The count of last turns that get a token which ends them, since the template writes none there."""

REWRITTEN_HISTORY = "rewritten_histories"
"""The count of trained turns whose history differs from that of their prompt."""

UNWRITTEN_CONTENT, UNWRITTEN_REASONING, UNWRITTEN_FIELDS = (
    "unwritten_content",
    "unwritten_reasoning",
    "unwritten_fields",
)
"""Counts of what else a template leaves out: texts of messages that it writes otherwise, reasoning, other fields."""

UNREAD_FLAGS = "unread_flags"
CONTINUED_PROMPTS = "continued_prompts"
QUOTED_ARGUMENTS = "quoted_arguments"
NULL_FIELDS = "null_fields"
DROPPED_NULL_ARGUMENTS = "dropped_null_arguments"
"""The count of messages and records with a field that seems to say whether they are trained, and is not followed."""

Counts = Counter[str] | defaultdict[str, int]
"""Numbers by name; a missing name counts as 0."""


class DroppedError(Exception):
    """A policy drops the record; ``reason`` is one of the names above."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FindingError(InputError):
    """A policy refuses the record; ``reason`` is one of the names above."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[FindingError], tuple[str, str]]:
        return FindingError, (self.reason, str(self))


class Dropped(NamedTuple):
    """A record of the batch that a policy dropped."""

    record: int
    reason: str
    message: str
    num_tokens: int
    """The number of tokens that it would have had; 0 if it was dropped before it was encoded."""


class Refused(NamedTuple):
    """A record of the batch that cannot be used, with the reason."""

    record: int
    message: str


class TokenEvidence(NamedTuple):
    """Why one token is trained or not."""

    id: int
    message: int
    """The number of the message in the record; -1 for text of the template outside of the messages."""
    role: str
    begin_bytes: int
    end_bytes: int
    """The token is ``[begin_bytes, end_bytes)`` of the UTF-8 of the rendered text."""
    region: Region
    is_trained: bool
    why: Why

    @property
    def words(self) -> str:
        """The reason in words."""
        return WORDS[self.why]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence for one sample of n tokens."""

    text: str
    """The whole rendered text."""
    roles: tuple[str, ...]
    """The roles of the record's messages."""
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    """(n,) the bytes ``[begin, end)`` of each token in the UTF-8 of the text."""
    messages: NDArray[np.int32]
    regions: NDArray[np.uint8]
    whys: NDArray[np.uint8]
    """(n,) message, `Region` and `Why` of each token."""

    def tokens(self, sample: Masked) -> Iterator[TokenEvidence]:
        """Yield one entry for each token. This is for people to read: it makes a Python object for each token."""
        rows = zip(
            sample.ids.tolist(),
            sample.loss_mask.tolist(),
            self.begins.tolist(),
            self.ends.tolist(),
            self.messages.tolist(),
            self.regions.tolist(),
            self.whys.tolist(),
            strict=True,
        )
        for token, trained, begin, end, message, region, why in rows:
            role = self.roles[message] if message >= 0 else ""
            yield TokenEvidence(token, message, role, begin, end, Region(region), bool(trained), Why(why))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """One sample: (n,) uint32 ids and (n,) uint8 mask, 1 for trained tokens."""

    ids: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]
    evidence: Evidence | None = None

    @property
    def num_supervised(self) -> int:
        """The number of trained tokens."""
        return int(np.count_nonzero(self.loss_mask))
