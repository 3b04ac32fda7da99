"""Samples that are balanced over ranks, or dealt to the nodes that hold them: each once, and as alike as can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases, python_steps
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Share, StepPart, balanced, micro_batches, step_order, unbalanced
from headrace.plan.dealing import FileBlocks, dealt, dealt_order, home_nodes, nodes_of, ranks_of
from headrace.plan.slots import taken_by
from plan.framed.simulated import lengths


@settings(max_examples=cases(20, 4_000), deadline=None)
@given(
    st.lists(st.integers(0, 30) | st.integers(0, 2**45), min_size=1, max_size=70),
    st.integers(1, 9),
    st.integers(1, 6),
    st.booleans(),
)
def test_every_sample_once_in_the_slots_of_the_split(
    values: list[int], world_size: int, micro: int, is_float: bool
) -> None:
    costs = np.array(values, dtype=np.float64 if is_float else np.int64)
    given_back = balanced(costs, world_size=world_size, micro_batch_size=micro)
    assert sorted(given_back.order.tolist()) == list(range(len(costs)))
    again = balanced(costs.copy(), world_size=world_size, micro_batch_size=micro)
    assert np.array_equal(again.order, given_back.order)
    num_micro_steps = -(-len(costs) // (world_size * micro))
    assert given_back.cost.shape == (num_micro_steps, world_size)
    for rank in range(world_size):
        share = Share(rank, world_size, micro)
        split = micro_batches(BatchSchedule.of(len(costs)), share, position=0, end=len(costs), at_least=1)
        for micro_step, (begin, size) in enumerate(zip(split.begins.tolist(), split.sizes.tolist(), strict=True)):
            mine = given_back.order[begin : begin + size]
            assert given_back.cost[micro_step, rank] == pytest.approx(costs[mine].sum())
            assert mine.tolist() == sorted(mine.tolist())


@settings(max_examples=cases(12, 1_000), deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9), st.integers(0, 1000))
def test_it_is_no_worse_than_not_balancing(world_size: int, micro: int, micro_steps: int, more: int, seed: int) -> None:
    """Of the sum over the micro-steps of the costliest rank: the time of the step."""
    costs = np.random.default_rng(seed).integers(1, 100, world_size * micro * micro_steps + more)
    found = balanced(costs, world_size=world_size, micro_batch_size=micro).cost.max(axis=1).sum()
    assert found <= unbalanced(costs, world_size=world_size, micro_batch_size=micro).cost.max(axis=1).sum()


@settings(max_examples=cases(12, 1_000), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9)), max_size=4),
    st.integers(1, 70),
    st.integers(0, 5),
)
def test_a_step_that_is_stopped_within_goes_on_with_other_ranks(
    lives: list[tuple[int, int, int, int]], size: int, first: int
) -> None:
    """Each takes a part of the samples left, and keeps the assignment that it had if it is the same again."""
    first = min(first, size)
    came = np.random.default_rng(1).permutation(size)[:first]
    taken: list[StepPart] = []
    costs = np.zeros(0)
    seen = came.tolist()
    for world_size, micro, micro_steps, longer in lives:
        # A run that is made longer adds to its last step.
        size += longer
        costs = np.random.default_rng(0).integers(1, 100, size)
        order = step_order(costs, taken, first=came, world_size=world_size, micro_batch_size=micro)
        assert sorted(order.tolist()) == list(range(size))
        assert order[: len(seen)].tolist() == seen, "what was taken stays taken"
        left = np.setdiff1d(np.arange(size), seen)
        num = min(len(left), world_size * micro * micro_steps)
        if not num:
            continue
        goes_on = bool(taken) and taken[-1].is_assigned_by(size, world_size, micro)
        if not goes_on:
            assignment = balanced(costs[left], world_size=world_size, micro_batch_size=micro)
            assert order[len(seen) :].tolist() == left[assignment.order].tolist()
        seen += order[len(seen) : len(seen) + num].tolist()
        before = taken.pop().num_taken if goes_on else 0
        taken.append(StepPart(size, world_size, micro, before + num))
        again = step_order(costs, taken, first=came, world_size=world_size, micro_batch_size=micro)
        assert again.tolist() == order.tolist(), "for the same ranks nothing has happened"


LIMITS = [
    # Samples, micro-batch; micro-steps, micro-batches, ranks.
    (1_024, 8, 1.025, 1.85, 1.005),
    (1_024, 4, 1.05, 3.6, 1.0025),
    (512, 16, 1.002, 1.004, 1.001),
    (4_096, 1, 1.4, 16.1, 1.002),
]
"""What is reached, and not without any one of the steps of the algorithm."""


@pytest.mark.parametrize(("size", "micro", "micro_step", "micro_batch", "rank"), LIMITS)
def test_what_is_reached(size: int, micro: int, micro_step: float, micro_batch: float, rank: float) -> None:
    for name in ("sft", "web", "bimodal", "long"):
        for room in (2_048, 4_096, 8_192):
            found = balanced(lengths(name, size, room), world_size=8, micro_batch_size=micro)
            assert found.micro_step_imbalance <= micro_step
            assert found.cost.max() / found.cost.mean() <= micro_batch
            assert found.rank_imbalance <= rank


def test_a_handful_of_samples_may_be_best_as_they_come() -> None:
    found = balanced(np.array([1, 3, 1, 10, 8]), world_size=3, micro_batch_size=1)
    assert found.order.tolist() == [0, 1, 2, 3, 4]
    assert found.cost.tolist() == [[1, 3, 1], [0, 10, 8]]
    assert found.waiting == pytest.approx(1 - 23 / 39)


def test_large_micro_batches() -> None:
    """Of which a round looks at few."""
    costs = lengths("bimodal", 8_192, 8_192)
    found = balanced(costs, world_size=8, micro_batch_size=512)
    assert found.cost.max() / found.cost.mean() <= 1.0005
    plain = unbalanced(costs, world_size=8, micro_batch_size=512).cost
    assert plain.max() / plain.mean() > 1.05


def test_an_uneven_step_is_even_in_its_last_micro_step_too() -> None:
    costs = lengths("long", 8 * 8 * 4 + 31, 2_048)
    found = balanced(costs, world_size=8, micro_batch_size=8)
    assert found.cost.shape == (5, 8)
    assert [row.max() / row.mean() <= limit for row, limit in zip(found.cost, [1.05] * 4 + [1.15], strict=True)] == [
        True
    ] * 5
    plain = unbalanced(costs, world_size=8, micro_batch_size=8).cost
    assert plain[4].max() / plain[4].mean() > 1.4


def test_like_costs_and_none() -> None:
    assert balanced(np.zeros(8), world_size=2, micro_batch_size=2).micro_step_imbalance == 1
    assert balanced(np.full(8, 3), world_size=2, micro_batch_size=2).rank_imbalance == 1
    nothing = balanced(np.zeros(0), world_size=2, micro_batch_size=2)
    assert (len(nothing.order), nothing.micro_step_imbalance, nothing.rank_imbalance) == (0, 1, 1)


def test_a_large_step_is_quick() -> None:
    costs = lengths("web", 4_096, 4_096)
    steps = python_steps(lambda: balanced(costs, world_size=64, micro_batch_size=4))
    assert steps < 10 * 4_096, "some six lines of Python for each sample"


@pytest.mark.parametrize(
    ("costs", "world_size", "micro", "named"),
    [
        (np.array([1.0, np.nan]), 1, 1, "1.*nan"),
        (np.array([1, -2]), 1, 1, "1.*-2"),
        (np.array([np.inf]), 1, 1, "inf"),
        (np.array(["a"]), 1, 1, "expected"),
        (np.ones((2, 2)), 1, 1, "expected"),
        (np.ones(2), 0, 1, "least.*1"),
        (np.ones(2), 1, 0, "least.*1"),
    ],
)
def test_what_is_refused(costs: np.ndarray, world_size: int, micro: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        balanced(costs, world_size=world_size, micro_batch_size=micro)


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
