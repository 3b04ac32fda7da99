"""The tree of a mix: its leaves are sources, and its inner nodes distribute positions over their children.

    Branch        in proportion to integer shares, position by position or in blocks
    ConcatNode    one child after another
    LimitNode     only the first samples of every pass of the child
    RepeatNode    a given number of samples a pass, however long the child is

A `Schedule` is no node of a plan: it declares that another tree holds from some rank on, and `staged` divides a tree
that has schedules into stages without any.

Every inner node is a pure function: ``split`` maps a rank in the node (the number of a sample in its order, from 0) to
a child and the rank within that child, and ``join`` maps back. All are monotone: if one rank of a child is larger than
another, so is its rank in the node.

``node_recipe`` returns the part of a tree that goes into the recipe of a run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Final, cast

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.blend import BlendTree
from headrace.plan.keys import IntArray
from headrace.plan.order import Shards


@dataclass(frozen=True)
class Leaf:
    """One source: its path in the tree (``"web/en"``) and the number of its samples, the same in every epoch.

    ``shards`` are the borders of its shards if it has any; they hold the same number of samples. ``first_sample`` is
    the number of its first sample in the dataset, above 0 for a source that is a part of a dataset.

    Example:
        >>> leaf = headrace.plan.Leaf("web/en", 900)
        >>> leaf.subset(100, 200)
        Leaf(path='web/en', num_samples=100, shards=None, first_sample=100)
    """

    path: str
    num_samples: int
    shards: Shards | None = None
    first_sample: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a source without samples, or for shards of another number of samples."""
        if self.num_samples < 1:
            raise ConfigError(f"source {self.path!r} has {self.num_samples} samples; a source needs at least one")
        if self.shards is not None and self.shards.num_samples != self.num_samples:
            raise ConfigError(
                f"source {self.path!r} has {self.num_samples:,} samples, but its shards hold "
                f"{self.shards.num_samples:,}; both must be the same"
            )

    def subset(self, begin: int, end: int) -> Leaf:
        """Return the same source with only its samples ``begin`` to ``end - 1``.

        Raises:
            ConfigError: the range is empty, or goes beyond the samples of the source.
        """
        if not 0 <= begin < end <= self.num_samples:
            raise ConfigError(
                f"source {self.path!r} has {self.num_samples:,} samples; its part from {begin:,} to {end:,} "
                "is empty or goes beyond them"
            )
        shards = None if self.shards is None else self.shards.subset(begin, end)
        return Leaf(self.path, end - begin, shards, self.first_sample + begin)


Place = tuple[str, int]
"""Where an inner node stands in its tree: its path, and how many nodes below it have the same one."""


class _WithChildren:
    """What inner nodes have in common."""

    path: str
    children: tuple[Node, ...]

    @property
    def place(self) -> Place:
        """Where the node stands in its tree. A limit has the path of its child, and is one above it."""
        return self.path, 0

    @cached_property
    def child_of(self) -> dict[str, int]:
        """Path of a leaf -> number of the child that holds it."""
        return {leaf.path: number for number, child in enumerate(self.children) for leaf in leaves(child)}


class _WithChild(_WithChildren):
    child: Node

    @property
    def children(self) -> tuple[Node]:  # type: ignore[override]
        """The child, as a tuple of one."""
        return (self.child,)

    @cached_property
    def place(self) -> Place:
        """See `_WithChildren.place`."""
        return self.path, 1 if isinstance(self.child, Leaf) else self.child.place[1] + 1


