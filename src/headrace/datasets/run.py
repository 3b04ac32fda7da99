"""`Run`: data, order and batches, which together fix every byte of every step.

`Located` says where samples are that are planned but not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from math import gcd
from os import PathLike
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace._lazy import provided
from headrace.config import optional_whole, whole
from headrace.datasets.dataset import (
    Dataset,
    Fields,
    FixedDataset,
    FlatBatches,
    RaggedDataset,
    Sample,
    SampleWatch,
    Traits,
    empty,
    repeated,
)
from headrace.datasets.mix import Mix, as_data, named_datasets, node_of, stores_of
from headrace.errors import ConfigError
from headrace.plan import (
    BatchSchedule,
    IntArray,
    Lookup,
    Order,
    RunRecipe,
)
from headrace.plan.bucketing import BucketedOrder, Bucketing
from headrace.plan.chaptered.chapters import ChapteredPlan, Length, Plan, parts_of, past_lasts, past_recipe, split_at
from headrace.plan.nodes import has_schedules, node_recipe
from headrace.plan.recipe import differing_parts, order_format
from headrace.plan.slots import AnyDraw, ChapterDraws, draw_of, homogeneous_samples
from headrace.plan.tree import MAX_POSITIONS, run_length
from headrace.stores.store import read_ahead_of_fingerprints

if TYPE_CHECKING:
    from headrace.datasets.editing import Edit, Editing, Replace, Then
    from headrace.datasets.exclusions import Exclude, Excluded

EDITING: Final = "headrace.datasets.editing"
EXCLUSIONS: Final = "headrace.datasets.exclusions"
"""The modules that edit runs: a run without edits does not load them."""

READ_SEEDED: Final = "headrace.datasets.map_style:read_seeded"
"""Reads samples of anybody's map-style dataset."""

OUTLINE: Final = "headrace.datasets.run_outline"
"""The module that describes runs in words."""


class Located(NamedTuple):
    """Samples that are planned but not read.

    Each is (n,) int64: positions in the run, numbers of the sources, and addresses in the sources' datasets.
    """

    positions: IntArray
    sources: IntArray
    addresses: IntArray

    def rows(self, begin: int, end: int) -> Located:
        """Return the rows from ``begin`` to ``end - 1``."""
        return Located(self.positions[begin:end], self.sources[begin:end], self.addresses[begin:end])


def by_source(sources: IntArray) -> Iterator[tuple[int, slice | IntArray]]:
    """Yield each source that occurs, with its rows."""
    rows = np.argsort(sources, kind="stable")
    ordered = sources[rows]
    firsts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(rows)]
    for first, end in pairwise(firsts):
        if end - first == 1:
            # With many sources most have one row, and a slice is the cheapest way to write a single row.
            row = int(rows[first])
            yield int(ordered[first]), slice(row, row + 1)
        elif end > first:
            yield int(ordered[first]), rows[first:end]


