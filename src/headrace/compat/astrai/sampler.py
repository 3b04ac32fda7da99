"""AstrAI's ``ResumableDistributedSampler``: the order of indices of each rank, for a ``DataLoader`` of your own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING

import numpy as np

from headrace.config import whole
from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.plan.torch_draws import torch_randperm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ResumableDistributedSampler:
    """Yields this rank's indices of an epoch, and begins the next epoch when it is iterated again.

    An epoch is ``torch.randperm`` with the seed ``seed + epoch``, or 0, 1, 2, ... without ``shuffle``. It is extended
    from its beginning to a multiple of the number of ranks, or with ``drop_last`` cut to one. Of R ranks, rank r gets
    every R-th index, starting at r. ``len`` is the number of indices that are left of the epoch.

    There are two ways to resume:

    - ``start_batch`` and ``batch_size``: the number of batches that this rank was given since ``start_epoch``, whole
      and partial ones, over any number of epochs. Set ``drop_last_batch`` if the ``DataLoader`` leaves out partial
      batches;
    - ``start_iter``: AstrAI's count of samples, taken modulo the epoch. As in AstrAI, it is wrong if the last batch of
      an epoch was partial but counted as whole, and at the very end of an epoch it repeats that epoch.

    Differences from AstrAI's sampler: with more than twice as many ranks as samples, every rank gets as many indices as
    ``len`` says, where AstrAI gives the last ranks fewer. An epoch without indices is an error that says so, not a
    division by zero. If an iterator is abandoned and another one is begun, the epoch begins again where the first
    iterator began, and so does its count.

    `headrace.Loader` needs no such arguments: its state is exact on any number of ranks.

    Args:
        data_source: an object whose length is the number of samples of an epoch.
        start_epoch: the first epoch.
        start_iter: see above.
        seed: the seed of epoch 0.
        drop_last: leave out the last samples if there are not enough for every rank.
        shuffle: whether epochs are shuffled.
        process_group: a process group of torch. By default the default group if there is one, otherwise one rank.
        start_batch: see above.
        batch_size: the batch size of the ``DataLoader`` on one rank.
        drop_last_batch: whether the ``DataLoader`` leaves out partial batches.

    Raises:
        ConfigError: an epoch has no indices, a number is negative, or both ways to resume are used.

    Example:
        >>> sampler = headrace.compat.astrai.ResumableDistributedSampler(range(10), shuffle=False, start_iter=7)
        >>> list(sampler)
        [7, 8, 9]
    """

    def __init__(
        self,
        data_source: Sized,
        start_epoch: int = 0,
        start_iter: int = 0,
        seed: int = 42,
        drop_last: bool = False,
        shuffle: bool = True,
        process_group: ProcessGroup | None = None,
        *,
        start_batch: int = 0,
        batch_size: int | None = None,
        drop_last_batch: bool = False,
    ) -> None:
        self.num_samples = len(data_source)
        self.rank, self.num_replicas = _place(process_group)
        self.seed = whole(seed, "seed")
        self.drop_last = drop_last
        self.shuffle = shuffle
        ranks = self.num_replicas
        self.num_samples_per_replica = self.num_samples // ranks if drop_last else -(-self.num_samples // ranks)
        if not self.num_samples_per_replica:
            raise ConfigError(
                f"{self.num_samples} samples over {ranks} ranks with drop_last={drop_last}: an epoch has no indices;"
                " give more samples, or set drop_last=False"
            )
        start_epoch, start_iter = whole(start_epoch, "start_epoch"), whole(start_iter, "start_iter")
        start_batch = whole(start_batch, "start_batch")
        if min(start_epoch, start_iter, start_batch) < 0:
            raise ConfigError(
                f"start_epoch, start_iter and start_batch are at least 0, found {start_epoch}, {start_iter} and"
                f" {start_batch}"
            )
        self.epoch = start_epoch
        self.iter = start_iter % self.num_samples_per_replica
        if batch_size is None:
            if start_batch or drop_last_batch:
                raise ConfigError("start_batch and drop_last_batch count batches; give their batch_size")
            return
        if start_iter:
            raise ConfigError(
                f"start_iter={start_iter} and batch_size={batch_size}: resume by samples or by batches, not by both"
            )
        self._skip_batches(start_batch, whole(batch_size, "batch_size"), drop_last_batch)

    def _skip_batches(self, batches: int, batch_size: int, drop_last_batch: bool) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, found {batch_size}")
        each = self.num_samples_per_replica
        batches_per_epoch = each // batch_size if drop_last_batch else -(-each // batch_size)
        if not batches_per_epoch:
            raise ConfigError(
                f"an epoch has {each} samples a rank: no whole batch of {batch_size}, and drop_last_batch leaves out"
                " partial batches"
            )
        self.epoch += batches // batches_per_epoch
        self.iter = batches % batches_per_epoch * batch_size

    def __iter__(self) -> Iterator[int]:
        """Yield the rest of the epoch; the next iteration begins the next epoch."""
        epoch = self.epoch
        yield from self._indices(epoch)[self.iter :].tolist()
        self.epoch, self.iter = epoch + 1, 0

    def _indices(self, epoch: int) -> IntArray:
        """(num_samples_per_replica,) int64: the whole epoch of this rank."""
        if self.shuffle:
            order = torch_randperm(self.num_samples, (self.seed + epoch) & 0xFFFF_FFFF)
        else:
            order = np.arange(self.num_samples, dtype=np.int64)
        total = self.num_samples_per_replica * self.num_replicas
        return np.resize(order, total)[self.rank :: self.num_replicas]

    def __len__(self) -> int:
        return self.num_samples_per_replica - self.iter


def _place(group: ProcessGroup | None) -> tuple[int, int]:
    """The rank and the number of ranks. A process that has not imported torch has no process group either."""
    if group is None and "torch" not in sys.modules:
        return 0, 1
    import torch.distributed as dist

    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)
