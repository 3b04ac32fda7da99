"""All samples that were found -> their keys, those that are there twice, their order, and the shards they go to.

survey of task 0, 1, 2, ...          in the order of the input, whatever the workers did
  -> number, key, bytes in a tar     a sample a row
  -> duplicates out
  -> order                           of the input, or a permutation
  -> cuts                            by counts and bytes; each part of a split begins a shard
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import xxhash

from headrace.plan.keys import source_key
from headrace.plan.permutation import permute
from headrace.prepare.shards.messages import FoundSample
from headrace.prepare.shards.naming import numbered
from headrace.prepare.shards.options import SPLIT_NAMES, ShardOutput
from headrace.stores.arguments import IntArray
from headrace.stores.tar.writer import member_bytes

GOOD: Final = 0
BAD: Final = 1
DUPLICATE: Final = 2


class Gathered:
    """Takes the samples in the order of the input; 41 bytes a sample."""

    def __init__(self) -> None:
        self._low, self._high = array("Q"), array("Q")
        self._tar_bytes, self._content_bytes = array("q"), array("q")
        self._fates = bytearray()

    def __len__(self) -> int:
        return len(self._fates)

    def add(self, sample: FoundSample) -> None:
        """Take the next sample."""
        key = self.key(sample, len(self._fates))
        digest = xxhash.xxh3_128_intdigest(key.encode()) if not sample.bad else 0
        self._low.append(digest & (1 << 64) - 1)
        self._high.append(digest >> 64)
        self._fates.append(BAD if sample.bad else GOOD)
        size = 0 if sample.bad else sum(member_bytes(f"{key}.{part.name}", part.size) for part in sample.parts)
        self._tar_bytes.append(size)
        self._content_bytes.append(sum(part.size for part in sample.parts))

    @staticmethod
    def key(sample: FoundSample, number: int) -> str:
        """The key of sample ``number``, bad ones counted."""
        return sample.key or numbered(number)

    def fates(self) -> tuple[IntArray, IntArray]:
        """(n,) what becomes of each sample: `GOOD`, `BAD` or `DUPLICATE`; (n,) of a duplicate, the first of its key.

        Keys are told apart by 128 bits of hash: among 10^12 keys two that are not equal are met once in 10^15 times.
        """
        fates = np.frombuffer(self._fates, np.uint8).astype(np.int64)
        firsts = np.arange(len(fates))
        good = np.flatnonzero(fates == GOOD)
        low, high = (np.frombuffer(half, np.uint64)[good] for half in (self._low, self._high))
        order = np.lexsort((low, high))  # stable: of equal ones the first comes first
        low, high = low[order], high[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        heads = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
        firsts[good[order]] = good[order[heads]]
        fates[firsts != np.arange(len(fates))] = DUPLICATE
        return fates, firsts

    @property
    def tar_bytes(self) -> IntArray:
        """(n,) int64: what each sample takes in a tar."""
        return np.array(self._tar_bytes, np.int64)

    @property
    def content_bytes(self) -> IntArray:
        """(n,) int64: what is in the parts of each sample."""
        return np.array(self._content_bytes, np.int64)


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the shards begin among the samples of the output.

    Attributes:
        bounds: (shards + 1,) shard s holds the samples ``[bounds[s], bounds[s + 1])``.
        splits: name of the part -> ``[first shard, end)``.
    """

    bounds: tuple[int, ...]
    splits: dict[str, tuple[int, int]]

    @property
    def num_shards(self) -> int:
        """Shards of all parts."""
        return len(self.bounds) - 1


def output_order(kept: IntArray, seed: int | None) -> IntArray:
    """(kept,) int64: the samples that are kept, as they stand in the output.

    Args:
        kept: (kept,) int64, their numbers, ascending.
        seed: of the shuffle; None leaves them as they are.
    """
    if seed is None:
        return kept
    ranks = np.arange(len(kept))
    return kept[permute(ranks, len(kept), source_key(seed, "", "prepare shuffle"))]


def plan_shards(sizes: IntArray, output: ShardOutput) -> ShardPlan:
    """Cut samples into shards, in their order: each shard as full as it may be, each part of the split in its own.

    Five samples of 4 bytes, at most 10 bytes a shard, split 4 to 1: ``[0, 2) [2, 4)`` are train, ``[4, 5)`` val.

    Args:
        sizes: (samples,) int64, bytes of each in a tar, in the order of the output.
        output: how large shards are, and the shares of the parts.
    """
    shares = output.split_ratio or (1.0,)
    ends = split_ends(len(sizes), shares)
    bounds, splits = [0], {}
    for name, begin, end in zip(SPLIT_NAMES, [0, *ends], ends, strict=False):
        first = len(bounds) - 1
        bounds += cut(sizes[begin:end], begin, max_samples=output.samples_per_shard, max_bytes=output.shard_bytes)
        splits[name] = (first, len(bounds) - 1)
    for name in SPLIT_NAMES[len(shares) :]:
        splits[name] = (len(bounds) - 1, len(bounds) - 1)
    return ShardPlan(bounds=tuple(bounds), splits=splits)


def split_ends(num_samples: int, shares: Sequence[float]) -> list[int]:
    """Where each part of a split ends: the sums of the shares, rounded down; the last one has what is left.

    >>> split_ends(10, (8, 1, 1))
    [8, 9, 10]
    """
    from fractions import Fraction

    total = sum(map(Fraction, shares))
    sums = [sum(map(Fraction, shares[: count + 1])) for count in range(len(shares))]
    return [int(num_samples * part / total) for part in sums]


def cut(sizes: IntArray, begin: int, *, max_samples: int | None, max_bytes: int | None) -> list[int]:
    """Where the shards of a run of samples end; ``begin`` is the number of its first."""
    sums = np.concatenate([[0], np.cumsum(sizes)])
    ends, at = [], 0
    while at < len(sizes):
        end = len(sizes) if max_samples is None else min(at + max_samples, len(sizes))
        if max_bytes is not None:
            end = min(end, int(np.searchsorted(sums, sums[at] + max_bytes, side="right")) - 1)
        at = max(end, at + 1)
        ends.append(begin + at)
    return ends
