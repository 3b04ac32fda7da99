"""Batches of ranks: the single sampler's global order, and the cyclic sampler's epochs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import Share
from headrace.plan.megatron import cyclic_batches, single_batches
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
        with pytest.raises(ConfigError, match="fewer than one micro-batch of all ranks"):
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


@pytest.mark.parametrize("sharded", [False, True])
def test_a_cyclic_epoch_takes_every_sample_at_most_once_and_epochs_differ(sharded: bool) -> None:
    epochs = []
    for consumed in (0, 24):
        shares = [Share(rank, 3, 2) for rank in range(3)]
        batches = [batch for share in shares for batch in cyclic_batches(29, consumed, share, data_sharding=sharded)]
        epochs.append(np.concatenate(batches).tolist())
    for taken in epochs:
        assert len(set(taken)) == len(taken) >= 24
    assert epochs[0] != epochs[1]


def test_what_is_refused() -> None:
    """At the call, and not at the first batch."""
    for total, consumed, share, message in [
        (20, 20, Share(0, 2, 2), "20 of 20 samples are consumed"),
        (0, 0, Share(0, 2, 2), "total_samples must be at least 1"),
        (20, -1, Share(0, 2, 2), "found 20 and -1"),
        (20, 0, Share(2, 2, 2), "rank is 2 of 2"),
        (20, 0, Share(-1, 2, 2), "rank is -1 of 2"),
        (20, 0, Share(0, 2, 0), "micro-batches of 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            single_batches(total, consumed, share)
    with pytest.raises(ConfigError, match="6 samples are consumed, 6 of them in epoch 0, which is not a multiple of 4"):
        cyclic_batches(21, 6, Share(0, 2, 2))
    with pytest.raises(ConfigError, match="the rank is 5 of 2"):
        cyclic_batches(21, 0, Share(5, 2, 2))
    # All samples of an epoch are consumed: the next one begins.
    assert next(iter(cyclic_batches(21, 20, Share(0, 2, 2)))).tolist() == plainly.randperm(10, 1)[:2]
