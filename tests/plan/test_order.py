"""Every order goes through each epoch exactly once; blocks stay near each other and do not hide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import Order, derive_array

KINDS = ("full", "blocks", "none")


def epoch(order: Order, num_samples: int, number: int = 0) -> np.ndarray:
    keys = np.repeat(derive_array(1, np.array([number])), num_samples)
    return order.indices(np.arange(num_samples, dtype=np.int64), keys, num_samples)


@settings(max_examples=cases(40, 200), deadline=None)
@given(st.integers(1, 5_000), st.integers(1, 600), st.integers(1, 40), st.sampled_from(KINDS))
@example(8, 3, 1, "blocks")
@example(7, 7, 3, "blocks")
@example(6, 7, 3, "blocks")
def test_an_epoch_is_every_sample_once(num_samples: int, block: int, window: int, kind: str) -> None:
    order = Order(kind=kind, block_samples=block, window_blocks=window)
    for number in (0, 1):
        assert np.array_equal(np.sort(epoch(order, num_samples, number)), np.arange(num_samples))


@settings(max_examples=cases(20, 100), deadline=None)
@given(st.integers(1, 3_000), st.integers(1, 200), st.integers(1, 9), st.sampled_from(KINDS), st.data())
def test_any_ranks_of_any_epochs_at_once(n: int, block: int, window: int, kind: str, data: st.DataObject) -> None:
    order = Order(kind=kind, block_samples=block, window_blocks=window)
    ranks = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=30)), dtype=np.int64)
    epochs = np.array(data.draw(st.lists(st.integers(0, 11), min_size=ranks.size, max_size=ranks.size)))
    found = order.indices(ranks, derive_array(1, epochs), n)
    assert found.tolist() == [epoch(order, n, e)[r] for e, r in zip(epochs.tolist(), ranks.tolist(), strict=True)]


def test_large_windows_are_a_bijection_too() -> None:
    order = Order(kind="blocks", block_samples=1000, window_blocks=100)
    indices = epoch(order, 300_123)
    assert np.array_equal(np.sort(indices), np.arange(300_123))


def test_blocks_keep_to_their_windows() -> None:
    order = Order(kind="blocks", block_samples=50, window_blocks=4)
    indices = epoch(order, 10_000)
    for window in indices.reshape(-1, 200):
        blocks = np.unique(window // 50)
        assert blocks.size == 4, "a window holds exactly its blocks"
        assert np.bincount(window // 50)[blocks].tolist() == [50] * 4
    starts = indices.reshape(-1, 200)[:, 0] // 50
    assert np.abs(np.corrcoef(np.arange(50), starts)[0, 1]) < 0.5, "the blocks themselves are shuffled"
    first = indices[:200]
    assert not np.array_equal(first, np.sort(first))


def test_epochs_differ_and_repeat() -> None:
    for kind in ("full", "blocks"):
        order = Order(kind=kind, block_samples=100)
        assert not np.array_equal(epoch(order, 5_000, 0), epoch(order, 5_000, 1))
        assert np.array_equal(epoch(order, 5_000, 3), epoch(order, 5_000, 3))
    assert np.array_equal(epoch(Order(kind="none"), 100, 5), np.arange(100))


@pytest.mark.parametrize("num_samples", [2**32 + 1, 2**62])
@pytest.mark.parametrize("kind", KINDS)
def test_huge_sources_need_no_memory(num_samples: int, kind: str) -> None:
    ranks = np.linspace(0, num_samples - 1, 1_000).astype(np.int64).clip(0, num_samples - 1)
    ranks = np.unique(ranks)
    found = Order(kind=kind).indices(ranks, np.repeat(derive_array(1, np.array([9])), ranks.size), num_samples)
    assert found.min() >= 0
    assert found.max() < num_samples
    assert np.unique(found).size == ranks.size


def test_what_is_not_an_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="'full', 'blocks', 'none'"):
        Order(kind="shuffled")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"seed is 1\.5"):
        Order(seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1"):
        Order(kind="blocks", block_samples=0)
