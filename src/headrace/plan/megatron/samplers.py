"""Megatron's two samplers: which samples of a dataset each data-parallel rank takes.

    20 samples, 4 consumed, 2 ranks, micro-batches of 2
    single     rank 0: [4 5] [8 9] [12 13] [16 17]      rank 1: [6 7] [10 11] [14 15] [18 19]

The whole state is the number of samples consumed. The samples of ``single`` come in the same order for any number of
ranks. The order of ``cyclic`` depends on the number of ranks, and changing it in the middle of an epoch is mostly
refused.

`CyclicOrder` is the cyclic order as a function of the position, so that a run can continue in it on any number of
ranks. Its epochs are made for a micro-batch size and a number of ranks. Positions are numbered as these ranks take
them, one micro-batch after another, so that a position has the sample that its rank would have taken there:

    21 samples, 2 ranks, micro-batches of 2      rank 0 takes [4 1] [7 5] ...     rank 1 takes [14 11] [17 15] ...
    positions 0 to 7                             samples 4 1 14 11 7 5 17 15      20 of the 21 are an epoch

Source: Megatron-LM, ``MegatronPretrainingSampler`` and ``MegatronPretrainingRandomSampler``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.slots import Share
from headrace.plan.torch_draws import torch_randperm

_MAX_EPOCHS = 1 << 32
"""The seed of an epoch is its number, and seeds are 32 bits."""
_MAX_POSITIONS = 1 << 62
_KEPT = 2
"""How many permutations of epochs are kept: read-ahead may already be in the next epoch."""


class CyclicOrder:
    """The order of Megatron's cyclic sampler: positions 0, 1, 2, ... of all epochs -> samples 0 .. num_samples - 1.

    Args:
        num_samples: the number of samples in the dataset; samples that do not fill a micro-batch of all ranks are left
            out of each epoch.
        micro_batch_size, data_parallel_size: those of the run whose order this is.
        data_sharding: if True, each rank shuffles its own part of the samples; if False, all samples are shuffled and
            distributed in turn.

    The permutation of an epoch is made when it is first needed. It is `torch_randperm` of ``num_samples`` elements or,
    with ``data_sharding``, of a rank's part of them. The last two are kept, with 4 bytes an element. Everything else is
    arithmetic.

    Raises:
        ConfigError: a number is below 1, or there are fewer samples than one micro-batch of all ranks.

    Example:
        >>> order = headrace.plan.megatron.CyclicOrder(21, micro_batch_size=2, data_parallel_size=2)
        >>> order.num_samples_per_epoch, len(set(order.locate(np.arange(20)).tolist()))
        (20, 20)
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
        """Return the number of positions: those of 2^32 epochs, since seeds have 32 bits, but at most 2^62."""
        return min(_MAX_EPOCHS, _MAX_POSITIONS // self.num_samples_per_epoch) * self.num_samples_per_epoch

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the permutations: another process makes those that it needs."""
        return {**self.__dict__, "_kept": {}}

    def locate(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: the sample at each of (n,) int64 ``positions``, from 0 to ``len(self) - 1``."""
        chunks, within = np.divmod(positions, self._together)
        ranks, rows = np.divmod(within, self.micro_batch_size)
        epochs, chunks = np.divmod(chunks, self.num_samples_per_epoch // self._together)
        if self.data_sharding:
            places = chunks * self.micro_batch_size + rows
        else:
            # Rank r takes the samples r, r + data_parallel_size, r + 2 * data_parallel_size, ... of the permutation.
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
            # Make a new dict each time, since another thread may be reading the old one.
            self._kept = dict([*self._kept.items(), (epoch, found)][-_KEPT:])
        return found


def cyclic_epoch_samples(num_samples: int, micro_batch_size: int, data_parallel_size: int) -> int:
    """Return the number of samples in an epoch: as many as fill micro-batches of all ranks.

    Raises:
        ConfigError: a number is below 1, or there are fewer samples than one micro-batch of all ranks.
    """
    if micro_batch_size < 1 or data_parallel_size < 1:
        raise ConfigError(
            f"micro_batch_size and data_parallel_size must be at least 1, found {micro_batch_size} and "
            f"{data_parallel_size}"
        )
    active = num_samples - num_samples % (micro_batch_size * data_parallel_size)
    if active < 1:
        raise ConfigError(
            f"{num_samples:,} samples are fewer than one micro-batch of all ranks, which has {data_parallel_size} times"
            f" {micro_batch_size} samples"
        )
    return active


def single_batches(
    total_samples: int, consumed_samples: int, share: Share, *, drop_last: bool = True
) -> Iterator[IntArray]:
    """Yield (micro_batch_size,) int64 for each micro-step of a rank: the samples in order from ``consumed_samples`` on.

    In each micro-step all ranks together take the next ``world_size * micro_batch_size`` samples, and rank r takes part
    r of them. With ``drop_last=False`` the rest at the end is assigned in the same way, so that the last ranks may get
    fewer samples or none.

    Raises:
        ConfigError: no samples are left, or a number is out of range; raised by the call, before the first batch.
    """
    _check(total_samples, consumed_samples, share)
    if consumed_samples >= total_samples:
        raise ConfigError(
            f"{consumed_samples:,} of {total_samples:,} samples are consumed, and none is left: ask for more samples"
        )
    return _single(total_samples, consumed_samples, share, drop_last)


def cyclic_batches(
    total_samples: int, consumed_samples: int, share: Share, *, data_sharding: bool = True
) -> Iterator[IntArray]:
    """Yield (micro_batch_size,) int64 for each micro-step of a rank, to the end of the epoch.

    The next call begins another epoch. Samples that do not fill a micro-batch of all ranks are left out. Epoch e is
    shuffled by ``torch.randperm`` with seed e, whatever the seed of the run. With ``data_sharding`` each rank shuffles
    its own part of the samples; without it all samples are shuffled and distributed in turn.

    Without ``data_sharding``, some ranks may get one batch more than others if ``total_samples`` is not a multiple of
    ``world_size * micro_batch_size``. This is as in Megatron, whose ranks then continue from different places.
    `CyclicOrder` leaves that batch out.

    Raises:
        ConfigError: there are fewer samples than one micro-batch of all ranks, ``consumed_samples`` is not a multiple
            of its size, or a number is out of range; raised by the call, before the first batch.
    """
    _check(total_samples, consumed_samples, share)
    together = share.world_size * share.micro_batch_size
    epoch, within = divmod(
        consumed_samples, cyclic_epoch_samples(total_samples, share.micro_batch_size, share.world_size)
    )
    if within % together:
        raise ConfigError(
            f"{consumed_samples:,} samples are consumed, {within:,} of them in epoch {epoch}, which is not a multiple"
            f" of {together:,} ({share.world_size} ranks times {share.micro_batch_size}): the number of ranks or the"
            " micro-batch size has changed; restore the old ones, or begin at the start of an epoch"
        )
    return _cyclic(total_samples, epoch, within, share, data_sharding)


def _single(total: int, consumed: int, share: Share, drop_last: bool) -> Iterator[IntArray]:
    size = share.micro_batch_size
    together = share.world_size * size
    for first in range(consumed, total, together):
        if first + together > total and drop_last:
            return
        begin = min(first + share.rank * size, total)
        yield np.arange(begin, min(begin + size, total), dtype=np.int64)


def _cyclic(total: int, epoch: int, within: int, share: Share, data_sharding: bool) -> Iterator[IntArray]:
    size, ranks = share.micro_batch_size, share.world_size
    if data_sharding:
        bucket = total // (ranks * size) * size
        mine = share.rank * bucket + torch_randperm(bucket, epoch)[within // ranks :]
    else:
        mine = torch_randperm(total // size * size, epoch)[within:][share.rank :: ranks]
    for first in range(0, len(mine) - size + 1, size):
        yield mine[first : first + size]


def _check(total_samples: int, consumed_samples: int, share: Share) -> None:
    if total_samples < 1 or consumed_samples < 0:
        raise ConfigError(
            f"total_samples must be at least 1 and consumed_samples at least 0, found {total_samples} and "
            f"{consumed_samples}"
        )
    if share.micro_batch_size < 1 or not 0 <= share.rank < share.world_size:
        raise ConfigError(
            f"the rank is {share.rank} of {share.world_size} with micro-batches of {share.micro_batch_size}; a rank"
            " must be from 0 to world_size - 1, and a micro-batch at least 1"
        )