class Run:
    """Everything that decides which samples make step N. Ranks, micro-batches and workers are not part of it.

    A run is endless unless ``epochs`` or ``samples`` is given, or the mix has an end of its own; then the run is one
    pass through the mix. Construction costs O(sources). It reads no documents and builds no index.

    Args:
        data: a dataset, or a `Blend` or another `Mix` of datasets.
        global_batch_size: a number of samples, or pieces ``[(first step, size), ...]``.
        order: the order of the samples in each epoch; by default a permutation of all samples, seed 0.
        epochs: number of passes through the data.
        samples: number of samples.
        drop_last: leave out the last step if it is short.
        bucketing: brings records of similar length together within windows of steps. The lengths of a window are read
            when one of its samples is first asked for. A run that has bucketing and an end keeps its length, since the
            last window ends there.

    Attributes:
        generation: how often the file was changed that the run was loaded from; 0 if there was none.
        file: the file that `headrace.tracing.save_run` wrote the run to; states that are given out are noted there.

    Raises:
        ConfigError: both ``epochs`` and ``samples``, ``epochs`` of an endless blend, no samples to feed, ``bucketing``
            of samples that are all equally long.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=16, order=headrace.Order(seed=1), samples=160)
        >>> run.num_steps
        10
        >>> run.step(3)["input_ids"].shape
        (16, 128)
    """

    def __init__(
        self,
        data: Dataset | Mix,
        *,
        global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]],
        order: Order | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        drop_last: bool = False,
        bucketing: Bucketing | None = None,
    ) -> None:
        if order is not None and not isinstance(order, Order):
            raise ConfigError(f"order is {order!r}; expected an Order, as headrace.Order(kind='full', seed=1)")
        data = as_data("data", data)
        epochs, samples = optional_whole(epochs, "epochs"), optional_whole(samples, "samples")
        self.data = data
        self.order = order or Order()
        self.schedule = BatchSchedule.of(global_batch_size)
        self.edits: tuple[Edit, ...] = ()
        self._editing: Editing | None = None
        """What the edits have led to, for the next one."""
        self.generation = 0
        self.on_state: Callable[[int], None] | None = None
        """Told the position of each state that is given out, as by the file that holds the run."""
        self._past: tuple[range, dict[str, str]] = range(0), {}
        """Positions between two steps up to which the same was fed, and the hashes of that."""
        self._first = data, self.order, self.schedule, Length(epochs, samples, drop_last)
        self.plan = self._begun_plan()
        self.source_paths = [leaf.path for leaf in self.plan.leaves]
        """The path by which each source of the run is known, by its number: that of the mix it came in with."""
        by_path = named_datasets(data)
        self._set_datasets([by_path[leaf.path] for leaf in self.plan.leaves])
        self._check_endless(epochs)
        self.length = run_length(node_of("", data), self.schedule, epochs=epochs, samples=samples, drop_last=drop_last)
        self.bucketing = bucketing
        self.buckets = None if bucketing is None else self._make_buckets(bucketing)

    @property
    def measured_by(self) -> Length:
        """How the run was measured when it was begun."""
        return self._first[3]

    def _begun_plan(self) -> ChapteredPlan:
        """Return the plan without edits. That of a mix with stages has several chapters."""
        root = node_of("", self.data)
        return self._begun_editing().editor.plan() if has_schedules(root) else Plan(root, self.order)

    def _set_datasets(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = tuple(datasets)
        self.traits = Traits.of_all([dataset.traits for dataset in self.datasets])
        # One of the two holds all datasets, since a mix has sources of one kind.
        self._fixed = [dataset for dataset in self.datasets if isinstance(dataset, FixedDataset)]
        self._ragged = [dataset for dataset in self.datasets if isinstance(dataset, RaggedDataset)]

    @classmethod
    def validation(cls, data: Dataset | Mix, *, global_batch_size: int) -> Run:
        """Return a run that feeds every sample exactly once, in order, on any number of ranks."""
        return cls(data, global_batch_size=global_batch_size, order=Order(kind="none"), epochs=1)

    @classmethod
    def load(cls, path: str | PathLike[str], *, at_step: int | None = None, trust_code: bool = False) -> Run:
        """Return the run in the file that `headrace.tracing.save_run` wrote, with all its edits, over the same data.

        Stores are opened where they were, relative to the folder of the training. What comes from Headrace is made
        again by its recipe; functions and task encoders are imported by their names, encoders made without arguments.

        Args:
            path: the file, such as ``run.json``.
            at_step: a step of the training, if the file holds several runs; by default the last run is returned.
            trust_code: import the functions and encoders that the file names, which runs their modules.

        Raises:
            StateError, StoreError: the file is damaged or was changed by hand; a store is missing or holds other data.
            ConfigError: something cannot be made again; the message says what, and what to do.
        """
        found: Run = provided("load_run")(path, at_step=at_step, trust_code=trust_code)
        return found

    def edit(
        self,
        at_step: int,
        *,
        weights: Mapping[str, float | Fraction] | None = None,
        add: Mapping[str, Dataset | Mix] | None = None,
        remove: Sequence[str] = (),
        data: Dataset | Mix | None = None,
        renamed: Mapping[str, str] | None = None,
        global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None = None,
        order: Order | None = None,
        exclude: Mapping[str, Exclude | Iterable[Any]] | None = None,
        samples: int | None = None,
        epochs: int | None = None,
        reason: str = "",
        replace: Replace = "no",
    ) -> Run:
        """Return a run that is the same up to a step, and different from there on. This run stays as it is.

        Every source goes on where it is: at its epoch and at its rank within the epoch, so that each of its samples
        still comes exactly once in the epoch. States of this run load into the new one, as long as they were saved
        before the step. Edits add up. An edit at a step that has one, or before others, takes their place on request.

        Args:
            at_step: the first step that is different.
            weights: new weights of a blend, one for each source from this step on.
            add: sources that come into the blend.
            remove: sources that come no more; one that is added again later goes on where it was.
            data: new data, in place of ``weights``, ``add`` and ``remove``. A source is the same as before if its name
                and its dataset are. If the dataset cuts the same store in another way, the source begins a new epoch.
            renamed: new name -> old name, for sources that go on under another name.
            global_batch_size: as for a run; pieces of a schedule, or a ramp, count their steps from ``at_step`` on.
            order: the order of each source from its next epoch on.
            exclude: name of a source, ``"."`` if there is only one -> what of it is never trained on from now on, in
                addition to what earlier edits excluded: an `Exclude`, or a list of documents or of keys. It stays
                excluded wherever the source stands later, and however its store is cut.
            samples: number of samples of the whole run, those that were skipped included.
            epochs: number of passes of the whole run.
            reason: why, for the file of the run and for those who read it.
            replace: ``"step"`` puts the edit in the place of the one at this step, ``"later"`` in that of all later
                ones, too.

        Raises:
            ConfigError: the edit is not possible; the message says why, and what is allowed.

        Example:
            >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
            >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
            >>> blend = headrace.Blend({"web": web, "code": code}, weights={"web": 3, "code": 1})
            >>> run = headrace.Run(blend, global_batch_size=8)
            >>> later = run.edit(10, weights={"web": 1, "code": 1}, reason="decay mix")
            >>> [np.bincount(later.lookup(later.positions(step)).sources).tolist() for step in (9, 10)]
            [[6, 2], [4, 4]]
        """
        editing = resolve_name(EDITING)
        at_step = whole(at_step, "at_step", least=0)
        epochs, samples = optional_whole(epochs, "epochs"), optional_whole(samples, "samples")
        before = self._before(at_step, replace)
        data = None if data is None else as_data("data", data)
        add = None if add is None else {name: as_data(f"add[{name!r}]", one) for name, one in add.items()}
        asked = editing.asked_for(
            weights=weights,
            add=add,
            remove=remove,
            data=data,
            global_batch_size=global_batch_size,
            order=order,
            exclude=exclude,
            samples=samples,
            epochs=epochs,
        )
        if {*asked} & editing.REWEIGHTING:
            data = editing.reweighted(before.data, weights=weights, add=add or {}, remove=remove)
        length = None
        if samples is not None or epochs is not None:
            length = Length(epochs, samples, self._first[3].drop_last)
        pieces = () if global_batch_size is None else BatchSchedule.of(global_batch_size).pieces
        return before._with(
            editing.Edit(
                at_step=at_step,
                reason=reason,
                date=editing.now(),
                data=data,
                renamed=dict(renamed or {}),
                pieces=pieces,
                order=order,
                exclude=before._exclusions(exclude, data),
                length=length,
                asked=asked,
            )
        )

    def skip(self, steps: range, *, then: Then = "drop", reason: str = "", replace: Replace = "no") -> Run:
        """Return a run that does not feed what these steps would have had; the later samples move up.

        Step ``steps.start`` gets what step ``steps.stop`` would have had. With ``then="drop"`` the samples in between
        do not come in their epochs. With ``then="defer"`` each comes at the end of its own epoch, or directly after the
        skip if that epoch ended within it. ``replace`` is that of `edit`.

        Raises:
            ConfigError: not a range of steps, or the run does not have them.

        Example:
            >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
            >>> run = headrace.Run(dataset, global_batch_size=8)
            >>> skipping = run.skip(range(5, 7), reason="the loss went up")
            >>> bool((skipping.step(5)["input_ids"] == run.step(7)["input_ids"]).all())
            True
        """
        editing = resolve_name(EDITING)
        fields = editing.skipped(steps, then)
        edit = editing.Edit(reason=reason, date=editing.now(), asked=("skip",), **fields)
        return self._before(steps.start, replace)._with(edit)

    def excluded(self) -> list[Excluded]:
        """Return what each edit excluded, in the order of their steps."""
        return [one.at(edit.at_step, path) for edit in self.edits for path, one in edit.exclude.items()]

    def _exclusions(self, exclude: Mapping[str, Exclude | Iterable[Any]] | None, data: Dataset | Mix | None) -> Any:
        found = resolve_name(EXCLUSIONS).exclusions
        return {} if exclude is None else found(exclude, self.data if data is None else data)

    def _before(self, step: int, replace: Replace) -> Run:
        """Return this run without the edits from a step on, if ``replace`` gives them up."""
        kept = resolve_name(EDITING).kept_edits(self.edits, step, replace)
        return self if len(kept) == len(self.edits) else self.rebuilt(kept)

    def _with(self, edit: Edit) -> Run:
        if self.bucketing is not None and (within := edit.at_step % self.bucketing.window_steps):
            window = self.bucketing.window_steps
            first = edit.at_step - within
            raise ConfigError(
                f"step {edit.at_step:,} is within a window of bucketing, whose samples change places: edit the run at "
                f"step {first:,} or {first + window:,}"
            )
        editing = self._begun_editing() if self._editing is None else self._editing.copied()
        applied = editing.apply(edit)
        editing.editor.check()
        return self._edited(editing, (*self.edits, applied))

    def rebuilt(self, edits: Sequence[Edit]) -> Run:
        """Return the run as it was begun, with these edits, which rise by their steps. O(edits x sources)."""
        editing = self._begun_editing()
        return self._edited(editing, tuple(editing.apply(edit) for edit in edits))

    def _begun_editing(self) -> Editing:
        editing: Editing = resolve_name(EDITING).Editing(*self._first)
        return editing

    def _edited(self, editing: Editing, edits: tuple[Edit, ...]) -> Run:
        run = copy(self)
        for name in ("block_samples", "draw", "recipe"):
            run.__dict__.pop(name, None)
        run.edits, run.on_state, run._editing, run._past = edits, None, editing, (range(0), {})
        run.data, run.order = editing.data, editing.editor.order
        run.schedule, run.length = editing.editor.schedule, editing.editor.length()
        run._set_datasets(editing.datasets)
        run.source_paths = editing.editor.key_paths
        run.plan = editing.editor.plan() if edits else run._begun_plan()
        run.buckets = None if self.bucketing is None else run._make_buckets(self.bucketing)
        return run

    def past(self, position: int) -> RunRecipe:
        """Return what decided all samples before a position: the recipe without what came only later.

        A saved state belongs to every run that has the same past.
        """
        batch: dict[str, Any] = {}
        if self.buckets is not None and position:
            window = self.buckets.window_end(self.schedule.step_of(position - 1))
            ends = self.length is not None and self.length < window
            recipe = self.buckets.recipe(self.schedule.step_of(position - 1) + 1)
            batch["bucketing"] = {**recipe, "num_samples": self.length if ends else None}
        return past_recipe(
            self.plan,
            self.source_paths,
            [dataset.recipe for dataset in self.datasets],
            self.schedule,
            batch,
            position,
            split_at(self.plan, self.schedule, position, is_drawn=self._draws_at(position)),
        )

    def past_hashes(self, position: int) -> dict[str, str]:
        """Return the hashes of the past before a position, which are kept: O(sources) once, as long as none begins."""
        positions, known = self._past
        if self.schedule.begin(self.schedule.step_of(position)) != position or self.buckets is not None:
            return self.past(position).hashes()
        if position not in positions:
            known = self.past(position).hashes()
            self._past = range(position, past_lasts(self.plan, self.schedule, position) + 1), known
        return dict(known)

    def parted_at(self, past: Mapping[str, str], position: int) -> int | None:
        """Return the step of the edit without which the past before a position has these hashes; None if there is none.

        The last 64 edits are tried.
        """
        for number in reversed(range(max(len(self.edits) - 64, 0), len(self.edits))):
            if not differing_parts(self.rebuilt(self.edits[:number]).past(position).hashes(), past):
                return self.edits[number].at_step
        return None

    def _draws_at(self, position: int) -> bool:
        draw = self.draw
        return (draw.at(position) if isinstance(draw, ChapterDraws) else draw) is not None

    def _check_endless(self, epochs: int | None) -> None:
        """Raise ConfigError if an endless dataset with an order of its own is given another order, or epochs."""
        endless = [dataset for dataset in self.datasets if dataset.traits.is_endless]
        if endless and self.order.draws:
            raise ConfigError(
                f"{type(endless[0]).__name__} has an order of its own, and this run has order kind "
                f"{self.order.kind!r}: pass order=Order(kind='none')"
            )
        if endless and epochs is not None:
            raise ConfigError(f"{type(endless[0]).__name__} has no end: pass samples instead of epochs")

    def _make_buckets(self, bucketing: Bucketing) -> BucketedOrder:
        if not isinstance(bucketing, Bucketing):
            raise ConfigError(
                f"bucketing is {bucketing!r}; expected a Bucketing, such as headrace.plan.Bucketing(window_steps=16)"
            )
        if not self._ragged:
            raise ConfigError("bucketing is for records; windows and packs are all equally long")
        # An edit holds from a window on, and so does the seed of its order.
        seeds = [(0, self._first[1].seed)]
        for edit in self.edits:
            if edit.order is not None and edit.order.seed != seeds[-1][1]:
                seeds.append((edit.at_step, edit.order.seed))
        return BucketedOrder(bucketing, self.schedule, length=self.length, seeds=seeds, lengths=self._sample_lengths)

    def _sample_lengths(self, positions: IntArray) -> IntArray:
        # Before bucketing rearranges them.
        located = self._locate(positions, self.plan.lookup(positions))
        lengths = np.empty_like(positions)
        for source, rows in by_source(located.sources):
            lengths[rows] = self._ragged[source].sample_lengths(located.addresses[rows])
        return lengths

    @property
    def num_steps(self) -> int | None:
        """Number of steps; None for an endless run."""
        return None if self.length is None else self.schedule.step_of(self.length - 1) + 1

    @cached_property
    def block_samples(self) -> int | None:
        """Number of consecutive samples of one source, from each multiple on, if the blend has ``block_samples``."""
        return gcd(*(homogeneous_samples(part) or 0 for part in parts_of(self.plan))) or None

    @cached_property
    def draw(self) -> AnyDraw | None:
        """How the slots of a blend's steps are drawn; None if each slot takes the position of its own number.

        A draw decides which rank takes a sample, not which samples a step has.
        """
        return draw_of(self.plan, self.schedule, self.drawn_end, bucketing=self.bucketing)

    @property
    def drawn_end(self) -> int | None:
        """The position up to which slots are drawn: the end of the run."""
        return self.length

    @property
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of the arrays that are read for each sample."""
        return self.datasets[0].fields

    @property
    def constants(self) -> Sample:
        """Name -> array that is the same for every sample."""
        return self._fixed[0].constants if self._fixed else {}

    @property
    def paths(self) -> tuple[str, ...]:
        """Path of each source in the blend, by its number; ``("",)`` for a single dataset."""
        return tuple(leaf.path for leaf in self.plan.leaves)

    def begin(self, step: int) -> int:
        """Return the first position of a step, at most the end of the run."""
        position = self.schedule.begin(step)
        return position if self.length is None else min(position, self.length)

    def positions(self, step: int) -> IntArray:
        """(samples of the step,) int64: the positions that make a step."""
        step = whole(step, "step")
        begin, end = self.schedule.begin(step), self.begin(step + 1)
        if step < 0 or begin >= end:
            raise IndexError(f"step {step} of a run of {self.num_steps} steps")
        return np.arange(begin, end, dtype=np.int64)

    def lookup(self, positions: IntArray) -> Lookup:
        """Return source, epoch and sample index at each position. Reads nothing, except lengths with bucketing."""
        return self.plan.lookup(positions if self.buckets is None else self.buckets.arranged(positions))

    def locate(self, positions: IntArray) -> Located:
        """Plan many samples at once, for ``read`` to read some at a time."""
        return self._locate(positions, self.lookup(positions))

    def _locate(self, positions: IntArray, found: Lookup) -> Located:
        # In the order of the store every epoch is the same, so the epoch's key must not change the samples.
        if len(self.datasets) == 1:
            keys = found.keys if self.is_keyed(0) else None
            return Located(positions, found.sources, self.datasets[0].locate(found.indices, keys))
        addresses = np.empty_like(positions)
        for source, rows in by_source(found.sources):
            mine = found.keys[rows] if self.is_keyed(source) else None
            addresses[rows] = self.datasets[source].locate(found.indices[rows], mine)
        return Located(positions, found.sources, addresses)

    def is_keyed(self, source: int) -> bool:
        """Return whether samples of a source depend on the keys of their epochs."""
        return self.plan.series[source].order.draws

    def read(self, located: Located, out: Sample | None = None) -> Sample:
        """Read planned samples as one batch: each of ``fields`` is an (n, ...) array, new or taken from ``out``.

        Batches of records are always new arrays, as wide as the longest record, and have values such as counts too.
        """
        if self.traits.is_opaque:
            read: Sample = resolve_name(READ_SEEDED)(self, located)
            return read
        if self._ragged:
            return self.collate(self.samples(located))
        if out is None:
            out = empty(self.fields, len(located.positions))
        try:
            return self._read_fixed(located, out)
        except Exception:
            if self.traits.holds_interpreter:
                # One by one, so that an error in code of the user names position and step of its sample.
                watch = SampleWatch()
                watch.begin(located.positions, self.schedule.step_of)
                one = {name: values[:1] for name, values in out.items()}
                rows = range(len(located.positions))
                watch.make(
                    located.addresses, [partial(self._read_fixed, located.rows(row, row + 1), one) for row in rows]
                )
            raise

    def _read_fixed(self, located: Located, out: Sample) -> Sample:
        if len(self._fixed) == 1:
            self._fixed[0].read_into(located.addresses, out, slice(None))
            return out
        for source, rows in by_source(located.sources):
            self._fixed[source].read_into(located.addresses[rows], out, rows)
        return out

    def samples(self, located: Located, watch: SampleWatch | None = None) -> list[Any]:
        """Read planned records or media samples together and return them one by one; ``collate`` makes batches."""
        watch = watch or SampleWatch()
        if len(self._ragged) == 1:
            watch.begin(located.positions, self.schedule.step_of)
            return self._ragged[0].samples(located.addresses, watch)
        samples: list[Any] = [None] * len(located.positions)
        for source, rows in by_source(located.sources):
            watch.begin(located.positions[rows], self.schedule.step_of)
            found = self._ragged[source].samples(located.addresses[rows], watch)
            for row, sample in zip(np.arange(len(samples))[rows].tolist(), found, strict=True):
                samples[row] = sample
        return samples

    def flat_batches(
        self, located: Located, sizes: Sequence[int], allocate: Callable[[int], NDArray[np.uint8]]
    ) -> FlatBatches | None:
        """Return micro-batches of planned records in one pass, see `RaggedDataset.flat_batches`; None if none can be.

        A run of several sources makes samples one by one.
        """
        return self._ragged[0].flat_batches(located.addresses, sizes, allocate) if len(self._ragged) == 1 else None

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Return records or media samples as one batch; the first source makes the batches of all."""
        return self._ragged[0].collate(samples)

    def step(self, step: int) -> Sample:
        """Return the global batch of a step as the model sees it: NumPy arrays, with ``sample_positions``."""
        positions = self.positions(step)
        constants = repeated(self.constants, len(positions))
        return {**self.read(self.locate(positions)), **constants, "sample_positions": positions}

    @cached_property
    def recipe(self) -> RunRecipe:
        """What decides the bytes of every step, by part; save it beside the checkpoint.

        The length is not part of it: a run may be made longer, and its steps so far stay the same.
        """
        read_ahead_of_fingerprints(store for dataset in self.datasets for store in stores_of(dataset))
        if self.edits:
            return self.past(MAX_POSITIONS if self.length is None else self.length)
        batch: dict[str, Any] = {"pieces": [list(piece) for piece in self.schedule.pieces]}
        if self.buckets is not None:
            batch["bucketing"] = self.buckets.recipe()
        return RunRecipe(
            format=order_format(is_drawn=self.draw is not None),
            dataset={path: dataset.recipe for path, dataset in zip(self.paths, self.datasets, strict=True)},
            blend=node_recipe(node_of("", self.data)),
            order=self.order.recipe,
            batch=batch,
        )

    def account(self, step: int | None = None, *, exact: bool = False) -> Any:
        """Return what was fed before a step, a `headrace.tracing.RunAccount`; see `headrace.tracing.account`."""
        return provided("account")(self, step, exact=exact)

    def describe(self) -> str:
        """Return the mix as a tree with shares, samples and tokens, then order and batches, in a few lines."""
        outline = resolve_name(OUTLINE)
        lines: list[str] = outline.sources_outline(self.data, self.plan)
        if self.order.is_of_shards:
            lines.append(outline.mixing_outline(self.plan, self.schedule))
        pieces = [f"{size:,} samples from step {step:,}" for step, size in self.schedule.pieces]
        lines.append(f"global batch: {', '.join(pieces)}")
        length = "endless" if self.length is None else f"{self.length:,} samples, {self.num_steps:,} steps"
        lines.append(f"length: {length}")
        if self.edits:
            lines.append("edits, the last of which led to the mix above:")
            lines.extend(f"  {edit.describe()}" for edit in self.edits)
        lines.extend(outline.deviation_outline(node_of("", self.data), self.datasets))
        return "\n".join(lines)

    def __repr__(self) -> str:
        length = "endless" if self.length is None else f"{self.length:,} samples in {self.num_steps:,} steps"
        return f"<Run: {len(self.datasets)} sources, {length}>"
