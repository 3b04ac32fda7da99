"""Micro-batches of packed samples: their segments, the counts of their step, and the validator in debug mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import corpora
from headrace import (
    BatchSchedule,
    Blend,
    HeadraceError,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    WindowDataset,
)
from headrace.datasets import accounts, count_step
from headrace.loader import Ranks, Reading
from headrace.plan.packed_check import check_step
from headrace.tracing import ledgers

PACKING = Packing(seq_len=24, over_long="split")


@pytest.fixture
def run(corpus: list[corpora.Corpus]) -> Run:
    sources = {name: PackedSequenceDataset(one.store, PACKING) for name, one in zip("abcd", corpus, strict=True)}
    mix = Blend(sources, weights={"a": 3, "b": 1, "c": 1, "d": 2}, unit="tokens", end="samples", num_samples=75)
    return Run(mix, global_batch_size=BatchSchedule.of([(0, 10), (3, 7)]), order=Order(seed=2))


READINGS = [Reading(num_threads=0), Reading(num_threads=2), Reading(num_workers=1)]


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "threads", "workers"])
@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 10), (3, 2)])
def test_the_counts_of_all_micro_batches_make_the_step(
    run: Run, reading: Reading, world_size: int, micro_batch_size: int
) -> None:
    by_step: dict[int, list[dict[str, Any]]] = {}
    for rank in range(world_size):
        loader = Loader(
            run, micro_batch_size=micro_batch_size, ranks=Ranks(rank, world_size), reading=reading, debug=True
        )
        step = 0
        for batch in loader:
            by_step.setdefault(step, []).append(batch)
            step = loader.step
    assert sorted(by_step) == list(range(run.num_steps or 0))
    for step, batches in by_step.items():
        assert check_step(batches) == []
        assert batches[0]["step_supervised_tokens"] == count_step(run, step)["supervised_tokens"]
        assert count_step(run, step) == {
            "tokens": sum(int((batch["document_ids"] >= 0).sum()) for batch in batches),
            "supervised_tokens": sum(int(batch["loss_mask"].sum()) for batch in batches),
            "pads": sum(int((batch["document_ids"] < 0).sum()) for batch in batches),
            "documents": sum(_documents(batch) for batch in batches),
        }


def _documents(batch: dict[str, Any]) -> int:
    begins = batch["position_ids"] == 0
    return int((begins & (batch["document_ids"] >= 0)).sum())


def test_a_step_begun_on_other_ranks_keeps_its_count(run: Run) -> None:
    """The count is of the whole step, whatever part of it is still to come."""
    first = Loader(run, micro_batch_size=2, ranks=Ranks(0, 2))
    whole = next(iter(first))["step_supervised_tokens"]
    second = Loader(run, micro_batch_size=1, ranks=Ranks(2, 3))
    second.load_state_dict(first.state_dict())
    assert second.position == 4
    assert next(iter(second))["step_supervised_tokens"] == whole == count_step(run, 0)["supervised_tokens"]


def test_types_and_an_empty_micro_batch(run: Run) -> None:
    """A rank that gets nothing of an uneven step has no segments and no tokens, and still the step's count."""
    batches = list(Loader(run, micro_batch_size=4, ranks=Ranks(0, 8), debug=True))
    empty = [batch for batch in batches if not len(batch["input_ids"])]
    assert empty
    for batch in empty:
        assert batch["cu_seqlens"].tolist() == [0]
        assert (batch["max_seqlen"], batch["num_supervised_tokens"]) == (0, 0)
        assert batch["step_supervised_tokens"] > 0
    for batch in batches:
        assert batch["cu_seqlens"].dtype == torch.int32
        assert type(batch["max_seqlen"]) is type(batch["num_supervised_tokens"]) is int


def test_many_short_steps_are_counted_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    count = accounts.count_samples

    def counting(run: Run, located: Any) -> Any:
        calls.append(len(located.positions))
        return count(run, located)

    monkeypatch.setattr(accounts, "count_samples", counting)
    # Before the first step, the samples are looked at for steps without labels.
    monkeypatch.setattr("headrace.loader.collating.check_supervised", lambda *_: None)
    assert len(list(Loader(run, micro_batch_size=10))) == run.num_steps
    assert calls == [75]
    monkeypatch.setattr(accounts, "COUNT_POSITIONS", 17)
    calls.clear()
    list(Loader(run, micro_batch_size=10))
    assert calls == [20, 17, 21, 17]


def test_debug_mode_refuses_a_batch_that_contradicts_itself(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read_into = PackedSequenceDataset.read_into

    def leaking(self: PackedSequenceDataset, addresses: Any, out: Any, rows: Any) -> None:
        read_into(self, addresses, out, rows)
        out["labels"][rows] = np.roll(out["input_ids"][rows], -1, axis=1)  # each document predicts the next one

    monkeypatch.setattr(PackedSequenceDataset, "read_into", leaking)
    next(iter(Loader(run, micro_batch_size=10)))
    loader = Loader(run, micro_batch_size=10, debug=True)
    with pytest.raises(HeadraceError, match="labels"):
        next(iter(loader))
    assert loader.position == 0, "what was refused was not delivered"


def test_windows_have_none_of_this(corpus: list[corpora.Corpus]) -> None:
    run = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=4)
    assert not run.traits.is_packed
    assert ledgers(run) == {}
    batch = next(iter(Loader(run, micro_batch_size=4, debug=True)))
    assert set(batch) == {"input_ids", "labels", "position_ids", "sample_positions"}
    counts = count_step(run, 0)
    assert counts["tokens"] == counts["supervised_tokens"] == 32


def test_ledgers_by_source(run: Run, corpus: list[corpora.Corpus]) -> None:
    assert list(ledgers(run)) == ["a", "b", "c", "d"]
    for ledger, one in zip(ledgers(run).values(), corpus, strict=True):
        assert ledger.raw_tokens == ledger.num_tokens == len(one.tokens)
        assert ledger.lost_tokens == 0
