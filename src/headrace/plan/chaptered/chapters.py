"""The plan of a run that was changed: chapters, each with a tree of its own, over sources that go on through all.

    position -> chapter -> source, rank of the source -> dataset, epoch, sample index

A chapter holds from a position on, up to the next one. Its tree distributes positions over the sources as that of a
`Plan` does. What a source yields at a rank is its `SourceSequence`, which all chapters share; so a source goes on where
it is, wherever it stands in the tree. A part of the tree that is the same before and after a change goes on at its own
rank, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.chaptered.sequence import EpochSeries, SourceSequence
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.nodes import Leaf, Node, Place, leaf_shares, nodes_at
from headrace.plan.order import Order
from headrace.plan.tree import MAX_POSITIONS, Lookup, Plan, SampleTimes


class Length(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run is measured: in epochs or samples, or neither; and whether a short last step is left out."""

    epochs: int | None
    samples: int | None
    drop_last: bool


@dataclass(frozen=True, eq=False)
class PlanChapter:
    """One chapter: a tree, and where its nodes and sources are when the chapter begins.

    Attributes:
        begin: the first position.
        root: the tree.
        order: the order that new epochs have.
        sources: path of a leaf -> number of the source.
        starts: place of an inner node -> its rank at its first position; 0 for those that are not named.
        births: path of a leaf -> the rank of its source at which the leaf's own rank 0 lies.
        is_stage: whether the chapter was planned together with the one before, as the next stage of a schedule.
        absent: source that is not in the tree -> its rank, which it may have come to by a skip.
    """

    begin: int
    root: Node
    order: Order
    sources: Mapping[str, int]
    starts: Mapping[Place, int]
    births: Mapping[str, int]
    is_stage: bool = False
    absent: Mapping[int, int] = field(default_factory=dict)
    paths: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        """Make the map from sources to their paths."""
        object.__setattr__(self, "paths", {source: path for path, source in self.sources.items()})

    def rank(self, node: Node) -> int:
        """Return the rank of a node at its first position in the tree."""
        return 0 if isinstance(node, Leaf) else self.starts.get(node.place, 0)

    def descend(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return (n,) int64 numbers of sources and (n,) int64 ranks of them, for positions of the chapter."""
        sources, ranks = np.empty_like(positions), np.empty_like(positions)
        self._descend(self.root, positions - self.begin, slice(None), (sources, ranks))
        return sources, ranks

    def _descend(self, node: Node, ranks: IntArray, rows: IntArray | slice, out: tuple[IntArray, IntArray]) -> None:
        if isinstance(node, Leaf):
            out[0][rows] = self.sources[node.path]
            out[1][rows] = ranks + self.births[node.path]
            return
        chosen, child_ranks = node.split(ranks + self.rank(node))
        by_child = np.argsort(chosen, kind="stable")
        bounds = np.searchsorted(chosen[by_child], np.arange(len(node.children) + 1))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            mine = by_child[bounds[number] : bounds[number + 1]]
            child_rows = mine if isinstance(rows, slice) else rows[mine]
            self._descend(node.children[number], child_ranks[mine], child_rows, out)

    def ascend(self, source: int, ranks: IntArray) -> IntArray:
        """Return (n,) int64: the position of each rank of a source in this chapter, or -1 if it is never taken."""
        path = self.paths[source]
        found = self._ascend(self.root, path, ranks - self.births[path])
        return np.where(found < 0, -1, found + self.begin)

    def _ascend(self, node: Node, path: str, ranks: IntArray) -> IntArray:
        if isinstance(node, Leaf):
            return ranks
        child = node.child_of[path]
        below = self._ascend(node.children[child], path, ranks)
        joined = node.join(child, np.maximum(below, 0)) - self.rank(node)
        return np.where((below < 0) | (joined < 0), -1, joined)

    @cached_property
    def shares(self) -> dict[str, Fraction]:
        """The planned part of each leaf, by path."""
        return leaf_shares(self.root)

    def reached(self, position: int) -> dict[int, int]:
        """Return how far each source of the tree has come before a position: its number -> its rank. O(sources)."""
        return {
            self.sources[node.path]: self.births[node.path] + rank
            for node, rank in nodes_at(self.root, position - self.begin, self.starts)
            if isinstance(node, Leaf)
        }


class ChapteredPlan:
    """Chapters one after another; like a `Plan`, a pure function of the position.

    What a lookup calls a source is a number of ``series``, of which a source has several if its dataset or its order
    was changed.

    Args:
        chapters: at least one, the first from position 0 on.
        sequences: those of the sources, by their numbers.
        series: the epochs of the sources under each of their datasets and orders.
        source_of: the source of each series.
    """

    def __init__(
        self,
        chapters: Sequence[PlanChapter],
        sequences: Sequence[SourceSequence],
        series: Sequence[EpochSeries],
        source_of: Sequence[int],
    ) -> None:
        self.chapters = tuple(chapters)
        self.sequences = tuple(sequences)
        self.series = tuple(series)
        self.leaves = tuple(one.leaf for one in self.series)
        self.source_of = tuple(source_of)
        self.begins: IntArray = np.array([chapter.begin for chapter in self.chapters], dtype=np.int64)

    @property
    def root(self) -> Node:
        """The tree of the last chapter."""
        return self.chapters[-1].root

    @property
    def order(self) -> Order:
        """The order of the epochs that begin in the last chapter."""
        return self.chapters[-1].order

    def chapter_at(self, position: int) -> PlanChapter:
        """Return the chapter of a position."""
        return self.chapters[int(np.searchsorted(self.begins, position, side="right")) - 1]

    def lookup(self, positions: IntArray) -> Lookup:
        """Return dataset, epoch and sample index at each of (n,) int64 ``positions``, 0 <= position < 2^62."""
        if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= MAX_POSITIONS):
            raise ConfigError(f"positions run from 0 to 2^62 - 1, found {positions.min()} .. {positions.max()}")
        sources, ranks = self.ranks(positions)
        empty = np.empty_like(positions)
        found = Lookup(empty, empty.copy(), empty.copy(), np.empty(positions.shape, dtype=np.uint64))
        by_source = np.argsort(sources, kind="stable")
        borders = np.flatnonzero(np.diff(sources[by_source])) + 1
        for rows in np.split(by_source, borders) if len(by_source) else ():
            items = self.sequences[int(sources[rows[0]])].items(ranks[rows])
            for column, values in zip(found, items, strict=True):
                column[rows] = values
        return found

    def ranks(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return (n,) int64 numbers of sources, and (n,) int64 ranks of them, at positions."""
        numbers = np.searchsorted(self.begins, positions, side="right") - 1
        if not len(numbers) or (numbers == numbers[0]).all():
            return self.chapters[int(numbers[0]) if len(numbers) else 0].descend(positions)
        sources, ranks = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            sources[rows], ranks[rows] = self.chapters[number].descend(positions[rows])
        return sources, ranks

    def reached(self, position: int, *, is_fed: bool = False) -> dict[int, int]:
        """Return the rank that each source has reached before a position; 0 for those that did not come yet.

        What is skipped at the position counts, unless ``is_fed``: then the ranks are those behind what was fed.
        O(sources), and as many chapters as it takes to find those that are not in the tree any more.
        """
        found: dict[int, int] = {}
        end = position
        side: Literal["left", "right"] = "left" if is_fed else "right"
        for number in reversed(range(int(np.searchsorted(self.begins, position, side=side)))):
            chapter = self.chapters[number]
            found = {**chapter.absent, **chapter.reached(end), **found}
            if len(found) == len(self.sequences):
                break
            end = chapter.begin
        return {number: found.get(number, 0) for number in range(len(self.sequences))}

    def counts(self, position: int) -> list[int]:
        """Return the rank that the source of each dataset has reached before a position; skipped ranks count too."""
        reached = self.reached(position)
        return [reached[source] for source in self.source_of]

    def find(self, source: int, index: int, *, begin: int, end: int) -> SampleTimes:
        """Return at which of the positions ``begin`` to ``end - 1`` a sample of a dataset comes.

        Raises:
            ConfigError: the positions lie outside 0 to 2^62, or the dataset has no such sample.
        """
        leaf, number = self.leaves[source], self.source_of[source]
        if not 0 <= index - leaf.first_sample < leaf.num_samples:
            raise ConfigError(
                f"source {leaf.path!r} has the samples {leaf.first_sample:,} to "
                f"{leaf.first_sample + leaf.num_samples - 1:,}; found {index:,}"
            )
        if not 0 <= begin <= end <= MAX_POSITIONS:
            raise ConfigError(f"positions run from 0 to 2^62 - 1, found {begin} .. {end - 1}")
        parts = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
        for chapter, first, last in spans_of(self, begin, end):
            if number not in chapter.paths:
                continue
            low, high = (chapter.reached(place)[number] for place in (first, last))
            times = self.sequences[number].times(source, index, low, high)
            positions = chapter.ascend(number, times.ranks)
            taken = (positions >= first) & (positions < last)
            parts.append((positions[taken], times.epochs[taken]))
        positions, epochs = (np.concatenate(column) for column in zip(*parts, strict=True))
        rows = np.argsort(positions, kind="stable")
        return SampleTimes(positions[rows], epochs[rows])

    def keys(self, source: int, epochs: IntArray) -> KeyArray:
        """Return (n,) uint64: the keys of epochs of a dataset, as in a ``Lookup``."""
        return derive_array(self.series[source].key, epochs)


AnyPlan = Plan | ChapteredPlan
"""The plan of a run; one with schedules or changes has chapters."""


def parts_of(plan: AnyPlan) -> list[tuple[PlanChapter, ...]]:
    """Return the chapters of a plan, those together that were planned at once: one tree, with all of its stages."""
    if isinstance(plan, Plan):
        sources = {leaf.path: number for number, leaf in enumerate(plan.leaves)}
        return [(PlanChapter(0, plan.root, plan.order, sources, {}, dict.fromkeys(sources, 0)),)]
    firsts = [number for number, chapter in enumerate(plan.chapters) if not chapter.is_stage]
    return [plan.chapters[first:end] for first, end in pairwise([*firsts, len(plan.chapters)])]


def spans_of(plan: AnyPlan, begin: int, end: int) -> Iterator[tuple[PlanChapter, int, int]]:
    """Yield the chapters that hold at any of the positions ``[begin, end)``, each with those at which it does."""
    chapters = plan.chapters if isinstance(plan, ChapteredPlan) else parts_of(plan)[0]
    for chapter, after in zip(chapters, [*chapters[1:], None], strict=True):
        first, last = max(begin, chapter.begin), end if after is None else min(end, after.begin)
        if first < last:
            yield chapter, first, last
