"""Megatron's blends, splits and samplers: what they draw and refuse, and how their texts are read."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan.megatron import (
    CyclicOrder,
    blend_sizes,
    build_blending_indices,
    build_exhaustive_blending_indices,
    check_draws,
    normalised_weights,
    parse_blend,
    parse_split,
    split_ranges,
)
from plan.megatron import plainly


def test_sizes_of_both_eras() -> None:
    shares = normalised_weights([3, 7])
    assert blend_sizes(shares, 1000) == ([302, 704], 1000)
    # ceil(1000 * 0.3 * 1.005) and ceil(1000 * 0.7 * 1.005), and the blend is their sum.
    assert blend_sizes(shares, 1000, era="before_2025_02") == ([302, 704], 1006)
    assert blend_sizes(shares, 1001) == ([303, 705], 1002)
    assert blend_sizes(shares, 1001, era="before_2025_02") == ([302, 705], 1007)
    assert blend_sizes(shares, 1000, surplus=0.5).num_samples == [450, 1050]
    with pytest.raises(ConfigError, match="before_2025_02"):
        blend_sizes(shares, 1000, era="legacy")  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_none(weight: float) -> None:
    for refused in (normalised_weights, lambda weights: build_blending_indices(weights, 5)):
        with pytest.raises(ConfigError, match=rf"1.*{weight}"):
            refused([1.0, weight])
    with pytest.raises(ConfigError, match=rf"'B'.*{weight}"):
        parse_blend(f"1 A {weight} B")


def test_sizes_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"2.*0.*samples"):
        build_exhaustive_blending_indices([3, 1, 0])
    with pytest.raises(ConfigError, match=r"1.*32,766.*32,767"):
        build_blending_indices([1.0] * 32767, 1)
    with pytest.raises(ConfigError, match=r"1.*32,766.*0"):
        build_exhaustive_blending_indices([])
    with pytest.raises(ConfigError, match=r"size.*-1"):
        build_blending_indices([1.0], -1)
    datasets, _ = build_blending_indices([1 / 32766] * 32766, 40)
    assert datasets.tolist() == list(range(40))


def test_over_draw_names_the_dataset() -> None:
    datasets, _ = build_blending_indices([0.25, 0.5, 0.25], 1000)
    draws = np.bincount(datasets).tolist()
    assert sum(draws) == 1000
    check_draws(datasets, draws)
    draws[1] -= 1
    with pytest.raises(ConfigError, match=rf"{draws[1] + 1}.*1.*web.*{draws[1]}"):
        check_draws(datasets, draws, ["books", "web", "code"])
    draws[2] = 0
    with pytest.raises(ConfigError, match=r"dataset.*1.*1"):
        check_draws(datasets, draws)
    with pytest.raises(ConfigError, match=r"dataset.*2"):
        check_draws(datasets, [1000, 1000])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0.3 A 0.7 B]", (["A", "B"], [0.3, 0.7])),
        ("0.3 A 0.7 B", (["A", "B"], [0.3, 0.7])),
        (["0.3", "A", "0.7", " B "], (["A", "B"], [0.3, 0.7])),
        (" [ 30 a/b 70 c ] ", (["a/b", "c"], [30.0, 70.0])),
        ("A", (["A"], None)),
        ("A B", (["A", "B"], None)),
        ("A B C", (["A", "B", "C"], None)),
        (["1e2", "x y"], (["x y"], [100.0])),
        ("7", (["7"], None)),
    ],
)
def test_text(text: str | list[str], expected: tuple[list[str], list[float] | None]) -> None:
    assert parse_blend(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("[]", "prefixes"),
        (["A", ""], "prefixes"),
        ("0.3 A B", "0.*'0.3'.*3"),
        ("A 0.3 B 0.7 C", "1.*'0.3'"),
        ("0.3 A B C", "2.*'B'"),
        ("A B 0.7 C", "0.*'A'"),
    ],
)
def test_text_that_is_none(text: str | list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_blend(text)


def test_golden_borders() -> None:
    assert split_ranges("969,30,1", 49, era="core") == ((0, 47), (47, 49), (49, 49))
    assert split_ranges("969,30,1", 49, era="legacy") == ((0, 48), (48, 49), (49, 49))
    assert split_ranges("1,0,0", 7, era="core") == ((0, 7), None, None)
    assert split_ranges("0,1,0", 7, era="legacy") == (None, (0, 7), None)
    assert split_ranges("99,1", 1000, era="core") == ((0, 990), (990, 1000), None)


def test_halves_are_rounded_to_even() -> None:
    assert [split_ranges("1,1,0", n, era="core")[0] for n in (1, 3, 5, 7)] == [(0, 0), (0, 2), (0, 2), (0, 4)]
    # Each share on its own: 2.5 and 2.5 are 2 and 2, so one sequence is missing and all borders move up by it.
    assert split_ranges("1,1,0", 5, era="legacy") == ((0, 3), (3, 5), None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("split", "percent"), [("969,30,1", 24.3), ("949,50,1", 24.7), ("99,1,0", 0.0)])
def test_how_often_the_eras_differ(split: str, percent: float) -> None:
    """Counted over 1 to 20,000 sequences, as measured with both originals."""
    differing = 0
    for count in range(1, 20_001):
        core, legacy = (split_ranges(split, count, era=era) for era in ("core", "legacy"))
        differing += core != legacy
        for ranges in (core, legacy):
            borders = [border for part in ranges if part for border in part]
            assert borders == sorted(borders)
            assert (borders[0], borders[-1]) == (0, count)
    assert round(differing / 200, 1) == percent


@pytest.mark.parametrize(
    ("split", "shares"),
    [
        ("969,30,1", (969, 30, 1)),
        ("969/30/1", (969, 30, 1)),
        ("969, 30, 1", (969, 30, 1)),
        ("[.5 .5]", (1, 1, 0)),
        ("3", (1, 0, 0)),
        ("98.5,1.5", (197, 3, 0)),
    ],
)
def test_split_text(split: str, shares: tuple[int, int, int]) -> None:
    assert parse_split(split) == pytest.approx([float(Fraction(share, sum(shares))) for share in shares], abs=1e-15)


@pytest.mark.parametrize("split", ["", "a", "1,-1", "1e3,1", "1,2,3,4", "0,0,0", "0", "1,,2", "1.2.3", "nan,1"])
def test_split_text_that_is_none(split: str) -> None:
    with pytest.raises(ConfigError, match="split"):
        parse_split(split)


def test_what_is_refused() -> None:
    # Megatron would take the last sequence for validation, and all of them again.
    with pytest.raises(ConfigError, match=r"\[0.*-1.*1"):
        split_ranges("0,1,1", 3, era="legacy")
    assert split_ranges("0,1,1", 3, era="core") == (None, (0, 2), (2, 3))
    with pytest.raises(ConfigError, match=r"'core'.*'legacy'"):
        split_ranges("1", 3, era="neox")  # type: ignore[arg-type]


NUMBERS = st.integers(1, 5)


@settings(max_examples=cases(15, 3000), deadline=None)
@given(st.integers(1, 80), NUMBERS, NUMBERS, st.booleans(), st.integers(0, 6))
@example(3, 1, 2, False, 0)
def test_each_rank_takes_the_batches_of_the_sampler(
    total: int, size: int, ranks: int, sharded: bool, epoch: int
) -> None:
    together = size * ranks
    active = total - total % together
    if not active:
        return
    order = CyclicOrder(total, micro_batch_size=size, data_parallel_size=ranks, data_sharding=sharded)
    assert order.num_samples_per_epoch == active
    positions = np.arange(epoch * active, (epoch + 1) * active)
    found = order.locate(positions).reshape(-1, ranks, size)
    for rank in range(ranks):
        batches = plainly.cyclic_batches(total, epoch * active, rank, ranks, size, sharded=sharded)
        # One rank may get a batch more, which Megatron's other ranks do not have.
        assert found[:, rank].tolist() == batches[: active // together]
    assert len(np.unique(found)) == active, "no sample twice in an epoch"


@settings(max_examples=cases(16, 1000), deadline=None)
@given(st.integers(1, 50), NUMBERS, NUMBERS, st.booleans(), st.lists(st.integers(0, 400), max_size=30))
def test_any_positions_in_any_order(total: int, size: int, ranks: int, sharded: bool, wanted: list[int]) -> None:
    """Whatever was asked for before: the permutations that are kept change nothing."""
    if total < size * ranks:
        return
    order = CyclicOrder(total, micro_batch_size=size, data_parallel_size=ranks, data_sharding=sharded)
    whole = order.locate(np.arange(401))
    assert order.locate(np.array(wanted, dtype=np.int64)).tolist() == whole[wanted].tolist()
    assert [int(order.locate(np.array([position]))[0]) for position in wanted] == whole[wanted].tolist()


def test_the_last_epoch_that_has_a_seed() -> None:
    order = CyclicOrder(7, micro_batch_size=2, data_parallel_size=1)
    assert len(order) == 6 << 32
    last = order.locate(np.arange(len(order) - 6, len(order)))
    assert last.tolist() == plainly.randperm(6, 2**32 - 1)
    many = CyclicOrder(3 << 40, micro_batch_size=1, data_parallel_size=3)
    assert len(many) == (1 << 62) // (3 << 40) * (3 << 40) < 1 << 62


def test_permutations_are_kept_for_two_epochs_in_four_bytes_and_not_pickled() -> None:
    order = CyclicOrder(40, micro_batch_size=2, data_parallel_size=2)
    order.locate(np.arange(200))
    kept = order.__getstate__()["_kept"], order._kept
    assert kept[0] == {}
    assert list(kept[1]) == [3, 4]
    assert all(array.dtype == np.int32 and array.shape == (20,) for array in kept[1].values())
    again = pickle.loads(pickle.dumps(order))
    assert again.locate(np.arange(200)).tolist() == order.locate(np.arange(200)).tolist()


def test_threads_share_one() -> None:
    order = CyclicOrder(12, micro_batch_size=1, data_parallel_size=3, data_sharding=False)
    expected = CyclicOrder(12, micro_batch_size=1, data_parallel_size=3, data_sharding=False).locate(np.arange(600))
    parts = [np.arange(first, 600, 7) for first in range(7)] * 4
    with ThreadPoolExecutor(8) as pool:
        for part, found in zip(parts, pool.map(order.locate, parts), strict=True):
            assert found.tolist() == expected[part].tolist()


@pytest.mark.parametrize(
    ("total", "size", "ranks", "named"),
    [
        (3, 2, 2, "3.*2.*2"),
        (0, 1, 1, "0.*samples"),
        (9, 0, 2, "0.*2"),
        (9, 2, 0, "2.*0"),
    ],
)
def test_what_a_cyclic_order_refuses(total: int, size: int, ranks: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CyclicOrder(total, micro_batch_size=size, data_parallel_size=ranks)
