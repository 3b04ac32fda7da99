"""Energon's own order, as spans for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from headrace.datasets import Blend, Concat, Dataset, Located, Mix, Run, Subset
from headrace.datasets.encoded import EncodedDataset
from headrace.errors import ConfigError
from headrace.loader.spans import BatchSpan
from headrace.plan import RunRecipe, SubsetRange, derive_array
from headrace.plan.energon import EnergonMixing, EnergonOrder, EnergonSource, EnergonTopology
from headrace.plan.keys import source_key


class OwnOrder:
    """The batches of one rank in the order of Energon 7.4, which is bound to ranks, workers and batch size.

    To begin at a later batch, all draws before it are repeated, which costs about 2 us a sample.

    Args:
        run: reads the samples; its order is ignored.
        topology: ranks and workers.
        mixing: how training data are mixed; None for validation.
        batch_size: samples of a batch.
        drop_last: leave out each worker's last batch if it is short.
        limit: the number of batches of a rank; None for all.
        shuffle_over_epochs: Energon's option of this name, for every source.

    Raises:
        ConfigError: Energon has no order for the data, for example because they are not a blend of sample stores.
    """

    def __init__(
        self,
        run: Run,
        *,
        topology: EnergonTopology,
        mixing: EnergonMixing | None,
        batch_size: int,
        drop_last: bool = False,
        limit: int | None = None,
        shuffle_over_epochs: int = 1,
    ) -> None:
        self.run = run
        self._batching: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last, "limit": limit}
        blend, found = _sources(run.data, training=mixing is not None)
        if mixing is not None:
            mixing = msgspec.structs.replace(mixing, blend=blend)
        sources = [msgspec.structs.replace(source, shuffle_over_epochs=shuffle_over_epochs) for source in found]
        self.order = EnergonOrder(sources, topology=topology, mixing=mixing)

    @property
    def recipe(self) -> RunRecipe:
        """The recipe of the data, with this order and its ranks and workers."""
        order = {
            "kind": "energon",
            "version": 1,
            "topology": msgspec.to_builtins(self.order.topology),
            "mixing": msgspec.to_builtins(self.order.mixing),
            "shuffle_over_epochs": self.order.sources[0].shuffle_over_epochs,
        }
        return msgspec.structs.replace(self.run.recipe, order=order, batch=dict(self._batching))

    def num_batches(self, rank: int) -> int:
        """Return how many batches a rank has in a pass, as Energon counts them."""
        size, workers = self._batching["batch_size"], self.order.topology.workers_a_rank
        limit = self._batching["limit"]
        total = 0
        for worker in range(workers):
            samples = self.order.num_samples(rank, worker)
            batches = samples // size if self._batching["drop_last"] else -(-samples // size)
            total += batches if limit is None else min(batches, limit // workers + (worker < limit % workers))
        return total

    def spans(self, rank: int, first: int) -> Iterator[BatchSpan]:
        """Yield the batches of a rank from number ``first`` on, one batch in each span."""
        batches = self.order.batches(rank, **self._batching)
        before = sum(len(batch) for batch in islice(batches, first))
        for number, batch in enumerate(batches, start=first):
            positions = np.arange(before, before + len(batch), dtype=np.int64)
            sources, indices = np.array(batch, dtype=np.int64).T
            # Indices are numbers in the whole dataset of a source, even if the source is a subset.
            located = Located(positions, sources, self._located(sources, indices, rank, positions))
            yield BatchSpan(located, [len(batch)], [number], [number + 1])
            before += len(batch)

    def _located(self, sources: Any, indices: Any, rank: int, positions: Any) -> Any:
        addresses = np.empty_like(indices)
        # This order has no epochs from which keys could be derived. So each position of a rank has its own key, the
        # same in every iteration.
        keys = derive_array(source_key(0, str(rank), "own order"), positions)
        for source in np.unique(sources).tolist():
            mine = sources == source
            dataset = self.run.datasets[source]
            draws = isinstance(dataset, EncodedDataset)
            addresses[mine] = dataset.locate(indices[mine], keys[mine] if draws else None)
        return addresses


def _sources(data: Dataset | Mix, *, training: bool) -> tuple[Any, list[EnergonSource]]:
    """The kind of the blend, and its sources, depth first as the run numbers them."""
    if not isinstance(data, Mix) or isinstance(data, Subset):
        return "none", [_source(data)]
    if not training and isinstance(data, Concat):
        return "none", [source for child in data.children.values() for source in _sources(child, training=False)[1]]
    if training and isinstance(data, Blend) and data.end in ("endless", "repeats") and _is_plain(data):
        return ("weights" if data.end == "endless" else "repetitions"), list(_blended(data))
    raise ConfigError(
        f"order='energon': Energon has no order for {data!r}; it has one for a dataset or a subset of one, for blends "
        "of these by weights or by repeats, and in validation for several of these one after another"
    )


def _is_plain(blend: Blend) -> bool:
    return blend.unit == "samples" and blend.block_samples == 1


def _blended(blend: Blend, factor: float = 1, total: float = 1) -> Iterator[EnergonSource]:
    """The sources of a blend. The outermost weights stay as they are; an inner blend divides its own weight."""
    for name, child in blend.children.items():
        number = factor * blend.numbers[name] / total
        if isinstance(child, Blend) and child.end == blend.end and _is_plain(child):
            weights: Any = child.numbers.values()
            yield from _blended(child, number, sum(weights) if blend.end == "endless" else 1)
        elif isinstance(child, Subset) or not isinstance(child, Mix):
            source = _source(child)
            if blend.end == "endless":
                yield msgspec.structs.replace(source, weight=float(number))
            else:
                whole = number == int(number)
                yield msgspec.structs.replace(source, repetitions=int(number) if whole else float(number))
        else:
            raise ConfigError(f"order='energon': Energon has no order for {child!r} within a blend")


def _source(data: Dataset | Mix) -> EnergonSource:
    subset: SubsetRange | None = None
    dataset = data
    if isinstance(data, Subset):
        subset, dataset = data.subset, data.dataset
    bounds = getattr(dataset, "shard_bounds", None)
    if bounds is None:
        raise ConfigError(f"order='energon': {dataset!r} has no shards; only sample stores have shards")
    if getattr(getattr(dataset, "store", None), "num_left_out", 0):
        raise ConfigError(
            f"order='energon': the split of {dataset!r} leaves samples out, but Energon's order counts them; choose "
            "another order"
        )
    return EnergonSource(shard_counts=tuple(np.diff(bounds).tolist()), subset=subset)
