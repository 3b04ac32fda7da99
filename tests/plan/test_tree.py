"""Position -> (source, epoch, index): the same alone or in bulk, whole epochs, keys by path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import Branch, Leaf, Node, Order, Plan, quantised


def tree(draw: st.DrawFn, path: str = "", depth: int = 2) -> Node:
    if depth == 0 or draw(st.booleans()):
        return Leaf(path or "only", draw(st.sampled_from([1, 2, 7, 100, 65_536])))
    count = draw(st.integers(1, 4))
    children = tuple(tree(draw, f"{path}/{i}", depth - 1) for i in range(count))
    if draw(st.booleans()):
        shares = tuple(draw(st.lists(st.integers(1, 50), min_size=count, max_size=count)))
        return Branch(path, children, shares, sum(shares))
    weights = draw(st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    return Branch(path, children, tuple(quantised(weights)), None)


trees = st.composite(tree)()
orders = st.builds(
    Order, kind=st.sampled_from(["full", "blocks", "none"]), seed=st.integers(-5, 2**80), block_samples=st.just(3)
)


@settings(max_examples=cases(30, 150), deadline=None)
@given(trees, orders, st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=20))
def test_bulk_equals_one_by_one(root: Node, order: Order, positions: list[int]) -> None:
    plan = Plan(root, order)
    together = plan.lookup(np.array(positions, dtype=np.int64))
    for i, position in enumerate(positions):
        one = plan.lookup(np.array([position], dtype=np.int64))
        for name in ("sources", "epochs", "indices", "keys"):
            assert getattr(one, name)[0] == getattr(together, name)[i]
    lengths = np.array([leaf.num_samples for leaf in plan.leaves])
    assert (together.indices >= 0).all()
    assert (together.indices < lengths[together.sources]).all()


@settings(max_examples=cases(24, 60), deadline=None)
@given(trees, orders)
def test_every_epoch_of_every_source_is_whole(root: Node, order: Order) -> None:
    plan = Plan(root, order)
    found = plan.lookup(np.arange(3_000, dtype=np.int64))
    for source, leaf in enumerate(plan.leaves):
        mine = found.sources == source
        epochs, indices = found.epochs[mine], found.indices[mine]
        assert np.array_equal(epochs, np.arange(epochs.size) // leaf.num_samples)
        for number in range(epochs.size // leaf.num_samples):
            assert np.array_equal(np.sort(indices[epochs == number]), np.arange(leaf.num_samples))


def test_adding_a_source_reseeds_no_other() -> None:
    web, code = Leaf("web", 1000), Leaf("code", 1000)
    before = Plan(Branch("", (web,), (1,), None), Order(seed=3))
    after = Plan(Branch("", (code, web), (1, 1), None), Order(seed=3))
    old = before.lookup(np.arange(500, dtype=np.int64))
    new = after.lookup(np.arange(2_000, dtype=np.int64))
    assert np.array_equal(old.indices, new.indices[new.sources == 1][:500])
    assert not np.array_equal(old.indices, new.indices[new.sources == 0][:500]), "another path, another order"


@pytest.mark.parametrize("kind", ["full", "blocks"])
@pytest.mark.parametrize("num_samples", [1_000, 70_000])
def test_each_epoch_and_each_seed_has_its_own_order(kind: str, num_samples: int) -> None:
    first = np.arange(500, dtype=np.int64)
    orders = [
        Plan(Leaf(path, num_samples), Order(kind=kind, seed=seed)).lookup(first + epoch * num_samples).indices.tolist()
        for path, seed, epoch in (("", 0, 0), ("", 0, 1), ("", 0, 2), ("", 1, 0), ("a", 0, 0))
    ]
    assert len({tuple(order) for order in orders}) == 5
    together = Plan(Leaf("", num_samples), Order(kind=kind)).lookup(np.concatenate([first, first + num_samples]))
    assert together.indices.tolist() == orders[0] + orders[1], "two epochs in one look-up"


def test_positions_outside_are_refused() -> None:
    plan = Plan(Leaf("", 10), Order())
    for bad in (-1, 2**62):
        with pytest.raises(ConfigError, match="positions run from 0"):
            plan.lookup(np.array([bad], dtype=np.int64))
    assert plan.lookup(np.empty(0, dtype=np.int64)).indices.size == 0


def test_empty_sources_and_equal_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Leaf("web", 0)
    with pytest.raises(ConfigError, match="same path"):
        Plan(Branch("", (Leaf("a", 1), Leaf("a", 1)), (1, 1), None), Order())
