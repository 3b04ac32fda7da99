"""Measures of an order, taken on some windows of an epoch: how well it mixes, and how contiguous its reads are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.plan.keys import IntArray, source_key
from headrace.plan.order import Order, Shards

_MEASURED = 1 << 18
"""About how many samples are measured; more if a single window is larger."""

_STRETCHES = 8

_UNIFORM_MEDIAN = 1 - 0.5**0.5
"""The median distance between two uniformly random places, in epochs."""


class OrderQuality(NamedTuple):
    """What an order does to the samples of a source.

    Attributes:
        same_shard_pairs: the rate of pairs in a batch that come from one shard, divided by that of a uniform
            permutation of ``open_shards`` shards. 1 is mixed as well as that; more is worse.
        same_shard_pairs_of_all: the same, divided by the rate of a uniform permutation of all samples.
        open_shards: how many shards the order reads from at once; at most the number of shards.
        displacement: the median distance between the place of a sample in an epoch and its place on disk, or its
            place in the epoch before, whichever is less, divided by the median of uniform permutations.
        mean_run_samples: the mean number of samples that are neighbours in one shard and are read together, by a
            reader that reads each window of an order as a whole (with ``full``, each batch).
    """

    same_shard_pairs: float
    same_shard_pairs_of_all: float
    open_shards: int
    displacement: float
    mean_run_samples: float


def order_quality(
    order: Order, num_samples: int, shards: Shards | None = None, *, batch_samples: int = 256, path: str = ""
) -> OrderQuality:
    """Measure an order on about 2^18 samples, in some stretches of the epochs 0 and 1 of a source.

    Takes about a tenth of a second.
    """
    borders = Shards.whole(num_samples) if shards is None else shards
    key = source_key(order.seed, path, "order")
    pairs = samples = runs = 0
    same = 0
    distances: tuple[list[IntArray], list[IntArray]] = [], []
    keys = order.epoch_keys(key, np.arange(2))
    for windows in _stretches(order, num_samples, borders, int(keys[1]), batch_samples):
        ranks = np.arange(windows[0], windows[-1], dtype=np.int64)
        indices = order.indices(ranks, np.full(ranks.shape, keys[1]), num_samples, borders)
        before = order.ranks(indices, np.full(ranks.shape, keys[0]), num_samples, borders)
        distances[0].append(np.abs(ranks - indices))
        distances[1].append(np.abs(ranks - before))
        found = borders.shard_of(indices)
        for begin in range(0, len(ranks), batch_samples):
            counts = np.unique(found[begin : begin + batch_samples], return_counts=True)[1]
            same += int((counts * (counts - 1)).sum())
            pairs += int(counts.sum()) * (int(counts.sum()) - 1)
        for begin, end in zip(windows[:-1] - windows[0], windows[1:] - windows[0], strict=True):
            together = np.sort(indices[begin:end])
            apart = (np.diff(together) != 1) | (np.diff(borders.shard_of(together)) != 0)
            runs += int(apart.sum()) + 1
        samples += len(ranks)
    sizes = np.diff(borders.bounds).astype(np.float64)
    uniform = float((sizes * (sizes - 1)).sum()) / (num_samples * max(1.0, num_samples - 1.0))
    open_shards = min(len(borders), order.open_places(num_samples))
    rate = same / max(1, pairs)
    return OrderQuality(
        same_shard_pairs=rate / max(uniform, 1 / open_shards),
        same_shard_pairs_of_all=rate / uniform if uniform else float(rate > 0),
        open_shards=open_shards,
        displacement=min(float(np.median(np.concatenate(each))) for each in distances)
        / (num_samples * _UNIFORM_MEDIAN),
        mean_run_samples=samples / runs,
    )


def _stretches(order: Order, num_samples: int, shards: Shards, key: int, batch_samples: int) -> list[IntArray]:
    """Return the borders of neighbouring windows at some places of an epoch, (num_windows + 1,) int64 ranks each."""
    made = order.of_source(num_samples, shards)
    total = made.num_windows or -(-num_samples // batch_samples)
    measured = max(1, min(total, _MEASURED * total // num_samples))
    number = min(_STRETCHES, measured)
    together = measured // number
    stretches = []
    for stretch in range(number):
        first = (total - together) * stretch // max(1, number - 1)
        numbers = np.arange(first, first + together + 1, dtype=np.int64)
        batches = np.minimum(numbers * batch_samples, num_samples)
        stretches.append(made.window_begins(numbers, key) if made.num_windows else batches)
    return stretches