@dataclass(frozen=True)
class Branch(_WithChildren):
    """Several sources or blends, mixed in proportion to integer ``shares``.

    ``num_samples`` is the length of one pass for a blend that ends (its shares are then exact counts, and
    ``num_samples`` is their sum), or None for an endless blend. With ``block_samples`` B the child is chosen for B
    consecutive positions at a time, which then all fall to it; the shares of a blend that ends then count blocks.

    Example:
        >>> web, code = headrace.plan.Leaf("web", 200), headrace.plan.Leaf("code", 100)
        >>> branch = headrace.plan.Branch("", (web, code), (2, 1), None)
        >>> children, ranks = branch.split(np.arange(6))
        >>> children.tolist(), ranks.tolist()
        ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3])
    """

    path: str
    children: tuple[Node, ...]
    shares: tuple[int, ...]
    num_samples: int | None
    block_samples: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for blocks of less than 1 sample, or a length that does not match the shares."""
        if self.block_samples < 1:
            raise ConfigError(f"block_samples is at least 1, found {self.block_samples}")
        if self.num_samples not in (None, sum(self.shares) * self.block_samples):
            raise ConfigError(
                f"blend {self.path!r} has {self.num_samples:,} samples a pass, but its shares are "
                f"{sum(self.shares):,} blocks of {self.block_samples:,}"
            )

    @cached_property
    def tree(self) -> BlendTree:
        """The Huffman tree of two-way splits over the shares; made once."""
        return BlendTree(self.shares)

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """Map (n,) int64 ranks to (n,) int64 numbers of children and (n,) int64 ranks within them."""
        if self.block_samples == 1:
            return self.tree.split(ranks)
        blocks, within = np.divmod(ranks, self.block_samples)
        chosen, child_blocks = self.tree.split(blocks)
        return chosen, child_blocks * self.block_samples + within

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """Return (n,) int64: the rank in this node of each rank of a child; undoes ``split``."""
        if self.block_samples == 1:
            return self.tree.join(child, ranks)
        blocks, within = np.divmod(ranks, self.block_samples)
        return self.tree.join(child, blocks) * self.block_samples + within

    def counts(self, num_ranks: int) -> list[int]:
        """Return how many samples of each child are among the first ``num_ranks`` of this node."""
        blocks, within = divmod(num_ranks, self.block_samples)
        counts = [count * self.block_samples for count in self.tree.counts(blocks)]
        if within:
            counts[int(self.tree.split(np.array([blocks], dtype=np.int64))[0][0])] += within
        return counts


@dataclass(frozen=True)
class ConcatNode(_WithChildren):
    """Children one after another, each for one pass; a pass of the node ends with the last child.

    Example:
        >>> web, code = headrace.plan.Leaf("web", 2), headrace.plan.Leaf("code", 3)
        >>> children, ranks = headrace.plan.ConcatNode("", (web, code)).split(np.arange(7))
        >>> children.tolist(), ranks.tolist()
        ([0, 0, 1, 1, 1, 0, 0], [0, 1, 0, 1, 2, 2, 3])
    """

    path: str
    children: tuple[Node, ...]

    def __post_init__(self) -> None:
        """Raise ConfigError if there are no children, or if one of them is endless."""
        endless = [child.path for child in self.children if child.num_samples is None]
        if endless or not self.children:
            raise ConfigError(
                f"{self.path!r} concatenates {len(self.children)} children, of which {endless} are endless; it needs "
                "at least one child, and each must end"
            )

    @cached_property
    def lengths(self) -> IntArray:
        """(num_children,) int64: the number of samples in a pass of each child."""
        return np.array([child.num_samples for child in self.children], dtype=np.int64)

    @cached_property
    def begins(self) -> IntArray:
        """(num_children,) int64: the rank at which each child begins within a pass."""
        ends: IntArray = np.cumsum(self.lengths)
        return ends - self.lengths

    @property
    def num_samples(self) -> int:
        """The number of samples in one pass, over all children."""
        return int(self.lengths.sum())

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """Map ranks to children and ranks within them, as ``Branch.split``."""
        passes = ranks // self.num_samples
        within = ranks - passes * self.num_samples
        chosen = np.searchsorted(self.begins, within, side="right").astype(np.int64) - 1
        return chosen, passes * self.lengths[chosen] + (within - self.begins[chosen])

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """Return the rank in this node of each rank of a child, as ``Branch.join``."""
        passes, within = np.divmod(ranks, int(self.lengths[child]))
        return passes * self.num_samples + int(self.begins[child]) + within

    def counts(self, num_ranks: int) -> list[int]:
        """Return the samples of each child among the first ``num_ranks``, as ``Branch.counts``."""
        passes, within = divmod(num_ranks, self.num_samples)
        pairs = zip(self.begins.tolist(), self.lengths.tolist(), strict=True)
        return [passes * length + min(max(within - begin, 0), length) for begin, length in pairs]


@dataclass(frozen=True)
class LimitNode(_WithChild):
    """The first ``num_samples`` samples of every pass of a child. An endless child is cut into passes of that length.

    Each pass of a child that ends takes another epoch of the sources below, so that a shuffled source yields other
    samples every time.

    Example:
        >>> limit = headrace.plan.LimitNode("", headrace.plan.Leaf("web", 10), 4)
        >>> limit.split(np.arange(8))[1].tolist()
        [0, 1, 2, 3, 10, 11, 12, 13]
    """

    path: str
    child: Node
    num_samples: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a limit below 1, or above the number of samples in a pass of the child."""
        most = self.child.num_samples
        if self.num_samples < 1 or (most is not None and self.num_samples > most):
            raise ConfigError(
                f"the limit of {self.path!r} is {self.num_samples:,}; allowed are 1 to "
                f"{'any number' if most is None else f'its {most:,} samples'}"
            )

    @property
    def _pass_samples(self) -> int:
        return self.child.num_samples or self.num_samples

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """Map ranks to ranks of the child, as ``Branch.split``."""
        passes, within = np.divmod(ranks, self.num_samples)
        return np.zeros_like(ranks), passes * self._pass_samples + within

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """Return the rank in this node of each rank of the child, or -1 for those that the limit leaves out."""
        passes, within = np.divmod(ranks, self._pass_samples)
        return np.where(within < self.num_samples, passes * self.num_samples + within, -1)

    def counts(self, num_ranks: int) -> list[int]:
        """Return how far the child has come; the samples that a pass leaves out count at its end."""
        passes, within = divmod(num_ranks, self.num_samples)
        return [passes * self._pass_samples + within]


