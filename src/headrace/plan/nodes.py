"""The tree of a mix: sources at its leaves, and at its inner nodes how positions fall to what is below.

    Branch      in proportion to integer shares, position by position or in blocks of some
    Concat      one after another
    Limit       the first so many samples of every pass
    Repeat      so many samples a pass, however long the child is
    Schedule    another tree from some position on

Every inner node is a pure function: a rank of its own (the how-manieth of its samples) gives the child and the rank
within the child; and back. All are monotone: of two ranks of one child the larger belongs to the larger rank.

What of a tree of sources goes into the recipe of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.blend import BlendTree
from headrace.plan.keys import IntArray
from headrace.plan.shards import Shards


@dataclass(frozen=True)
class Leaf:
    """One source: its path in the tree (``"web/en"``) and the number of its samples, the same in every epoch.

    ``shards`` are the borders of its shards, where it has any: as many samples. ``first_sample`` is the number of its
    first sample in the dataset, for a source that is a part of one.
    """

    path: str
    num_samples: int
    shards: Shards | None = None
    first_sample: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a source without samples, to which no position could fall, or shards of others."""
        if self.num_samples < 1:
            raise ConfigError(f"source {self.path!r} has {self.num_samples} samples; a source needs at least one")
        if self.shards is not None and self.shards.num_samples != self.num_samples:
            raise ConfigError(
                f"source {self.path!r} has {self.num_samples:,} samples, and its shards {self.shards.num_samples:,}"
            )

    def subset(self, begin: int, end: int) -> Leaf:
        """The same source with its samples ``begin`` to ``end - 1`` alone.

        Raises:
            ConfigError: there is no sample, or not so many.
        """
        if not 0 <= begin < end <= self.num_samples:
            raise ConfigError(
                f"source {self.path!r} has {self.num_samples:,} samples; a part of it from {begin:,} to {end:,} "
                "has none or goes beyond"
            )
        shards = None if self.shards is None else self.shards.subset(begin, end)
        return Leaf(self.path, end - begin, shards, self.first_sample + begin)


@dataclass(frozen=True)
class Branch:
    """Several sources or blends, mixed in proportion to integer ``shares``.

    ``num_samples`` is the length of one pass for a blend that ends (then it is the sum of the shares, which are exact
    counts), or None for one that does not. With ``block_samples`` B the child is chosen for B consecutive positions at
    a time, which then lie in it wholly; the shares of a blend that ends count blocks.
    """

    path: str
    children: tuple[Node, ...]
    shares: tuple[int, ...]
    num_samples: int | None
    block_samples: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for blocks below 1, or a length that is not that of the shares."""
        if self.block_samples < 1:
            raise ConfigError(f"block_samples is at least 1, found {self.block_samples}")
        if self.num_samples not in (None, sum(self.shares) * self.block_samples):
            raise ConfigError(
                f"blend {self.path!r} has {self.num_samples:,} samples a pass, and its shares are {sum(self.shares):,} "
                f"blocks of {self.block_samples:,}"
            )

    @cached_property
    def tree(self) -> BlendTree:
        """The shares as a tree of two-way splits."""
        return BlendTree(self.shares)

    @cached_property
    def child_of(self) -> dict[str, int]:
        """Path of a leaf -> number of the child that has it."""
        return _child_of(self)

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) int64 ranks -> (n,) int64 numbers of children and (n,) int64 ranks within them."""
        if self.block_samples == 1:
            return self.tree.split(ranks)
        blocks, within = np.divmod(ranks, self.block_samples)
        chosen, child_blocks = self.tree.split(blocks)
        return chosen, child_blocks * self.block_samples + within

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """(n,) int64: the rank here of each rank of a child; undoes ``split``."""
        if self.block_samples == 1:
            return self.tree.join(child, ranks)
        blocks, within = np.divmod(ranks, self.block_samples)
        return self.tree.join(child, blocks) * self.block_samples + within

    def counts(self, num_ranks: int) -> list[int]:
        """How far each child has come after so many ranks."""
        blocks, within = divmod(num_ranks, self.block_samples)
        counts = [count * self.block_samples for count in self.tree.counts(blocks)]
        if within:
            counts[int(self.tree.split(np.array([blocks], dtype=np.int64))[0][0])] += within
        return counts


