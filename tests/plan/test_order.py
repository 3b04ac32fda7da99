"""Every order goes through each epoch exactly once and can be undone; shards are mixed and read in long runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import Leaf, Order, OrderKind, Plan, Shards, SubsetRange, derive_array, order_quality
from headrace.plan.order import _KINDS

KINDS = ["shards", "shards", "full", "blocks", "torch", "none"]
counts_of_shards = st.lists(st.integers(0, 90), min_size=1, max_size=30).filter(any)


def shard_order(longest: int, together: int) -> Order:
    return Order(kind="shards", max_samples_per_sequence=longest, parallel_shard_iters=together)


def any_order(kind: str, longest: int, together: int) -> Order:
    """An order of a kind, with the same sizes for the blocks or the shards."""
    shards = {"max_samples_per_sequence": longest, "parallel_shard_iters": together}
    return Order(kind=kind, block_samples=longest, window_blocks=together, **shards)


def keys_of(epochs: np.ndarray) -> np.ndarray:
    return derive_array(17, epochs)


TORCH = {5: [3, 6, 0, 2, 1, 4, 5, 7], 6: [2, 1, 5, 0, 6, 3, 7, 4]}
"""``torch.randperm(8, generator=torch.Generator().manual_seed(seed))`` of torch 2.13."""


def epoch(order: Order, shards: Shards, number: int = 0) -> np.ndarray:
    ranks = np.arange(shards.num_samples, dtype=np.int64)
    return order.indices(ranks, keys_of(np.full_like(ranks, number)), shards.num_samples, shards)


@settings(max_examples=cases(30, 400), deadline=None)
@given(counts_of_shards, st.integers(1, 120), st.integers(1, 12), st.integers(0, 5), st.sampled_from(KINDS))
@example([1], 1, 1, 0, "shards")
@example([5, 5], 1, 2, 0, "shards")
@example([4, 4, 4], 2, 1, 0, "shards")
@example([7, 0, 7, 1], 3, 2, 0, "shards")
@example([8], 3, 1, 0, "blocks")
@example([7], 7, 3, 0, "blocks")
@example([6], 7, 3, 0, "blocks")
def test_an_epoch_is_every_sample_once_and_can_be_undone(
    counts: list[int], longest: int, together: int, number: int, kind: str
) -> None:
    shards, order = Shards.of_counts(counts), any_order(kind, longest, together)
    ranks = np.arange(shards.num_samples, dtype=np.int64)
    indices = epoch(order, shards, number)
    assert np.array_equal(np.sort(indices), ranks)
    found = order.ranks(indices, keys_of(np.full_like(ranks, number)), shards.num_samples, shards)
    assert np.array_equal(found, ranks)


@settings(max_examples=cases(20, 200), deadline=None)
@given(counts_of_shards, st.integers(1, 20), st.integers(1, 5), st.sampled_from(KINDS), st.data())
def test_any_ranks_of_any_epochs_at_once(
    counts: list[int], longest: int, together: int, kind: str, data: st.DataObject
) -> None:
    shards, order = Shards.of_counts(counts), any_order(kind, longest, together)
    n = shards.num_samples
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, 7))
    ranks, epochs = np.array(data.draw(st.lists(pairs, min_size=1, max_size=30)), dtype=np.int64).T
    found = order.indices(ranks, keys_of(epochs), n, shards)
    assert found.tolist() == [epoch(order, shards, e)[r] for r, e in zip(ranks.tolist(), epochs.tolist(), strict=True)]
    assert np.array_equal(order.ranks(found, keys_of(epochs), n, shards), ranks)


def windows_of(order: Order, shards: Shards, number: int) -> list[np.ndarray]:
    """The samples of each window of an epoch, sorted."""
    virtual = order.of_source(shards.num_samples, shards)
    key = int(keys_of(np.array([number]))[0])
    begins = virtual.window_begins(np.arange(virtual.num_windows + 1), key)
    assert begins[0] == 0
    assert begins[-1] == shards.num_samples
    return [np.sort(part) for part in np.split(epoch(order, shards, number), begins[1:-1])]


@settings(max_examples=cases(12, 100), deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(2, 40), st.integers(1, 8))
def test_slices_are_short_and_stay_within_their_shards(counts: list[int], longest: int, together: int) -> None:
    shards, order = Shards.of_counts(counts), shard_order(longest, together)
    pieces = set()
    for number in range(3):
        windows = windows_of(order, shards, number)
        if len(windows) == 1:
            return
        window_of = np.empty(shards.num_samples, dtype=np.int64)
        for window, samples in enumerate(windows):
            window_of[samples] = window
        # A run of one window is one slice, or two that meet where a row of slices ends.
        for part in np.split(window_of, shards.bounds[1:-1]):
            lengths = np.diff(np.flatnonzero(np.diff(part)), prepend=-1)
            assert (lengths <= 2 * longest).all()
        virtual = order.of_source(shards.num_samples, shards)
        pieces.add(virtual.num_slices)
        sizes = np.array([len(samples) for samples in windows])
        assert sizes.max() <= longest * (1.5 * together + 1), "about so many slices are open"
    assert len(pieces) == 1
    assert shards.num_samples / pieces.pop() >= min(longest / 2, shards.num_samples / len(shards) / 2)


def test_borders_move_with_the_epoch() -> None:
    shards, order = Shards.of_counts([1_000] * 40), shard_order(10, 8)
    apart = np.zeros((12, shards.num_samples - 1), dtype=bool)
    for number in range(12):
        window_of = np.empty(shards.num_samples, dtype=np.int64)
        for window, samples in enumerate(windows_of(order, shards, number)):
            window_of[samples] = window
        apart[number] = np.diff(window_of) != 0
    inside = np.ones(shards.num_samples - 1, dtype=bool)
    inside[shards.bounds[1:-1] - 1] = False
    often = apart[:, inside].mean(axis=0)
    # One pair in ten is apart in an epoch, another tenth in the next: hardly any is always together or always apart.
    assert abs(often.mean() - 0.1) < 0.01
    assert (often == 0).mean() < 0.4
    assert often.max() < 0.8


@pytest.mark.parametrize(
    ("counts", "open_shards"),
    [
        ([10_000] * 16, 16),
        ([1_000] * 64, 64),
        ([1_000] * 200, 128),
        ([101] * 3_000, 128),
        (np.random.default_rng(0).integers(200, 3_000, 1_000), 128),
        (np.random.default_rng(0).integers(50_000, 150_000, 10_000), 128),
    ],
    ids=["16 large", "64", "200", "a little over a slice", "uneven", "a billion"],
)
def test_defaults_mix_well_in_long_runs(counts: list[int], open_shards: int) -> None:
    shards = Shards.of_counts(counts)
    quality = order_quality(Order(kind="shards"), shards.num_samples, shards)
    assert quality.open_shards == open_shards
    assert quality.same_shard_pairs <= 1.5
    assert quality.displacement >= 0.8
    assert quality.mean_run_samples >= 50


def test_what_other_orders_measure() -> None:
    shards = Shards.of_counts([1_000] * 100)
    n = shards.num_samples
    full = order_quality(Order(), n, shards)
    assert abs(full.same_shard_pairs - 1) < 0.05
    assert abs(full.displacement - 1) < 0.05
    assert full.mean_run_samples < 1.01
    stored = order_quality(Order(kind="none"), n, shards)
    assert stored.displacement == 0
    assert stored.mean_run_samples == 1_000
    assert stored.same_shard_pairs_of_all > 80
    blocks = order_quality(Order(kind="blocks", block_samples=200, window_blocks=4), n, shards)
    assert blocks.mean_run_samples >= 200
    assert blocks.same_shard_pairs_of_all > 20
    alone = order_quality(Order(kind="shards"), 1)
    assert alone.mean_run_samples == 1


def test_a_source_without_shards_is_one() -> None:
    order, ranks = shard_order(10, 4), np.arange(1_000, dtype=np.int64)
    keys = keys_of(np.zeros_like(ranks))
    whole = order.indices(ranks, keys, 1_000, Shards.whole(1_000))
    assert np.array_equal(order.indices(ranks, keys, 1_000), whole)
    assert np.array_equal(np.sort(whole), ranks)


@pytest.mark.parametrize(
    ("kind", "num_samples"),
    [*(("shards", size) for size in (2**31, 2**32 + 1, 2**37)), ("full", 2**62), ("blocks", 2**62), ("none", 2**62)],
)
def test_huge_sources(kind: str, num_samples: int) -> None:
    rng = np.random.default_rng(1)
    bounds = np.sort(rng.integers(1, num_samples, 999))
    shards = Shards(np.concatenate([[0], bounds, [num_samples]]))
    order = Order(kind=kind, max_samples_per_sequence=1_000)
    ranks = np.unique(np.concatenate([rng.integers(0, num_samples, 3_000), [0, num_samples - 1]]))
    keys = keys_of(np.full_like(ranks, 3))
    found = order.indices(ranks, keys, num_samples, shards)
    assert found.min() >= 0
    assert found.max() < num_samples
    assert np.unique(found).size == ranks.size
    assert np.array_equal(order.ranks(found, keys, num_samples, shards), ranks)


GOLDEN = {
    (10, 4): "4a9bf82f6cf87acb",
    (3, 5): "b8a3ef99c336a8e9",
}


@pytest.mark.parametrize(("longest", "together"), GOLDEN)
def test_golden_values(longest: int, together: int) -> None:
    """The order of a run is part of its format: a change here needs another version in its recipe."""
    order = shard_order(longest, together)
    shards = Shards.of_counts([100, 7, 31, 0, 250, 10])
    found = np.concatenate([epoch(order, shards, number) for number in (0, 1)]).astype("<i8")
    assert sha256(found.tobytes()).hexdigest()[:16] == GOLDEN[longest, together]
    assert order.recipe == {
        "kind": "shards",
        "seed": 0,
        "max_samples_per_sequence": longest,
        "parallel_shard_iters": together,
        "version": 1,
    }


def test_the_order_of_torch_depends_on_seed_and_epoch() -> None:
    """Of each source alike; what else depends on the key of an epoch differs between them."""
    order, ranks = Order(kind="torch", seed=2**32 + 5), np.arange(8)

    def samples(order: Order, key: int, number: int) -> list[int]:
        return order.indices(ranks, np.repeat(order.epoch_keys(key, np.array([number])), 8), 8).tolist()

    assert samples(order, 1, 0) == TORCH[5]
    assert samples(order, 2, 1) == TORCH[6]
    assert samples(Order(kind="torch", seed=6), 2, 0) == TORCH[6]
    assert order.epoch_keys(1, ranks[:1]) != order.epoch_keys(2, ranks[:1])


def test_recipes_of_the_other_kinds_stay() -> None:
    assert Order(kind="torch", seed=3).recipe == {"kind": "torch", "seed": 3}
    assert Order(seed=3).recipe == {"kind": "full", "seed": 3}
    assert Order(kind="none", seed=3).recipe == {"kind": "none"}
    assert Order(kind="blocks").recipe == {"kind": "blocks", "seed": 0, "block_samples": 1024, "window_blocks": 16}


def test_shards_as_a_value() -> None:
    shards = Shards.of_counts([3, 0, 4])
    assert shards.bounds.tolist() == [0, 3, 7]
    assert len(shards) == 2
    assert shards == Shards([0, 3, 7])
    assert hash(shards) == hash(Shards([0, 3, 3, 7]))
    assert shards != Shards([0, 2, 7])
    assert shards.shard_of(np.array([0, 2, 3, 6])).tolist() == [0, 0, 1, 1]
    assert shards.subset(2, 6).bounds.tolist() == [0, 1, 4]
    leaf = Leaf("a", 7, shards).subset(1, 4)
    assert (leaf.num_samples, leaf.first_sample, leaf.shards) == (3, 1, Shards([0, 2, 3]))
    assert leaf.subset(1, 3).first_sample == 2
    plan = Plan(leaf, shard_order(2, 1))
    assert sorted(plan.lookup(np.arange(3)).indices.tolist()) == [1, 2, 3]


FIRST = np.zeros(1, dtype=np.int64)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Shards([]), "from.*0"),
        (lambda: Shards([1, 2]), "from.*0"),
        (lambda: Shards([0, 3, 2]), "from.*0"),
        (lambda: Shards([[0, 1]]), "from.*0"),
        (lambda: Shards([0, 0]), "samples"),
        (lambda: Order(kind="shards", max_samples_per_sequence=0), "parallel_shard_iters"),
        (lambda: Order(kind="shards", parallel_shard_iters=0), "parallel_shard_iters"),
        (lambda: Order(kind="shards", max_samples_per_sequence=1 << 30), "parallel_shard_iters"),
        (lambda: Order(kind="shuffled"), "'full'.*'blocks'.*'none'"),
        (lambda: Order(seed=1.5), r"1\.5"),
        (lambda: Order(kind="blocks", block_samples=0), "least.*1"),
        (lambda: Order(kind="torch").indices(FIRST, keys_of(FIRST), 2**28 + 1), "268,435,456.*full"),
        (lambda: Order(kind="shards").indices(FIRST, keys_of(FIRST), 2**62, Shards.whole(2**62)), r"2\^31"),
    ],
)
def test_what_is_no_order_is_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


def test_blocks_keep_to_their_windows() -> None:
    order = Order(kind="blocks", block_samples=50, window_blocks=4)
    indices = epoch(order, Shards.whole(10_000))
    for window in indices.reshape(-1, 200):
        blocks = np.unique(window // 50)
        assert blocks.size == 4, "a window holds exactly its blocks"
        assert np.bincount(window // 50)[blocks].tolist() == [50] * 4
    starts = indices.reshape(-1, 200)[:, 0] // 50
    assert np.abs(np.corrcoef(np.arange(50), starts)[0, 1]) < 0.5, "the blocks themselves are shuffled"
    first = indices[:200]
    assert not np.array_equal(first, np.sort(first))


def test_what_a_kind_of_order_means_is_said_once() -> None:
    """Every kind stands in the table, the docstring, the docs and the help; all else asks an order what it is."""
    assert _KINDS.keys() == set(get_args(OrderKind))
    root = Path(__file__).parents[2]
    for kind, meaning in _KINDS.items():
        order = Order(kind=kind)
        assert set(meaning.fields) <= set(Order.__struct_fields__)
        assert f"``{kind}``" in (Order.__doc__ or "")
        assert f'| `"{kind}"`' in (root / "docs/order.md").read_text()
        assert (
            kind in (root / "src/headrace/cli/runs.py").read_text().partition("next epochs on: ")[2].partition("\n")[0]
        )
        assert order.describe().count(f"seed {order.seed}") == order.draws
    compared = re.compile(r"order\.kind (==|!=|in)|order_kind")
    assert not [file for file in (root / "src").rglob("*.py") if compared.search(file.read_text())]


@pytest.mark.parametrize(
    ("given_range", "num_samples", "bounds"),
    [
        ([100, 900], 1_000, (100, 900)),
        ([100, "end"], 1_000, (100, 1_000)),
        (["25%", "75%"], 1_000, (250, 750)),
        (["33%", "100%"], 78, (25, 78)),
        (["10%", "90%"], 22, (2, 19)),
        (["0%", "29%"], 100, (0, 28)),
        (["80%", "end"], 10, (8, 10)),
        ([5, 5], 10, (5, 5)),
    ],
)
def test_one_range(given_range: list[int | str], num_samples: int, bounds: tuple[int, int]) -> None:
    """int(100 * 0.29) is 28: the floats are Energon's."""
    assert SubsetRange.of(given_range).bounds(num_samples) == bounds


