"""Batches of ranks: the single sampler's global order, and the cyclic sampler's epochs."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import Share
from headrace.plan.megatron import CyclicOrder, cyclic_batches, single_batches
from plan.megatron import plainly


@settings(max_examples=cases(30, 2000), deadline=None)
@given(st.integers(1, 90), st.integers(0, 89), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_single(total: int, consumed: int, size: int, ranks: int, drop: bool) -> None:
    """All ranks together take the samples in order, whatever their number."""
    consumed = min(consumed, total - 1)
    taken = [list(single_batches(total, consumed, Share(rank, ranks, size), drop_last=drop)) for rank in range(ranks)]
    steps = list(zip(*taken, strict=True))
    together = [index for step in steps for batch in step for index in batch.tolist()]
    left = (total - consumed) % (ranks * size)
    assert together == list(range(consumed, total - left if drop else total))
    for step in steps[: len(steps) - (not drop and left > 0)]:
        assert [len(batch) for batch in step] == [size] * ranks
    assert all(batch.dtype == np.int64 for step in steps for batch in step)


@settings(max_examples=cases(30, 2000), deadline=None)
@given(st.integers(1, 60), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.booleans())
@example(3, 0, 1, 2, False)
def test_cyclic(total: int, step: int, size: int, ranks: int, sharded: bool) -> None:
    together = size * ranks
    active = total - total % together
    if not active:
        with pytest.raises(ConfigError, match="ranks"):
            cyclic_batches(total, 0, Share(0, ranks, size), data_sharding=sharded)
        return
    consumed = step * together
    epoch, within = divmod(consumed, active)
    for rank in range(ranks):
        if sharded:
            bucket = total // together * size
            mine = [rank * bucket + place for place in plainly.randperm(bucket, epoch)][within // ranks :]
        else:
            mine = plainly.randperm(total // size * size, epoch)[within:][rank::ranks]
        expected = [mine[i : i + size] for i in range(0, len(mine) - size + 1, size)]
        found = list(cyclic_batches(total, consumed, Share(rank, ranks, size), data_sharding=sharded))
        assert [batch.tolist() for batch in found] == expected


def test_what_is_refused() -> None:
    """At the call, and not at the first batch."""
    for total, consumed, share, named in [
        (20, 20, Share(0, 2, 2), "20.*20"),
        (0, 0, Share(0, 2, 2), "total_samples.*1"),
        (20, -1, Share(0, 2, 2), "20.*-1"),
        (20, 0, Share(2, 2, 2), "rank.*2.*2"),
        (20, 0, Share(-1, 2, 2), "rank.*-1.*2"),
        (20, 0, Share(0, 2, 0), "0"),
    ]:
        with pytest.raises(ConfigError, match=named):
            single_batches(total, consumed, share)
    with pytest.raises(ConfigError, match=r"6.*0.*multiple"):
        cyclic_batches(21, 6, Share(0, 2, 2))
    with pytest.raises(ConfigError, match=r"rank.*5.*2"):
        cyclic_batches(21, 0, Share(5, 2, 2))
    # All samples of an epoch are consumed: the next one begins.
    assert next(iter(cyclic_batches(21, 20, Share(0, 2, 2)))).tolist() == plainly.randperm(10, 1)[:2]


NUMBERS = st.integers(1, 5)


@settings(max_examples=cases(30, 3000), deadline=None)
@given(st.integers(1, 80), NUMBERS, NUMBERS, st.booleans(), st.integers(0, 6))
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
        batches = cyclic_batches(total, epoch * active, Share(rank, ranks, size), data_sharding=sharded)
        # One rank may get a batch more, which Megatron's other ranks do not have.
        expected = [batch.tolist() for batch in itertools.islice(batches, active // together)]
        assert found[:, rank].tolist() == expected
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
