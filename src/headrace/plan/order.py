"""In which order one epoch of a source is gone through: rank within the epoch -> sample index."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.permutation import permute, unpermute


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of the samples of every source, and the seed of the run.

    ``kind``:
        ``full``    each epoch is a permutation of all samples, another one every epoch;
        ``blocks``  blocks of ``block_samples`` neighbours are permuted, then the samples within every window of
                    ``window_blocks`` blocks: reads stay near each other, for disks and stores that want it;
        ``none``    sample 0, 1, 2, ... in every epoch, and every epoch the same: no phases either.
    """

    kind: Literal["full", "blocks", "none"] = "full"
    seed: int = 0
    block_samples: int = 1024
    window_blocks: int = 16

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown kind, a seed that is no integer, or sizes below 1."""
        if not isinstance(self.seed, int):
            raise ConfigError(f"seed is {self.seed!r}; a seed is any integer")
        if self.kind not in ("full", "blocks", "none"):
            raise ConfigError(f"order kind is {self.kind!r}; allowed are 'full', 'blocks', 'none'")
        if self.block_samples < 1 or self.window_blocks < 1:
            raise ConfigError(
                f"block_samples and window_blocks are at least 1, found {self.block_samples} and {self.window_blocks}"
            )

    def indices(self, ranks: IntArray, epoch_keys: KeyArray, num_samples: int) -> IntArray:
        """(n,) int64: the sample index at each rank of an epoch.

        ``ranks`` is (n,) int64 in [0, num_samples); ``epoch_keys`` (n,) uint64, the key of the epoch of each.
        """
        if self.kind == "none":
            return ranks
        if self.kind == "full":
            return permute(ranks, num_samples, _one_if_equal(epoch_keys))
        return _by_blocks(ranks, epoch_keys, num_samples, min(self.block_samples, num_samples), self.window_blocks)


def _one_if_equal(keys: KeyArray) -> int | KeyArray:
    """A chunk of positions mostly lies in one epoch; one key is cheaper than many equal ones."""
    if keys.size and bool((keys == keys[0]).all()):
        return int(keys[0])
    return keys


def _by_blocks(ranks: IntArray, epoch_keys: KeyArray, num_samples: int, block: int, window: int) -> IntArray:
    """Permuted blocks in slots, then samples permuted within each window of slots.

    The last block may be short by ``missing`` samples. It lands in some slot, and all slots after that one begin
    earlier by as many: with blocks [0 1 2] [3 4 5] [6 7] in slots (1, 2, 0), the slots begin at ranks 0, 3, 5.
    """
    num_blocks = -(-num_samples // block)
    missing = num_blocks * block - num_samples
    block_keys = _one_if_equal(derive_array(epoch_keys, np.zeros(1, dtype=np.int64)))
    short_slot = unpermute(np.full_like(ranks, num_blocks - 1), num_blocks, block_keys)

    def begin(slots: IntArray) -> IntArray:
        return slots * block - np.where(slots > short_slot, missing, 0)

    def slot_of(places: IntArray) -> IntArray:
        return np.where(places < begin(short_slot + 1), places, places + missing) // block

    windows = slot_of(ranks) // window
    window_begin = begin(windows * window)
    window_length = begin(np.minimum((windows + 1) * window, num_blocks)) - window_begin
    window_keys = derive_array(epoch_keys, windows + 1)
    places = ranks.copy()
    for length in np.unique(window_length).tolist():
        chosen = np.flatnonzero(window_length == length)
        offsets = (ranks - window_begin)[chosen]
        places[chosen] = window_begin[chosen] + permute(offsets, length, _one_if_equal(window_keys[chosen]))
    slots = slot_of(places)
    return permute(slots, num_blocks, block_keys) * block + (places - begin(slots))
