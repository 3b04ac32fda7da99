"""The epochs of the cyclic sampler, and the batches of its ranks."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan.megatron import CyclicOrder
from plan.megatron import plainly

NUMBERS = st.integers(1, 5)


@settings(max_examples=cases(30, 3000), deadline=None)
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


@settings(max_examples=cases(32, 1000), deadline=None)
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
