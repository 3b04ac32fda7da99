"""A run: data, order and batches, which together fix every byte of every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.datasets.blend import Blend
from headrace.datasets.dataset import Counts, Dataset, Fields, Sample, empty, repeated
from headrace.datasets.outline import outline
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.errors import ConfigError
from headrace.plan import ORDER_FORMAT, BatchSchedule, Branch, IntArray, Leaf, Lookup, Node, Order, Plan, Recipe
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

    ``data`` is a dataset or a blend; ``global_batch_size`` a number, or pieces ``[(first step, size), ...]``. The run
    is endless, unless ``epochs`` passes or ``samples`` samples are given, or the blend has an end of its own: then it
    is one pass. The last step of a run that ends may be short; ``drop_last`` leaves it out.

    Construction costs O(sources). It reads no documents and builds no index.

    Raises:
        ConfigError: both ``epochs`` and ``samples``, ``epochs`` of an endless blend, nothing to feed.
    """

    def __init__(
        self,
        data: Dataset | Blend,
        *,
        global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]],
        order: Order | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        drop_last: bool = False,
    ) -> None:
        if order is not None and not isinstance(order, Order):
            raise ConfigError(f"order is {order!r}; expected an Order, as headrace.Order(kind='full', seed=1)")
        self.data = data
        self.order = order or Order()
        self.schedule = BatchSchedule.of(global_batch_size)
        self.datasets = tuple(data.datasets()) if isinstance(data, Blend) else (data,)
        root: Node = data.node() if isinstance(data, Blend) else Leaf("", len(data))
        self.plan = Plan(root, self.order)
        self.drop_last = drop_last
        self.length = self._length(epochs, samples)

    @classmethod
    def validation(cls, data: Dataset | Blend, *, global_batch_size: int) -> Run:
        """Every sample exactly once, in order, for any number of ranks."""
        return cls(data, global_batch_size=global_batch_size, order=Order(kind="none"), epochs=1)

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
        elif isinstance(self.data, Blend) and one_pass is not None:
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
        """Source, epoch and sample index at each position, without reading anything."""
        return self.plan.lookup(positions)

    def locate(self, positions: IntArray) -> Located:
        """Plan samples in bulk, for ``read`` to read some at a time."""
        found = self.plan.lookup(positions)
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
        """A batch of planned samples: each of ``fields`` as one (n, ...) array, fresh or those of ``out``."""
        if out is None:
            out = empty(self.fields, len(located.positions))
        if len(self.datasets) == 1:
            self.datasets[0].read_into(located.addresses, out, slice(None))
            return out
        for source, rows in _by_source(located.sources):
            self.datasets[source].read_into(located.addresses[rows], out, rows)
        return out

    @property
    def is_packed(self) -> bool:
        """Whether samples are packs of documents: then ``count`` and ``counts`` say what is in them."""
        return all(dataset.is_packed for dataset in self.datasets)

    def count(self, located: Located) -> Counts:
        """Tokens, supervised tokens, pads and documents of planned samples of packs, without reading where possible."""
        found = Counts(*np.empty((len(Counts._fields), len(located.positions)), dtype=np.int64))
        for source, rows in _by_source(located.sources):
            for column, values in zip(found, self.datasets[source].count(located.addresses[rows]), strict=True):
                column[rows] = values
        return found

    def counts(self, step: int) -> dict[str, int]:
        """Of a step over all ranks: ``tokens``, ``supervised_tokens``, ``pads`` and ``documents`` of its packs."""
        counted = self.count(self.locate(self.positions(step)))
        return {name: int(column.sum()) for name, column in counted._asdict().items()}

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
    def recipe(self) -> Recipe:
        """What decides the bytes of every step, by part; save it beside the checkpoint.

        The length is not in it: a run may be made longer, and its steps so far stay the same.
        """
        datasets = zip(self.plan.leaves, self.datasets, strict=True)
        return Recipe(
            format=dict(ORDER_FORMAT),
            dataset={leaf.path: dataset.recipe for leaf, dataset in datasets},
            blend=_blend_recipe(self.plan.root),
            order=_order_recipe(self.order),
            batch={"pieces": [list(piece) for piece in self.schedule.pieces]},
        )

    def describe(self) -> str:
        """The mix as a tree with shares, samples and tokens, then order and batches, in a few lines."""
        return outline(self.plan, self.datasets, self.schedule, self.length)

    def __repr__(self) -> str:
        length = "endless" if self.length is None else f"{self.length:,} samples in {self.num_steps:,} steps"
        return f"<Run: {len(self.datasets)} sources, {length}>"


def _order_recipe(order: Order) -> dict[str, Any]:
    """What of an order decides anything: sizes of blocks only where there are blocks, the seed where there is luck."""
    every = msgspec.to_builtins(order)
    matter = {"full": ("kind", "seed"), "blocks": tuple(every), "none": ("kind",)}[order.kind]
    return {name: every[name] for name in matter}


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


def _blend_recipe(node: Node) -> dict[str, Any]:
    if isinstance(node, Branch):
        children = [_blend_recipe(child) for child in node.children]
        return {"path": node.path, "shares": list(node.shares), "num_samples": node.num_samples, "children": children}
    return {"path": node.path, "num_samples": node.num_samples}