@dataclass(frozen=True)
class ConcatNode:
    """Children one after another, each for one pass of its own; a pass ends with the last."""

    path: str
    children: tuple[Node, ...]

    def __post_init__(self) -> None:
        """Raise ConfigError for no children, and for those without an end."""
        endless = [child.path for child in self.children if child.num_samples is None]
        if endless or not self.children:
            raise ConfigError(f"{self.path!r} is one after another, and of {len(self.children)} endless are {endless}")

    @cached_property
    def lengths(self) -> IntArray:
        """(children,) int64: the samples of a pass of each."""
        return np.array([child.num_samples for child in self.children], dtype=np.int64)

    @cached_property
    def begins(self) -> IntArray:
        """(children,) int64: where each begins within a pass."""
        ends: IntArray = np.cumsum(self.lengths)
        return ends - self.lengths

    @property
    def num_samples(self) -> int:
        """Samples of one pass."""
        return int(self.lengths.sum())

    @cached_property
    def child_of(self) -> dict[str, int]:
        """Path of a leaf -> number of the child that has it."""
        return _child_of(self)

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """As of ``Branch``."""
        passes = ranks // self.num_samples
        within = ranks - passes * self.num_samples
        chosen = np.searchsorted(self.begins, within, side="right").astype(np.int64) - 1
        return chosen, passes * self.lengths[chosen] + (within - self.begins[chosen])

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """As of ``Branch``."""
        passes, within = np.divmod(ranks, int(self.lengths[child]))
        return passes * self.num_samples + int(self.begins[child]) + within

    def counts(self, num_ranks: int) -> list[int]:
        """As of ``Branch``."""
        passes, within = divmod(num_ranks, self.num_samples)
        pairs = zip(self.begins.tolist(), self.lengths.tolist(), strict=True)
        return [passes * length + min(max(within - begin, 0), length) for begin, length in pairs]


@dataclass(frozen=True)
class LimitNode:
    """The first ``num_samples`` samples of every pass of a child; an endless child is cut into passes, and goes on.

    Each pass takes another epoch of the sources below, so that a shuffled source comes by other samples every time.
    """

    path: str
    child: Node
    num_samples: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit below 1 or beyond the child's pass."""
        most = self.child.num_samples
        if self.num_samples < 1 or (most is not None and self.num_samples > most):
            raise ConfigError(
                f"the limit of {self.path!r} is {self.num_samples:,}; allowed are 1 to "
                f"{'any number' if most is None else f'its {most:,} samples'}"
            )

    @property
    def children(self) -> tuple[Node]:
        """The one child."""
        return (self.child,)

    @property
    def _pass_samples(self) -> int:
        return self.child.num_samples or self.num_samples

    @cached_property
    def child_of(self) -> dict[str, int]:
        """Path of a leaf -> 0."""
        return _child_of(self)

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """As of ``Branch``."""
        passes, within = np.divmod(ranks, self.num_samples)
        return np.zeros_like(ranks), passes * self._pass_samples + within

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """As of ``Branch``, and -1 where a rank of the child is never taken."""
        passes, within = np.divmod(ranks, self._pass_samples)
        return np.where(within < self.num_samples, passes * self.num_samples + within, -1)

    def counts(self, num_ranks: int) -> list[int]:
        """As of ``Branch``; what a pass leaves out counts at its end."""
        passes, within = divmod(num_ranks, self.num_samples)
        return [passes * self._pass_samples + within]


