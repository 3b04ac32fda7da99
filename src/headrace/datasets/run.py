"""`Run`: data, order and batches, which together fix every byte of every step.

`Located` says where samples are that are planned but not read; `sources_outline` shows the sources of a run as a tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from headrace.datasets.dataset import (
    Dataset,
    Fields,
    FixedDataset,
    RaggedDataset,
    Sample,
    SampleWatch,
    Traits,
    empty,
    repeated,
)
from headrace.datasets.mix import Mix, homogeneous_samples, named_datasets, node_of, wrong_data
from headrace.errors import ConfigError
from headrace.plan import (
    BatchSchedule,
    Branch,
    ConcatNode,
    Draw,
    Inner,
    IntArray,
    Leaf,
    LimitNode,
    Lookup,
    Node,
    Order,
    Plan,
    RepeatNode,
    RunRecipe,
    Schedule,
    order_quality,
)
from headrace.plan.bucketing import BucketedOrder, Bucketing
from headrace.plan.nodes import node_recipe
from headrace.plan.recipe import order_format
from headrace.plan.slots import draw_of


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
        lines = sources_outline(self.plan, self.datasets)
        if self.order.kind == "shards":
            lines.append(_mixing(self.plan, self.schedule))
        pieces = [f"{size:,} samples from step {step:,}" for step, size in self.schedule.pieces]
        lines.append(f"global batch: {', '.join(pieces)}")
        length = "endless" if self.length is None else f"{self.length:,} samples, {self.num_steps:,} steps"
        lines.append(f"length: {length}")
        lines.extend(_deviation(self.plan.root, self.datasets))
        return "\n".join(lines)

    def __repr__(self) -> str:
        length = "endless" if self.length is None else f"{self.length:,} samples in {self.num_steps:,} steps"
        return f"<Run: {len(self.datasets)} sources, {length}>"


def sources_outline(plan: Plan, datasets: Sequence[Dataset]) -> list[str]:
    """Return lines: the tree of sources with their shares, then the order."""
    by_path = {leaf.path: dataset for leaf, dataset in zip(plan.leaves, datasets, strict=True)}
    return [*_tree(plan.root, by_path, "", ""), f"order: {_order(plan.order)}"]


def _tree(node: Node, by_path: dict[str, Dataset], first: str, rest: str) -> Iterator[str]:
    name = node.path.rpartition("/")[2] or "run"
    if isinstance(node, Leaf):
        dataset = by_path[node.path]
        length = "endless" if dataset.traits.is_endless else f"{node.num_samples:,} samples an epoch"
        yield f"{first}{name}: {length}, {dataset.describe()}"
        return
    length = "endless" if node.num_samples is None else f"{node.num_samples:,} samples a pass"
    yield f"{first}{name}: {_KINDS[type(node)]}, {length}"
    for i, (child, part) in enumerate(zip(node.children, _parts(node), strict=True)):
        last = i + 1 == len(node.children)
        if isinstance(node, Schedule) and 0 < i < len(node.children) - 1 and len(node.children) > _SHOWN:
            # A ramp may have a thousand mixes.
            if i == 1:
                yield f"{rest}├─ {len(node.children) - 2:,} mixes between the first and the last"
            continue
        yield from _tree(child, by_path, rest + ("└─ " if last else "├─ ") + part, rest + ("   " if last else "│  "))


_SHOWN = 4
"""Most mixes of a schedule that are all shown; of more, only the first and the last are."""

_KINDS: dict[type[Node], str] = {
    Branch: "blend",
    ConcatNode: "one after another",
    LimitNode: "the first samples of every pass",
    RepeatNode: "repeated",
    Schedule: "one mix after another",
}


def _parts(node: Inner) -> list[str]:
    """Return what stands before each child: its share, or where it begins."""
    if isinstance(node, Branch):
        return [f"{100 * share / sum(node.shares):.3f} % " for share in node.shares]
    if isinstance(node, Schedule):
        return [f"from sample {begin:,}: " for begin in node.begins.tolist()]
    return [""] * len(node.children)


def _order(order: Order) -> str:
    if order.kind == "none":
        return "as stored, the same in every epoch"
    if order.kind == "full":
        return f"every epoch a permutation of all samples, seed {order.seed}"
    if order.kind == "shards":
        return (
            f"slices of at most {order.max_samples_per_sequence:,} neighbours of a shard, the samples of "
            f"{order.parallel_shard_iters:,} of them permuted together, seed {order.seed}"
        )
    return (
        f"blocks of {order.block_samples:,} samples permuted, then samples within windows of {order.window_blocks:,} "
        f"blocks, seed {order.seed}"
    )


def _mixing(plan: Plan, schedule: BatchSchedule) -> str:
    """Return how well the order for shards mixes the largest source: a tenth of a second, no data is read."""
    leaf = max(plan.leaves, key=lambda leaf: leaf.num_samples)
    batch_samples = max(2, schedule.pieces[0][1])
    found = order_quality(plan.order, leaf.num_samples, leaf.shards, batch_samples=batch_samples, path=leaf.path)
    of = f" of {leaf.path}, the largest source" if leaf.path else ""
    return (
        f"mixing{of}: {found.same_shard_pairs:.2f} times the pairs of one shard in a batch that a uniform order of as "
        f"many shards ({found.open_shards:,}) has, median displacement {found.displacement:.0%} of a uniform order's, "
        f"{found.mean_run_samples:,.1f} neighbours read together"
    )


def _deviation(root: Node, datasets: Sequence[Dataset]) -> Iterator[str]:
    """Yield how far the tokens of a source may stray from its token share while its samples keep to theirs."""
    if isinstance(root, Branch):
        if not all(dataset.traits.has_tokens for dataset in datasets):
            yield f"expected deviation: below 2 samples of each of {len(datasets)} sources at every prefix"
            return
        worst = max(dataset.deviation_tokens_per_sample for dataset in datasets)
        tokens = max(dataset.num_tokens_per_sample for dataset in datasets)
        yield (
            f"expected deviation: below 2 samples ({2 * tokens:,.0f} tokens) of each of {len(datasets)} sources at "
            f"every prefix, and {worst:,.0f} tokens times the square root of its samples for their uneven lengths"
        )