def test_ranges_of_ranges() -> None:
    half = SubsetRange.of(["0%", "50%"])
    assert SubsetRange.of(["25%", "75%"]).inside(half).bounds(1_000) == (250, 500)
    assert SubsetRange.of([100, 200]).inside(half).bounds(1_000) == (100, 150)
    assert SubsetRange.of([100, 200]).inside(half.inside(SubsetRange.of(["10%", "20%"]))).bounds(1_000) == (105, 110)
    assert SubsetRange().inside(half).bounds(7) == (0, 3)
    assert half.inside(None) == half


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 10**6))
def test_parts_lie_within(low: int, high: int, num_samples: int) -> None:
    low, high = sorted((low, high))
    begin, end = SubsetRange.of([f"{low}%", f"{high}%"]).bounds(num_samples)
    assert 0 <= begin <= end <= num_samples


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([1], "two"),
        ("10%", "two"),
        ([3, 2], "rise"),
        ([-1, 2], "rise"),
        ([1, "50%"], "end.*1"),
        (["10%", 50], "end.*50"),
        (["101%", "end"], "'101%'"),
        (["x%", "50%"], "'x%'"),
        (["60%", "50%"], "after"),
        (["end", "end"], "'end'"),
        ([5, 11], "10.*samples"),
        ([11, "end"], "10.*samples"),
    ],
)
def test_what_is_no_range_of_ten_is_refused(wrong: list[int | str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SubsetRange.of(wrong).bounds(10)


def test_parts_of_numbered_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="percentages"):
        SubsetRange.of(["0%", "50%"]).inside(SubsetRange.of([1, 2]))
