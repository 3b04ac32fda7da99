"""Megatron's cyclic sampler as a function of the position, so that any number of ranks can go on in its order.

Its epochs are made for a micro-batch size and a number of ranks. Positions are numbered as the ranks take them, one
micro-batch after another: what lies at a position is what that rank would have taken there.

    21 samples, 2 ranks, micro-batches of 2      rank 0 takes [4 1] [7 5] ...     rank 1 takes [14 11] [17 15] ...
    positions 0 to 7                             samples 4 1 14 11 7 5 17 15      20 of the 21 are an epoch

Source: Megatron-LM, ``MegatronPretrainingRandomSampler``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.randperm import torch_randperm

_MAX_EPOCHS = 1 << 32
"""The seed of an epoch is its number, and seeds are 32 bits."""
_MAX_POSITIONS = 1 << 62
_KEPT = 2
"""Epochs whose permutations are kept: what is read ahead lies in the next."""


class CyclicOrder:
    """Positions 0, 1, 2, ... of all epochs -> samples 0 .. num_samples - 1.

    Args:
        num_samples: of the dataset; those that fill no micro-batch of all ranks are left out of each epoch.
        micro_batch_size, data_parallel_size: of the run whose order this is.
        data_sharding: each rank shuffles a part of the samples of its own; without, all are shuffled and dealt out.

    The permutation of an epoch is made when it is first asked for, `torch_randperm` of ``num_samples`` or, with
    ``data_sharding``, of a rank's part of them; the last two are kept, 4 bytes an element. Any other look-up is
    arithmetic.

    Raises:
        ConfigError: a number is below 1, or the samples are fewer than one micro-batch of all ranks.
    """

    def __init__(
        self, num_samples: int, *, micro_batch_size: int, data_parallel_size: int, data_sharding: bool = True
    ) -> None:
        self.num_samples = num_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_size = data_parallel_size
        self.data_sharding = data_sharding
        self.num_samples_per_epoch = cyclic_epoch_samples(num_samples, micro_batch_size, data_parallel_size)
        self._together = micro_batch_size * data_parallel_size
        if data_sharding:
            self._num_shuffled = self.num_samples_per_epoch // data_parallel_size
        else:
            self._num_shuffled = num_samples // micro_batch_size * micro_batch_size
        self._kept: dict[int, NDArray[np.integer[Any]]] = {}

    def __len__(self) -> int:
        """Positions of all epochs that there are seeds for, 2^32, or below 2^62."""
        return min(_MAX_EPOCHS, _MAX_POSITIONS // self.num_samples_per_epoch) * self.num_samples_per_epoch

    def __getstate__(self) -> dict[str, Any]:
        """Without the permutations: another process makes those that it needs."""
        return {**self.__dict__, "_kept": {}}

    def locate(self, positions: IntArray) -> IntArray:
        """(n,) int64: the sample at each of (n,) int64 ``positions``, 0 to len - 1."""
        chunks, within = np.divmod(positions, self._together)
        ranks, rows = np.divmod(within, self.micro_batch_size)
        epochs, chunks = np.divmod(chunks, self.num_samples_per_epoch // self._together)
        if self.data_sharding:
            places = chunks * self.micro_batch_size + rows
        else:
            # Rank r takes every so manieth, from r on.
            places = chunks * self._together + rows * self.data_parallel_size + ranks
        samples = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            samples[mine] = self._permutation(epoch)[places[mine]]
        if self.data_sharding:
            samples += ranks * self._num_shuffled
        return samples

    def _permutation(self, epoch: int) -> NDArray[np.integer[Any]]:
        found = self._kept.get(epoch)
        if found is None:
            small = self._num_shuffled < 1 << 31
            found = torch_randperm(self._num_shuffled, epoch).astype(np.int32 if small else np.int64)
            # A new dict each time: another thread may be reading the old one.
            self._kept = dict([*self._kept.items(), (epoch, found)][-_KEPT:])
        return found


def cyclic_epoch_samples(num_samples: int, micro_batch_size: int, data_parallel_size: int) -> int:
    """The samples of an epoch: as many as fill micro-batches of all ranks.

    Raises:
        ConfigError: a number is below 1, or there are none.
    """
    if micro_batch_size < 1 or data_parallel_size < 1:
        raise ConfigError(
            f"micro_batch_size and data_parallel_size are at least 1, found {micro_batch_size} and {data_parallel_size}"
        )
    active = num_samples - num_samples % (micro_batch_size * data_parallel_size)
    if active < 1:
        raise ConfigError(
            f"{num_samples:,} samples are fewer than one micro-batch of all ranks, {data_parallel_size} times"
            f" {micro_batch_size}"
        )
    return active