@dataclass(frozen=True)
class RepeatNode(_WithChild):
    """A child with a pass of ``num_samples`` samples, which may be more or fewer than it has itself.

    Nothing is left out: the next pass goes on where the last one ended. For 2.5 passes through 10 samples
    ``num_samples`` is 25, and the second 25 begin in the middle of the child's third pass.

    Example:
        >>> repeat = headrace.plan.RepeatNode("", headrace.plan.Leaf("web", 10), 25)
        >>> headrace.plan.ConcatNode("", (repeat, headrace.plan.Leaf("code", 5))).num_samples
        30
    """

    path: str
    child: Node
    num_samples: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a pass without samples."""
        if self.num_samples < 1:
            raise ConfigError(f"{self.path!r} is repeated for {self.num_samples} samples; a pass has at least one")

    def split(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """Map each rank to the same rank of the child."""
        return np.zeros_like(ranks), ranks

    def join(self, child: int, ranks: IntArray) -> IntArray:
        """Return the ranks, which are the same in the child."""
        return ranks

    def counts(self, num_ranks: int) -> list[int]:
        """Return ``num_ranks`` for the only child."""
        return [num_ranks]


@dataclass(frozen=True)
class Schedule:
    """Trees that follow each other: ``segments`` are (first rank, tree), rising from 0; the last one has no end.

    Leaves with the same path in several trees are one source. It continues its epochs across segments: in each segment
    it goes on after the samples that fell to it before.

    Example:
        >>> web, code = headrace.plan.Leaf("web", 200), headrace.plan.Leaf("code", 100)
        >>> mix = headrace.plan.Branch("", (web, code), (1, 1), None)
        >>> schedule = headrace.plan.Schedule("", ((0, web), (60, mix)))
        >>> schedule.counts(100)
        {'web': 80, 'code': 20}
    """

    path: str
    segments: tuple[tuple[int, Node], ...]

    def __post_init__(self) -> None:
        """Raise ConfigError unless ranks rise from 0 and leaves with one path are the same source."""
        begins = [begin for begin, _ in self.segments]
        if not begins or begins[0] != 0 or begins != sorted(set(begins)):
            raise ConfigError(
                f"the segments of {self.path!r} begin at the positions {begins}; they must begin at 0 and rise"
            )
        known: dict[str, Leaf] = {}
        for _, tree in self.segments:
            if has_schedules(tree):
                raise ConfigError(f"a segment of {self.path!r} is itself a schedule: make its segments those of one")
            for leaf in leaves(tree):
                if known.setdefault(leaf.path, leaf) != leaf:
                    raise ConfigError(
                        f"source {leaf.path!r} is not the same in all segments of {self.path!r}: "
                        f"{known[leaf.path]} and {leaf}"
                    )

    @property
    def place(self) -> Place:
        """Where it stands in its tree."""
        return self.path, 0

    @property
    def children(self) -> tuple[Node, ...]:
        """The trees of the segments, in their order."""
        return tuple(tree for _, tree in self.segments)

    @property
    def num_samples(self) -> None:
        """None, since the last segment has no end."""
        return None

    @property
    def begins(self) -> list[int]:
        """The first rank of each segment."""
        return [begin for begin, _ in self.segments]

    @cached_property
    def starts(self) -> tuple[dict[str, int], ...]:
        """For each segment, how many samples of each leaf come before it. O(segments * sources), computed once."""
        found: list[dict[str, int]] = [{}]
        for tree, (begin, end) in zip(self.children, pairwise(self.begins), strict=False):
            found.append(_added(found[-1], leaf_counts(tree, end - begin)))
        return tuple(found)

    def counts(self, num_ranks: int) -> dict[str, int]:
        """Return how far each leaf has come after so many ranks, by path."""
        number = bisect_right(self.begins, num_ranks) - 1
        return _added(self.starts[number], leaf_counts(self.children[number], num_ranks - self.begins[number]))


Inner = Branch | ConcatNode | LimitNode | RepeatNode
Node = Leaf | Inner
Declared = Node | Schedule
"""What a mix declares. The children of its nodes may be schedules, too, until `staged` has divided it."""


def has_schedules(node: Declared) -> bool:
    """Return whether a tree has to be divided into stages before it can be a plan."""
    return isinstance(node, Schedule) or (not isinstance(node, Leaf) and any(map(has_schedules, node.children)))


def declared(schedule: Schedule) -> Node:
    """Return a schedule as a child of other nodes."""
    return cast(Node, schedule)


def leaves(node: Declared) -> Iterator[Leaf]:
    """Yield the sources below a node, depth first. Their numbers in a ``Lookup`` are their places in this order.

    A source that is in several segments of a schedule is yielded once.
    """
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Schedule):
        yield from {leaf.path: leaf for tree in node.children for leaf in leaves(tree)}.values()
    else:
        for child in node.children:
            yield from leaves(child)


def nodes_at(root: Declared, rank: int, starts: Mapping[Place, int]) -> Iterator[tuple[Declared, int]]:
    """Yield every node of a tree, and its own rank where so many ranks of the root were taken. O(nodes).

    Schedules are yielded, what is below them is not.
    """
    pending: list[tuple[Declared, int]] = [(root, rank)]
    while pending:
        node, rank = pending.pop()
        if not isinstance(node, Leaf):
            rank += starts.get(node.place, 0)
        yield node, rank
        if not isinstance(node, Leaf | Schedule):
            pending += zip(node.children, node.counts(rank), strict=True)


def leaf_counts(node: Node, num_ranks: int) -> dict[str, int]:
    """Return how far each leaf has come after the first ``num_ranks`` of a node, by path. Closed form, O(sources)."""
    if isinstance(node, Leaf):
        return {node.path: num_ranks}
    found: dict[str, int] = {}
    for child, count in zip(node.children, node.counts(num_ranks), strict=True):
        found |= leaf_counts(child, count)
    return found


def _added(counts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    return {path: counts.get(path, 0) + others.get(path, 0) for path in {**counts, **others}}


def leaf_shares(node: Declared) -> dict[str, Fraction]:
    """Return the planned part of each leaf in a node, by path; of a schedule that of its last segment."""
    if isinstance(node, Leaf):
        return {node.path: Fraction(1)}
    if isinstance(node, Schedule):
        return leaf_shares(node.children[-1])
    if isinstance(node, LimitNode):
        counts = leaf_counts(node.child, node.num_samples)
        return {path: Fraction(count, node.num_samples) for path, count in counts.items()}
    weights = [1]
    if isinstance(node, Branch):
        weights = list(node.shares)
    elif isinstance(node, ConcatNode):
        weights = node.lengths.tolist()
    found: dict[str, Fraction] = {}
    total = sum(weights)
    for child, weight in zip(node.children, weights, strict=True):
        part = Fraction(weight, total)
        for path, share in leaf_shares(child).items():
            found[path] = found.get(path, Fraction(0)) + share * part
    return found


def node_recipe(node: Declared) -> dict[str, object]:
    """Return what decides anything in a tree, JSON-safe, for the recipe of a run.

    Fields that do nothing are left out. In a schedule each source is
    written once, and so is each tree; segments whose trees differ only in their shares have one tree in common:

        {"path": "", "kind": "schedule",
         "sources": [{"path": "web", "num_samples": 900}, {"path": "math", "num_samples": 70}],
         "trees": [{"path": "", "num_samples": None, "children": [0, 1]}],
         "segments": [{"begin": 0, "tree": 0, "shares": [3, 1]}, {"begin": 64, "tree": 0, "shares": [1, 1]}]}
    """
    return _recipe(node, None)


_KINDS: Final[Mapping[type, str]] = {ConcatNode: "concat", LimitNode: "limit", RepeatNode: "repeat"}
"""The names of these nodes in the recipes of saved runs."""


def _recipe(node: Declared, numbers: dict[str, int] | None) -> dict[str, object]:
    """The recipe of a node; within a schedule that has written its sources, ``numbers`` maps their paths to numbers."""
    recipe: dict[str, object] = {"path": node.path}
    if isinstance(node, Schedule):
        return recipe | {"kind": "schedule"} | _segments_recipe(node)
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


def _segments_recipe(node: Schedule) -> dict[str, object]:
    sources = list(leaves(node))
    numbers = {leaf.path: number for number, leaf in enumerate(sources)}
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
    return {"sources": [_recipe(leaf, None) for leaf in sources], "trees": trees, "segments": segments}
