"""Plans of best-fit decreasing against TRL's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.plan.packing import Packing, plan_packs

pytestmark = pytest.mark.interop

PLACES = 1_000_000
Plan = list[list[list[int]]]
STRATEGIES = [("bfd", "best_fit"), ("bfd_split", "best_fit_split")]


@pytest.fixture(scope="module")
def trl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First: without TRL's own `datasets` that name would find a folder of these tests.
        module = pytest.importorskip("trl.data_utils")
        import datasets

        datasets.disable_progress_bars()
        return module


def theirs(trl: Any, lengths: list[int], seq_length: int, strategy: str, batch_size: int) -> Plan:
    """For each pack its pieces in order: document, first token of it, and length."""
    import datasets

    # A token says where it comes from: so many places for each document.
    ids = [np.arange(length) + PLACES * document for document, length in enumerate(lengths)]
    dataset = datasets.Dataset.from_dict({"input_ids": ids})
    options = {"batch_size": batch_size, "keep_in_memory": True, "load_from_cache_file": False}
    plan = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = trl.pack_dataset(dataset, seq_length, strategy, options)
    for row in packed:
        ends = np.cumsum(row["seq_lengths"])
        firsts = np.array(row["input_ids"])[ends - row["seq_lengths"]]
        plan.append(np.stack([firsts // PLACES, firsts % PLACES, row["seq_lengths"]], axis=1).tolist())
    return plan


def ours(lengths: list[int], seq_length: int, strategy: str, batch_size: int | None = None) -> Plan:
    """The same of our plan, every so many documents for themselves; over all without a number."""
    over_long = "truncate_right" if strategy == "best_fit" else "split"
    packing = Packing(
        seq_len=seq_length,
        strategy=strategy,  # type: ignore[arg-type]
        over_long=over_long,  # type: ignore[arg-type]
        window_documents=batch_size,
    )
    plan = plan_packs(np.array(lengths, dtype=np.int64), packing)
    items = plan.items(np.arange(len(plan)))
    pieces = np.stack([items.documents, items.begins, items.lengths], axis=1)
    return [piece.tolist() for piece in np.split(pieces, items.offsets[1:-1])] if len(plan) else []


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[int], int]:
    """Lengths, up to three times that of a pack, and this; no TRL batch is without tokens, which TRL does not take."""
    size = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, 3 * size), min_size=1, max_size=40))
    return [max(length, int(at % 3 == 0)) for at, length in enumerate(lengths)], size


@settings(max_examples=cases(40, 800), deadline=None)
@given(st.sampled_from(STRATEGIES), drawn(), st.sampled_from([None, None, 3, 6, 9]))
def test_the_plan_is_theirs(
    trl: Any, names: tuple[str, str], case: tuple[list[int], int], batch_size: int | None
) -> None:
    """Over all, and every so many documents for themselves."""
    lengths, size = case
    assert ours(lengths, size, names[1], batch_size) == theirs(trl, lengths, size, names[0], batch_size or len(lengths))


@pytest.mark.parametrize("names", STRATEGIES)
@pytest.mark.parametrize("batch_size", [1000, None])
def test_the_plan_is_theirs_for_many(trl: Any, names: tuple[str, str], batch_size: int | None) -> None:
    """In their batches of 1,000, and over all."""
    lengths = np.random.default_rng(1).lognormal(5.5, 1.2, 5_000).astype(np.int64).tolist()
    found = ours(lengths, 1024, names[1], batch_size)
    assert found == theirs(trl, lengths, 1024, names[0], batch_size or len(lengths))
    assert len(found) > 1_000
