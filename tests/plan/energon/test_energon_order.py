"""Energon's order, sample for sample: worked values, and what its own loaders read (`golden/energon_order`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import energon_mixes
from counts import cases
from headrace.errors import ConfigError
from headrace.plan import SubsetRange
from headrace.plan.energon import (
    EnergonMixing,
    EnergonOrder,
    EnergonSource,
    EnergonTopology,
    WorkerRng,
    slice_offsets,
    worker_bounds,
    worker_seed,
)
from headrace.plan.torch_draws import running_sums

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/energon_order/orders.json").read_text())
READ = [case for case in GOLDEN["cases"] if "samples" in case]


PIECES = json.loads((Path(__file__).parents[2] / "golden/energon_order/pieces.json").read_text())


@pytest.mark.parametrize("case", READ, ids=range(len(READ)))
def test_what_energon_reads(case: dict[str, Any]) -> None:
    assert energon_mixes.read(case, GOLDEN["counts"]) == case["samples"]


def test_what_energon_fails_on_is_refused() -> None:
    failed = [case for case in GOLDEN["cases"] if "error" in case]
    assert failed
    for case in failed:
        with pytest.raises(ConfigError, match=r"2.*samples"):
            energon_mixes.read(case | {"samples": []}, GOLDEN["counts"])


def test_subsets_as_energon_cuts_them() -> None:
    for case in PIECES["subsets"]:
        outer = None
        for given_range in case["outer"]:
            outer = SubsetRange.of(given_range).inside(outer)
        assert list(SubsetRange.of(case["range"]).inside(outer).bounds(case["num_samples"])) == case["bounds"]


def test_slices_as_energon_cuts_them() -> None:
    for case in PIECES["slices"]:
        topology = EnergonTopology(world_size=case["world_size"], num_workers=case["num_workers"])
        bounds = worker_bounds(0, sum(case["counts"]), topology.num_readers, rotation=case["rotation"])
        borders = np.append(0, np.cumsum(case["counts"]))
        pairs = pairwise(bounds)
        longest = case["max_samples_per_sequence"]
        found = [list(slice_offsets(borders, *pair, max_samples_per_sequence=longest)) for pair in pairs]
        assert found == [offsets for rank in case["offsets"] for offsets in rank]


def test_draws_as_energon_makes_them() -> None:
    for case in PIECES["draws"]:
        rng = WorkerRng(case["seed"])
        make = {"shuffle": rng.permutation, "below": rng.below, "choose": rng.choose}
        for kind, given_numbers, drawn in case["draws"]:
            assert make[kind](running_sums(given_numbers) if kind == "choose" else given_numbers) == drawn


def test_seeds() -> None:
    pairs = [(0, 0), (1, 0), (2, 0), (7, 0), (0, 42), (1, 42)]
    expected = [273211461, 3250511459, 2273462765, 968744797, 1740599905, 2787106202]
    assert [worker_seed(*pair) for pair in pairs] == expected


def test_draws_of_large_numbers_and_of_one() -> None:
    for number, drawn in {(1 << 28) - 1: 216807171, 1 << 28: 197651757, 1 << 40: 1094072134957}.items():
        assert WorkerRng(1392141375).below(number) == drawn
    before = WorkerRng(5), WorkerRng(5)
    assert before[0].choose([3.0]) == 0
    assert before[0].permutation(1) == [0]
    assert before[0].permutation(0) == []
    assert before[0].below(1 << 20) == before[1].below(1 << 20), "one of one draws nothing"
    with pytest.raises(ConfigError, match="fewer"):
        before[0].permutation(1 << 28)


def test_a_weight_of_zero_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = WorkerRng(0)
    monkeypatch.setattr(rng, "_word", lambda: 1 << 24)
    assert rng.choose(running_sums([0, 0, 1, 3])) == 2, "the draw of exactly 0"


def test_sums_are_rounded_one_by_one() -> None:
    assert running_sums([0.1, 0.2, 0.3]) == [np.float32(0.1), np.float32(0.3), np.float32(0.6)]
    assert running_sums([2.0**24, 1, 1]) == [2.0**24, 2.0**24, 2.0**24 + 2]


def order(counts: list[int], mixing: EnergonMixing | None, world_size: int = 1, num_workers: int = 0) -> EnergonOrder:
    topology = EnergonTopology(world_size=world_size, num_workers=num_workers)
    return EnergonOrder([EnergonSource(shard_counts=tuple(counts))], topology=topology, mixing=mixing)


def test_batches_of_a_validation() -> None:
    batches = order([7, 7, 7], None, 1, 2).batches
    assert [len(batch) for batch in batches(0, batch_size=4)] == [4, 4, 4, 4, 3, 2]
    assert [len(batch) for batch in batches(0, batch_size=4, drop_last=True)] == [4] * 4
    assert [len(batch) for batch in batches(0, batch_size=4, limit=3)] == [4] * 3


@settings(max_examples=cases(16, 40), deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([None, 1, 4]),
    st.integers(1, 5),
    st.sampled_from([0, 7]),
)
def test_all_ranks_and_workers_together_read_every_sample_once(
    counts: list[int], world_size: int, num_workers: int, longest: int | None, together: int, buffer: int
) -> None:
    once = EnergonMixing(
        max_samples_per_sequence=longest,
        parallel_shard_iters=together,
        shuffle_buffer_size=buffer,
        repeat=False,
        blend="repetitions",
    )
    for mixing in (once, None):
        reading = order(counts, mixing, world_size, num_workers)
        read = [batch for rank in range(world_size) for batch in reading.batches(rank, batch_size=1)]
        found = [sample.sample_index for [sample] in read]
        assert sorted(found) == list(range(sum(counts)))


@pytest.mark.parametrize(("repetitions", "number"), [(0.5, 0), (1, 1), (2.5, 2), (3, 3)])
def test_a_part_of_a_pass_is_rounded_down(repetitions: float, number: int) -> None:
    source = EnergonSource(shard_counts=(1,), repetitions=repetitions)
    mixing = EnergonMixing(blend="repetitions", repeat=False)
    reading = EnergonOrder([source], topology=EnergonTopology(world_size=1, num_workers=0), mixing=mixing)
    assert len(list(reading.samples(0))) == number


def test_excluded_samples_are_passed_over() -> None:
    source = EnergonSource(shard_counts=(10,), excluded=frozenset({3, 7}), subset=SubsetRange.of([2, "end"]))
    topology = EnergonTopology(world_size=1, num_workers=0)
    reading = EnergonOrder([source], topology=topology, mixing=None)
    assert [sample.sample_index for sample in reading.samples(0)] == [2, 4, 5, 6, 8, 9]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: EnergonOrder([], topology=EnergonTopology(world_size=1, num_workers=0), mixing=None), "source"),
        (lambda: EnergonTopology(world_size=0, num_workers=0), "world_size.*1"),
        (lambda: order([1], EnergonMixing(), 1, 2).samples(0, 1), "1.*0.*2"),
        (lambda: order([9], None, 2, 0).samples(2, 0), "2.*1.*workers"),
        (lambda: order([9], None, 2, 0).samples(0, 1), "2.*1.*workers"),
        (lambda: order([9], None, 2, 0).samples(-1, 0), "2.*1.*workers"),
        (lambda: EnergonSource(shard_counts=()), "shard_counts"),
        (lambda: EnergonSource(shard_counts=(-1,)), "shard_counts"),
        (lambda: EnergonSource(shard_counts=(1,), weight=0), "above.*0"),
        (lambda: EnergonSource(shard_counts=(1,), repetitions=0), "above.*0"),
        (lambda: EnergonSource(shard_counts=(1,), shuffle_over_epochs=0), "shuffle_over_epochs"),
        (lambda: EnergonMixing(parallel_shard_iters=0), "least.*1"),
        (lambda: EnergonMixing(max_samples_per_sequence=-1), "least.*1"),
        (lambda: EnergonMixing(shuffle_buffer_size=-1), "least.*1"),
        (lambda: EnergonMixing(blend="some"), "'weights'.*'repetitions'.*'none'"),
        (lambda: EnergonMixing(blend="weights", repeat=False), "endless"),
    ],
)
def test_what_has_no_order_is_refused(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
