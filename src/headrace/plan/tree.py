"""The tree of sources, and the function at the centre of it all: position -> (source, epoch, sample index)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.blend import BlendTree
from headrace.plan.keys import IntArray, KeyArray, derive_array, source_key
from headrace.plan.order import Order

MAX_POSITIONS = 1 << 62


@dataclass(frozen=True)
class Leaf:
    """One source: its path in the tree (``"web/en"``) and the number of its samples, the same in every epoch."""

    path: str
    num_samples: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a source without samples: no position could fall to it."""
        if self.num_samples < 1:
            raise ConfigError(f"source {self.path!r} has {self.num_samples} samples; a source needs at least one")


@dataclass(frozen=True)
class Branch:
    """Several sources or blends, mixed in proportion to integer ``shares``.

    ``num_samples`` is the length of one pass for a blend that ends (then it is the sum of the shares, which are exact
    counts), or None for one that does not.
    """

    path: str
    children: tuple[Leaf | Branch, ...]
    shares: tuple[int, ...]
    num_samples: int | None

    @cached_property
    def tree(self) -> BlendTree:
        """The shares as a tree of two-way splits."""
        return BlendTree(self.shares)


Node = Leaf | Branch


def leaves(node: Node) -> Iterator[Leaf]:
    """The sources below a node, depth first: their numbers in a ``Lookup`` are their places in this order."""
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.children:
            yield from leaves(child)


class Lookup(NamedTuple):
    """What a run of positions falls to; all arrays are (n,), in the order of the positions.

    ``sources`` int64, numbers of leaves; ``epochs`` int64, passes through the source before this one; ``indices``
    int64, sample within the source; ``keys`` uint64, the key of (seed, path, epoch), from which whatever else is
    random in a sample is drawn.
    """

    sources: IntArray
    epochs: IntArray
    indices: IntArray
    keys: KeyArray


class Plan:
    """A tree of sources gone through in an order: a pure function of the position.

    Construction is O(sources); a lookup is O(log sources) and about 0.1 to 0.5 us a position in bulk. Nothing in it
    grows with the number of samples.
    """

    def __init__(self, root: Node, order: Order) -> None:
        self.root = root
        self.order = order
        self.leaves = tuple(leaves(root))
        paths = [leaf.path for leaf in self.leaves]
        if len(set(paths)) != len(paths):
            raise ConfigError(f"two sources have the same path in the blend: {sorted(paths)}")
        self._keys = [source_key(order.seed, leaf.path, "order") for leaf in self.leaves]

    def lookup(self, positions: IntArray) -> Lookup:
        """Source, epoch and sample index at each of (n,) int64 ``positions``, 0 <= position < 2^62."""
        if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= MAX_POSITIONS):
            raise ConfigError(f"positions run from 0 to 2^62 - 1, found {positions.min()} .. {positions.max()}")
        if isinstance(self.root, Leaf):
            return Lookup(np.zeros_like(positions), *self._within(self.root, 0, positions))
        result = Lookup(
            sources=np.empty_like(positions),
            epochs=np.empty_like(positions),
            indices=np.empty_like(positions),
            keys=np.empty(positions.shape, dtype=np.uint64),
        )
        self._descend(self.root, 0, positions, slice(None), result)
        return result

    def _within(self, leaf: Leaf, number: int, ranks: IntArray) -> tuple[IntArray, IntArray, KeyArray]:
        """Epochs, sample indices and keys at ranks of a source."""
        epochs = ranks // leaf.num_samples
        keys = derive_array(self._keys[number], epochs)
        return epochs, self.order.indices(ranks - epochs * leaf.num_samples, keys, leaf.num_samples), keys

    def _descend(self, node: Node, first: int, ranks: IntArray, rows: IntArray | slice, result: Lookup) -> int:
        """Fill ``rows`` of the result for ``ranks`` of a node; returns the number of the next leaf after it."""
        if isinstance(node, Leaf):
            result.sources[rows] = first
            result.epochs[rows], result.indices[rows], result.keys[rows] = self._within(node, first, ranks)
            return first + 1
        chosen, child_ranks = node.tree.split(ranks)
        # One stable sort groups the rows by child: a thousand children then cost a thousand slices, not masks.
        by_child = np.argsort(chosen, kind="stable")
        bounds = np.searchsorted(chosen[by_child], np.arange(len(node.children) + 1))
        for number, child in enumerate(node.children):
            mine = by_child[bounds[number] : bounds[number + 1]]
            if not mine.size:
                first += 1 if isinstance(child, Leaf) else len(list(leaves(child)))
                continue
            child_rows = mine if isinstance(rows, slice) else rows[mine]
            first = self._descend(child, first, child_ranks[mine], child_rows, result)
        return first
