"""Which samples of a dataset a data-parallel rank takes: Megatron's two samplers, as batches of indices.

    20 samples, 4 consumed, 2 ranks, micro-batches of 2
    single     rank 0: [4 5] [8 9] [12 13] [16 17]      rank 1: [6 7] [10 11] [14 15] [18 19]

The whole state is the number of samples consumed. The samples of ``single`` come in the same order for any number of
ranks; the order of ``cyclic`` depends on it, and changing it in the middle of an epoch is mostly refused: `CyclicOrder`
is the same order for any number of ranks.

Source: Megatron-LM, ``MegatronPretrainingSampler`` and ``MegatronPretrainingRandomSampler``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.cyclic import cyclic_epoch_samples
from headrace.plan.megatron.randperm import torch_randperm
from headrace.plan.split import Share


def single_batches(
    total_samples: int, consumed_samples: int, share: Share, *, drop_last: bool = True
) -> Iterator[IntArray]:
    """(micro_batch_size,) int64 for each micro-step of a rank: the samples in order, from ``consumed_samples`` on.

    Each micro-step all ranks together take the next ``world_size * micro_batch_size`` samples, rank r the r-th part.
    With ``drop_last=False`` what is left at the end is dealt in the same way: the last ranks may get fewer, or none.

    Raises:
        ConfigError: at the call; nothing is left to take, or a number is out of range.
    """
    _check(total_samples, consumed_samples, share)
    if consumed_samples >= total_samples:
        raise ConfigError(
            f"{consumed_samples:,} of {total_samples:,} samples are consumed: none is left; ask for more samples"
        )
    return _single(total_samples, consumed_samples, share, drop_last)


def cyclic_batches(
    total_samples: int, consumed_samples: int, share: Share, *, data_sharding: bool = True
) -> Iterator[IntArray]:
    """(micro_batch_size,) int64 for each micro-step of a rank, to the end of the epoch; the next call begins another.

    The samples that fill no global micro-batch are left out. Epoch e is shuffled by ``torch.randperm`` with seed e,
    whatever the run's seed. With ``data_sharding`` each rank shuffles a part of the samples of its own; without, all
    samples are shuffled and dealt out in turn.

    Without ``data_sharding`` some ranks may get one batch more than others, when ``total_samples`` is no multiple of
    ``world_size * micro_batch_size``: so it is in Megatron, whose ranks then go on from different places. `CyclicOrder`
    leaves that batch out.

    Raises:
        ConfigError: at the call; the samples are fewer than one global micro-batch, ``consumed_samples`` is not at the
            end of one, or a number is out of range.
    """
    _check(total_samples, consumed_samples, share)
    together = share.world_size * share.micro_batch_size
    epoch, within = divmod(
        consumed_samples, cyclic_epoch_samples(total_samples, share.micro_batch_size, share.world_size)
    )
    if within % together:
        raise ConfigError(
            f"{consumed_samples:,} samples are consumed, {within:,} of epoch {epoch}, which is no multiple of"
            f" {together:,} ({share.world_size} ranks times {share.micro_batch_size}): the number of ranks or the"
            " micro-batch size has changed; go back to the old ones, or begin at an epoch"
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
            f"total_samples is at least 1 and consumed_samples at least 0, found {total_samples} and {consumed_samples}"
        )
    if share.micro_batch_size < 1 or not 0 <= share.rank < share.world_size:
        raise ConfigError(
            f"rank {share.rank} of {share.world_size} with micro-batches of {share.micro_batch_size}: a rank is from 0"
            " to world_size - 1, a micro-batch at least 1"
        )
