"""Energon's own order of some data, as spans to read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from headrace.datasets import Blend, Dataset, Run
from headrace.datasets.encoded import EncodedDataset
from headrace.datasets.lengths import Concat, Subset
from headrace.datasets.mix import Mix
from headrace.datasets.run import Located
from headrace.errors import ConfigError
from headrace.loader.spans import BatchSpan
from headrace.plan import RunRecipe, SubsetRange
from headrace.plan.energon import EnergonMixing, EnergonOrder, EnergonSource, EnergonTopology
from headrace.plan.keys import derive_array, source_key


class OwnOrder:
    """The batches of one rank as Energon 7.4 gives them, bound to ranks, workers and batch size.

    To begin at a batch all draws before it are made again: about 2 us a sample.

    Args:
        run: reads the samples; its order is not looked at.
        topology: ranks and workers.
        mixing: of training; None for validation.
        batch_size: samples a batch.
        drop_last: leave out each worker's last batch, if it is short.
        limit: batches a rank, None for all.
        shuffle_over_epochs: of every source.

    Raises:
        ConfigError: data that Energon has no order for: what is no blend of stores of samples.
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
        self._batching = {"batch_size": batch_size, "drop_last": drop_last, "limit": limit}
        blend, found = _sources(run.data, training=mixing is not None)
        if mixing is not None:
            mixing = msgspec.structs.replace(mixing, blend=blend)
        sources = [msgspec.structs.replace(source, shuffle_over_epochs=shuffle_over_epochs) for source in found]
        self.order = EnergonOrder(sources, topology=topology, mixing=mixing)

    @property
    def recipe(self) -> RunRecipe:
        """That of the data, with this order, ranks and workers in it."""
        order = {
            "kind": "energon",
            "version": 1,
            "topology": msgspec.to_builtins(self.order.topology),
            "mixing": msgspec.to_builtins(self.order.mixing),
            "shuffle_over_epochs": self.order.sources[0].shuffle_over_epochs,
        }
        return msgspec.structs.replace(self.run.recipe, order=order, batch=dict(self._batching))

    def spans(self, rank: int, first: int) -> Iterator[BatchSpan]:
        """The batches of a rank from the ``first`` one on, one a span."""
        batches = self.order.batches(rank, **self._batching)  # type: ignore[arg-type]
        before = sum(len(batch) for batch in islice(batches, first))
        for number, batch in enumerate(batches, start=first):
            positions = np.arange(before, before + len(batch), dtype=np.int64)
            sources, indices = np.array(batch, dtype=np.int64).T
            # A source's samples are addressed by their numbers in the whole dataset, a subset's too.
            located = Located(positions, sources, self._located(sources, indices, rank, positions))
            yield BatchSpan(located, [len(batch)], [number], [number + 1])
            before += len(batch)

    def _located(self, sources: Any, indices: Any, rank: int, positions: Any) -> Any:
        addresses = np.empty_like(indices)
        # There are no epochs to draw other random numbers in: each place of a rank has its own, in every iteration.
        keys = derive_array(source_key(0, str(rank), "own order"), positions)
        for source in np.unique(sources).tolist():
            mine = sources == source
            dataset = self.run.datasets[source]
            draws = isinstance(dataset, EncodedDataset)
            addresses[mine] = dataset.locate(indices[mine], keys[mine] if draws else None)
        return addresses


def _sources(data: Dataset | Mix, *, training: bool) -> tuple[Any, list[EnergonSource]]:
    """The kind of the blend, and its sources depth first, as the run numbers them."""
    if not isinstance(data, Mix) or isinstance(data, Subset):
        return "none", [_source(data)]
    if not training and isinstance(data, Concat):
        return "none", [source for child in data.children.values() for source in _sources(child, training=False)[1]]
    if training and isinstance(data, Blend) and data.end in ("endless", "repeats") and _is_plain(data):
        return ("weights" if data.end == "endless" else "repetitions"), list(_blended(data, data.end))
    raise ConfigError(
        f"order='energon': Energon has no order for {data!r}; it has one for a dataset or a subset of one, for blends "
        "by weights or by repeats of these, and in validation for some one after another"
    )


def _is_plain(blend: Blend) -> bool:
    return blend.unit == "samples" and blend.block_samples == 1


def _blended(data: Dataset | Mix, end: str, factor: float | None = None) -> Iterator[EnergonSource]:
    """Weights of an inner blend are its shares of the outer one's; those of the outermost are as they were given."""
    if isinstance(data, Blend) and data.end == end and _is_plain(data):
        total = sum(data.numbers.values()) if end == "endless" and factor is not None else 1
        for name, child in data.children.items():
            yield from _blended(child, end, (1 if factor is None else factor) * data.numbers[name] / total)
    elif isinstance(data, Subset) or not isinstance(data, Mix):
        assert factor is not None
        source = _source(data)
        if end == "endless":
            yield msgspec.structs.replace(source, weight=float(factor))
        else:
            whole = factor == int(factor)
            yield msgspec.structs.replace(source, repetitions=int(factor) if whole else float(factor))
    else:
        raise ConfigError(f"order='energon': Energon has no order for {data!r} within a blend")


def _source(data: Dataset | Mix) -> EnergonSource:
    subset: SubsetRange | None = None
    dataset = data
    if isinstance(data, Subset):
        subset, dataset = data.subset, data.dataset
    bounds = getattr(dataset, "shard_bounds", None)
    if bounds is None:
        raise ConfigError(f"order='energon': {dataset!r} has no shards; only stores of samples have")
    if getattr(getattr(dataset, "store", None), "num_left_out", 0):
        raise ConfigError(
            f"order='energon': the split of {dataset!r} leaves samples out, and Energon counts them; choose another "
            "order"
        )
    return EnergonSource(shard_counts=tuple(np.diff(bounds).tolist()), subset=subset)
