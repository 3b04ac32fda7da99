"""The books of a plan: every document and token in one place, and a wrong number is noticed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

import packs_plainly
from counts import cases
from headrace.errors import HeadraceError
from headrace.plan.packing import Packing, PackingLedger, plan_packs

ADDENDS = [
    "raw_documents", "empty_documents", "whole_documents", "split_documents", "truncated_documents",
    "dropped_documents", "raw_tokens", "packed_tokens", "split_remainder_tokens", "truncated_tokens", "dropped_tokens",
]  # fmt: skip


def counted(lengths: list[int], packing: Packing) -> dict[str, int]:
    """Every number of the ledger, from the plain packs."""
    packs = packs_plainly.packs(lengths, packing)
    of: dict[int, list[packs_plainly.Piece]] = {}
    for piece in (piece for pack in packs for piece in pack):
        of.setdefault(piece.document, []).append(piece)
    packed = {document: sum(piece.length for piece in mine) for document, mine in of.items()}
    split = [mine for mine in of.values() if len(mine) > 1]
    # The last piece of a split document is its remainder, unless it is as full as those before it; of documents that
    # lie across packs as they come, it is what is in the last of them.
    last = [max(mine, key=lambda piece: piece.begin).length for mine in split]
    remainders = [length for length in last if packing.strategy == "wrapped" or length < packing.seq_len]
    lost = {number: length - packed.get(number, 0) for number, length in enumerate(lengths)}
    return {
        "raw_documents": len(lengths),
        "empty_documents": lengths.count(0),
        "whole_documents": sum(len(mine) == 1 and not lost[number] for number, mine in of.items()),
        "split_documents": len(split),
        "truncated_documents": sum(0 < lost[number] < length for number, length in enumerate(lengths)),
        "dropped_documents": sum(0 < lost[number] == length for number, length in enumerate(lengths)),
        "raw_tokens": sum(lengths),
        "packed_tokens": sum(packed.values()) - sum(remainders),
        "split_remainder_tokens": sum(remainders),
        "truncated_tokens": sum(lost[number] for number in of),
        "dropped_tokens": sum(gone for number, gone in lost.items() if number not in of),
        "num_packs": len(packs),
        "pad_tokens": len(packs) * packing.seq_len - sum(packed.values()),
    }


@settings(max_examples=cases(60, 10_000), deadline=None)
@given(packs_plainly.drawn())
def test_every_number_is_counted(drawn: tuple[list[int], Packing]) -> None:
    lengths, packing = drawn
    ledger = plan_packs(np.array(lengths, dtype=np.int64), packing).ledger
    assert msgspec.to_builtins(ledger) == counted(lengths, packing)
    assert ledger.num_tokens + ledger.lost_tokens == sum(lengths)
    assert ledger.lost_share == (ledger.lost_tokens / sum(lengths) if sum(lengths) else 0)
    assert ledger.fill == (ledger.num_tokens / (ledger.num_packs * packing.seq_len) if ledger.num_packs else 0)
    ledger.verify()


def example() -> PackingLedger:
    """Numbers that all differ, and balance."""
    return PackingLedger(
        raw_documents=1 + 20 + 3 + 4 + 5,
        empty_documents=1,
        whole_documents=20,
        split_documents=3,
        truncated_documents=4,
        dropped_documents=5,
        raw_tokens=700 + 11 + 13 + 17,
        packed_tokens=700,
        split_remainder_tokens=11,
        truncated_tokens=13,
        dropped_tokens=17,
        num_packs=8,
        pad_tokens=89,
    )


@pytest.mark.parametrize("name", ADDENDS)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_number_that_is_off_by_one_is_noticed(name: str, by: int) -> None:
    ledger = example()
    ledger.verify()
    wrong: Any = msgspec.structs.replace(ledger, **{name: getattr(ledger, name) + by})
    with pytest.raises(HeadraceError, match="balance"):
        wrong.verify()


def test_two_faults_of_different_kinds_do_not_cancel_out() -> None:
    ledger = example()
    both = msgspec.structs.replace(ledger, raw_documents=ledger.raw_documents + 1, raw_tokens=ledger.raw_tokens - 1)
    with pytest.raises(HeadraceError, match="balance"):
        both.verify()
