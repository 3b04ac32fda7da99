"""The plan: position -> (source, epoch, sample index), and back, by chapters over sources that go on through all.

    position -> chapter -> source, rank of the source -> dataset, epoch, sample index

A chapter holds from a position on, up to the next one. Its tree distributes positions over the sources as that of a
`Plan` does. What a source yields at a rank is its `SourceSequence`, which all chapters share; so a source goes on where
it is, wherever it stands in the tree. A part of the tree that is the same before and after a change goes on at its own
rank, too.

What a plan has fed before a position, in a form in which two plans are equal if they fed the same.

A saved state holds a hash of it. What comes after the position is not in it, so that a state fits every run with the
same past, whatever its future is and however the run came to be: stages of a schedule and changes of a run are
described alike.

A tree with schedules, divided into stages: trees without schedules, each from a position on.

    a schedule below a blend       x: web alone, from its rank 4 on web and code 1 : 1
                                   blend of x and y, 2 : 1

    position     0  1  2  3  4  5 | 6  7  8  9
    rank in x    0     1  2     3 | 4     5  6        the second stage begins where x comes to its rank 4
    tree         web and y        | web, code and y

Everything goes on where it is: each node at its rank, each source at its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.chaptered.sequence import EpochSeries, SeriesSection, SourceSequence
from headrace.plan.keys import IntArray, KeyArray, source_key
from headrace.plan.nodes import (
    Branch,
    ConcatNode,
    Declared,
    Leaf,
    LimitNode,
    Node,
    Place,
    RepeatNode,
    Schedule,
    has_schedules,
    leaf_shares,
    leaves,
    nodes_at,
)
from headrace.plan.order import Order
from headrace.plan.recipe import ORDER_FORMAT, RunRecipe
from headrace.plan.schedule import BatchSchedule
from headrace.plan.tree import MAX_POSITIONS, Lookup, SampleTimes

Rows = IntArray | slice


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

    def descend(self, positions: IntArray) -> Iterator[tuple[int, Rows, IntArray]]:
        """Yield each source that comes at positions of the chapter: its number, the rows, and its rank at each."""
        return self._descend(self.root, positions - self.begin, slice(None))

    def _descend(self, node: Node, ranks: IntArray, rows: Rows) -> Iterator[tuple[int, Rows, IntArray]]:
        if isinstance(node, Leaf):
            yield self.sources[node.path], rows, ranks + self.births[node.path]
            return
        chosen, child_ranks = node.split(ranks + self.rank(node))
        # One stable sort groups the rows by child: a thousand children then cost a thousand slices, not masks.
        by_child = np.argsort(chosen, kind="stable")
        bounds = np.searchsorted(chosen[by_child], np.arange(len(node.children) + 1))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            mine = by_child[bounds[number] : bounds[number + 1]]
            child_rows = mine if isinstance(rows, slice) else rows[mine]
            yield from self._descend(node.children[number], child_ranks[mine], child_rows)

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
    """Chapters one after another, which make a pure function of the position.

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

    @cached_property
    def begins(self) -> IntArray:
        """(chapters,) int64: the position at which each chapter begins."""
        return np.array([chapter.begin for chapter in self.chapters], dtype=np.int64)

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
        empty = np.empty_like(positions)
        found = Lookup(empty, empty.copy(), empty.copy(), np.empty(positions.shape, dtype=np.uint64))
        for source, rows, ranks in self._descend(positions):
            items = self.sequences[source].items(ranks)
            for column, values in zip(found, items, strict=True):
                column[rows] = values
        return found

    def _descend(self, positions: IntArray) -> Iterator[tuple[int, Rows, IntArray]]:
        """Yield each source that comes at positions, chapter by chapter; see `PlanChapter.descend`."""
        numbers = np.searchsorted(self.begins, positions, side="right") - 1
        if not len(numbers) or (numbers == numbers[0]).all():
            yield from self.chapters[int(numbers[0]) if len(numbers) else 0].descend(positions)
            return
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            for source, mine, ranks in self.chapters[number].descend(positions[rows]):
                yield source, rows[mine], ranks

    def ranks(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return (n,) int64 numbers of sources, and (n,) int64 ranks of them, at positions."""
        sources, ranks = np.empty_like(positions), np.empty_like(positions)
        for source, rows, found in self._descend(positions):
            sources[rows], ranks[rows] = source, found
        return sources, ranks

    def reached(self, position: int, *, is_fed: bool = False) -> dict[int, int]:
        """Return the rank that each source has reached before a position; 0 for those that did not come yet.

        What is skipped at the position counts, unless ``is_fed``: then the ranks are those behind what was fed.
        O(sources), and as many chapters as it takes to find those that are not in the tree any more.
        """
        found: dict[int, int] = {}
        end = position
        bisect = bisect_left if is_fed else bisect_right
        for number in reversed(range(bisect(self.chapters, position, key=attrgetter("begin")))):
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
        for chapter, first, last in spans_of(self.chapters, begin, end):
            if number not in chapter.paths:
                continue
            low, high = (chapter.reached(place)[number] for place in (first, last))
            ranks, epochs = self.sequences[number].times(source, index, low, high)
            positions = chapter.ascend(number, ranks)
            taken = (positions >= first) & (positions < last)
            parts.append((positions[taken], epochs[taken]))
        positions, epochs = (np.concatenate(column) for column in zip(*parts, strict=True))
        rows = np.argsort(positions, kind="stable")
        return SampleTimes(positions[rows], epochs[rows])

    def keys(self, source: int, epochs: IntArray) -> KeyArray:
        """Return (n,) uint64: the keys of epochs of a dataset, as in a ``Lookup``."""
        return self.series[source].keys(epochs)


class Plan(ChapteredPlan):
    """A tree of sources read in an order, which never changes: one chapter, in which each source begins at rank 0.

    Construction is O(sources); a lookup is O(log sources) and about 0.1 to 0.5 us a position in bulk. No part of the
    plan grows with the number of samples.

    Example:
        >>> plan = headrace.plan.Plan(headrace.plan.Leaf("web", 1000), headrace.Order(seed=1))
        >>> found = plan.lookup(np.arange(2000))
        >>> found.epochs[[0, 1999]].tolist(), len(set(found.indices[:1000].tolist()))
        ([0, 1], 1000)
        >>> times = plan.find(0, 17, begin=0, end=2000)
        >>> found.indices[times.positions].tolist()
        [17, 17]
    """

    def __init__(self, root: Node, order: Order) -> None:
        series = [
            EpochSeries(number, leaf, order, source_key(order.seed, leaf.path, "order"))
            for number, leaf in enumerate(leaves(root))
        ]
        sources = {one.leaf.path: one.number for one in series}
        if len(sources) < len(series):
            raise ConfigError(
                f"two sources of the blend have the same path; the paths are {sorted(one.leaf.path for one in series)}"
            )
        chapter = PlanChapter(0, root, order, sources, {}, dict.fromkeys(sources, 0))
        sequences = [SourceSequence([SeriesSection(one, 0)]) for one in series]
        super().__init__([chapter], sequences, series, range(len(series)))


def parts_of(plan: ChapteredPlan) -> list[tuple[PlanChapter, ...]]:
    """Return the chapters of a plan, those together that were planned at once: one tree, with all of its stages."""
    firsts = [number for number, chapter in enumerate(plan.chapters) if not chapter.is_stage]
    return [plan.chapters[first:end] for first, end in pairwise([*firsts, len(plan.chapters)])]


def spans_of(chapters: Sequence[PlanChapter], begin: int, end: int) -> Iterator[tuple[PlanChapter, int, int]]:
    """Yield those chapters that hold at any of the positions ``[begin, end)``, each with those at which it does."""
    number = max(0, bisect_right(chapters, begin, key=attrgetter("begin")) - 1)
    while number < len(chapters) and chapters[number].begin < end:
        chapter, number = chapters[number], number + 1
        first, last = max(begin, chapter.begin), min(end, chapters[number].begin) if number < len(chapters) else end
        if first < last:
            yield chapter, first, last


_PASSING = ("on_error",)
"""Fields of a dataset's recipe that decide nothing of the samples that were fed."""

_NAMES = ("encoder", "function", "joiner", "hook", "select", "group", "version")
"""Fields with names of classes and functions, which count without the module that they live in."""


def past_recipe(
    plan: ChapteredPlan,
    key_paths: Sequence[str],
    recipes: Sequence[Mapping[str, Any]],
    schedule: BatchSchedule,
    batch: Mapping[str, Any],
    position: int,
    split: Mapping[str, Any],
) -> RunRecipe:
    """Return the recipe of a run as far as it was fed before a position.

    Args:
        plan: the plan.
        key_paths: for each source the path by which the run knows it.
        recipes: for each series of the plan the recipe of its dataset.
        schedule: the global batches.
        batch: what else decides the samples of a step.
        position: where the past ends.
        split: how the slots of the step are drawn in which the position lies; empty between two steps.
    """
    reached = plan.reached(position, is_fed=True)
    begun = {source: rank for source, rank in reached.items() if rank}
    sections = {source: list(_begun(plan, source, rank)) for source, rank in begun.items()}
    return RunRecipe(
        format={"order": ORDER_FORMAT["order"], "blend": ORDER_FORMAT["blend"], **split},
        dataset={
            key_paths[source]: [comparable(recipes[section.series.number]) for section, _ in found]
            for source, found in sections.items()
        },
        blend={"chapters": list(_trees(plan, key_paths, position))},
        order={
            key_paths[source]: [_described(section, first) for section, first in found]
            for source, found in sections.items()
        },
        batch={"pieces": [list(piece) for piece in schedule.pieces if schedule.begin(piece[0]) < position], **batch},
    )


def past_lasts(plan: ChapteredPlan, schedule: BatchSchedule, position: int) -> int:
    """Return the last position up to which the past is that of a position, between two steps: nothing new begins."""
    begins = [*plan.begins.tolist(), *(schedule.begin(step) for step, _ in schedule.pieces)]
    last = min((begin for begin in begins if begin >= position), default=MAX_POSITIONS)
    now, then = (plan.reached(at, is_fed=True) for at in (position, last))
    for source, sequence in enumerate(plan.sequences):
        if np.diff(np.searchsorted(sequence.firsts, [now[source], then[source]])).any():
            return position
    return last


def comparable(recipe: Any) -> Any:
    """Return what decides samples in the recipe of a dataset: without modules, and without what decides nothing."""
    if isinstance(recipe, Mapping):
        return {
            name: _without_module(value) if name in _NAMES else comparable(value)
            for name, value in recipe.items()
            if name not in _PASSING
        }
    return [comparable(value) for value in recipe] if isinstance(recipe, list | tuple) else recipe


def _without_module(value: Any) -> Any:
    return value.rpartition(".")[2] if isinstance(value, str) else comparable(value)


def _begun(plan: ChapteredPlan, source: int, rank: int) -> Iterator[tuple[SeriesSection, int]]:
    """Yield the sections of a source that begin below a rank, with the ranks at which they do.

    One that only goes on is not told again: it was cut there for a change of what comes later.
    """
    sequence = plan.sequences[source]
    last: SeriesSection | None = None
    for section, first in zip(sequence.sections, sequence.firsts.tolist(), strict=True):
        goes_on = last is not None and last.series is section.series and last.end == section.begin
        if first < rank and not (goes_on and last is not None and np.array_equal(last.left_out, section.left_out)):
            yield section, first
        last = section


def _described(section: SeriesSection, first: int) -> dict[str, Any]:
    series = section.series
    found: dict[str, Any] = {"rank": first, "begin": section.begin, **series.order.recipe}
    if series.order.draws:
        found["key"] = f"{series.key:016x}"
    if series.order.is_of_shards and series.leaf.shards is not None:
        found["shards"] = series.leaf.shards.digest
    if series.leaf.first_sample:
        found["first_sample"] = series.leaf.first_sample
    if series.first_epoch:
        found["first_epoch"] = series.first_epoch
    if len(section.left_out):
        found["left_out"] = blake2b(section.left_out.astype("<i8").tobytes(), digest_size=16).hexdigest()
    return found


def _trees(plan: ChapteredPlan, key_paths: Sequence[str], position: int) -> Iterator[dict[str, Any]]:
    """Yield the trees that hold before a position; one that only goes on is not told again."""
    last: Any = None
    for chapter in plan.chapters:
        if chapter.begin >= position:
            break
        # Where the tree would have begun if it had always held; a Leaf has no rank of its own.
        root = chapter.root
        zero = (chapter.births[root.path] if isinstance(root, Leaf) else chapter.rank(root)) - chapter.begin
        tree = {"zero": zero, "tree": _tree(root, chapter, key_paths, is_root=True)}
        if tree != last:
            yield {"begin": chapter.begin, **tree}
        last = tree


def _tree(node: Node, chapter: PlanChapter, key_paths: Sequence[str], *, is_root: bool = False) -> Any:
    if isinstance(node, Leaf):
        source = key_paths[chapter.sources[node.path]]
        return [source, node.num_samples] if is_root else [source, node.num_samples, chapter.births[node.path]]
    found: dict[str, Any] = {"kind": type(node).__name__}
    if not is_root and chapter.rank(node):
        found["rank"] = chapter.rank(node)
    if isinstance(node, Branch):
        found |= {"shares": list(node.shares), "block_samples": node.block_samples}
    return found | {
        "num_samples": node.num_samples,
        "children": [_tree(child, chapter, key_paths) for child in node.children],
    }


def split_at(plan: ChapteredPlan, schedule: BatchSchedule, position: int, *, is_drawn: bool) -> dict[str, Any]:
    """Return how the slots of the step are drawn in which a position lies; empty between two steps."""
    if position == schedule.begin(schedule.step_of(position)):
        return {}
    if not is_drawn:
        return {"split": 1}
    return {"split": 2, "seed": plan.chapter_at(position).order.seed}


def staged(
    root: Declared,
    *,
    begin: int,
    order: Order,
    sources: Mapping[str, int],
    starts: Mapping[Place, int],
    reached: Mapping[str, int],
) -> Iterator[PlanChapter]:
    """Yield the stages of a tree that is entered at a position; one without schedules has a single stage.

    Args:
        root: the tree.
        begin: the position.
        order, sources, starts: see `PlanChapter`; ``starts`` also of schedules.
        reached: path of a leaf -> the rank of its source at the position; 0 for those that are missing.
    """
    tree = _Tree(root, begin, order, sources, starts)
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
    order: Order
    sources: Mapping[str, int]
    starts: Mapping[Place, int]
    births: dict[str, int] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)

    def stage(self, position: int) -> PlanChapter:
        starts, births = dict(self.starts), dict(self.births)
        root = self._divided(self.root, starts, births)
        # The tree counts from its own first position.
        if isinstance(root, Leaf):
            births[root.path] += position - self.begin
        else:
            starts[root.place] = starts.get(root.place, 0) + position - self.begin
        births = {leaf.path: births[leaf.path] for leaf in leaves(root)}
        return PlanChapter(position, root, self.order, {path: self.sources[path] for path in births}, starts, births)

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
