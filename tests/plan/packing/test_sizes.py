"""Lengths and sums beyond 2^31, 2^32 and 2^40, from sources that hold none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.plan.packing import MAX_DOCUMENTS, Packing, plan_packs

LONGEST = 1 << 22


class HugeLengths:
    """Runs of documents of the same length, as (documents, length), a million at a time, of one array."""

    def __init__(self, *runs: tuple[int, int]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return sum(documents for documents, _ in self._runs)

    def chunks(self) -> Iterator[np.ndarray]:
        for documents, length in self._runs:
            for first in range(0, documents, 1 << 20):
                yield np.full(min(1 << 20, documents - first), length)

    def spans(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.repeat([length for _, length in self._runs], [count for count, _ in self._runs])
        return (np.cumsum(lengths) - lengths)[documents], lengths[documents]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["best_fit", "best_fit_split", "greedy", "first_fit"])
def test_documents_of_thousands_of_full_pieces(strategy: Any) -> None:
    """150 documents of 2^33 + 5 tokens: 2^40 tokens, of which every piece lies where it should."""
    length = (1 << 33) + 5
    source = HugeLengths((150, length), (1, 7))
    plan = plan_packs(source, Packing(seq_len=LONGEST, strategy=strategy, over_long="split"))
    ledger = plan.ledger
    assert ledger.raw_tokens == 150 * length + 7 > 1 << 40
    assert ledger.split_remainder_tokens == 750
    assert ledger.packed_tokens == 150 * (length - 5) + 7
    items = plan.items(np.arange(len(plan)))
    order = np.lexsort((items.begins, items.documents))
    documents, begins, lengths = (column[order] for column in (items.documents, items.begins, items.lengths))
    assert documents.tolist() == np.repeat(np.arange(151), [2049] * 150 + [1]).tolist()
    assert np.array_equal(begins[:-1].reshape(150, 2049), np.tile(np.arange(2049) * LONGEST, (150, 1)))
    assert np.array_equal(lengths[:-1].reshape(150, 2049), np.tile([LONGEST] * 2048 + [5], (150, 1)))
    assert np.array_equal(items.starts, items.documents * length + items.begins)
    assert np.array_equal(items.continues[order], np.append(np.tile([True] * 2048 + [False], 150), False))


def test_wrapped_packs_beyond_two_to_the_32() -> None:
    """2^43 tokens in packs of 1,024: twice as many packs as 32 bits can number."""
    plan = plan_packs(HugeLengths((3, 1 << 41), (1, (1 << 41) + 1)), Packing(seq_len=1024, strategy="wrapped"))
    assert len(plan) == (1 << 33) + 1
    last = len(plan) - 1
    items = plan.items(np.array([last, last - 1, 1 << 31]))
    assert items.documents.tolist() == [3, 3, 1]
    assert items.begins.tolist() == [1 << 41, (1 << 41) - 1024, 0]
    assert items.lengths.tolist() == [1, 1024, 1024]
    assert items.starts.tolist() == [1 << 43, (1 << 43) - 1024, 1 << 41]
    assert items.continues.tolist() == [False, True, True]
    assert plan.meta.deviation_tokens == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("over_long", ["truncate_left", "truncate_right", "drop"])
def test_tokens_lost_by_the_thousand_million(over_long: Any) -> None:
    length = (1 << 40) + 3
    plan = plan_packs(HugeLengths((5, length), (1, LONGEST)), Packing(seq_len=LONGEST, over_long=over_long))
    if over_long == "drop":
        assert plan.ledger.dropped_tokens == 5 * length
        assert plan.items(np.arange(len(plan))).documents.tolist() == [5]
        return
    assert plan.ledger.truncated_tokens == 5 * (length - LONGEST)
    items = plan.items(np.arange(len(plan)))
    assert items.begins.tolist() == [length - LONGEST if over_long == "truncate_left" else 0] * 5 + [0]
    assert items.lengths.tolist() == [LONGEST] * 6


def test_more_pieces_than_a_plan_can_number() -> None:
    """One document is enough for it."""
    with pytest.raises(ConfigError, match=r"1.*4,294,967,296.*4,294,967,294"):
        plan_packs(HugeLengths((1, LONGEST << 32)), Packing(seq_len=LONGEST, over_long="split"))
    # Where it is no pieces there are not too many; and without splitting the numbers of documents count alone.
    plan = plan_packs(HugeLengths((1, LONGEST << 32)), Packing(seq_len=LONGEST, over_long="truncate_right"))
    assert (len(plan), MAX_DOCUMENTS) == (1, 2**32 - 2)


def test_more_documents_than_a_plan_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents and full pieces are numbered together. The real bound would take 32 GiB of lengths to pass."""
    monkeypatch.setattr("headrace.plan.packing.lengths.MAX_DOCUMENTS", 10)
    packing = Packing(seq_len=4, over_long="split")
    assert len(plan_packs(np.array([1] * 10), packing)) == 3
    assert len(plan_packs(np.array([1] * 5 + [20]), Packing(seq_len=4, over_long="drop"))) == 2
    for lengths in ([1] * 11, [1] * 5 + [20]):
        with pytest.raises(ConfigError, match=r"documents.*10"):
            plan_packs(np.array(lengths), packing)


def test_deviation_where_squares_pass_two_to_the_63() -> None:
    """Packs of 2^22 and of 2^21 + 1 tokens in turn, half a million of each: 2^44 squared tokens in many a pack."""
    full, half = LONGEST, LONGEST // 2 + 1
    source = HugeLengths((600_000, full), (600_000, half))
    for strategy in ("best_fit", "greedy"):
        plan = plan_packs(source, Packing(seq_len=LONGEST, strategy=strategy))  # type: ignore[arg-type]
        assert len(plan) == 1_200_000
        assert plan.meta.deviation_tokens == pytest.approx((full - half) / 2, rel=1e-9)
