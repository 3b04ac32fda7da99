"""The tree of a mix as it stands in ``run.json``: `SavedNode` and its kinds, and the borders of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from headrace.errors import StateError
from headrace.plan import Branch, ConcatNode, Declared, Leaf, LimitNode, Node, RepeatNode, Schedule, Shards
from headrace.plan.nodes import declared


class SavedNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="node"):
    """A node of the tree; nodes with children hold their path."""


class SavedLeaf(SavedNode, frozen=True, kw_only=True, tag="source"):
    """A source, by its number in the list of sources: one that is in several segments is written once."""

    source: int


class SavedBranch(SavedNode, frozen=True, kw_only=True, tag="blend"):
    """See `headrace.plan.Branch`."""

    path: str
    children: tuple[AnyNode, ...]
    shares: tuple[int, ...]
    num_samples: int | None
    block_samples: int


class SavedConcat(SavedNode, frozen=True, kw_only=True, tag="concat"):
    """See `headrace.plan.ConcatNode`."""

    path: str
    children: tuple[AnyNode, ...]


class SavedLimit(SavedNode, frozen=True, kw_only=True, tag="limit"):
    """See `headrace.plan.LimitNode`."""

    path: str
    child: AnyNode
    num_samples: int


class SavedRepeat(SavedNode, frozen=True, kw_only=True, tag="repeat"):
    """See `headrace.plan.RepeatNode`."""

    path: str
    child: AnyNode
    num_samples: int


class SavedSchedule(SavedNode, frozen=True, kw_only=True, tag="schedule"):
    """See `headrace.plan.Schedule`."""

    path: str
    begins: tuple[int, ...]
    children: tuple[AnyNode, ...]


AnyNode = SavedLeaf | SavedBranch | SavedConcat | SavedLimit | SavedRepeat | SavedSchedule


def saved_node(node: Declared, numbers: Mapping[str, int]) -> AnyNode:
    """Return a node in the form that is written; ``numbers`` are those of the sources, by path."""
    if isinstance(node, Leaf):
        return SavedLeaf(source=numbers[node.path])
    children = tuple(saved_node(child, numbers) for child in node.children)
    path = node.path
    if isinstance(node, Branch):
        return SavedBranch(
            path=path,
            children=children,
            shares=node.shares,
            num_samples=node.num_samples,
            block_samples=node.block_samples,
        )
    if isinstance(node, ConcatNode):
        return SavedConcat(path=path, children=children)
    if isinstance(node, Schedule):
        return SavedSchedule(path=path, begins=tuple(node.begins), children=children)
    kind = SavedLimit if isinstance(node, LimitNode) else SavedRepeat
    return kind(path=path, child=children[0], num_samples=node.num_samples)


def loaded_node(saved: AnyNode, leaves: Sequence[Leaf]) -> Node:
    """Return the node that was written. Raises StateError for the number of a source that does not exist."""
    if isinstance(saved, SavedLeaf):
        if not 0 <= saved.source < len(leaves):
            raise StateError(f"the tree names source {saved.source}, and there are {len(leaves):,} sources")
        return leaves[saved.source]
    if isinstance(saved, SavedLimit):
        return LimitNode(saved.path, loaded_node(saved.child, leaves), saved.num_samples)
    if isinstance(saved, SavedRepeat):
        return RepeatNode(saved.path, loaded_node(saved.child, leaves), saved.num_samples)
    children = tuple(loaded_node(child, leaves) for child in saved.children)
    if isinstance(saved, SavedBranch):
        return Branch(saved.path, children, saved.shares, saved.num_samples, saved.block_samples)
    if isinstance(saved, SavedConcat):
        return ConcatNode(saved.path, children)
    if len(saved.begins) != len(children):
        raise StateError(f"{saved.path!r} has {len(saved.begins):,} begins for {len(children):,} segments")
    return declared(Schedule(saved.path, tuple(zip(saved.begins, children, strict=True))))


def saved_shards(shards: Shards | None) -> str | None:
    """Return the samples of each shard as a text, with equal neighbours together: ``"10000x127 4711"``."""
    if shards is None:
        return None
    sizes = np.diff(shards.bounds)
    firsts = np.flatnonzero(np.diff(sizes, prepend=-1))
    counts = np.diff(firsts, append=len(sizes))
    pairs = zip(sizes[firsts].tolist(), counts.tolist(), strict=True)
    return " ".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in pairs)


def loaded_shards(saved: str | None) -> Shards | None:
    """Return the borders of shards that were written. Raises StateError for a malformed text."""
    if saved is None:
        return None
    sizes: list[int] = []
    for part in saved.split():
        size, _, count = part.partition("x")
        try:
            sizes += [int(size)] * int(count or 1)
        except ValueError:
            raise StateError(f"{part!r} is not a size of shards; expected the form 10000x127") from None
    return Shards.of_counts(sizes)
