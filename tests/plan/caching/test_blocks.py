"""Ranges of files cut into blocks, accesses brought together, and forecasts from a sample of the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.plan.caching import POLICIES, Accesses, FileBlocks, forecast, sampled

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@given(SIZES, st.integers(1, 9))
def test_blocks_cover_the_files(sizes: list[int], block_bytes: int) -> None:
    table = FileBlocks(sizes, block_bytes=block_bytes)
    blocks = np.arange(table.num_blocks, dtype=np.int64)
    covered = [set(range(0)) for _ in sizes]
    for file, begin, size in zip(
        *(one.tolist() for one in (table.files(blocks), table.begins(blocks), table.sizes(blocks))), strict=True
    ):
        assert 0 < size <= block_bytes
        assert begin % block_bytes == 0
        assert not covered[file] & set(range(begin, begin + size))
        covered[file] |= set(range(begin, begin + size))
    assert [len(one) for one in covered] == sizes
    assert table.num_bytes == sum(sizes)


@given(SIZES, st.integers(1, 9), st.data())
def test_touched_blocks_hold_the_bytes_of_the_ranges(sizes: list[int], block_bytes: int, data: st.DataObject) -> None:
    table = FileBlocks(sizes, block_bytes=block_bytes)
    ranges = data.draw(
        st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.floats(0, 1), st.floats(0, 1)), max_size=6)
    )
    files = np.array([file for file, _, _ in ranges], dtype=np.int64)
    ends = [sorted((int(low * sizes[file]), int(high * sizes[file]))) for file, low, high in ranges]
    begins, stops = (np.array([pair[at] for pair in ends], dtype=np.int64) for at in (0, 1))
    found = table.touched(np.arange(len(ranges)), files, begins, stops)
    expected: dict[tuple[int, int], int] = {}
    for row, (file, begin, stop) in enumerate(zip(files.tolist(), begins.tolist(), stops.tolist(), strict=True)):
        for byte in range(begin, stop):
            block = int(table.firsts[file]) + byte // block_bytes
            expected[row, block] = expected.get((row, block), 0) + 1
    pairs = zip(found.rows.tolist(), found.blocks.tolist(), strict=True)
    assert dict(zip(pairs, found.used_bytes.tolist(), strict=True)) == expected


def test_sizes_at_the_limits_of_int32() -> None:
    for size in (2**31 - 1, 2**31, 2**31 + 1):
        table = FileBlocks([size, 5], block_bytes=1 << 23)
        zeros = np.zeros(1, dtype=np.int64)
        last = table.touched(zeros, zeros, zeros + size - 1, zeros + size)
        assert table.sizes(last.blocks)[0] == (size - 1) % (1 << 23) + 1
        assert table.touched(zeros, zeros + 1, zeros, zeros + 5).blocks.tolist() == [table.num_blocks - 1]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 byte"):
        FileBlocks([5], block_bytes=0)
    with pytest.raises(ConfigError, match="at least 0"):
        FileBlocks([-1], block_bytes=4)


def accesses(num_blocks: int, num_epochs: int, nodes: int) -> tuple[Accesses, FileBlocks]:
    """Epochs of samples of an eighth of a block each, shuffled, dealt to nodes in turn."""
    rng = np.random.default_rng(num_blocks)
    table = FileBlocks([num_blocks * 8], block_bytes=8)
    samples = np.concatenate([rng.permutation(num_blocks * 8) for _ in range(num_epochs)])
    slots = np.arange(len(samples))
    epochs = slots // (num_blocks * 8)
    return Accesses.of(slots // 16, slots % nodes, samples // 8, np.ones_like(slots), epochs, table=table), table


def test_accesses_of_one_step_node_and_block_are_one() -> None:
    found, table = accesses(10, 2, 2)
    keys = set(zip(found.steps.tolist(), found.nodes.tolist(), found.blocks.tolist(), strict=True))
    assert len(keys) == len(found.steps)
    assert found.used_bytes.sum() == 160
    order = np.lexsort((found.blocks, found.nodes, found.steps))
    assert (order == np.arange(len(order))).all()
    assert (found.used_bytes <= table.sizes(found.blocks)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_sample_of_the_blocks_gives_the_figures_within_its_error(policy: str) -> None:
    found, table = accesses(4000, 3, 4)
    steps = int(found.steps.max()) + 1
    options = {"capacity": 1000, "policy": policy, "first_step": 0, "num_steps": steps}
    exact = forecast(found, table, **options, rate=1.0)
    some = forecast(found.rows(sampled(found.blocks, 0.25)), table, **options, rate=0.25)
    assert exact.hit_rate_error == 0 < some.hit_rate_error < 0.03
    assert abs(some.hit_rate - exact.hit_rate) < 4 * some.hit_rate_error + 0.01
    assert abs(some.fetched_bytes - exact.fetched_bytes) < 4 * some.fetched_bytes_error + 0.02 * exact.fetched_bytes
    assert exact.num_accesses == len(found.steps)
    assert sum(one.num_hits for one in exact.epochs) == exact.num_hits
    assert exact.used_bytes == found.used_bytes.sum()
    assert exact.peak_step_bytes * steps >= exact.fetched_bytes


def test_without_a_cache_the_store_gives_what_is_used() -> None:
    found, table = accesses(50, 2, 1)
    none = forecast(
        found, table, capacity=0, policy="plan", first_step=0, num_steps=int(found.steps.max()) + 1, rate=1.0
    )
    assert (none.num_hits, none.fetched_bytes) == (0, found.used_bytes.sum())
