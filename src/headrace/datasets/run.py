"""A run: data, order and batches, which together fix every byte of every step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.datasets.dataset import Counts, Dataset, Fields, Sample, empty, repeated
from headrace.datasets.mix import Mix, homogeneous_samples, named_datasets, node_of, wrong_data
from headrace.datasets.outline import outline
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.datasets.supervision import any_unsupervised, check_supervised
from headrace.datasets.tracing.answers import Times, Traced
from headrace.datasets.tracing.history import SHOWN, History, history_of
from headrace.datasets.tracing.run_file import save_run
from headrace.encoders import at_positions
from headrace.errors import ConfigError
from headrace.plan import (
    BatchSchedule,
    Draw,
    IntArray,
    Leaf,
    Lookup,
    Order,
    Plan,
    RunRecipe,
    draw_of,
    node_recipe,
    order_format,
)
from headrace.plan.bucketing import Bucketing
from headrace.plan.buckets import BucketedOrder
from headrace.plan.packing import PackingLedger


class Located(NamedTuple):
    """Samples that are planned but not read: (n,) int64 positions, numbers of sources, addresses in their datasets."""

    positions: IntArray
    sources: IntArray
    addresses: IntArray

    def rows(self, begin: int, end: int) -> Located:
        """Some of them."""
        return Located(self.positions[begin:end], self.sources[begin:end], self.addresses[begin:end])


class Run:
    """All that decides which samples make step N. Ranks, micro-batches and workers are not part of it.

    ``data`` is a dataset, or a blend or another `Mix` of some; ``global_batch_size`` a number, or pieces
    ``[(first step, size), ...]``. The run is endless, unless ``epochs`` passes or ``samples`` samples are given, or the
    mix has an end of its own: then it is one pass. The last step of a run that ends may be short; ``drop_last`` leaves
    it out.

    ``bucketing`` brings records of similar length together within windows of steps. It looks at the lengths of a window
    when a sample of it is first asked for; a run with an end that has it keeps its length, since the last window ends
    there.

    Construction costs O(sources). It reads no documents and builds no index.

    Raises:
        ConfigError: both ``epochs`` and ``samples``, ``epochs`` of an endless blend, nothing to feed, ``bucketing`` of
            samples that are all equally long.
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
        if not isinstance(data, Dataset | Mix):
            raise ConfigError(wrong_data("data", data))
        self.data = data
        self.order = order or Order()
        self.schedule = BatchSchedule.of(global_batch_size)
        self.plan = Plan(node_of("", data), self.order)
        by_path = named_datasets(data)
        self.datasets = tuple(by_path[leaf.path] for leaf in self.plan.leaves)
        self.drop_last = drop_last
        self._check_endless(epochs)
        self.length = self._length(epochs, samples)
        self._check_ragged()
        self.bucketing = bucketing
        self._buckets = None if bucketing is None else self._make_buckets(bucketing)

    @classmethod
    def validation(cls, data: Dataset | Mix, *, global_batch_size: int) -> Run:
        """Every sample exactly once, in order, for any number of ranks."""
        return cls(data, global_batch_size=global_batch_size, order=Order(kind="none"), epochs=1)

    def _check_endless(self, epochs: int | None) -> None:
        """Raise ConfigError where a dataset with an order of its own and no end is given another one, or epochs."""
        endless = [dataset for dataset in self.datasets if dataset.is_endless]
        if endless and self.order.kind != "none":
            raise ConfigError(
                f"{type(endless[0]).__name__} has an order of its own: give the run order=Order(kind='none'), found "
                f"kind={self.order.kind!r}"
            )
        if endless and epochs is not None:
            raise ConfigError(f"{type(endless[0]).__name__} goes on without an end: give samples instead of epochs")

    def _check_ragged(self) -> None:
        """Raise ConfigError for a dataset around records that does not hand on that they are ragged."""
        for dataset in self.datasets:
            if not dataset.is_ragged and any(-1 in shape for shape, _ in dataset.fields.values()):
                raise ConfigError(f"{type(dataset).__name__} is for samples of one shape; feed the records themselves")

    def _make_buckets(self, bucketing: Bucketing) -> BucketedOrder:
        if not isinstance(bucketing, Bucketing):
            raise ConfigError(
                f"bucketing is {bucketing!r}; expected a Bucketing, as headrace.plan.Bucketing(window_steps=16)"
            )
        if not self.is_ragged:
            raise ConfigError("bucketing is for records; windows and packs are all equally long")
        return BucketedOrder(
            bucketing, self.schedule, length=self.length, seed=self.order.seed, lengths=self._sample_lengths
        )

    def _sample_lengths(self, positions: IntArray) -> IntArray:
        """(n,) int64: tokens of the samples that positions have before they are rearranged."""
        located = self._locate(positions, self.plan.lookup(positions))
        lengths = np.empty_like(positions)
        for source, rows in _by_source(located.sources):
            lengths[rows] = self.datasets[source].sample_lengths(located.addresses[rows])
        return lengths

    def _length(self, epochs: int | None, samples: int | None) -> int | None:
        if epochs is not None and samples is not None:
            raise ConfigError("a run is measured in epochs or in samples, not in both")
        one_pass = self.plan.root.num_samples
        if epochs is not None and one_pass is None:
            raise ConfigError("an endless blend has no epochs: give samples, or give the blend an end")
        if epochs is not None and one_pass is not None:
            length = index(epochs) * one_pass
        elif samples is not None:
            length = index(samples)
        elif one_pass is not None and not isinstance(self.plan.root, Leaf):
            length = one_pass
        else:
            return None
        if self.drop_last:
            length = self.schedule.begin(self.schedule.step_of(length))
        if length < 1:
            raise ConfigError(
                f"a run of {epochs if samples is None else samples} "
                f"{'epochs' if samples is None else 'samples'} with drop_last={self.drop_last} has nothing to feed"
            )
        return length

    @property
    def num_steps(self) -> int | None:
        """The number of steps, None for an endless run."""
        return None if self.length is None else self.schedule.step_of(self.length - 1) + 1

    @cached_property
    def block_samples(self) -> int | None:
        """How many consecutive samples come from one source where `BlendDataset` promises that, None elsewhere.

        They begin at the multiples of that number, so that micro-batches which divide it are of one source each.
        """
        return homogeneous_samples(self.plan.root)

    @cached_property
    def draw(self) -> Draw | None:
        """How the slots of a blend's steps are drawn; None: each takes its own position. Steps do not hang on it."""
        blocks = self.block_samples
        return draw_of(self.plan, self.schedule, self.drawn_end, block_samples=blocks, bucketing=self.bucketing)

    @property
    def drawn_end(self) -> int | None:
        """Up to which position slots are drawn: the end of the run."""
        return self.length

    @property
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of what is read for each sample."""
        return self.datasets[0].fields

    @property
    def constants(self) -> Sample:
        """Name -> array of what every sample holds alike."""
        return self.datasets[0].constants

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each source in the blend, by its number; ``("",)`` for a single dataset."""
        return tuple(leaf.path for leaf in self.plan.leaves)

    def positions(self, step: int) -> IntArray:
        """(samples of the step,) int64: the positions that make a step."""
        begin, end = self.schedule.begin(step), self.schedule.begin(step + 1)
        if self.length is not None:
            end = min(end, self.length)
        if step < 0 or begin >= end:
            raise IndexError(f"step {step} of a run of {self.num_steps} steps")
        return np.arange(begin, end, dtype=np.int64)

    def lookup(self, positions: IntArray) -> Lookup:
        """Source, epoch and sample index at each position, without reading anything but lengths where it buckets."""
        return self.plan.lookup(positions if self._buckets is None else self._buckets.arranged(positions))

    def locate(self, positions: IntArray) -> Located:
        """Plan samples in bulk, for ``read`` to read some at a time."""
        return self._locate(positions, self.lookup(positions))

    def _locate(self, positions: IntArray, found: Lookup) -> Located:
        # In the order of the store every epoch is the same: nothing of a sample is drawn by the epoch's key.
        keys = None if self.order.kind == "none" else found.keys
        if len(self.datasets) == 1:
            return Located(positions, found.sources, self.datasets[0].locate(found.indices, keys))
        addresses = np.empty_like(positions)
        for source, rows in _by_source(found.sources):
            mine = None if keys is None else keys[rows]
            addresses[rows] = self.datasets[source].locate(found.indices[rows], mine)
        return Located(positions, found.sources, addresses)

    def read(self, located: Located, out: Sample | None = None) -> Sample:
        """A batch of planned samples: each of ``fields`` as one (n, ...) array, fresh or those of ``out``.

        Records are always fresh, as wide as the longest of them, and what is no array is among them, such as counts.
        """
        if self.is_ragged:
            return self.datasets[0].collate(self.samples(located))
        if out is None:
            out = empty(self.fields, len(located.positions))
        if len(self.datasets) == 1:
            self.datasets[0].read_into(located.addresses, out, slice(None))
            return out
        for source, rows in _by_source(located.sources):
            self.datasets[source].read_into(located.addresses[rows], out, rows)
        return out

    def samples(self, located: Located) -> list[Any]:
        """Planned records or media samples, each for itself, read together; ``collate`` makes batches of some."""
        samples: list[Any] = [None] * len(located.positions)
        for source, rows in _by_source(located.sources):
            with at_positions(located.positions[rows]):
                found = self.datasets[source].samples(located.addresses[rows])
            for row, sample in zip(np.arange(len(samples))[rows].tolist(), found, strict=True):
                samples[row] = sample
        return samples

    @property
    def is_packed(self) -> bool:
        """Whether samples are packs of documents, made of segments."""
        return all(dataset.is_packed for dataset in self.datasets)

    @property
    def is_group_batches(self) -> bool:
        """Whether a sample of the run is a whole batch, so that micro-batches have one each."""
        return any(dataset.is_group_batches for dataset in self.datasets)

    @property
    def is_counted(self) -> bool:
        """Whether ``count`` and ``counts`` say what is in samples: in packs, records with labels, masked windows."""
        return any(dataset.is_counted for dataset in self.datasets)

    @property
    def is_masked(self) -> bool:
        """Whether samples may have no supervised token."""
        return any(dataset.is_masked for dataset in self.datasets)

    @property
    def is_ragged(self) -> bool:
        """Whether samples are records of different lengths, padded batch by batch."""
        return all(dataset.is_ragged for dataset in self.datasets)

    def count(self, located: Located) -> Counts:
        """Tokens, supervised tokens, pads and documents of planned samples, without reading them where possible."""
        found = Counts(*np.empty((len(Counts._fields), len(located.positions)), dtype=np.int64))
        for source, rows in _by_source(located.sources):
            for column, values in zip(found, self.datasets[source].count(located.addresses[rows]), strict=True):
                column[rows] = values
        return found

    def counts(self, step: int) -> dict[str, int]:
        """Of a step over all ranks: ``tokens``, ``supervised_tokens``, ``pads`` of packs, and ``documents``."""
        counted = self.count(self.locate(self.positions(step)))
        return {name: int(column.sum()) for name, column in counted._asdict().items()}

    @cached_property
    def has_unsupervised_samples(self) -> bool:
        """Whether any sample of masked records has no supervised token: each is looked at once, 1 to 2 us."""
        return any_unsupervised(self)

    def check_supervised(self, position: int = 0) -> None:
        """Look for steps without a supervised token, before the run; a loader does, when it begins to iterate.

        If no record lacks one, no step does. Otherwise the steps of the next 2^20 samples are counted; of windows and
        packs, whose marks are read for it, those of the next 2^15 samples or 2^24 tokens.
        Those beyond are counted ahead of their turn, 1,024 samples at a time, and are errors then: never skipped, since
        that would renumber the steps.

        Raises:
            ConfigError: a step of masked samples without a supervised token; names it.
        """
        check_supervised(self, position)

    @property
    def ledgers(self) -> dict[str, PackingLedger]:
        """For each source of packs, by its path: where every document and token of it went."""
        pairs = zip(self.paths, self.datasets, strict=True)
        return {path: dataset.ledger for path, dataset in pairs if isinstance(dataset, PackedSequenceDataset)}

    def step(self, step: int) -> Sample:
        """The global batch of a step, what the model sees there: NumPy arrays, and their ``sample_positions``."""
        positions = self.positions(step)
        constants = repeated(self.constants, len(positions))
        return {**self.read(self.locate(positions)), **constants, "sample_positions": positions}

    @cached_property
    def recipe(self) -> RunRecipe:
        """What decides the bytes of every step, by part; save it beside the checkpoint.

        The length is not in it: a run may be made longer, and its steps so far stay the same.
        """
        datasets = zip(self.plan.leaves, self.datasets, strict=True)
        return RunRecipe(
            format=order_format(is_drawn=self.draw is not None),
            dataset={leaf.path: dataset.recipe for leaf, dataset in datasets},
            blend=node_recipe(self.plan.root),
            order=self.order.recipe,
            batch=self._batch_recipe(),
        )

    def _batch_recipe(self) -> dict[str, Any]:
        recipe: dict[str, Any] = {"pieces": [list(piece) for piece in self.schedule.pieces]}
        if self.bucketing is not None:
            # The seed is drawn on even where the order has no use for it; and the last window ends with the run.
            bucketing = msgspec.to_builtins(self.bucketing)
            recipe["bucketing"] = {**bucketing, "seed": self.order.seed, "num_samples": self.length, "version": 1}
        return recipe

    def save(self, path: str | os.PathLike[str], *, position: int | None = None, step: int | None = None) -> None:
        """Write all that says what comes when, for ``headrace trace``: a few KB, without the data. By one process.

        Call it at every start, with ``position=loader.position``. A run that goes on as it was adds nothing; one that
        was changed holds from there on, and what the file says of later steps is dropped, since they were undone.
        Without a position, only a file that is new or of the same run is taken.

        Args:
            path: ``run.json``, beside the checkpoints.
            position: of this run, at which it begins or goes on.
            step: the step of the training that this is, where it is not that of the run.

        Raises:
            ConfigError: the file is of another run and no position was given; the run has no such position.
            StateError: the file is damaged, or something else.
            OutputError: it cannot be written.
        """
        save_run(self, path, position=position, step=step)

    @property
    def history(self) -> History:
        """The run as the one chapter of a history, to be asked in more ways than by the two methods below."""
        return history_of(self, self._buckets)

    def trace_step(self, step: int) -> list[Traced]:
        """The samples of a step, in order, and what each is made of. Reads no samples; raises ConfigError: no step."""
        return self.history.step(step)

    def trace_sample(self, source: str, index: int, *, until_step: int | None = None, limit: int = SHOWN) -> Times:
        """When a sample of a source comes: the first times, and how many there are up to a step or to the end.

        ``source`` is a path as in ``paths``, ``"."`` for a single dataset. Of a run without an end, and without
        ``until_step``, ``limit`` epochs are looked at. Raises ConfigError: there is no such source or sample.
        """
        return self.history.sample(source, index, until_step=until_step, limit=limit)

    def describe(self) -> str:
        """The mix as a tree with shares, samples and tokens, then order and batches, in a few lines."""
        return outline(self.plan, self.datasets, self.schedule, self.length)

    def __repr__(self) -> str:
        length = "endless" if self.length is None else f"{self.length:,} samples in {self.num_steps:,} steps"
        return f"<Run: {len(self.datasets)} sources, {length}>"


def _by_source(sources: IntArray) -> Iterator[tuple[int, slice | IntArray]]:
    """(source, the rows it has) for each source that occurs."""
    rows = np.argsort(sources, kind="stable")
    ordered = sources[rows]
    firsts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(rows)]
    for first, end in pairwise(firsts):
        if end - first == 1:
            # A lone row as a slice: with many sources most are, and a slice is the cheapest way to write it.
            row = int(rows[first])
            yield int(ordered[first]), slice(row, row + 1)
        elif end > first:
            yield int(ordered[first]), rows[first:end]
