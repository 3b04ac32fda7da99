"""The order in which one epoch of a source is read: rank within the epoch -> sample index.

The order ``blocks`` permutes blocks of neighbouring samples, and then the samples within windows of blocks. The last
block may be short by ``missing`` samples. Wherever it lands, all slots after its slot begin that much earlier: with
blocks [0 1 2] [3 4 5] [6 7] in slots (1, 2, 0), the slots begin at ranks 0, 3, 5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.config import check_choice
from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.permutation import one_if_equal, permute, unpermute
from headrace.plan.shards import Shards, VirtualShards


class BlockOrder:
    """The order ``blocks`` of one source, for n values whose epochs have the keys ``epoch_keys``, (n,) uint64."""

    def __init__(self, epoch_keys: KeyArray, num_samples: int, block_samples: int, window_blocks: int) -> None:
        self._epoch_keys = epoch_keys
        self._block = min(block_samples, num_samples)
        self._num_blocks = -(-num_samples // self._block)
        self._keys = one_if_equal(derive_array(epoch_keys, np.zeros(1, dtype=np.int64)))
        self._window = window_blocks
        self._missing = self._num_blocks * self._block - num_samples
        last = np.full(len(epoch_keys), self._num_blocks - 1, dtype=np.int64)
        self._short_slot = unpermute(last, self._num_blocks, self._keys)

    def indices(self, ranks: IntArray) -> IntArray:
        """Return (n,) int64: the sample at each rank of an epoch."""
        places = self._exchanged(ranks, self._slot_of(ranks), inverse=False)
        slots = self._slot_of(places)
        return permute(slots, self._num_blocks, self._keys) * self._block + (places - self._begin(slots))

    def ranks(self, indices: IntArray) -> IntArray:
        """Return (n,) int64: the rank of each sample; undoes ``indices``."""
        blocks = indices // self._block
        slots = unpermute(blocks, self._num_blocks, self._keys)
        places = self._begin(slots) + (indices - blocks * self._block)
        return self._exchanged(places, slots, inverse=True)

    def window_begins(self, windows: IntArray) -> IntArray:
        """Return (n,) int64: the rank at which each window of blocks begins.

        Windows are numbered from 0; the number of windows itself is allowed and returns the end of the epoch.
        """
        return self._begin(np.minimum(windows * self._window, self._num_blocks))

    def _begin(self, slots: IntArray) -> IntArray:
        begins: IntArray = slots * self._block - np.where(slots > self._short_slot, self._missing, 0)
        return begins

    def _slot_of(self, places: IntArray) -> IntArray:
        before = places < self._begin(self._short_slot + 1)
        slots: IntArray = np.where(before, places, places + self._missing) // self._block
        return slots

    def _exchanged(self, values: IntArray, slots: IntArray, *, inverse: bool) -> IntArray:
        """Map ranks to places within the windows of these slots, or back with ``inverse``."""
        apply = unpermute if inverse else permute
        windows = slots // self._window
        begins = self.window_begins(windows)
        lengths = self.window_begins(windows + 1) - begins
        keys = derive_array(self._epoch_keys, windows + 1)
        exchanged = values.copy()
        for length in np.unique(lengths).tolist():
            chosen = np.flatnonzero(lengths == length)
            offsets = (values - begins)[chosen]
            exchanged[chosen] = begins[chosen] + apply(offsets, length, one_if_equal(keys[chosen]))
        return exchanged


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of the samples of every source, and the seed of the run.

    ``kind``:
        ``full``    each epoch is a permutation of all samples, a different one every epoch;
        ``blocks``  blocks of ``block_samples`` neighbours are permuted, then the samples within every window of
                    ``window_blocks`` blocks: reads stay near each other, as slow disks and object stores need it;
        ``shards``  slices of at most ``max_samples_per_sequence`` neighbours of one shard, whose borders move every
                    epoch, are permuted so that each window has about ``parallel_shard_iters`` of them, from as many
                    different shards as possible; then the samples within each window are permuted;
        ``none``    sample 0, 1, 2, ..., the same in every epoch.

    Example:
        >>> order = headrace.Order(kind="blocks", seed=1, block_samples=256)
        >>> order.recipe
        {'kind': 'blocks', 'seed': 1, 'block_samples': 256, 'window_blocks': 16}
        >>> headrace.Order(kind="none").recipe
        {'kind': 'none'}
    """

    kind: Literal["full", "blocks", "shards", "none"] = "full"
    seed: int = 0
    block_samples: int = 1024
    window_blocks: int = 16
    max_samples_per_sequence: int = 100
    parallel_shard_iters: int = 128

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown kind, a seed that is not an integer, or sizes out of range."""
        if not isinstance(self.seed, int):
            raise ConfigError(f"seed is {self.seed!r}; a seed is any integer")
        check_choice("order kind", self.kind, _MATTERS)
        if self.block_samples < 1 or self.window_blocks < 1:
            raise ConfigError(
                f"block_samples and window_blocks are at least 1, found {self.block_samples} and {self.window_blocks}"
            )
        if not 1 <= self.max_samples_per_sequence <= _MAX_WINDOW // max(1, self.parallel_shard_iters):
            raise ConfigError(
                "max_samples_per_sequence and parallel_shard_iters are at least 1, and their product is at most 2^31 "
                f"samples, found {self.max_samples_per_sequence} and {self.parallel_shard_iters}"
            )
        if self.parallel_shard_iters < 1:
            raise ConfigError(f"parallel_shard_iters is at least 1, found {self.parallel_shard_iters}")

    @property
    def recipe(self) -> dict[str, Any]:
        """The fields that decide anything: sizes only for blocks or shards, the seed only for orders that draw."""
        every = msgspec.to_builtins(self)
        versions = {"version": 1} if self.kind == "shards" else {}
        return {name: every[name] for name in _MATTERS[self.kind]} | versions

    def indices(
        self, ranks: IntArray, epoch_keys: KeyArray, num_samples: int, shards: Shards | None = None
    ) -> IntArray:
        """Return (n,) int64: the sample index at each rank of an epoch.

        ``ranks`` is (n,) int64 in [0, num_samples); ``epoch_keys`` is (n,) uint64, the key of the epoch of each rank.
        Only ``kind="shards"`` uses the shards; without them, all samples are one shard.
        """
        if self.kind == "none":
            return ranks
        if self.kind == "full":
            return permute(ranks, num_samples, one_if_equal(epoch_keys))
        if self.kind == "blocks":
            return self.blocks(num_samples, epoch_keys).indices(ranks)
        return self.virtual_shards(num_samples, shards).indices(ranks, epoch_keys)

    def ranks(
        self, indices: IntArray, epoch_keys: KeyArray, num_samples: int, shards: Shards | None = None
    ) -> IntArray:
        """Return (n,) int64: the rank of each sample index within its epoch; undoes ``indices`` at the same cost."""
        if self.kind == "none":
            return indices
        if self.kind == "full":
            return unpermute(indices, num_samples, one_if_equal(epoch_keys))
        if self.kind == "blocks":
            return self.blocks(num_samples, epoch_keys).ranks(indices)
        return self.virtual_shards(num_samples, shards).ranks(indices, epoch_keys)

    def blocks(self, num_samples: int, epoch_keys: KeyArray) -> BlockOrder:
        """Return the blocks and windows of a source, for ``kind="blocks"``."""
        return BlockOrder(epoch_keys, num_samples, self.block_samples, self.window_blocks)

    def virtual_shards(self, num_samples: int, shards: Shards | None) -> VirtualShards:
        """Return the slices and windows of a source, for ``kind="shards"``; the last 4,096 of these are cached."""
        borders = Shards.whole(num_samples) if shards is None else shards
        return _virtual_shards(borders, self.max_samples_per_sequence, self.parallel_shard_iters)


_MAX_WINDOW = 1 << 31

_MATTERS = {
    "full": ("kind", "seed"),
    "blocks": ("kind", "seed", "block_samples", "window_blocks"),
    "none": ("kind",),
    "shards": ("kind", "seed", "max_samples_per_sequence", "parallel_shard_iters"),
}
"""The kinds of order, each with the fields that matter for it."""

_virtual_shards = lru_cache(maxsize=4096)(VirtualShards)
