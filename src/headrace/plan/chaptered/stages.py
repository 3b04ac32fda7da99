"""A tree with schedules, divided into stages: trees without schedules, each from a position on.

    a schedule below a blend       x: web alone, from its rank 4 on web and code 1 : 1
                                   blend of x and y, 2 : 1

    position     0  1  2  3  4  5 | 6  7  8  9
    rank in x    0     1  2     3 | 4     5  6        the second stage begins where x comes to its rank 4
    tree         web and y        | web, code and y

Everything goes on where it is: each node at its rank, each source at its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from headrace.plan.nodes import (
    ConcatNode,
    Declared,
    Leaf,
    LimitNode,
    Node,
    Place,
    RepeatNode,
    Schedule,
    has_schedules,
    leaves,
    nodes_at,
)
from headrace.plan.tree import MAX_POSITIONS


class StagePlan(NamedTuple):
    """A stage: its first position, its tree, and where nodes and sources are.

    ``starts`` maps places of inner nodes to their ranks at their first position in the tree; those that are missing
    begin at 0. ``births`` maps paths of leaves to the rank of the source at which the leaf's own rank 0 lies.
    """

    begin: int
    root: Node
    starts: dict[Place, int]
    births: dict[str, int]


def staged(
    root: Declared, *, begin: int, starts: Mapping[Place, int], reached: Mapping[str, int]
) -> Iterator[StagePlan]:
    """Yield the stages of a tree that is entered at a position; one without schedules has a single stage.

    Args:
        root: the tree.
        begin: the position.
        starts: see `StagePlan`; also of schedules.
        reached: path of a leaf -> the rank of its source at the position; 0 for those that are missing.
    """
    tree = _Tree(root, begin, starts)
    schedules: list[Schedule] = []
    for node, rank in nodes_at(root, 0, starts):
        counts = {node.path: rank} if isinstance(node, Leaf) else {}
        if isinstance(node, Schedule):
            schedules.append(node)
            tree.segments[node.path] = bisect_right(node.begins, rank) - 1
            counts = dict.fromkeys((leaf.path for leaf in leaves(node)), 0) | node.counts(rank)
        tree.births |= {path: reached.get(path, 0) - count for path, count in counts.items()}
    position = begin
    while position < MAX_POSITIONS:
        yield tree.stage(position)
        position = min((tree.border(one) for one in schedules), default=MAX_POSITIONS)
        # A limit may leave out what lies between two borders, so that one position passes both.
        for one in schedules:
            while tree.border(one) <= position < MAX_POSITIONS:
                tree.segments[one.path] += 1


@dataclass(eq=False)
class _Tree:
    """A tree while it is divided: ``segments`` are the numbers of those in which its schedules are, by path."""

    root: Declared
    begin: int
    starts: Mapping[Place, int]
    births: dict[str, int] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)

    def stage(self, position: int) -> StagePlan:
        starts, births = dict(self.starts), dict(self.births)
        root = self._divided(self.root, starts, births)
        # The tree counts from its own first position.
        if isinstance(root, Leaf):
            births[root.path] += position - self.begin
        else:
            starts[root.place] = starts.get(root.place, 0) + position - self.begin
        return StagePlan(position, root, starts, {leaf.path: births[leaf.path] for leaf in leaves(root)})

    def _divided(self, node: Declared, starts: dict[Place, int], births: dict[str, int]) -> Node:
        """Return a tree with the present segments in place of its schedules, and note where these are."""
        if isinstance(node, Schedule):
            number = self.segments[node.path]
            tree, rank = node.children[number], starts.pop(node.place, 0) - node.begins[number]
            for path, count in node.starts[number].items():
                births[path] += count
            if isinstance(tree, Leaf):
                births[tree.path] += rank
            else:
                starts[tree.place] = rank
            return tree
        if isinstance(node, Leaf) or not has_schedules(node):
            return node
        children = tuple(self._divided(child, starts, births) for child in node.children)
        if isinstance(node, LimitNode | RepeatNode):
            return replace(node, child=children[0])
        return replace(node, children=children)

    def border(self, schedule: Schedule) -> int:
        """Return the position at which the next segment of a schedule begins; `MAX_POSITIONS` if none does."""
        number = self.segments[schedule.path] + 1
        if number == len(schedule.segments):
            return MAX_POSITIONS
        rank = _rank_of(self.root, schedule, schedule.begins[number], self.starts)
        return min(self.begin + rank, MAX_POSITIONS)


def _rank_of(node: Declared, schedule: Schedule, rank: int, starts: Mapping[Place, int]) -> int:
    """Return the first rank of a node, since its first position, at which a schedule below has come to a rank."""
    if not isinstance(node, Schedule | Leaf):
        number = node.child_of[next(leaves(schedule)).path]
        below = _rank_of(node.children[number], schedule, rank, starts)
        if isinstance(node, LimitNode):
            # A limit may leave the rank out; then its next pass is beyond it.
            size = node.child.num_samples or node.num_samples
            rank = below // size * node.num_samples + min(below % size, node.num_samples)
        else:
            weights = (
                [1] if isinstance(node, RepeatNode) else node.lengths if isinstance(node, ConcatNode) else node.shares
            )
            if below * sum(map(int, weights)) >= MAX_POSITIONS * int(weights[number]):
                return MAX_POSITIONS
            rank = int(node.join(number, np.array([below], dtype=np.int64))[0])
    return rank - (0 if isinstance(node, Leaf) else starts.get(node.place, 0))
