"""Changes of a run while it goes on, as arithmetic on its plan: `PlanEditor` applies them one after another.

From the position of a change on

- a source goes on where it is: at its epoch, and at its rank within the epoch;
- a part of the tree that is the same goes on at its own rank;
- another order holds for each source from its next epoch on;
- positions may be skipped, and their samples be dropped, or put off to the end of their epochs;
- samples may be left out, so that the epochs are shorter.

A `PlanChange` names sources by the numbers that the editor gave them, and says nothing of how a user asked for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from operator import attrgetter, methodcaller
from typing import Literal, NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.arithmetic import apportion
from headrace.plan.blend import counts_until
from headrace.plan.chaptered.chapters import ChapteredPlan, Length, PlanChapter, staged
from headrace.plan.chaptered.epochs import Interval, check_change, fed_before
from headrace.plan.chaptered.sequence import NOTHING, EpochSeries, SeriesSection, SourceSequence
from headrace.plan.keys import IntArray, source_key
from headrace.plan.nodes import (
    Branch,
    ConcatNode,
    Declared,
    Leaf,
    LimitNode,
    Place,
    Schedule,
    leaves,
    nodes_at,
)
from headrace.plan.order import Order
from headrace.plan.schedule import BatchSchedule

End = Literal["endless", "samples", "first_exhausted", "all_exhausted", "repeats"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanChange:
    """A change of the plan from a step on; what is None or empty stays as it is.

    Attributes:
        step: the first step that is another.
        root: the new tree.
        sources: path of each leaf of ``root`` -> number of the source, see `PlanEditor.add`.
        end: how the new tree ends, if it is a blend.
        fresh: sources whose samples are others from now on: they begin a new epoch, with the leaf that stands here.
        pieces: (steps since ``step``, samples a step).
        order: the order of the epochs that begin from now on.
        replaced: sources whose samples have other contents from now on, the order of which stays as it is.
        left_out: source -> numbers of the samples that do not come any more; for a fresh source, of its new samples.
        skip_steps: how many steps are skipped.
        defer: whether the samples of skipped steps come later; otherwise they do not come in this epoch.
        length: how the run is measured.
    """

    step: int
    root: Declared | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    end: End = "endless"
    fresh: Mapping[int, Leaf] = field(default_factory=dict)
    pieces: tuple[tuple[int, int], ...] = ()
    order: Order | None = None
    replaced: frozenset[int] = frozenset()
    left_out: Mapping[int, IntArray] = field(default_factory=dict)
    skip_steps: int = 0
    defer: bool = False
    length: Length | None = None


class Skip(NamedTuple):
    """Positions of the plan that were not fed, and what each source passed over: its ranks ``[first, end)``."""

    position: int
    num_samples: int
    defer: bool
    ranks: dict[int, tuple[int, int]]


class PlacedTree(NamedTuple):
    """A tree that holds from a position on.

    ``sources`` maps the paths of its leaves to numbers of sources. ``starts`` maps places of inner nodes, schedules
    among them, to their ranks at their first position; those that are missing begin at 0.
    """

    begin: int
    root: Declared
    sources: Mapping[str, int]
    starts: Mapping[Place, int]

    def nodes_at(self, position: int) -> Iterator[tuple[Declared, int]]:
        """Yield every node outside schedules, and its own rank at a position. O(nodes)."""
        return nodes_at(self.root, position - self.begin, self.starts)

    def advanced(self, position: int, begin: int) -> PlacedTree:
        """Return the placement that goes on at one position with what was to come at another one."""
        root, passed = self.root, position - self.begin
        starts = self.starts
        if not isinstance(root, Leaf):
            starts = {**starts, root.place: starts.get(root.place, 0) + passed}
        return self._replace(begin=begin, starts=starts)


class PlanEditor:
    """A plan that is changed from step to step.

    Args:
        root: the tree of the run as it was begun.
        order: its order.
        schedule: its global batches.
        length: how it is measured.

    Example:
        >>> web, code = Leaf("web", 100), Leaf("code", 50)
        >>> tree = Branch("", (web, code), (1, 1), None)
        >>> editor = PlanEditor(tree, Order(), BatchSchedule.of(10), Length(None, None, False))
        >>> changed = Branch("", (web, code), (3, 1), None)
        >>> editor.apply(PlanChange(step=4, root=changed, sources={"web": 0, "code": 1}))
        >>> editor.plan().counts(40), editor.plan().counts(80)
        ([20, 20], [50, 30])
    """

    def __init__(self, root: Declared, order: Order, schedule: BatchSchedule, length: Length) -> None:
        self.order = order
        self.pieces = list(schedule.pieces)
        self.measured_by = length
        self.key_paths: list[str] = []
        self.series: list[EpochSeries] = []
        self.source_of: list[int] = []
        self.sequences: list[SourceSequence] = []
        self.skips: list[Skip] = []
        sources = {leaf.path: self.add(leaf) for leaf in leaves(root)}
        self.chapters: list[PlanChapter] = []
        self._placements: list[PlacedTree] = []
        """The tree that holds since the last change. If it ends, the rest of a pass may come before it."""
        self._last = 0, 0
        """Step and position of the last change."""
        self._fed: tuple[int, dict[int, list[Interval]] | None] = 0, {}
        """A position, and the ranks of each source that were fed before it; None if they are too many to be counted."""
        self._passes = 0
        """Passes through the present tree that were complete before its rank 0."""
        self._pass_begin: dict[int, int] = {}
        """Where each source was when the pass began that a change left a rest of."""
        self._place([PlacedTree(0, root, sources, {})], {})

    @property
    def schedule(self) -> BatchSchedule:
        """The global batches, over all chapters."""
        return BatchSchedule(tuple(self.pieces))

    @property
    def root(self) -> Declared:
        """The tree as it is now."""
        return self._placements[-1].root

    @property
    def sources(self) -> Mapping[str, int]:
        """Path of each leaf of the tree -> number of its source."""
        return self._placements[-1].sources

    def plan(self) -> ChapteredPlan:
        """Return the plan as it is now."""
        return ChapteredPlan(self.chapters, self.sequences, self.series, self.source_of)

    def copied(self) -> PlanEditor:
        """Return an editor that goes on from here by itself. O(series)."""
        found = copy(self)
        found.key_paths, found.source_of, found.skips = [*self.key_paths], [*self.source_of], [*self.skips]
        found.series, found.sequences = [*self.series], [*self.sequences]
        return found

    def add(self, leaf: Leaf) -> int:
        """Return the number of a new source. The order of its epochs is drawn from the path that it has now."""
        number = len(self.key_paths)
        self.key_paths.append(leaf.path)
        self.sequences.append(SourceSequence([SeriesSection(self._new_series(number, leaf, 0), 0)]))
        return number

    def position(self, step: int) -> int:
        """Return the position at which a change at a step holds.

        Raises:
            ConfigError: an earlier change holds from a later step on, or the run ends before the step.
        """
        if step < self._last[0]:
            raise ConfigError(f"a change at step {step:,} comes after one at step {self._last[0]:,}")
        begin, length = self.schedule.begin(step), self.length()
        if length is None or begin <= length:
            return begin
        if self.schedule.begin(step - 1) >= length:
            steps = self.schedule.step_of(length - 1) + 1
            raise ConfigError(f"a change at step {step:,} of a run of {steps:,} steps: allowed are 0 to {steps:,}")
        return length

    def apply(self, change: PlanChange) -> None:
        """Change the plan from a step on. If it is refused, the editor must not be used any more.

        Raises:
            ConfigError: the change is not possible at this step; the message says why, and where it would be.
        """
        position = self.position(change.step)
        self._cut_batches(change, position)
        has_order = change.order is not None and change.order != self.order
        if change.order is not None:
            self.order = change.order
        if change.skip_steps:
            self._skip(change, position)
        else:
            self._go_on(position, position)
        self._last = change.step, position
        if change.length is not None:
            self.measured_by = change.length
        self._change_sources(change, position, has_order=has_order)
        if change.root is not None:
            self._change_tree(change, change.root, position)

    def check(self) -> None:
        """Check the last change by sums, see `check_change`. Raises HeadraceError if it is wrong."""
        position, (begin, known) = self._last[1], self._fed
        if known is None:
            return
        try:
            known = fed_before(self.chapters, position, begin, known)
        except ConfigError:  # the passes through a limit are too many to be counted one by one
            self._fed = position, None
            return
        self._fed = position, known
        check_change(self.plan(), position, sum(skip.num_samples for skip in self.skips), known)

    def length(self) -> int | None:
        """Return how many samples the run feeds in all; None without an end.

        Raises:
            ConfigError: the run is measured in epochs, and its tree has no end.
        """
        epochs, samples = self.measured_by.epochs, self.measured_by.samples
        last = self.chapters[-1]
        root = last.root
        if samples is not None:
            found = samples - sum(skip.num_samples for skip in self.skips if not skip.defer)
        elif isinstance(root, Leaf) and epochs is not None:
            source = last.sources[root.path]
            found = last.begin + self._epochs_end(source, epochs) - last.births[root.path]
        elif epochs is not None and root.num_samples is None:
            raise ConfigError("an endless blend has no epochs: pass samples, or give the blend an end")
        elif not isinstance(root, Leaf) and root.num_samples is not None:
            left = (1 if epochs is None else epochs) - self._passes
            found = last.begin + left * root.num_samples - last.rank(root)
        else:
            return None
        if self.measured_by.drop_last:
            found = self.schedule.begin(self.schedule.step_of(found))
        return max(found, self._last[1])

    def _epochs_end(self, source: int, epochs: int) -> int:
        """Return the rank of a source before which all its epochs up to a number lie."""
        rank = 0
        for section in self.sequences[source].sections:
            series = section.series
            border = (epochs - series.first_epoch) * series.num_samples
            if section.end is not None and section.end <= border:
                rank += section.num_items or 0
            elif section.begin < border:
                rank += replace(section, end=border).num_items or 0
        return rank

    def _cut_batches(self, change: PlanChange, position: int) -> None:
        """Let the batches of the change begin at its step, the one before which may be short."""
        schedule = self.schedule
        begin = schedule.begin(change.step)
        if not change.pieces and begin == position:
            return
        rest = change.pieces or ((0, schedule.size(change.step)),)
        kept = [piece for piece in self.pieces if piece[0] < change.step]
        if begin > position:
            last = change.step - 1
            kept = [piece for piece in kept if piece[0] < last] + [(last, position - schedule.begin(last))]
        later = () if change.pieces else tuple(piece for piece in self.pieces if piece[0] > change.step)
        self.pieces = _merged([*kept, *((change.step + step, size) for step, size in rest), *later])

    def _place(self, placements: list[PlacedTree], reached: Mapping[int, int]) -> None:
        """Let trees hold from the first of some placements on; ``reached`` is where the sources are there."""
        self._placements = placements
        kept = bisect_left(self.chapters, placements[0].begin, key=attrgetter("begin"))
        self.chapters = self.chapters[:kept]
        for number, (begin, root, sources, starts) in enumerate(placements):
            if number:
                reached = self._reached(begin)
            ranks = {path: reached.get(source, 0) for path, source in sources.items()}
            for stage in staged(root, begin=begin, order=self.order, sources=sources, starts=starts, reached=ranks):
                if number + 1 < len(placements) and stage.begin >= placements[number + 1].begin:
                    break
                is_stage = len(self.chapters) > kept
                absent = {} if is_stage else {one: rank for one, rank in reached.items() if one not in stage.paths}
                self.chapters.append(replace(stage, is_stage=is_stage, absent=absent))

    def _go_on(self, position: int, begin: int) -> None:
        """Go on at the position ``begin`` with what comes at another one."""
        reached = self._reached(position)
        number = max(i for i, one in enumerate(self._placements) if not i or one.begin <= position)
        first = self._placements[number].advanced(position, begin)
        later = [one.advanced(one.begin, one.begin + begin - position) for one in self._placements[number + 1 :]]
        self._place([first, *later], reached)

    def _skip(self, change: PlanChange, position: int) -> None:
        schedule, length = self.schedule, self.length()
        num_skipped = schedule.begin(change.step + change.skip_steps) - position
        if length is not None and position + num_skipped > length:
            steps = schedule.step_of(length - 1) + 1
            raise ConfigError(
                f"the steps {change.step:,} to {change.step + change.skip_steps - 1:,} are skipped, and the run has "
                f"{steps:,} steps: end it there, with samples={position:,}"
            )
        if change.defer and not isinstance(self.root, Leaf) and self.root.num_samples is not None:
            raise ConfigError(
                "samples that are put off come later in their epochs, and this run is a pass through several sources "
                "with exact counts, which has no place for them: pass then='drop', or change the data with the skip"
            )
        first, beyond = self._reached(position), self._reached(position + num_skipped)
        ranks = {source: (first[source], beyond[source]) for source in first if beyond[source] > first[source]}
        self.skips.append(Skip(position, num_skipped, change.defer, ranks))
        self._go_on(position + num_skipped, position)
        if change.defer:
            for source, (low, high) in ranks.items():
                self.sequences[source] = put_off(self.sequences[source], low, high)

    def _change_sources(self, change: PlanChange, position: int, *, has_order: bool) -> None:
        """Change what sources yield from where they are now on."""
        if has_order and any(one.sections[-1].series.order.recipe != self.order.recipe for one in self.sequences):
            for source, rank in self._reached(position).items():
                self._from_next_epoch(source, rank)
        reached = self._reached(position) if change.replaced or change.left_out else {}
        for source in sorted(change.replaced):
            self._exchange(source, reached[source], partial(self._renumbered, source))
        for source in change.left_out.keys() - change.fresh.keys():
            self._exchange(source, reached[source], methodcaller("without", change.left_out[source]))

    def _reached(self, position: int) -> dict[int, int]:
        """Return the rank of every source at a position; those of the last chapter count what was skipped before it."""
        return self.plan().reached(position)

    def _from_next_epoch(self, source: int, rank: int) -> None:
        """Read a source in the order of the run from the first epoch on that has not begun."""
        *rest, last = self.sequences[source].rest(rank)
        size = last.series.num_samples
        border = (last.epoch + (not last.begins_epoch) - last.series.first_epoch) * size
        head = [replace(last, end=border)] if border > last.begin else []
        old = last.series
        series = self._new_series(source, old.leaf, old.first_epoch)
        tail = replace(last, series=series, begin=border, _tables={})
        self.sequences[source] = self.sequences[source].changed(rank, [*rest, *head, tail])

    def _exchange(self, source: int, rank: int, change: Callable[[SeriesSection], SeriesSection]) -> None:
        sequence = self.sequences[source]
        sections = [change(section) for section in sequence.rest(rank)]
        self.sequences[source] = sequence.changed(rank, [one for one in sections if one.num_items != 0])

    def _renumbered(self, source: int, section: SeriesSection) -> SeriesSection:
        """Return a section of the same order whose series has a number of its own."""
        series = replace(section.series, number=len(self.series))
        self.series.append(series)
        self.source_of.append(source)
        return replace(section, series=series)

    def _new_series(self, source: int, leaf: Leaf, first_epoch: int) -> EpochSeries:
        key = source_key(self.order.seed, self.key_paths[source], "order")
        series = EpochSeries(len(self.series), leaf, self.order, key, first_epoch)
        self.series.append(series)
        self.source_of.append(source)
        return series

    def _begin_anew(self, source: int, leaf: Leaf, rank: int, left_out: IntArray) -> None:
        """Let a source have other samples from a rank on: its next epoch begins there."""
        last = self.sequences[source].rest(rank)[-1]
        series = self._new_series(source, leaf, last.epoch + (not last.begins_epoch))
        self.sequences[source] = self.sequences[source].changed(rank, [SeriesSection(series, 0, left_out=left_out)])

    def _change_tree(self, change: PlanChange, root: Declared, position: int) -> None:
        reached = self._reached(position)
        for source, leaf in change.fresh.items():
            self._begin_anew(source, leaf, reached[source], change.left_out.get(source, NOTHING))
        before = self._placements[0]
        old = {
            _signature(node, before.sources): (node, rank)
            for node, rank in before.nodes_at(position)
            # The rest of a pass is not what comes after it.
            if not isinstance(node, Leaf) and (node is not before.root or len(self._placements) == 1)
        }
        if change.fresh:
            # What has other samples is not the same, wherever it stands.
            old = {
                key: found
                for key, found in old.items()
                if not any(before.sources[leaf.path] in change.fresh for leaf in leaves(found[0]))
            }
        starts: dict[Place, int] = {}
        changed: list[Declared] = []
        self._find(root, change.sources, old, before.starts, starts, changed)
        placement = PlacedTree(position, root, change.sources, starts)
        if not any(node is root for node in changed):
            if not isinstance(root, Leaf) and old[_signature(root, change.sources)][0] is not before.root:
                self._passes = 0
            self._place([placement], reached)
            return
        self._check_passes([node for node in changed if node is not root], change.sources, reached, position)
        if isinstance(root, Schedule):
            # Its segments begin at positions of the run, so that it is entered at this one.
            starts[root.place] = position
        self._check_passes([root], change.sources, reached, position, is_root=True)
        if isinstance(root, Branch) and root.num_samples is not None:
            self._finish_pass(root, change, placement, reached)
            return
        self._passes = 0
        self._place([placement], reached)

    def _find(
        self,
        node: Declared,
        sources: Mapping[str, int],
        old: Mapping[Hashable, tuple[Declared, int]],
        before: Mapping[Place, int],
        starts: dict[Place, int],
        changed: list[Declared],
    ) -> None:
        """Find where each node of a new tree begins, and which ones are not as before."""
        if isinstance(node, Leaf):
            return
        if (found := old.get(_signature(node, sources))) is not None:
            _copy(found[0], node, before, starts)
            starts[node.place] = found[1]
            return
        changed.append(node)
        if not isinstance(node, Schedule):
            for child in node.children:
                self._find(child, sources, old, before, starts, changed)

    def _finish_pass(self, root: Branch, change: PlanChange, placement: PlacedTree, reached: Mapping[int, int]) -> None:
        """Feed what is left of the counts of a blend that ends, and then whole passes of the new one."""
        position = placement.begin
        begun, self._passes = self._present_pass(position)
        begun = {source: reached[source] for source in change.sources.values()} | begun
        taken = {source: reached[source] - rank for source, rank in begun.items()}
        block = root.block_samples
        shares = _left(root, change, taken, reached, self._kept) if sum(taken.values()) else root.shares
        if shares == root.shares:
            self._place([placement], reached)
            return
        self._passes += 1
        self._pass_begin = begun
        left = sum(shares) * block
        placements = [placement._replace(begin=position + left, starts={})]
        if left:
            used = [number for number, share in enumerate(shares) if share]
            rest = Branch(root.path, tuple(root.children[i] for i in used), tuple(shares[i] for i in used), left, block)
            paths = {leaf.path for leaf in leaves(rest)}
            sources = {path: source for path, source in change.sources.items() if path in paths}
            placements = [placement._replace(root=rest, sources=sources), *placements]
        self._place(placements, reached)

    def _kept(self, source: int, rank: int) -> tuple[int, int]:
        """Return how many samples are left in the epoch of a source, and how many an epoch has."""
        section, item = self.sequences[source].section_at(rank)
        series_rank = section.place(item)
        epoch = replace(section, begin=series_rank).epoch - section.series.first_epoch
        border = (epoch + 1) * section.series.num_samples
        left = replace(section, begin=series_rank, end=border).num_items or 0
        return left, section.series.num_samples - len(section.left_out)

    def _present_pass(self, position: int) -> tuple[dict[int, int], int]:
        """Return where each source was when the present pass of a tree that ends began, and the passes before it."""
        last = self.chapters[-1]
        if isinstance(last.root, Leaf) or last.root.num_samples is None:
            return {}, 0
        if position < last.begin:
            return self._pass_begin, self._passes - 1
        passes = (last.rank(last.root) + position - last.begin) // last.root.num_samples
        first = last.begin + passes * last.root.num_samples - last.rank(last.root)
        return last.reached(first), self._passes + passes

    def _check_passes(
        self,
        nodes: Sequence[Declared],
        sources: Mapping[str, int],
        reached: Mapping[int, int],
        position: int,
        *,
        is_root: bool = False,
    ) -> None:
        """Refuse nodes with passes of their own, unless their sources are where an epoch begins."""
        for node in nodes:
            has_passes = isinstance(node, ConcatNode | LimitNode) or (
                isinstance(node, Branch) and node.num_samples is not None and not is_root
            )
            if not has_passes:
                continue
            for leaf in leaves(node):
                source = sources[leaf.path]
                left, size = self._kept(source, reached[source])
                if left == size == leaf.num_samples:
                    continue
                raise ConfigError(
                    f"{node.path or 'the mix'!r} takes whole passes of its sources, and {leaf.path!r} has {left:,} of "
                    f"its {size:,} samples left in this epoch at position {position:,}, so that a pass of it would "
                    f"repeat some and miss others: {self._where_it_works(source, reached[source])}"
                )

    def _where_it_works(self, source: int, rank: int) -> str:
        """Say at which step the epoch of a source ends, if it ends where a step begins."""
        left, _ = self._kept(source, rank)
        chapter = self.chapters[-1]
        if source in chapter.paths:
            place = int(chapter.ascend(source, np.array([rank + left - 1], dtype=np.int64))[0]) + 1
            step = self.schedule.step_of(place)
            if place and self.schedule.begin(step) == place:
                return f"change it at step {step:,}, where its epoch ends"
            if place:
                return f"its epoch ends within step {step - (self.schedule.begin(step) == place):,}: mix it by weights"
        return "mix it by weights"


def _left(
    root: Branch,
    change: PlanChange,
    taken: Mapping[int, int],
    reached: Mapping[int, int],
    kept: Callable[[int, int], tuple[int, int]],
) -> tuple[int, ...]:
    """Return the shares of the rest of a pass that was begun with other shares."""
    block = root.block_samples
    below = [[change.sources[leaf.path] for leaf in leaves(child)] for child in root.children]
    fed = [sum(taken.get(source, 0) for source in sources) for sources in below]
    if any(number % block for number in fed):
        raise ConfigError(
            f"the blend has blocks of {block:,} samples, and a block is under way: change it where a block ends"
        )
    if change.end == "samples":
        rest = max(sum(root.shares) - sum(taken.values()) // block, 0)
        return tuple(apportion(rest, [Fraction(share) for share in root.shares])) if rest else (0,) * len(root.shares)
    if change.end in ("first_exhausted", "all_exhausted"):
        partial = 0 if change.end == "first_exhausted" else block - 1
        lengths = [
            (sum(kept(source, reached[source])[0] for source in sources) + partial) // block for sources in below
        ]
        if not min(lengths):
            return (0,) * len(root.shares)
        return tuple(counts_until(change.end, list(root.shares), lengths))
    return tuple(max(share - number // block, 0) for share, number in zip(root.shares, fed, strict=True))


def put_off(sequence: SourceSequence, first: int, end: int) -> SourceSequence:
    """Return a sequence in which the ranks ``first`` to ``end - 1`` come later, and are not asked for where they were.

    Those of the epoch in which rank ``end`` lies come at the end of that epoch, those of earlier epochs at once:

        epochs of 5, 3 to 6 skipped     0 1 2 - - | - - 7 8 9 | 10 ...
        from rank 7 on                  3 4   7 8 9   5 6   10 ...
    """
    rest = sequence.rest(end)
    epoch = rest[0].epoch
    late, own = [], []
    left = end - first
    for section in sequence.rest(first):
        if not left:
            break
        count = section.num_items
        mine = section if count is not None and count <= left else replace(section, end=section.place(left))
        left -= mine.num_items or 0
        border = (epoch - mine.series.first_epoch) * mine.series.num_samples
        late += _between(mine, mine.begin, border)
        own += _between(mine, max(border, mine.begin), None)
    if not own:
        return sequence.changed(end, [*late, *rest])
    ordered: list[SeriesSection] = []
    places: list[int] = []
    for section in rest:
        border = (epoch + 1 - section.series.first_epoch) * section.series.num_samples
        for part in (*_between(section, section.begin, border), *_between(section, max(border, section.begin), None)):
            ordered.append(part)
            if part.epoch == epoch:
                places.append(len(ordered))
    last = max(places, default=0)
    return sequence.changed(end, [*late, *ordered[:last], *own, *ordered[last:]])


def _between(section: SeriesSection, begin: int, end: int | None) -> list[SeriesSection]:
    """Return the part of a section between two ranks of its series, unless it is empty."""
    begin = max(begin, section.begin)
    if end is None:
        end = section.end
    elif section.end is not None:
        end = min(end, section.end)
    if end is not None and end <= begin:
        return []
    part = replace(section, begin=begin, end=end)
    return [] if part.num_items == 0 else [part]


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return pieces of a schedule without those that change nothing."""
    found: list[tuple[int, int]] = []
    for step, size in pieces:
        if not found or found[-1][1] != size:
            found.append((step, size))
    return found


def _copy(before: Declared, after: Declared, known: Mapping[Place, int], starts: dict[Place, int]) -> None:
    """Copy where the nodes of a tree were to the same tree at another place."""
    if isinstance(before, Leaf) or isinstance(after, Leaf):
        return
    starts[after.place] = known.get(before.place, 0)
    if not isinstance(before, Schedule):
        for old, new in zip(before.children, after.children, strict=True):
            _copy(old, new, known, starts)


def _signature(node: Declared, sources: Mapping[str, int]) -> Hashable:
    """Return what two parts of trees have in common if they are the same, wherever they stand."""
    if isinstance(node, Leaf):
        return sources[node.path], node.num_samples, node.first_sample, node.shards
    if isinstance(node, Schedule):
        return "schedule", tuple((begin, _signature(tree, sources)) for begin, tree in node.segments)
    children = tuple(_signature(child, sources) for child in node.children)
    if isinstance(node, Branch):
        return "branch", node.shares, node.num_samples, node.block_samples, children
    return type(node).__name__, node.num_samples, children
