"""Counts that add up: the `Tally` of a block plus those of others is that of a piece, and so on to the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from headrace.stores import DocumentLedger, Ledger, SampleLedger, TokenLedger

T = TypeVar("T")

DUPLICATE, MAX_RECORDS, BAD, LENGTH = "duplicate", "max_records", "bad", "length"
"""Reasons under which documents and tokens are counted: ``length`` for tokens that were cut off."""

ENDED_WORKER = "ended_worker"
"""The reason for bad records that could be read, but ended each worker that came to them."""

BAD_RECORDS = "bad_records"
"""What receipts call the records that were left out as bad."""

NO_DOCUMENTS = DocumentLedger(read=0, kept=0)
NO_TOKENS = TokenLedger(made=0, kept=0)


class Tally(Ledger, frozen=True, kw_only=True):
    """What was read and kept of a block, a piece or a run: the counts of the manifest, and some that it does not show.

    Counts may be negative: those of documents that are left out after they were counted as kept, say.
    """

    documents: DocumentLedger = NO_DOCUMENTS
    """A record that was split counts once for each of its documents."""
    tokens: TokenLedger = NO_TOKENS
    lines: int = 0
    """Lines that were read, blank ones included."""
    input_bytes: int = 0
    """Bytes of the inputs that were read."""
    split: int = 0
    """Documents beyond the first of each record, for records that became several."""
    proved: int = 0
    """Documents that the reference tokeniser encoded as well."""
    routed: int = 0
    """Texts that only the reference tokeniser encoded."""

    def __add__(self, more: Tally) -> Tally:
        return added(self, more)

    def ledger(self) -> Ledger:
        """Return the counts of the manifest: reasons are sorted, and those without a count are left out."""
        samples = self.samples
        if samples is not None:
            keys = {key: _tidied(tokens) for key, tokens in samples.keys.items()}
            samples = msgspec.structs.replace(samples, keys=keys, notes=_shown(samples.notes))
        documents = msgspec.structs.replace(self.documents, dropped=_shown(self.documents.dropped))
        tokens = _tidied(self.tokens)
        return Ledger(documents=documents, tokens=tokens, samples=samples, missing_bos=self.missing_bos)


def left_out(reason: str, *, documents: int, empty: int, keys: Mapping[str, int], supervised: int | None) -> Tally:
    """The tally that takes documents off which were counted as kept.

    Args:
        reason: why they are left out.
        documents: their number.
        empty: how many of them have no tokens.
        keys: the number of their tokens in each key.
        supervised: the number of their trained tokens; None if no recipe made them.
    """
    tokens = {key: TokenLedger(made=0, kept=-number, dropped={reason: number}) for key, number in keys.items()}
    total = sum(keys.values())
    return Tally(
        documents=DocumentLedger(read=0, kept=-documents, dropped={reason: documents}, empty=-empty),
        tokens=TokenLedger(made=0, kept=-total, dropped={reason: total}),
        samples=None if supervised is None else SampleLedger(keys=tokens, supervised=-supervised),
    )


def added(left: T, right: T) -> T:
    """Add two values of one kind: numbers, or mappings and structs of them by name. None adds nothing."""
    found: Any
    if left is None or right is None:
        found = right if left is None else left
    elif isinstance(left, msgspec.Struct):
        names = left.__struct_fields__
        found = type(left)(**{name: added(getattr(left, name), getattr(right, name)) for name in names})
    elif isinstance(left, dict) and isinstance(right, dict):
        found = {**left, **{name: added(left.get(name), value) for name, value in right.items()}}
    else:
        found = left + right  # type: ignore[operator]
    return found  # type: ignore[no-any-return]


def _tidied(tokens: TokenLedger) -> TokenLedger:
    return msgspec.structs.replace(tokens, dropped=_shown(tokens.dropped), truncated=_shown(tokens.truncated))


def _shown(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in sorted(counts.items()) if number}
