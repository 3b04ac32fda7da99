"""Blocks of files; dealing: permutations, equal counts, few foreign samples, resumes, figures for 8 to 256 nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.errors import ConfigError
from headrace.plan import StepPart, balanced
from headrace.plan.dealing import FileBlocks, dealt, dealt_order, home_nodes, nodes_of, ranks_of
from headrace.plan.slots import taken_by

TOPOLOGIES = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
"""Nodes, ranks a node, samples a micro-batch."""

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@given(SIZES, st.integers(1, 9), st.data())
def test_touched_blocks_hold_the_bytes_of_the_ranges(sizes: list[int], block_bytes: int, data: st.DataObject) -> None:
    table = FileBlocks(sizes, block_bytes=block_bytes)
    ranges = data.draw(
        st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.floats(0, 1), st.floats(0, 1)), max_size=6)
    )
    files = np.array([file for file, _, _ in ranges], dtype=np.int64)
    ends = [sorted((int(low * sizes[file]), int(high * sizes[file]))) for file, low, high in ranges]
    begins, stops = (np.array([pair[at] for pair in ends], dtype=np.int64) for at in (0, 1))
    assert table.num_blocks == sum(-(-size // block_bytes) for size in sizes)
    assert table.num_bytes == sum(sizes)
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
        assert last.blocks.tolist() == [(size - 1) >> 23]
        assert table.touched(zeros, zeros + 1, zeros, zeros + 5).blocks.tolist() == [table.num_blocks - 1]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"least.*1"):
        FileBlocks([5], block_bytes=0)
    with pytest.raises(ConfigError, match=r"least.*0"):
        FileBlocks([-1], block_bytes=4)


def test_ranks_of_slots() -> None:
    for size, world_size, micro in ((12, 2, 3), (13, 2, 2), (7, 4, 3), (1, 5, 1), (31, 3, 4)):
        offsets = np.arange(size)
        found = ranks_of(offsets, np.full(size, size), world_size=world_size, micro_batch_size=micro)
        assert found.tolist() == [taken_by(at, size, world_size, micro)[0] for at in range(size)]


@given(st.lists(st.integers(-1, 30), max_size=60), TOPOLOGIES)
def test_every_node_gets_its_count_and_as_few_foreign_samples_as_can_be(
    blocks: list[int], topology: tuple[int, int, int]
) -> None:
    num_nodes, per_node, micro = topology
    homes = home_nodes(np.array(blocks, dtype=np.int64), num_nodes)
    nodes = nodes_of(len(blocks), world_size=num_nodes * per_node, micro_batch_size=micro, per_node=per_node)
    found = dealt(homes, nodes, num_nodes)
    room = np.bincount(nodes, minlength=num_nodes)
    assert (np.bincount(found, minlength=num_nodes) == room).all()
    wanted = np.bincount(homes[homes >= 0], minlength=num_nodes)
    assert (found == homes).sum() == np.minimum(wanted, room).sum()


@given(st.lists(st.integers(-1, 30), min_size=1, max_size=60), TOPOLOGIES, st.booleans())
def test_slots_of_a_node_hold_what_was_dealt_to_it(
    blocks: list[int], topology: tuple[int, int, int], is_balanced: bool
) -> None:
    num_nodes, per_node, micro = topology
    array = np.array(blocks, dtype=np.int64)
    sizes = {"world_size": num_nodes * per_node, "micro_batch_size": micro, "per_node": per_node}
    costs = (array + 2) ** 2 if is_balanced else None
    order = dealt_order(array, costs, **sizes)
    assert sorted(order.tolist()) == list(range(len(blocks)))
    nodes = nodes_of(len(blocks), **sizes)
    takers = dealt(home_nodes(array, num_nodes), nodes, num_nodes)
    assert (takers[order] == nodes).all()
    for node in range(num_nodes):
        own = np.flatnonzero(takers == node)
        if costs is None:
            assert order[nodes == node].tolist() == own.tolist(), "samples stay in their order"
        else:
            expected = own[balanced(costs[own], world_size=per_node, micro_batch_size=micro).order]
            assert order[nodes == node].tolist() == expected.tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=50), st.data())
def test_a_step_that_is_interrupted_holds_each_sample_once(blocks: list[int], data: st.DataObject) -> None:
    """Also with other nodes, ranks and micro-batches after each stop, and parts that were not dealt."""
    array = np.array(blocks, dtype=np.int64)
    taken: list[StepPart] = []
    first = np.random.default_rng(len(blocks)).permutation(len(blocks))[: data.draw(st.integers(0, len(blocks)))]
    done, came = len(first), first.tolist()
    while done < len(blocks):
        num_nodes, per_node, micro = data.draw(TOPOLOGIES)
        sizes = {"world_size": num_nodes * per_node, "micro_batch_size": micro, "per_node": per_node}
        order = dealt_order(array, None, taken, first=first, **sizes)
        assert sorted(order.tolist()) == list(range(len(blocks)))
        assert order[:done].tolist() == came, "what was taken stays what it was"
        count = data.draw(st.integers(1, len(blocks) - done))
        taken.append(StepPart(len(blocks), sizes["world_size"], micro, count, per_node))
        done += count
        came = order[:done].tolist()


@pytest.mark.parametrize("num_nodes", [8, 32, 256])
def test_few_samples_are_foreign(num_nodes: int) -> None:
    """512 samples over 8 nodes, and as many for each of more; homes are as random as a shuffled order makes them."""
    rng = np.random.default_rng(num_nodes)
    size = 64 * num_nodes
    foreign = []
    for _ in range(20):
        homes = home_nodes(rng.integers(0, 1 << 40, size), num_nodes)
        nodes = nodes_of(size, world_size=8 * num_nodes, micro_batch_size=2, per_node=8)
        foreign.append((dealt(homes, nodes, num_nodes) != homes).mean())
    assert np.mean(foreign) < 0.08


def test_nodes_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="equally"):
        dealt_order(np.zeros(4, dtype=np.int64), world_size=4, micro_batch_size=1, per_node=3)
    with pytest.raises(ConfigError, match=r"4.*samples.*3"):
        dealt(np.zeros(4, dtype=np.int64), np.zeros(3, dtype=np.int64), 1)
