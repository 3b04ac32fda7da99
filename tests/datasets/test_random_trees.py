"""Drawn metadatasets on drawn topologies: weights at every prefix, exact counts, no position lost or twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mixes_made
from counts import cases
from headrace import ConfigError, Order, Run
from headrace.datasets import Limit
from headrace.plan import Branch, Leaf, LimitNode, Node, Schedule, Share, micro_batches
from mixes_made import Drawn, Opened, mixes, nodes_of

NUM_POSITIONS = 1_500


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(mixes_made.write_sources(tmp_path_factory.mktemp("trees")))


def check_weights(node: Node, num_ranks: int) -> None:
    """Of the first so many of a node, every prefix has its children within 2 samples of their shares, or 2 blocks."""
    if isinstance(node, Leaf) or not num_ranks:
        return
    chosen, ranks = node.split(np.arange(num_ranks, dtype=np.int64))
    if isinstance(node, Schedule):
        # Each segment is a tree of its own, which begins anew.
        for number, child in enumerate(node.children):
            check_weights(child, int((chosen == number).sum()))
        return
    if isinstance(node, Branch):
        got = np.cumsum(chosen[:, None] == np.arange(len(node.children)), axis=0)
        due = np.arange(1, num_ranks + 1)[:, None] * (np.array(node.shares) / sum(node.shares))
        assert np.abs(got - due).max() < 2 * node.block_samples
        if node.num_samples is not None and num_ranks >= node.num_samples:
            ends = np.arange(node.num_samples, num_ranks + 1, node.num_samples) - 1
            wanted = np.arange(1, len(ends) + 1)[:, None] * np.array(node.shares) * node.block_samples
            assert np.array_equal(got[ends], wanted), "exact at the end of every pass"
    for number, child in enumerate(node.children):
        mine = ranks[chosen == number]
        if not isinstance(node, LimitNode):
            assert np.array_equal(mine, np.arange(mine.size)), "all of a child's samples, in its order"
        # Below a limit the first pass alone is gone through without a gap.
        check_weights(child, int((mine == np.arange(mine.size)).sum()))


@settings(max_examples=cases(20, 5_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=True))
def test_any_metadataset_on_any_topology(opened: Opened, rng: Random) -> None:
    drawn = mixes(rng)
    order = Order(kind=rng.choice(["shards", "full", "blocks", "none"]), seed=rng.randint(0, 9))
    run = Run(drawn.data(opened), global_batch_size=drawn.batches, order=order)
    number = min(NUM_POSITIONS, run.length or NUM_POSITIONS)
    check_weights(run.plan.root, NUM_POSITIONS)

    # What ranks of changing topologies take, in turns, is every position once.
    taken: list[np.ndarray] = []
    position = 0
    while position < number:
        world, micro, least = rng.randint(1, 9), rng.randint(1, 6), rng.randint(1, 90)
        shares = [Share(rank, world, micro) for rank in range(world)]
        parts = [micro_batches(run.schedule, one, position=position, end=run.length, at_least=least) for one in shares]
        taken += [part.slots() for part in parts]
        assert len({tuple(part.afters.tolist()) for part in parts}) == 1, "all ranks are as far"
        position = int(parts[0].afters[-1])
    positions = np.concatenate(taken)
    assert np.array_equal(np.sort(positions), np.arange(position))

    # In whatever order they are looked up: each sample once an epoch, and as often as the closed form says.
    found = run.lookup(positions)
    counts = run.plan.counts(position)
    for source, leaf in enumerate(run.plan.leaves):
        mine = found.sources == source
        indices = found.indices[mine] - leaf.first_sample
        assert ((indices >= 0) & (indices < leaf.num_samples)).all()
        times = Counter(zip(found.epochs[mine].tolist(), indices.tolist(), strict=True))
        assert not times or max(times.values()) == 1
        if not any(isinstance(node, Limit) for node in nodes_of(run.data)):
            assert len(times) == counts[source]
            of_epochs = Counter(epoch for epoch, _ in times)
            whole = counts[source] // leaf.num_samples
            assert all(of_epochs[epoch] == leaf.num_samples for epoch in range(whole))


MOVED = {"[2, 7]": [3, 8], "['0%', '50%']": ["50%", "100%"], "['30%', '100%']": ["0%", "70%"]}
"""Ranges of as many samples, or about as many, elsewhere in the source."""


def entries(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every entry of a metadataset, itself first."""
    yield tree
    for kind in ("blend", "blend_epochized", "concat"):
        for child in tree.get(kind, ()):
            yield from entries(child)


def altered(rng: Random, drawn: Drawn) -> Drawn:
    """The same mix but for one number or one range in it."""
    tree = deepcopy(drawn.tree)
    entry = rng.choice(list(entries(tree)))
    numbers = [name for name in ("limit", "weight", "repetitions", "block_samples") if name in entry]
    if "path" in entry and (not numbers or rng.random() < 0.7):
        before = entry.pop("subset", {"range": None})["range"]
        entry["subset"] = {"range": MOVED.get(str(before), [2, 7])}
    elif numbers:
        name = rng.choice(numbers)
        entry[name] += rng.choice([1, 1, entry[name]])
    elif "schedule" in entry:
        piece = rng.choice(entry["schedule"])
        piece["weights"] = [weight + 1 for weight in piece["weights"]]
    return replace(drawn, tree=tree)


@settings(max_examples=cases(20, 5_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=True))
def test_what_fed_other_samples_has_another_past(opened: Opened, rng: Random) -> None:
    drawn = mixes(rng)
    order = Order(kind=rng.choice(["shards", "full", "blocks", "none"]), seed=rng.randint(0, 9))
    try:
        runs = [
            Run(one.data(opened), global_batch_size=drawn.batches, order=order) for one in (drawn, altered(rng, drawn))
        ]
    except ConfigError:
        return  # a limit beyond the samples of what it limits
    end = min(200, *(run.length or 200 for run in runs))
    fed = [
        [
            (run.paths[s], e, i)
            for s, e, i in zip(*(column.tolist() for column in run.lookup(np.arange(end))[:3]), strict=True)
        ]
        for run in runs
    ]
    same = next((at for at in range(end) if fed[0][at] != fed[1][at]), end)
    for position in {end, same + 1, rng.randint(0, end)} - {end + 1}:
        if runs[0].past(position).hashes() == runs[1].past(position).hashes():
            assert position <= same, "the same past, and other samples"
