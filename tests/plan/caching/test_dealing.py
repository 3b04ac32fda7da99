"""Dealing: permutations, equal counts, the fewest foreign samples, resumes, and figures for 8 to 256 nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.plan import StepPart, balanced
from headrace.plan.caching.dealing import dealt, dealt_order, home_nodes, nodes_of

TOPOLOGIES = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
"""Nodes, ranks a node, samples a micro-batch."""


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
    with pytest.raises(ConfigError, match="every node has equally many"):
        dealt_order(np.zeros(4, dtype=np.int64), world_size=4, micro_batch_size=1, per_node=3)
    with pytest.raises(ConfigError, match="4 samples for 3 slots"):
        dealt(np.zeros(4, dtype=np.int64), np.zeros(3, dtype=np.int64), 1)
