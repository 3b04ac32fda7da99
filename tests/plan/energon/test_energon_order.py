"""Energon's order, sample for sample: worked values, and what its own loaders read (`golden/energon_order`)."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    bit_reversal,
    seed_from_args,
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
        with pytest.raises(ConfigError, match=r"is not within the 2 samples|has no samples"):
            energon_mixes.read(case | {"samples": []}, GOLDEN["counts"])


def test_the_golden_mixes_have_everything() -> None:
    mixings = [case["mixing"] for case in READ if "mixing" in case]
    assert len(mixings) < len(READ), "validation"
    assert {mixing["blend"] for mixing in mixings} == {"weights", "repetitions", "none"}
    assert {case.get("shuffle_over_epochs") for case in READ} >= {1, 2, 3, -1}
    assert {case["num_workers"] for case in READ} == {0, 1, 2, 3}
    assert {case["world_size"] for case in READ} == {1, 2, 3}
    assert any(mixing["shuffle_buffer_size"] for mixing in mixings)
    assert any(not mixing["repeat"] for mixing in mixings)
    assert any("subset" in source for case in READ for source in case["sources"])
    assert any(source.get("repetitions", 1) % 1 for case in READ for source in case["sources"])


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
    assert seed_from_args(123, 4) == 3730603423


def test_one_stream_of_draws() -> None:
    rng = WorkerRng(worker_seed(0))
    assert rng.permutation(10) == [0, 4, 3, 2, 7, 5, 6, 1, 9, 8]
    assert [rng.below(100) for _ in range(5)] == [64, 37, 14, 58, 28]
    sums = running_sums([1, 2, 3])
    assert [rng.choose(sums) for _ in range(10)] == [2, 0, 0, 2, 2, 2, 2, 1, 1, 2]
    for number, drawn in {(1 << 28) - 1: 216807171, 1 << 28: 197651757, 1 << 40: 1094072134957}.items():
        assert WorkerRng(1392141375).below(number) == drawn
    before = WorkerRng(5), WorkerRng(5)
    assert before[0].choose([3.0]) == 0
    assert before[0].permutation(1) == [0]
    assert before[0].permutation(0) == []
    assert before[0].below(1 << 20) == before[1].below(1 << 20), "one of one draws nothing"
    with pytest.raises(ConfigError, match="fewer than"):
        rng.permutation(1 << 28)


def test_a_weight_of_zero_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = WorkerRng(0)
    monkeypatch.setattr(rng, "_word", lambda: 1 << 24)
    assert rng.choose(running_sums([0, 0, 1, 3])) == 2, "the draw of exactly 0"


def test_sums_are_rounded_one_by_one() -> None:
    assert running_sums([0.1, 0.2, 0.3]) == [np.float32(0.1), np.float32(0.3), np.float32(0.6)]
    assert running_sums([2.0**24, 1, 1]) == [2.0**24, 2.0**24, 2.0**24 + 2]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, [0]),
        (3, [0, 1, 2]),
        (5, [0, 2, 1, 3, 4]),
        (6, [0, 3, 1, 4, 2, 5]),
        (7, [0, 3, 1, 5, 2, 4, 6]),
        (8, [0, 4, 2, 6, 1, 5, 3, 7]),
        (16, [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15]),
    ],
)
def test_reversal_of_bits(length: int, expected: list[int]) -> None:
    assert bit_reversal(length) == expected


@pytest.mark.parametrize(
    ("counts", "readers", "longest", "rotation", "expected"),
    [
        ([10, 10, 10], 4, None, 0, [(0, 8), (8, 10, 15), (15, 20, 23), (23, 30)]),
        ([10, 10, 11], 4, None, 0, [(0, 8), (8, 10, 16), (16, 20, 24), (24, 31)]),
        ([10, 10, 11], 4, None, 1, [(0, 7), (7, 10, 15), (15, 20, 23), (23, 31)]),
        ([7], 3, None, 0, [(0, 3), (3, 5), (5, 7)]),
        ([100], 1, 30, 0, [(0, 33, 66, 100)]),
        ([100], 1, 70, 0, [(0, 100)]),
        ([100, 3, 50], 2, 20, 0, [(0, 19, 38, 57, 77), (77, 100, 103, 128, 153)]),
        ([2, 1], 4, None, 0, [(0, 1), (1, 2), (2, 3), (3,)]),
        ([1], 4, None, 0, [(0, 1), (1,), (1,), (1,)]),
    ],
)
def test_slices_of_workers(
    counts: list[int], readers: int, longest: int | None, rotation: int, expected: list[tuple[int, ...]]
) -> None:
    borders = np.append(0, np.cumsum(counts))
    bounds = worker_bounds(0, sum(counts), readers, rotation=rotation)
    pairs = pairwise(bounds)
    assert [slice_offsets(borders, *pair, max_samples_per_sequence=longest) for pair in pairs] == expected


def order(counts: list[int], mixing: EnergonMixing | None, world_size: int = 1, num_workers: int = 0) -> EnergonOrder:
    topology = EnergonTopology(world_size=world_size, num_workers=num_workers)
    return EnergonOrder([EnergonSource(shard_counts=tuple(counts))], topology=topology, mixing=mixing)


def first(number: int, of: EnergonOrder, rank: int = 0) -> list[int]:
    return [sample.sample_index for sample in islice(of.rank_samples(rank), number)]


def test_validation_order() -> None:
    counts = [7, 7, 7]
    assert first(30, order(counts, None)) == list(range(21))
    assert first(30, order(counts, None, 1, 2)) == [*[n for i in range(10) for n in (i, 11 + i)], 10]
    assert [first(30, order(counts, None, 2, 1), rank) for rank in (0, 1)] == [list(range(11)), list(range(11, 21))]
    for rank in range(3):
        assert first(30, order(counts, None, 3, 0), rank) == list(range(7 * rank, 7 * rank + 7))
    batches = order(counts, None, 1, 2).batches
    assert [len(batch) for batch in batches(0, batch_size=4)] == [4, 4, 4, 4, 3, 2]
    assert [len(batch) for batch in batches(0, batch_size=4, drop_last=True)] == [4] * 4
    assert [len(batch) for batch in batches(0, batch_size=4, limit=3)] == [4] * 3


def test_training_order() -> None:
    counts = [25] * 4
    runs = first(100, order(counts, EnergonMixing(max_samples_per_sequence=5, parallel_shard_iters=1)))
    begins = [50, 60, 85, 75, 95, 25, 70, 55, 15, 45, 10, 20, 90, 5, 35, 0, 80, 65, 40, 30]
    assert runs == [begin + i for begin in begins for i in range(5)]
    defaults = [75, 76, 25, 0, 50, 1, 77, 2, 3, 26, 27, 4, 51, 52, 5, 78, 79, 80, 28, 29, 81, 6, 30, 7, 8, 82, 9, 10]
    assert first(28, order(counts, EnergonMixing())) == defaults
    short = EnergonMixing(max_samples_per_sequence=5, parallel_shard_iters=4)
    drawn = [85, 86, 60, 61, 87, 75, 62, 76, 77, 88, 78, 79, 63, 50, 95, 51, 96, 89, 64, 97, 25, 98, 70, 71, 99, 72]
    assert first(26, order(counts, short)) == drawn
    two_workers = [15, 95, 10, 70, 11, 71, 20, 96, 21, 80, 12, 97, 0, 98, 1, 72, 13, 99, 16, 81]
    assert first(20, order(counts, short, 1, 2)) == two_workers
    buffered = EnergonMixing(max_samples_per_sequence=5, parallel_shard_iters=4, shuffle_buffer_size=10)
    assert first(20, order(counts, buffered)) == [
        *[85, 86, 75, 87, 50, 88, 95, 78, 76, 79, 89, 63, 25, 98, 77, 70, 96, 71, 60, 51]
    ]


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
        found = [sample.sample_index for rank in range(world_size) for sample in reading.rank_samples(rank)]
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


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one source"):
        EnergonOrder([], topology=EnergonTopology(world_size=1, num_workers=0), mixing=None)
    with pytest.raises(ConfigError, match="world_size must be at least 1"):
        EnergonTopology(world_size=0, num_workers=0)
    with pytest.raises(ConfigError, match="worker 1 of rank 0 has no samples: there are 1 samples for 2 workers"):
        order([1], EnergonMixing(), 1, 2).samples(0, 1)
    for rank, worker in ((2, 0), (0, 1), (-1, 0)):
        with pytest.raises(ConfigError, match="there are 2 ranks with 1 workers each"):
            order([9], None, 2, 0).samples(rank, worker)
    for wrong in ({"shard_counts": ()}, {"shard_counts": (-1,)}):
        with pytest.raises(ConfigError, match="shard_counts"):
            EnergonSource(**wrong)
    for wrong in ({"weight": 0}, {"repetitions": 0}):
        with pytest.raises(ConfigError, match="above 0"):
            EnergonSource(shard_counts=(1,), **wrong)
    with pytest.raises(ConfigError, match="shuffle_over_epochs"):
        EnergonSource(shard_counts=(1,), shuffle_over_epochs=0)
    for wrong in ({"parallel_shard_iters": 0}, {"max_samples_per_sequence": -1}, {"shuffle_buffer_size": -1}):
        with pytest.raises(ConfigError, match="at least 1"):
            EnergonMixing(**wrong)
    with pytest.raises(ConfigError, match="'weights', 'repetitions', 'none'"):
        EnergonMixing(blend="some")
    with pytest.raises(ConfigError, match="a blend by weights is endless"):
        EnergonMixing(blend="weights", repeat=False)
