"""`Run`: data, order and batches, which together fix every byte of every step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headrace.datasets.dataset import Dataset, Fields, FixedDataset, RaggedDataset, Sample, Traits, empty, repeated
from headrace.datasets.located import Located, by_source
from headrace.datasets.mix import Mix, homogeneous_samples, named_datasets, node_of, wrong_data
from headrace.datasets.outline import outline
from headrace.datasets.sample_watch import SampleWatch
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Draw, IntArray, Lookup, Order, Plan, RunRecipe
from headrace.plan.bucketing import BucketedOrder, Bucketing
from headrace.plan.nodes import node_recipe
from headrace.plan.recipe import order_format
from headrace.plan.slots import draw_of


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
        if not isinstance(data, Dataset | Mix):
            raise ConfigError(wrong_data("data", data))
        self.data = data
        self.order = order or Order()
        self.schedule = BatchSchedule.of(global_batch_size)
        self.plan = Plan(node_of("", data), self.order)
        by_path = named_datasets(data)
        self.datasets = tuple(by_path[leaf.path] for leaf in self.plan.leaves)
        self.traits = Traits.of_all([dataset.traits for dataset in self.datasets])
        # One of the two holds all datasets, since a mix has sources of one kind.
        self._fixed = [dataset for dataset in self.datasets if isinstance(dataset, FixedDataset)]
        self._ragged = [dataset for dataset in self.datasets if isinstance(dataset, RaggedDataset)]
        self._check_endless(epochs)
        self.length = self.plan.run_length(self.schedule, epochs=epochs, samples=samples, drop_last=drop_last)
        self.bucketing = bucketing
        self.buckets = None if bucketing is None else self._make_buckets(bucketing)

    @classmethod
    def validation(cls, data: Dataset | Mix, *, global_batch_size: int) -> Run:
        """Return a run that feeds every sample exactly once, in order, on any number of ranks."""
        return cls(data, global_batch_size=global_batch_size, order=Order(kind="none"), epochs=1)

    def _check_endless(self, epochs: int | None) -> None:
        """Raise ConfigError if an endless dataset with an order of its own is given another order, or epochs."""
        endless = [dataset for dataset in self.datasets if dataset.traits.is_endless]
        if endless and self.order.kind != "none":
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
        return BucketedOrder(
            bucketing, self.schedule, length=self.length, seed=self.order.seed, lengths=self._sample_lengths
        )

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
        return homogeneous_samples(self.plan.root)

    @cached_property
    def draw(self) -> Draw | None:
        """How the slots of a blend's steps are drawn; None if each slot takes the position of its own number.

        A draw decides which rank takes a sample, not which samples a step has.
        """
        blocks = self.block_samples
        return draw_of(self.plan, self.schedule, self.drawn_end, block_samples=blocks, bucketing=self.bucketing)

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

    def positions(self, step: int) -> IntArray:
        """(samples of the step,) int64: the positions that make a step."""
        begin, end = self.schedule.begin(step), self.schedule.begin(step + 1)
        if self.length is not None:
            end = min(end, self.length)
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
        keys = None if self.order.kind == "none" else found.keys
        if len(self.datasets) == 1:
            return Located(positions, found.sources, self.datasets[0].locate(found.indices, keys))
        addresses = np.empty_like(positions)
        for source, rows in by_source(found.sources):
            mine = None if keys is None else keys[rows]
            addresses[rows] = self.datasets[source].locate(found.indices[rows], mine)
        return Located(positions, found.sources, addresses)

    def read(self, located: Located, out: Sample | None = None) -> Sample:
        """Read planned samples as one batch: each of ``fields`` is an (n, ...) array, new or taken from ``out``.

        Batches of records are always new arrays, as wide as the longest record, and have values such as counts too.
        """
        if self._ragged:
            return self.collate(self.samples(located))
        if out is None:
            out = empty(self.fields, len(located.positions))
        if len(self._fixed) == 1:
            self._fixed[0].read_into(located.addresses, out, slice(None))
            return out
        for source, rows in by_source(located.sources):
            self._fixed[source].read_into(located.addresses[rows], out, rows)
        return out

    def samples(self, located: Located, watch: SampleWatch | None = None) -> list[Any]:
        """Read planned records or media samples together and return them one by one; ``collate`` makes batches."""
        watch = watch or SampleWatch()
        samples: list[Any] = [None] * len(located.positions)
        for source, rows in by_source(located.sources):
            watch.begin(located.positions[rows])
            found = self._ragged[source].samples(located.addresses[rows], watch)
            for row, sample in zip(np.arange(len(samples))[rows].tolist(), found, strict=True):
                samples[row] = sample
        return samples

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
        batch: dict[str, Any] = {"pieces": [list(piece) for piece in self.schedule.pieces]}
        if self.buckets is not None:
            batch["bucketing"] = self.buckets.recipe
        return RunRecipe(
            format=order_format(is_drawn=self.draw is not None),
            dataset={path: dataset.recipe for path, dataset in zip(self.paths, self.datasets, strict=True)},
            blend=node_recipe(self.plan.root),
            order=self.order.recipe,
            batch=batch,
        )

    def describe(self) -> str:
        """Return the mix as a tree with shares, samples and tokens, then order and batches, in a few lines."""
        return outline(self.plan, self.datasets, self.schedule, self.length)

    def __repr__(self) -> str:
        length = "endless" if self.length is None else f"{self.length:,} samples in {self.num_steps:,} steps"
        return f"<Run: {len(self.datasets)} sources, {length}>"
