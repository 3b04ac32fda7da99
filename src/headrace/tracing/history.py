"""What a training was fed at step N and when a sample comes, over all the runs that it went through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from headrace.config import Positive, check_fields, nearest_or_known, whole
from headrace.datasets import Dataset, Run
from headrace.datasets.exclusions import masks_of
from headrace.datasets.origins import Origins
from headrace.errors import ConfigError, StateError
from headrace.plan import Cursor, IntArray, KeyArray, Lookup
from headrace.plan.slots import taken_by
from headrace.plan.tree import MAX_POSITIONS
from headrace.tracing.differences import is_of
from headrace.tracing.trace import Trace

if TYPE_CHECKING:
    from headrace.datasets.encoded.measured import MeasuredUnits


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is divided: the number of data-parallel ranks, and the samples in a micro-batch."""

    ranks: Positive
    micro_batch_size: Positive

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers below 1."""
        check_fields(self)


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One sample in its place.

    Attributes:
        step: the global step.
        last_step: equal to ``step``; or, with bucketing whose lengths are not known, the sample is in one of the steps
            from ``step`` to this one.
        position: position in the run; None if the step is not known.
        run: number of the run in the history, from 0.
        source: path of the source in the blend, ``"."`` for a single dataset.
        epoch: epoch of the source, from 0.
        index: number of the sample in the source's dataset.
        rank: the data-parallel rank that takes it, if a topology is given and the step is known.
        micro_step: the micro-batch of the step on that rank, from 0.
        seen: whether a saved state is past it; None without a state.
        origins: what it is made of, without what exclusions mask; empty if that is not known or was not asked for.
        num_masked: number of parts, such as documents, that exclusions mask. If there are some and no ``origins``, the
            whole sample is masked, and nothing of it is trained on.
        unit: in a framed run, number of the unit that holds it; None if that is not known.
        output: in a framed run, number of the output of the sample; None if that is not known.
    """

    step: int
    last_step: int
    position: int | None
    run: int
    source: str
    epoch: int
    index: int
    rank: int | None = None
    micro_step: int | None = None
    seen: bool | None = None
    origins: Origins = ()
    num_masked: int = 0
    unit: int | None = None
    output: int | None = None


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When a sample, or a document, comes.

    Attributes:
        count: number of times before ``until_step``.
        shown: the first of these times.
        until_step: the step at whose beginning the search ended; the part of it that a saved state or a number of
            samples reached is searched too.
        notes: what was left out, and why.
    """

    count: int
    shown: tuple[Traced, ...]
    until_step: int
    notes: tuple[str, ...] = ()


Face: TypeAlias = "Dataset | MeasuredUnits"
"""What a trace asks of a source whose store can be opened: where its samples are, and what they are made of."""

SHOWN = 20
"""Default number of times that are returned for a sample."""


_MAX_LOOKS = 1 << 16

_MANY_SAMPLES = 1 << 10
"""To find each of more samples than these takes longer than to look at positions one after another."""

_WALKED_AT_ONCE = 1 << 14
_MAX_WALKED = 1 << 22


@dataclass(frozen=True)
class Chapter:
    """One run of a history: it holds from ``first_step`` of the training on, at ``position`` of its own slots.

    A source of a run without edits is a leaf of its plan. In an edited run it is one series of its plan or several,
    each with a dataset of its own; numbers of leaves are those of series. ``face`` opens a dataset; it returns None if
    that is not possible, and whoever made the chapter notes the reason. ``resumed`` is a state from which the run goes
    on, and ``knows_lengths`` as in `Trace`.
    """

    run: Run
    face: Callable[[int], Face | None]
    knows_lengths: bool = True
    first_step: int = 0
    position: int = 0
    resumed: Cursor | None = None

    @cached_property
    def trace(self) -> Trace:
        """The plan of the run in both directions."""
        found = Trace(self.run, knows_lengths=self.knows_lengths)
        return found if self.resumed is None else found.resumed(self.resumed.position, self.resumed.drawn_to)

    @cached_property
    def shift(self) -> int:
        """Number that is added to a step of the run to get one of the training."""
        return self.first_step - self.trace.schedule.step_of(self.position)

    def reach(self, step: int) -> int:
        """Return the position of the run at which a step of the training begins."""
        return self.trace.begin(max(0, step - self.shift))

    def step_at(self, position: int) -> int:
        """Return the step of the training in which a position of the run is."""
        return self.trace.schedule.step_of(position) + self.shift

    @cached_property
    def paths(self) -> dict[str, list[int]]:
        """Path of a source, at any time -> its leaves, in the order in which they come."""
        plan = self.trace.plan
        # If one path was that of several sources, the last of them counts.
        sources = {path: source for chapter in plan.chapters for path, source in chapter.sources.items()}
        numbers = range(len(plan.source_of))
        return {path: [leaf for leaf in numbers if plan.source_of[leaf] == source] for path, source in sources.items()}

    def path(self, leaf: int, position: int) -> str:
        """Return the path that a source has at a position."""
        plan = self.trace.plan
        return plan.chapter_at(position).paths[plan.source_of[leaf]]

    def keys(self, leaf: int, epochs: IntArray) -> KeyArray | None:
        """Return the keys of epochs, (n,) uint64, if the samples of a leaf depend on them."""
        return self.trace.plan.keys(leaf, epochs) if self.run.is_keyed(leaf) else None

    def plain(self, leaf: int) -> Any:
        """Return the recipe of the dataset of a leaf, without what is masked out of it; its numbers are the same."""
        recipe = self.run.datasets[leaf].recipe
        masks = masks_of(recipe)
        return recipe if masks is None else masks.recipe

    def masked(self, leaf: int) -> IntArray:
        """(n,) int64, rising: the documents that are masked out of the samples of a leaf."""
        masks = masks_of(self.run.datasets[leaf].recipe)
        return np.empty(0, dtype=np.int64) if masks is None else masks.documents

    def ends(self, path: str, leaf: int, samples: Mapping[int, Sequence[int]]) -> list[str]:
        """Return notes on a source that comes no more, and on samples of leaves that end with some step.

        Samples of a leaf end if it leaves all of them out, or has none of them any more.
        """
        plan = self.trace.plan
        source, notes = plan.source_of[leaf], []
        last = max((i for i, chapter in enumerate(plan.chapters) if source in chapter.paths), default=-1)
        for after in plan.chapters[last + 1 : last + 2]:
            if self.trace.length is None or after.begin < self.trace.length:
                why = "its stage ends" if after.is_stage else "it was removed"
                notes.append(f"{path!r} comes no more from step {self.step_at(after.begin):,} on, where {why}")
        sequence = plan.sequences[source]
        kept = [
            number
            for number, section in enumerate(sequence.sections)
            if not np.isin(samples.get(section.series.number, ()), section.left_out).all()
        ]
        first = max(kept, default=-1) + 1
        if any(samples.values()) and first < len(sequence.sections):
            rank = int(sequence.firsts[first])
            begin = min(
                (one.begin for one in plan.chapters if plan.reached(one.begin)[source] >= rank), default=MAX_POSITIONS
            )
            notes.append(f"excluded from step {self.step_at(begin):,} on")
        return notes


Found = tuple[Traced, int]
"""A sample in its place, and its leaf."""


class _Search(NamedTuple):
    """What is looked for among the slots ``[begin, end)`` of a run: samples of its leaves, that hold a document."""

    number: int
    samples: Mapping[int, Sequence[int]]
    document: int | None
    begin: int
    end: int
    limit: int
    topology: Topology | None


class History:
    """Runs one after another, each from a step of the training on. A single run is a history of one.

    ``state`` is what a loader saved: it says how far the training has come.

    Raises:
        StateError: the state is of none of the runs.
    """

    def __init__(self, chapters: Sequence[Chapter], state: Mapping[str, Any] | None = None) -> None:
        self.chapters = tuple(chapters)
        self._cursor = None if state is None else self._placed(Cursor.from_dict(state))

    def _placed(self, cursor: Cursor) -> tuple[int, int]:
        """Return the run of a state and how many of its slots were taken; that run continues as the state says."""
        for number in reversed(range(len(self.chapters))):
            chapter = self.chapters[number]
            if cursor.position >= chapter.position and is_of(chapter.run, cursor):
                resumed = replace(chapter, resumed=cursor)
                self.chapters = (*self.chapters[:number], resumed, *self.chapters[number + 1 :])
                return number, cursor.position
        raise StateError(
            f"the saved state, at position {cursor.position:,}, is of none of the {len(self.chapters):,} runs in the "
            "history: save the run beside the checkpoints with save_run whenever a training begins or resumes"
        )

    def step(
        self, step: int, *, topology: Topology | None = None, rank: int | None = None, origins: bool = True
    ) -> list[Traced]:
        """Return the samples of a global step in the order of their positions, of all ranks or of one.

        With bucketing whose lengths are not known, these are the samples of all steps of the window.

        Raises:
            ConfigError: there is no such step, or no such rank; ranks are asked for, and bucketing hides them.
        """
        if rank is not None and (topology is None or not 0 <= rank < topology.ranks):
            raise ConfigError(f"rank {rank}: pass the number of ranks too; ranks go from 0 to one below it")
        number = max((i for i, chapter in enumerate(self.chapters) if chapter.first_step <= step), default=0)
        chapter = self.chapters[number]
        trace = chapter.trace
        first, end = trace.window_of(trace.schedule.begin(step - chapter.shift)) if step >= 0 else (0, 0)
        if not trace.is_vague:
            first, end = step - chapter.shift, step - chapter.shift + 1
        elif topology is not None:
            raise ConfigError(
                "with bucketing the lengths decide which rank takes what: use trace_step(run, step), which knows them"
            )
        low = max(trace.begin(max(first, 0)), chapter.position)
        high = trace.begin(max(end, 0))
        if step < chapter.first_step or low >= high:
            steps = "" if trace.length is None else f" to {trace.schedule.step_of(trace.length - 1) + chapter.shift:,}"
            raise ConfigError(f"there is no step {step:,}: the steps go from {self.chapters[0].first_step:,}{steps}")
        positions = trace.positions(low, high)
        found = self._traced(number, positions, trace.lookup(positions), topology)
        return self._with_origins([one for one in found if rank is None or one[0].rank == rank], origins=origins)

    def positions(self, positions: Sequence[int], *, origins: bool = True) -> list[Traced]:
        """Return the samples at some positions of the last run."""
        wanted = np.array(positions, dtype=np.int64)
        last = len(self.chapters) - 1
        return self._with_origins(
            self._traced(last, wanted, self.chapters[last].trace.lookup(wanted), None), origins=origins
        )

    def sample(
        self,
        source: str,
        index: int | None = None,
        *,
        key: str | None = None,
        document: int | None = None,
        until_step: int | None = None,
        until_samples: int | None = None,
        limit: int = SHOWN,
        topology: Topology | None = None,
        origins: bool = True,
    ) -> Times:
        """Return the times that a sample of a source comes, given by number or key; or a document, by its number.

        The search ends at a step, after a number of samples of the last run, at the saved state, or at the end of the
        last run. Without any of these, it ends once the source has gone through ``limit`` more epochs.

        Raises:
            ConfigError: there is no such source, sample, key or document; or a key or a document is given, and the
                store cannot be opened.
        """
        if sum(value is not None for value in (index, key, document)) != 1:
            raise ConfigError("a sample is found by its number, by its key, or by a document in it: pass one of them")
        limit = whole(limit, "limit", least=1)
        path = "" if source == "." else source
        found_in = self._chapters_with(source, path)
        wanted = self.chapters[found_in[-1][0]].plain(found_in[-1][1][-1])
        count, notes = 0, []
        shown: list[Found] = []
        until = 0
        for number, leaves in found_in:
            chapter = self.chapters[number]
            begin, end = self._span(number, leaves[-1], until_step, until_samples, limit)
            if end is None:
                continue
            asked = leaves
            if index is not None:
                # A number means the same sample only in the same dataset.
                asked = [leaf for leaf in leaves if chapter.plain(leaf) == wanted]
                if len(asked) < len(leaves):
                    others = "from" if not asked else "for a part of the steps from"
                    notes.append(
                        f"{others} step {chapter.first_step:,} on, {source!r} was another dataset with other numbers, "
                        "which is left out"
                    )
            numbers = {leaf: self._numbers(number, leaf, index=index, key=key, document=document) for leaf in asked}
            wanted_end = end
            if document is not None:
                # No arithmetic says which epochs hold a document: search as many as take about a second.
                most = max(limit, _MAX_LOOKS // max(1, sum(map(len, numbers.values()))))
                end = min(end, chapter.trace.horizon(leaves[-1], begin, most))
            many, found, end = self._found(_Search(number, numbers, document, begin, end, limit, topology))
            count += many
            shown += found
            until = max(until, chapter.step_at(end))
            if end < wanted_end:
                held = sum(map(len, numbers.values()))
                what = f"{held:,} samples hold the document" if held > _MANY_SAMPLES else "there are many epochs"
                notes.append(f"counted before step {until:,} only: {what}, which must be searched one by one")
                break
            if asked and number == len(self.chapters) - 1:
                notes += chapter.ends(path, asked[-1], numbers)
        return Times(
            count=count,
            shown=tuple(self._with_origins(shown[:limit], origins=origins)),
            until_step=until,
            notes=tuple(notes),
        )

    def _chapters_with(self, source: str, path: str) -> list[tuple[int, list[int]]]:
        """Return (run, numbers of its leaves) for each run that has such a source."""
        known = {one or ".": None for chapter in self.chapters for one in chapter.paths}
        found = [(number, chapter.paths[path]) for number, chapter in enumerate(self.chapters) if path in chapter.paths]
        if not found:
            raise ConfigError(f"there is no source {source!r}{nearest_or_known(source, known)}")
        return found

    def _span(
        self, number: int, leaf: int, until_step: int | None, until_samples: int | None, limit: int
    ) -> tuple[int, int | None]:
        """Return the positions of a run to search, ``[begin, end)``; if end is None, the run is not searched."""
        chapter = self.chapters[number]
        trace, begin = chapter.trace, chapter.position
        last = number == len(self.chapters) - 1
        ends = [] if trace.length is None else [trace.length]
        if not last:
            ends.append(chapter.reach(self.chapters[number + 1].first_step))
        if until_step is not None:
            ends.append(chapter.reach(until_step))
        if until_samples is not None and last:
            ends.append(max(begin, until_samples))
        if self._cursor is not None and until_step is None and until_samples is None:
            if number > self._cursor[0]:
                return begin, None
            if number == self._cursor[0]:
                ends.append(self._cursor[1])
        if until_step is not None and until_step <= chapter.first_step and number:
            return begin, None
        return begin, max(begin, min(ends)) if ends else trace.horizon(leaf, begin, limit)

    def _numbers(
        self, number: int, leaf: int, *, index: int | None, key: str | None, document: int | None
    ) -> list[int]:
        if index is not None:
            return [index]
        if key is not None:
            return self._face(number, leaf, "a key").find_keys(key)
        if document is None:
            return []
        chapter = self.chapters[number]
        if document in chapter.masked(leaf):
            return []
        source = chapter.trace.plan.leaves[leaf]
        found = self._face(number, leaf, "a document").holders(document)
        first = source.first_sample
        inside = (found >= first) & (found < first + source.num_samples)
        return [int(one) for one in found[inside]]

    def _face(self, number: int, leaf: int, wanted: str) -> Face:
        face = self.chapters[number].face(leaf)
        if face is None:
            raise ConfigError(
                f"the store of {self.chapters[number].trace.plan.leaves[leaf].path!r} is needed to find {wanted}, and"
                " cannot be opened: ask by the number of a sample"
            )
        return face

    def _found(self, search: _Search) -> tuple[int, list[Found], int]:
        """Return how often samples of leaves come, the first times, and the position up to which they were searched."""
        number, limit, document = search.number, search.limit, search.document
        trace = self.chapters[number].trace
        if document is not None and sum(map(len, search.samples.values())) > _MANY_SAMPLES and not trace.is_vague:
            return self._walked(search, document)
        most = limit if document is None else None
        parts = [
            trace.find(leaf, one, begin=search.begin, end=search.end, limit=most)
            for leaf, numbers in search.samples.items()
            for one in numbers
        ]
        count = sum(part.total for part in parts)
        empty = np.empty(0, dtype=np.int64)
        positions = np.sort(np.concatenate([empty, *(part.positions for part in parts)]))
        found = trace.lookup(positions)
        if document is not None:
            held = self._held(number, found, document)
            positions = positions[held]
            found = _rows(found, held)
            count = len(positions)
        found = _rows(found, slice(limit))
        end = min((part.end for part in parts), default=search.end)
        return count, self._traced(number, positions[:limit], found, search.topology), end

    def _walked(self, search: _Search, document: int) -> tuple[int, list[Found], int]:
        """As `_found`, for a document in so many samples that looking at every position costs less than finding each.

        It ends after some seconds, in front of a step.
        """
        number, trace = search.number, self.chapters[search.number].trace
        count, shown, num_looks, low = 0, list[Found](), 0, search.begin
        last = min(search.end, low + _MAX_WALKED)
        while low < last and num_looks < _MAX_LOOKS:
            step = trace.schedule.step_of(low + _WALKED_AT_ONCE) + 1
            positions = np.arange(low, min(search.end, trace.schedule.begin(step)), dtype=np.int64)
            found = trace.lookup(positions)
            asked = [(found.sources == leaf) & np.isin(found.indices, some) for leaf, some in search.samples.items()]
            rows = np.flatnonzero(np.any(asked, axis=0))
            held = rows[self._held(number, _rows(found, rows), document)]
            count += len(held)
            first = held[: search.limit - len(shown)]
            shown += self._traced(number, positions[first], _rows(found, first), search.topology)
            num_looks += len(rows)
            low += len(positions)
        return count, shown, low

    def _held(self, number: int, found: Lookup, document: int) -> IntArray:
        """Return the rows whose samples have tokens of a document; phases and packs differ from epoch to epoch."""
        chapter = self.chapters[number]
        held: list[int] = []
        for leaf in np.unique(found.sources).tolist():
            rows = np.flatnonzero(found.sources == leaf)
            face = self._face(number, leaf, "a document")
            keys = found.keys[rows] if chapter.run.is_keyed(leaf) else None
            origins = face.origins(face.locate(found.indices[rows], keys))
            hits = [any(piece.document == document for piece in pieces) for pieces in origins]
            held += rows[np.array(hits, dtype=bool)].tolist()
        return np.array(sorted(held), dtype=np.int64)

    def _traced(self, number: int, positions: IntArray, found: Lookup, topology: Topology | None) -> list[Found]:
        chapter = self.chapters[number]
        slots = chapter.trace.slots(positions)
        columns = [column.tolist() for column in (positions, slots, found.sources, found.epochs, found.indices)]
        traced = []
        for position, slot, leaf, epoch, index in zip(*columns, strict=True):
            place = self._place(number, position, slot, topology)
            path = chapter.path(leaf, position) or "."
            traced.append((Traced(**place, source=path, epoch=epoch, index=index, run=number), leaf))
        return traced

    def _place(self, number: int, position: int, slot: int, topology: Topology | None) -> dict[str, Any]:
        chapter = self.chapters[number]
        trace = chapter.trace
        step = trace.schedule.step_of(position)
        begin, end = max(trace.begin(step), chapter.position), trace.begin(step + 1)
        place: dict[str, Any] = {"step": step + chapter.shift, "last_step": step + chapter.shift, "position": position}
        if trace.is_vague:
            first, beyond = trace.window_of(position)
            if trace.length is not None:
                beyond = min(beyond, trace.schedule.step_of(trace.length - 1) + 1)
            place = {"step": first + chapter.shift, "last_step": beyond - 1 + chapter.shift, "position": None}
            slot = trace.begin(beyond) - 1
        elif topology is not None:
            rank, micro = taken_by(slot - begin, end - begin, topology.ranks, topology.micro_batch_size)
            place |= {"rank": rank, "micro_step": micro}
        if self._cursor is not None:
            place["seen"] = (number, slot) < self._cursor
        return place

    def _with_origins(self, found: Sequence[Found], *, origins: bool) -> list[Traced]:
        """Return the samples with what they are made of, if ``origins``."""
        traced = [one for one, _ in found]
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (one, leaf) in enumerate(found if origins else ()):
            groups.setdefault((one.run, leaf), []).append(row)
        for (number, leaf), rows in groups.items():
            chapter = self.chapters[number]
            face = chapter.face(leaf)
            if face is None:
                continue
            indices = np.array([traced[row].index for row in rows], dtype=np.int64)
            epochs = np.array([traced[row].epoch for row in rows], dtype=np.int64)
            masked = set(chapter.masked(leaf).tolist())
            for row, pieces in zip(rows, face.origins(face.locate(indices, chapter.keys(leaf, epochs))), strict=True):
                kept = tuple(piece for piece in pieces if piece.document not in masked)
                num_masked = len(pieces) - len(kept)
                traced[row] = msgspec.structs.replace(traced[row], origins=kept, num_masked=num_masked)
        return traced


def _rows(found: Lookup, rows: IntArray | slice) -> Lookup:
    return Lookup(found.sources[rows], found.epochs[rows], found.indices[rows], found.keys[rows])


def history_of(run: Run) -> History:
    """Return a run as a history of one chapter. It uses the datasets of the run.

    Raises:
        ConfigError: not a `Run`; a framed run has a `framed_history`.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=16, samples=160)
        >>> found = headrace.tracing.history_of(run).step(3)
        >>> [one.position for one in found] == list(range(48, 64))
        True
    """
    if not isinstance(run, Run):
        raise ConfigError(f"run is {run!r:.80}; expected a Run, and for a FramedRun use framed_history(run, journals)")
    return History([Chapter(run, run.datasets.__getitem__)])


def trace_step(run: Run, step: int) -> list[Traced]:
    """Return the samples of a step, in order, and what each is made of. Reads no samples.

    Raises:
        ConfigError: the run has no such step.
    """
    return history_of(run).step(step)


def trace_sample(run: Run, source: str, index: int, *, until_step: int | None = None, limit: int = SHOWN) -> Times:
    """Return when a sample of a source comes: the first times, and how many there are up to a step or the end.

    Args:
        run: a run.
        source: a path as in ``run.paths``; ``"."`` for a single dataset.
        index: number of the sample in the source's dataset.
        until_step: the step to search up to. Without it, ``limit`` epochs of an endless run are searched.
        limit: number of times that are returned.

    Raises:
        ConfigError: there is no such source or sample.
    """
    return history_of(run).sample(source, index, until_step=until_step, limit=limit)
