"""Megatron's ``--dataloader-type cyclic``: endless epochs over a dataset, each in another order."""

from __future__ import annotations

from functools import cached_property
from operator import index
from typing import Any

import msgspec

from headrace.datasets.dataset import CountedDataset, Counts, FixedDataset, FixedWrapper, Sample, Traits, counted
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.megatron import CyclicOrder


class CyclicDataset(FixedWrapper, CountedDataset):
    """Sample p is what Megatron's cyclic sampler feeds at position p in a run with these micro-batches and ranks.

    A loader with the same ``micro_batch_size`` and the same number of ranks gives each rank Megatron's micro-batches,
    and its position is ``consumed_samples``. With any other number of ranks every step keeps its samples, even in the
    middle of an epoch, where Megatron stops or continues in another order.

    The dataset is endless, so give the length to the run: ``Run(cyclic, order=Order(kind="none"), samples=...)``. A
    longer run begins with the same samples. Megatron shuffles epoch e with the seed e, whatever the seed of the run.

    The first sample of an epoch costs the shuffle of that epoch, 10 ns a sample with numba and 150 ns without. Two
    shuffles are kept, at 4 bytes for each sample, or with ``data_sharding`` for each sample of one rank.

    Args:
        dataset: any dataset; for Megatron's runs a `GPTDataset` or `GPTBlend`.
        micro_batch_size: samples of a micro-batch on one rank, in the run whose order this is.
        data_parallel_size: the number of ranks of that run.
        data_sharding: Megatron's option: each rank shuffles its own part of the samples.

    Raises:
        ConfigError: a number is below 1, or the dataset has fewer samples than one micro-batch of all ranks.

    Example:
        >>> dataset = headrace.compat.megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> cyclic = headrace.compat.megatron.CyclicDataset(dataset, micro_batch_size=4, data_parallel_size=2)
        >>> run = headrace.Run(cyclic, global_batch_size=16, order=headrace.Order(kind="none"), samples=10_000)
        >>> run.num_steps
        625
    """

    def __init__(
        self, dataset: FixedDataset, *, micro_batch_size: int, data_parallel_size: int, data_sharding: bool = True
    ) -> None:
        if not isinstance(dataset, FixedDataset):
            raise ConfigError(
                f"CyclicDataset is for samples of one shape, and those of {type(dataset).__name__} have different"
                " lengths: pass that dataset to the run itself"
            )
        self.dataset = dataset
        self.order = CyclicOrder(
            len(dataset),
            micro_batch_size=index(micro_batch_size),
            data_parallel_size=index(data_parallel_size),
            data_sharding=bool(data_sharding),
        )

    def __len__(self) -> int:
        """Samples of 2^32 epochs, since there are seeds for that many."""
        return len(self.order)

    @property
    def traits(self) -> Traits:
        """Those of the inner dataset; the order has no end."""
        return msgspec.structs.replace(self.dataset.traits, is_endless=True)

    def count(self, addresses: IntArray) -> Counts:
        """Count the samples at ``addresses`` in the inner dataset."""
        return counted(self.dataset).count(addresses)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "megatron_cyclic",
            "dataset": self.dataset.recipe,
            "num_samples": self.order.num_samples,
            "micro_batch_size": self.order.micro_batch_size,
            "data_parallel_size": self.order.data_parallel_size,
            "data_sharding": self.order.data_sharding,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the inner dataset. ``keys`` are ignored: the order of each epoch is fixed."""
        return self.dataset.locate(self.order.locate(indices))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples of the inner dataset into ``rows`` of ``out``."""
        self.dataset.read_into(addresses, out, rows)

    def describe(self) -> str:
        """One line: the order, its ranks and micro-batches, the samples of an epoch, and the inner dataset."""
        order = self.order
        parts = "each with its own part" if order.data_sharding else "samples assigned in turn"
        return (
            f"Megatron's cyclic order for {order.data_parallel_size:,} ranks, {parts}, micro-batches of "
            f"{order.micro_batch_size:,}: {order.num_samples_per_epoch:,} of {order.num_samples:,} samples an epoch, "
            f"{self.dataset.describe()}"
        )
