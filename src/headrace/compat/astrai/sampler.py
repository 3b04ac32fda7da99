"""AstrAI's ``ResumableDistributedSampler``: the order of indices of each rank, for a ``DataLoader`` of your own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.plan.megatron.samplers import torch_randperm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ResumableDistributedSampler:
    """Yields this rank's indices of an epoch, and begins the next epoch when it is iterated again.

    An epoch is ``torch.randperm`` of ``seed + epoch`` (in order without ``shuffle``), filled up from its beginning to a
    multiple of the ranks, or with ``drop_last`` cut to one; rank r takes every R-th index from r on. ``len`` is what is
    left of the epoch.

    Where to go on is said in one of two ways:

    - ``start_batch`` and ``batch_size``: the batches that this rank was given since ``start_epoch``, whole and partial
      ones, over as many epochs as it were. ``drop_last_batch`` if the ``DataLoader`` left partial ones out;
    - ``start_iter``: AstrAI's count of samples, taken modulo the epoch. It is wrong where an epoch's last batch was
      partial but counted as whole, and begins the epoch again at its very end: for parity.

    Differences from AstrAI's: with more than twice as many ranks as samples every rank gets as many indices as ``len``
    says, where the late ones got fewer; an epoch without indices is refused and not a division by zero; and when an
    iterator is left and another one begun, the epoch begins anew where it was begun, its count too.

    The loader of this package needs none of this: its state is exact on any number of ranks.

    Args:
        data_source: whose length is that of an epoch.
        start_epoch: the first epoch.
        start_iter: see above.
        seed: of epoch 0.
        drop_last: leave out the last samples that do not go to every rank.
        shuffle: whether epochs are shuffled.
        process_group: of torch; by default the default group where there is one, else one rank.
        start_batch: see above.
        batch_size: of the ``DataLoader``, on one rank.
        drop_last_batch: whether the ``DataLoader`` leaves out partial batches.

    Raises:
        ConfigError: no indices in an epoch, negative numbers, or both ways to go on.
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
        self.seed = index(seed)
        self.drop_last = drop_last
        self.shuffle = shuffle
        ranks = self.num_replicas
        self.num_samples_per_replica = self.num_samples // ranks if drop_last else -(-self.num_samples // ranks)
        if not self.num_samples_per_replica:
            raise ConfigError(
                f"{self.num_samples} samples over {ranks} ranks with drop_last={drop_last}: an epoch has no indices;"
                " give more samples, or drop_last=False"
            )
        if min(index(start_epoch), index(start_iter), index(start_batch)) < 0:
            raise ConfigError(
                f"start_epoch, start_iter and start_batch are at least 0, found {start_epoch}, {start_iter} and"
                f" {start_batch}"
            )
        self.epoch = start_epoch
        self.iter = start_iter % self.num_samples_per_replica
        if batch_size is None:
            if start_batch or drop_last_batch:
                raise ConfigError("start_batch and drop_last_batch count batches: say of which batch_size")
            return
        if start_iter:
            raise ConfigError(f"start_iter={start_iter} and batch_size={batch_size}: go on by samples or by batches")
        self._skip_batches(start_batch, index(batch_size), drop_last_batch)

    def _skip_batches(self, batches: int, batch_size: int, drop_last_batch: bool) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, found {batch_size}")
        each = self.num_samples_per_replica
        batches_per_epoch = each // batch_size if drop_last_batch else -(-each // batch_size)
        if not batches_per_epoch:
            raise ConfigError(
                f"an epoch has {each} samples a rank: no whole batch of {batch_size}, and drop_last_batch leaves out"
                " the others"
            )
        self.epoch += batches // batches_per_epoch
        self.iter = batches % batches_per_epoch * batch_size

    def __iter__(self) -> Iterator[int]:
        """The rest of the epoch; at its end the next one is due."""
        epoch = self.epoch
        yield from self._indices(epoch)[self.iter :].tolist()
        self.epoch, self.iter = epoch + 1, 0

    def _indices(self, epoch: int) -> IntArray:
        """(samples a rank,) int64: the whole epoch of this rank."""
        if self.shuffle:
            order = torch_randperm(self.num_samples, (self.seed + epoch) & 0xFFFF_FFFF)
        else:
            order = np.arange(self.num_samples, dtype=np.int64)
        total = self.num_samples_per_replica * self.num_replicas
        return np.resize(order, total)[self.rank :: self.num_replicas]

    def __len__(self) -> int:
        return self.num_samples_per_replica - self.iter


def _place(group: ProcessGroup | None) -> tuple[int, int]:
    """Rank and number of ranks. A process that has not imported torch has no process group either."""
    if group is None and "torch" not in sys.modules:
        return 0, 1
    import torch.distributed as dist

    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)
