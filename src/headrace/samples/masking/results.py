"""What masking gives back: ids and masks of a batch, what became of the other records, and the evidence."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.samples.masking.pieces import WORDS, Region, Why

UNSTABLE, PROMPT_MISMATCH = "unstable_template", "prompt_mismatch"
NO_SUPERVISED, ALL_SUPERVISED = "no_supervised", "all_supervised"
DOUBLED_BOS, MISSING_BOS, UNTRAINED_END, EMPTY_TURN = "doubled_bos", "missing_bos", "untrained_end", "empty_turn"
TOO_LONG, SUPERVISION_CUT, UNWRITTEN_MESSAGE = "too_long", "supervision_cut", "unwritten_message"
"""Reasons for which a record is dropped."""

REWRITTEN_HISTORY, UNWRITTEN_CONTENT = "rewritten_histories", "unwritten_content"
"""Counted: turns that are trained behind what their prompt has otherwise; messages that are not written whole."""

Counts = Counter[str] | defaultdict[str, int]
"""Numbers by name; one that is missing is 0."""


class DroppedError(Exception):
    """A policy drops the record: its ``reason``, one of the names above, and what was found."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Dropped(NamedTuple):
    """A record of the batch that a policy dropped."""

    record: int
    reason: str
    message: str
    num_tokens: int
    """That it would have had; 0 where it was dropped before it was encoded."""


class Refused(NamedTuple):
    """A record of the batch that cannot be used; the message says why."""

    record: int
    message: str


class TokenEvidence(NamedTuple):
    """Why one token is trained or not."""

    id: int
    message: int
    """Number of the message in the record; -1 for text of the template outside of the messages."""
    role: str
    begin_bytes: int
    end_bytes: int
    """Its bytes in the UTF-8 of the rendered text."""
    region: Region
    is_trained: bool
    why: Why

    @property
    def words(self) -> str:
        """The reason in words."""
        return WORDS[self.why]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Of one sample of n tokens."""

    text: str
    """The rendered text, whole; a truncated sample shows some of its bytes only."""
    roles: tuple[str, ...]
    """Of the messages of the record."""
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    """(n,) bytes of each token in the UTF-8 of the text."""
    messages: NDArray[np.int32]
    regions: NDArray[np.uint8]
    whys: NDArray[np.uint8]

    def tokens(self, sample: Masked) -> Iterator[TokenEvidence]:
        """One entry a token. For people to read, not for training: a Python object a token."""
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

    def cut(self, kept: slice) -> Evidence:
        """Of some of the tokens."""
        names = ("begins", "ends", "messages", "regions", "whys")
        return dataclasses.replace(self, **{name: getattr(self, name)[kept] for name in names})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """One sample: (n,) uint32 ids and (n,) uint8 mask, 1 where a token is trained."""

    record: int
    ids: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]
    evidence: Evidence | None = None

    @property
    def num_supervised(self) -> int:
        """Trained tokens."""
        return int(np.count_nonzero(self.loss_mask))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBatch:
    """The m samples of a batch of records, in order of the records; a record that was split has several.

    Every record of the batch is in ``records``, or ``dropped``, or ``refused``.
    """

    ids: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]
    """(sum of lengths,) of all samples in a row."""
    lengths: NDArray[np.int64]
    records: NDArray[np.int64]
    num_supervised: NDArray[np.int32]
    """(m,) tokens, number of the record in the batch, trained tokens."""
    dropped: list[Dropped]
    refused: list[Refused]
    counts: Counter[str]
    """``straddling_tokens``, ``split_records``, ``shortened_records``, ``truncated_tokens``, and what a policy
    allowed."""
    evidence: list[Evidence] | None = None
    """(m,) on request."""

    def __len__(self) -> int:
        return len(self.lengths)

    def samples(self) -> Iterator[Masked]:
        """The samples one by one, as views."""
        ends = np.cumsum(self.lengths).tolist()
        for number, (end, length, record) in enumerate(
            zip(ends, self.lengths.tolist(), self.records.tolist(), strict=True)
        ):
            evidence = None if self.evidence is None else self.evidence[number]
            rows = slice(end - length, end)
            yield Masked(record=record, ids=self.ids[rows], loss_mask=self.loss_mask[rows], evidence=evidence)
