"""The figures of a forecast are those of the plans themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.plan.packing import ArrayLengths, Packing, plan_packs
from headrace.plan.packing.forecast import Forecast, forecast


def check(found: Forecast, lengths: IntArray, first_fit_documents: int) -> None:
    """Every figure against the ledger of the plan."""
    assert (found.documents, found.tokens) == (len(lengths), lengths.sum())
    assert found.over_long_documents == np.count_nonzero(lengths > found.seq_len)
    assert found.longest == lengths.max(initial=0)
    names = ["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"]
    assert [strategy.strategy for strategy in found.strategies] == names
    for figures in found.strategies:
        chosen = lengths[:first_fit_documents] if figures.strategy == "first_fit" else lengths
        packing = Packing(seq_len=found.seq_len, strategy=figures.strategy, over_long=figures.over_long)
        ledger = plan_packs(chosen, packing).ledger
        assert figures.documents == ledger.raw_documents
        assert figures.packs == ledger.num_packs
        assert figures.fill == ledger.fill
        with_tokens = ledger.raw_documents - ledger.empty_documents
        assert figures.documents_per_pack == with_tokens / max(1, ledger.num_packs)
        assert figures.cut_documents == ledger.split_documents + ledger.truncated_documents
        assert figures.cut_share == figures.cut_documents / max(1, ledger.raw_documents)
        assert figures.lost_tokens == ledger.lost_tokens
        assert figures.lost_share == ledger.lost_share


@settings(max_examples=cases(30, 3000))
@given(
    st.lists(st.integers(0, 25), max_size=60),
    st.integers(1, 17),
    st.integers(0, 70),
)
def test_equal_to_the_plans(drawn: list[int], seq_len: int, first_fit_documents: int) -> None:
    lengths = np.array(drawn, dtype=np.int64)
    found = forecast(ArrayLengths(lengths), seq_len, first_fit_documents=first_fit_documents)
    check(found, lengths, first_fit_documents)


def test_what_no_plan_takes() -> None:
    for seq_len in (0, (1 << 22) + 1):
        with pytest.raises(ConfigError, match="seq_len"):
            forecast(ArrayLengths(np.array([1])), seq_len, first_fit_documents=1)
    with pytest.raises(ConfigError, match=r"document.*-3"):
        forecast(ArrayLengths(np.array([4, -3])), 8, first_fit_documents=1)
