"""The sampler: AstrAI's vectors, its resume where that is right, and what is right where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch.utils.data import DataLoader

from counts import cases
from headrace import ConfigError
from headrace.compat import astrai
from headrace.compat.astrai import ResumableDistributedSampler


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets rank and number of ranks."""

    def set_place(rank: int, ranks: int) -> None:
        monkeypatch.setattr(astrai, "_place", lambda group: (rank, ranks))

    return set_place


def test_vectors_of_one_rank() -> None:
    one = ResumableDistributedSampler(range(10))
    assert list(one) == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]
    assert (one.epoch, len(one)) == (1, 10)
    assert list(one) == [8, 4, 9, 0, 5, 1, 6, 7, 2, 3]


@pytest.mark.parametrize(
    ("drop_last", "wanted"),
    [(False, [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]), (True, [[0, 4], [1, 5], [2, 6], [3, 7]])],
)
def test_vectors_of_four_ranks(place: Any, drop_last: bool, wanted: list[list[int]]) -> None:
    for rank, indices in enumerate(wanted):
        place(rank, 4)
        one = ResumableDistributedSampler(range(10), shuffle=False, drop_last=drop_last)
        assert len(one) == len(indices)
        assert list(one) == indices


def test_vectors_of_going_on(place: Any) -> None:
    place(0, 2)
    assert list(ResumableDistributedSampler(range(10), seed=1)) == [5, 1, 0, 9, 7]
    for start_iter in (3, 8):
        one = ResumableDistributedSampler(range(10), seed=1, start_iter=start_iter)
        assert len(one) == 2
        assert list(one) == [9, 7]


@settings(max_examples=cases(16, 400), deadline=None)
@example(9, 2**32 - 2, 5)
@given(st.integers(1, 200), st.integers(0, 2**40), st.integers(0, 5))
def test_orders_are_torchs(count: int, seed: int, epoch: int) -> None:
    generator = torch.Generator().manual_seed((seed + epoch) & 0xFFFF_FFFF)
    wanted = torch.randperm(count, generator=generator).tolist()
    assert list(ResumableDistributedSampler(range(count), start_epoch=epoch, seed=seed)) == wanted


def test_more_ranks_than_twice_the_samples(place: Any) -> None:
    """AstrAI's late ranks get nothing here, though ``len`` says 1, and the job hangs."""
    for rank in range(7):
        place(rank, 7)
        one = ResumableDistributedSampler(range(2), shuffle=False)
        assert len(one) == 1
        assert list(one) == [rank % 2]


@pytest.mark.parametrize(("count", "ranks", "drop_last"), [(3, 4, True), (0, 1, False), (0, 2, True)])
def test_an_epoch_without_indices_is_refused(place: Any, count: int, ranks: int, drop_last: bool) -> None:
    place(0, ranks)
    with pytest.raises(ConfigError, match="indices"):
        ResumableDistributedSampler(range(count), drop_last=drop_last)


def batches(one: ResumableDistributedSampler, size: int, drop_last: bool) -> Iterator[list[int]]:
    """What a DataLoader hands out, epoch after epoch."""
    loader: DataLoader[int] = DataLoader(range(one.num_samples), batch_size=size, sampler=one, drop_last=drop_last)  # type: ignore[arg-type]
    while True:
        for batch in loader:
            yield batch.tolist()


@settings(max_examples=cases(24, 600), deadline=None)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(1, 7), st.booleans(), st.integers(0, 30), st.data())
def test_going_on_by_batches_is_exact(
    count: int, ranks: int, size: int, drop_last: bool, done: int, data: st.DataObject
) -> None:
    """Partial batches, ends of epochs and all: what comes is what an uninterrupted run would have had."""
    rank = data.draw(st.integers(0, ranks - 1))
    place = astrai._place
    astrai._place = lambda group: (rank, ranks)  # type: ignore[assignment]
    try:
        each = -(-count // ranks)
        if drop_last and each < size:
            with pytest.raises(ConfigError, match=rf"{size}"):
                ResumableDistributedSampler(range(count), batch_size=size, drop_last_batch=True)
            return
        whole = batches(ResumableDistributedSampler(range(count)), size, drop_last)
        wanted = [next(whole) for _ in range(done + 9)][done:]
        resumed = ResumableDistributedSampler(
            range(count), start_batch=done, batch_size=size, drop_last_batch=drop_last
        )
        rest = batches(resumed, size, drop_last)
        assert [next(rest) for _ in range(9)] == wanted
    finally:
        astrai._place = place


def test_the_fault_that_is_kept_for_parity() -> None:
    """10 samples in batches of 4: three batches count as 12 samples, and AstrAI then skips 2 of the next epoch."""
    theirs = ResumableDistributedSampler(range(10), start_epoch=1, start_iter=3 * 4)
    assert len(theirs) == 8
    ours = ResumableDistributedSampler(range(10), start_batch=3, batch_size=4)
    assert (ours.epoch, len(ours)) == (1, 10)


def test_an_iterator_that_is_left_begins_anew() -> None:
    one = ResumableDistributedSampler(range(10), start_iter=4)
    first = iter(one)
    seen = [next(first) for _ in range(3)]
    assert seen == [4, 5, 0]
    assert len(one) == 6
    assert list(one) == [4, 5, 0, 9, 3, 7]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"start_batch": 3}, "batch_size"),
        ({"drop_last_batch": True}, "batch_size"),
        ({"start_iter": 3, "batch_size": 2}, "samples.*batches"),
        ({"start_epoch": -1}, "0"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ResumableDistributedSampler(range(10), **options)


def test_the_place_is_that_of_the_process_group(tmp_path: Any) -> None:
    import torch.distributed as dist

    assert astrai._place(None) == (0, 1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        assert astrai._place(None) == (0, 1)
        assert list(ResumableDistributedSampler(range(3), process_group=dist.group.WORLD, shuffle=False)) == [0, 1, 2]
    finally:
        dist.destroy_process_group()
