"""Blocks of neighbours in another order, then samples in another order within windows of blocks.

The last block may be short by ``missing`` samples. It lands in some slot, and all slots after that one begin earlier by
as many: with blocks [0 1 2] [3 4 5] [6 7] in slots (1, 2, 0), the slots begin at ranks 0, 3, 5.
"""

from __future__ import annotations

import numpy as np

from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.permutation import one_if_equal, permute, unpermute


def block_indices(
    ranks: IntArray, epoch_keys: KeyArray, num_samples: int, block_samples: int, window_blocks: int
) -> IntArray:
    """(n,) int64: the sample at each rank of an epoch; ``epoch_keys`` is (n,) uint64."""
    slots = _Slots(len(ranks), epoch_keys, num_samples, block_samples, window_blocks)
    places = slots.exchanged(ranks, slots.slot_of(ranks), epoch_keys, inverse=False)
    at = slots.slot_of(places)
    return permute(at, slots.num_blocks, slots.keys) * slots.block + (places - slots.begin(at))


def block_ranks(
    indices: IntArray, epoch_keys: KeyArray, num_samples: int, block_samples: int, window_blocks: int
) -> IntArray:
    """(n,) int64: the rank of each sample; undoes ``block_indices``."""
    slots = _Slots(len(indices), epoch_keys, num_samples, block_samples, window_blocks)
    blocks = indices // slots.block
    at = unpermute(blocks, slots.num_blocks, slots.keys)
    places = slots.begin(at) + (indices - blocks * slots.block)
    return slots.exchanged(places, at, epoch_keys, inverse=True)


def block_window_begins(
    windows: IntArray, epoch_keys: KeyArray, num_samples: int, block_samples: int, window_blocks: int
) -> IntArray:
    """(n,) int64: the rank at which each window of blocks begins, of those from 0 to their number."""
    slots = _Slots(len(windows), epoch_keys, num_samples, block_samples, window_blocks)
    return slots.begin(np.minimum(windows * window_blocks, slots.num_blocks))


class _Slots:
    """Where the slots of the blocks begin, in the epoch of each of n values."""

    def __init__(
        self, num_values: int, epoch_keys: KeyArray, num_samples: int, block_samples: int, window_blocks: int
    ) -> None:
        self.block = min(block_samples, num_samples)
        self.num_blocks = -(-num_samples // self.block)
        self.keys = one_if_equal(derive_array(epoch_keys, np.zeros(1, dtype=np.int64)))
        self._window = window_blocks
        self._missing = self.num_blocks * self.block - num_samples
        last = np.full(num_values, self.num_blocks - 1, dtype=np.int64)
        self._short_slot = unpermute(last, self.num_blocks, self.keys)

    def begin(self, slots: IntArray) -> IntArray:
        begins: IntArray = slots * self.block - np.where(slots > self._short_slot, self._missing, 0)
        return begins

    def slot_of(self, places: IntArray) -> IntArray:
        before = places < self.begin(self._short_slot + 1)
        slots: IntArray = np.where(before, places, places + self._missing) // self.block
        return slots

    def exchanged(self, values: IntArray, slots: IntArray, epoch_keys: KeyArray, *, inverse: bool) -> IntArray:
        """Ranks to places within the windows of these slots, or back."""
        apply = unpermute if inverse else permute
        windows = slots // self._window
        window_begin = self.begin(windows * self._window)
        window_length = self.begin(np.minimum((windows + 1) * self._window, self.num_blocks)) - window_begin
        window_keys = derive_array(epoch_keys, windows + 1)
        exchanged = values.copy()
        for length in np.unique(window_length).tolist():
            chosen = np.flatnonzero(window_length == length)
            offsets = (values - window_begin)[chosen]
            exchanged[chosen] = window_begin[chosen] + apply(offsets, length, one_if_equal(window_keys[chosen]))
        return exchanged