@dataclass(frozen=True)
class RepeatNode:
    """A child that goes on for ``num_samples`` samples a pass, more or fewer than it has itself; nothing is left out.

    2.5 passes through 10 samples are 25; the second 25 begin in the middle of the third pass.
    """

    path: str
    child: Node
    num_samples: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a pass without samples."""
        if self.num_samples < 1:
            raise ConfigError(f"{self.path!r} is repeated for {self.num_samples} samples; a pass has at least one")

    @property
    def children(self) -> tuple[Node]:
        """The one child."""
        return (self.child,)

    @cached_property
    def child_of(self) -> dict[str, int]:
        """Path of a leaf -> 0."""
        return _child_of(self)

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """As of ``Branch``: the same ranks."""
        return np.zeros_like(ranks), ranks

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """As of ``Branch``: the same ranks."""
        return ranks

    def counts(self, num_ranks: int) -> list[int]:
        """As of ``Branch``."""
        return [num_ranks]


@dataclass(frozen=True)
class Schedule:
    """Trees that follow each other: ``segments`` are (first position, tree), rising from 0; the last has no end.

    A leaf of the same path in several trees is one source and goes on in its epochs: it begins each segment with as
    many samples as had fallen to it at the end of the one before, which is a closed form.
    """

    path: str
    segments: tuple[tuple[int, Node], ...]

    def __post_init__(self) -> None:
        """Raise ConfigError unless positions rise from 0, and leaves of one path are the same source."""
        begins = [begin for begin, _ in self.segments]
        if not begins or begins[0] != 0 or begins != sorted(set(begins)):
            raise ConfigError(f"the segments of {self.path!r} begin at 0 and rise, found {begins}")
        known: dict[str, Leaf] = {}
        for _, tree in self.segments:
            for leaf in leaves(tree):
                if known.setdefault(leaf.path, leaf) != leaf:
                    raise ConfigError(
                        f"source {leaf.path!r} is not the same in all segments of {self.path!r}: "
                        f"{known[leaf.path]} and {leaf}"
                    )

    @property
    def children(self) -> tuple[Node, ...]:
        """The trees."""
        return tuple(tree for _, tree in self.segments)

    @property
    def num_samples(self) -> None:
        """The last segment has no end."""
        return None

    @cached_property
    def begins(self) -> IntArray:
        """(segments,) int64: the first position of each."""
        return np.array([begin for begin, _ in self.segments], dtype=np.int64)

    @cached_property
    def starts(self) -> tuple[dict[str, int], ...]:
        """For each segment how far every leaf has come where it begins. O(segments * sources), once."""
        found: list[dict[str, int]] = [{}]
        for tree, length in zip(self.children, np.diff(self.begins).tolist(), strict=False):
            counts = leaf_counts(tree, length)
            found.append({path: found[-1].get(path, 0) + counts.get(path, 0) for path in {**found[-1], **counts}})
        return tuple(found)

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """As of ``Branch``; the ranks are those within the segment."""
        chosen = np.searchsorted(self.begins, ranks, side="right").astype(np.int64) - 1
        return chosen, ranks - self.begins[chosen]

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """As of ``Branch``."""
        return ranks + int(self.begins[child])


Inner = Branch | ConcatNode | LimitNode | RepeatNode | Schedule
Node = Leaf | Inner


def leaves(node: Node) -> Iterator[Leaf]:
    """The sources below a node, depth first: their numbers in a ``Lookup`` are their places in this order.

    A source that is in several segments of a schedule comes once.
    """
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Schedule):
        yield from {leaf.path: leaf for tree in node.children for leaf in leaves(tree)}.values()
    else:
        for child in node.children:
            yield from leaves(child)


def leaf_counts(node: Node, num_ranks: int) -> dict[str, int]:
    """How far each leaf has come after the first ``num_ranks`` of a node, by path. Closed form, O(sources)."""
    if isinstance(node, Leaf):
        return {node.path: num_ranks}
    if isinstance(node, Schedule):
        segment = int(np.searchsorted(node.begins, num_ranks, side="right")) - 1
        found = dict(node.starts[segment])
        parts = [(node.children[segment], num_ranks - int(node.begins[segment]))]
    else:
        found = {}
        parts = list(zip(node.children, node.counts(num_ranks), strict=True))
    for child, count in parts:
        for path, number in leaf_counts(child, count).items():
            found[path] = found.get(path, 0) + number
    return found


def _child_of(node: Inner) -> dict[str, int]:
    return {leaf.path: number for number, child in enumerate(node.children) for leaf in leaves(child)}


def node_recipe(node: Node) -> dict[str, object]:
    """What decides anything of a tree, JSON-safe; what is new since the first version stands only where it is used.

    In a schedule each source is written once, and each tree of its segments, whose shares alone tell them apart:

        {"path": "", "kind": "schedule",
         "sources": [{"path": "web", "num_samples": 900}, {"path": "math", "num_samples": 70}],
         "trees": [{"path": "", "num_samples": None, "children": [0, 1]}],
         "segments": [{"begin": 0, "tree": 0, "shares": [3, 1]}, {"begin": 64, "tree": 0, "shares": [1, 1]}]}
    """
    return _recipe(node, None)


_KINDS: Final[Mapping[type, str]] = {ConcatNode: "concat", LimitNode: "limit", RepeatNode: "repeat"}
"""As saved runs name them."""


def _recipe(node: Node, numbers: dict[str, int] | None) -> dict[str, object]:
    """``numbers`` are those of the sources, path -> number, within a schedule that has written them."""
    recipe: dict[str, object] = {"path": node.path}
    if isinstance(node, Schedule):
        return recipe | {"kind": "schedule"} | _segments_recipe(node, numbers)
    recipe["num_samples"] = node.num_samples
    if isinstance(node, Leaf):
        if node.shards is not None:
            recipe["shards"] = node.shards.digest
        return recipe | ({"first_sample": node.first_sample} if node.first_sample else {})
    recipe["children"] = [_child_recipe(child, numbers) for child in node.children]
    if isinstance(node, Branch):
        recipe["shares"] = list(node.shares)
        return recipe | ({"block_samples": node.block_samples} if node.block_samples > 1 else {})
    return recipe | {"kind": _KINDS[type(node)]}


def _child_recipe(node: Node, numbers: dict[str, int] | None) -> dict[str, object] | int:
    return numbers[node.path] if numbers is not None and isinstance(node, Leaf) else _recipe(node, numbers)


def _segments_recipe(node: Schedule, numbers: dict[str, int] | None) -> dict[str, object]:
    written: dict[str, object] = {}
    if numbers is None:
        sources = list(leaves(node))
        numbers = {leaf.path: number for number, leaf in enumerate(sources)}
        written = {"sources": [_recipe(leaf, None) for leaf in sources]}
    trees: list[object] = []
    known: dict[str, int] = {}
    segments = []
    for begin, root in node.segments:
        tree = _child_recipe(root, numbers)
        segment: dict[str, object] = {"begin": begin}
        if isinstance(tree, dict) and "shares" in tree:
            segment["shares"] = tree.pop("shares")
        number = known.setdefault(str(tree), len(trees))
        if number == len(trees):
            trees.append(tree)
        segments.append(segment | {"tree": number})
    return written | {"trees": trees, "segments": segments}
