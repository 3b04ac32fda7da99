"""Runs over any tree of sources, whose samples are numbers: for what is asked of the plan alone."""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from headrace.datasets import Dataset, RaggedDataset
from headrace.datasets.dataset import Fields, Sample, SampleWatch
from headrace.datasets.mix import Mix
from headrace.datasets.recipes import MIXES
from headrace.plan import (
    Branch,
    ConcatNode,
    IntArray,
    KeyArray,
    Leaf,
    LimitNode,
    Node,
    Order,
    RepeatNode,
    Schedule,
    Shards,
    leaves,
    quantised,
)


class Numbers(RaggedDataset):
    """Sample i is i, and has ``i % 7`` tokens."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    @property
    def fields(self) -> Fields:
        return {"number": ((), np.dtype(np.int64))}

    @property
    def num_tokens_per_sample(self) -> float:
        return 1.0

    @property
    def recipe(self) -> dict[str, Any]:
        return {"kind": "numbers", "num_samples": self.num_samples}

    @property
    def collated_by(self) -> dict[str, Any]:
        return {}

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        return addresses % 7

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        return indices

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[int]:
        return addresses.tolist()

    def collate(self, samples: Sequence[int]) -> Sample:
        return {"number": np.array(samples, dtype=np.int64)}

    def describe(self) -> str:
        return "numbers"


class Sharded(Numbers):
    """Numbers in shards."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__(sum(counts))
        self.counts = counts

    @property
    def shard_bounds(self) -> IntArray:
        return Shards.of_counts(self.counts).bounds


class Tree(Mix):
    """Numbers mixed by a tree, which is its recipe."""

    kind = "tree"

    def __init__(self, root: Node) -> None:
        self.root = root
        self.children = {leaf.path: Numbers(leaf.first_sample + leaf.num_samples) for leaf in leaves(root)}

    @property
    def num_samples(self) -> int | None:
        return self.root.num_samples

    @property
    def num_tokens_per_sample(self) -> float:
        return 1.0

    def node(self, path: str = "") -> Node:
        return self.root

    def named(self, path: str = "") -> Iterator[tuple[str, Dataset]]:
        yield from self.children.items()

    @property
    def recipe(self) -> dict[str, Any]:
        return {"root": b64encode(pickle.dumps(self.root)).decode()}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], children: dict[str, Any]) -> Tree:
        found = cls(pickle.loads(b64decode(recipe["root"])))
        found.children = children
        return found


MIXES["tree"] = "runs_made:Tree"


def _leaf(draw: st.DrawFn, path: str) -> Leaf:
    size = draw(st.sampled_from((1, 2, 7, 40)))
    shards = draw(st.sampled_from([None, Shards([0, size]), Shards.of_counts([size // 2, 0, size - size // 2])]))
    leaf = Leaf(path, size, shards)
    return leaf.subset(size // 3, size) if draw(st.booleans()) else leaf


def _node(draw: st.DrawFn, path: str, depth: int) -> Node:
    """A node with a pass, of any kind that has one."""
    kind = draw(st.sampled_from(["leaf", "blend", "concat", "limit", "repeat"])) if depth else "leaf"
    if kind == "leaf":
        return _leaf(draw, path)
    if kind in ("limit", "repeat"):
        child = _node(draw, path, depth - 1)
        most = (child.num_samples or 0) * (3 if kind == "repeat" else 1)
        return (LimitNode if kind == "limit" else RepeatNode)(path, child, draw(st.integers(1, most)))
    children = tuple(_node(draw, f"{path}/{i}", depth - 1) for i in range(draw(st.integers(1, 3))))
    if kind == "concat":
        return ConcatNode(path, children)
    shares = tuple(draw(st.integers(1, 9)) for _ in children)
    block = draw(st.sampled_from([1, 3]))
    return Branch(path, children, shares, sum(shares) * block, block)


@st.composite
def trees(draw: st.DrawFn) -> Node:
    """Trees of all kinds of nodes, with an end and without."""
    kind = draw(st.sampled_from(["ended", "endless", "schedule"]))
    if kind == "ended":
        return _node(draw, "root", 2)
    if kind == "endless":
        children = tuple(_node(draw, f"{i}", 2) for i in range(draw(st.integers(1, 3))))
        return Branch("", children, tuple(quantised([1 + i for i in range(len(children))])), None)
    sources = [_leaf(draw, f"s{i}") for i in range(3)]
    segments, begin = [], 0
    for number in range(draw(st.integers(1, 3))):
        some = tuple(draw(st.lists(st.sampled_from(sources), min_size=1, unique_by=lambda one: one.path)))
        tree = Branch(f"{number}", some, tuple(quantised([1.0 + i for i in range(len(some))])), None)
        segments.append((begin, tree))
        begin += draw(st.integers(1, 60))
    return Schedule("", tuple(segments))


orders = st.builds(
    Order,
    kind=st.sampled_from(["full", "blocks", "shards", "torch", "none"]),
    seed=st.integers(-5, 2**80),
    block_samples=st.just(3),
    max_samples_per_sequence=st.just(3),
    parallel_shard_iters=st.just(2),
)

schedules = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), max_size=2).map(
    lambda later: [(0, 4), *((1 + i * 7 + step, size) for i, (step, size) in enumerate(later))]
)
"""Batch schedules of one to three pieces."""
