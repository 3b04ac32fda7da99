"""Megatron's ``--dataloader-type cyclic``: a dataset gone through again and again, each epoch in another order."""

from __future__ import annotations

from functools import cached_property
from operator import index
from typing import Any

from headrace.datasets.dataset import Counts, Dataset, Fields, Origins, Sample
from headrace.plan import IntArray, KeyArray
from headrace.plan.megatron import CyclicOrder


class CyclicDataset(Dataset):
    """Sample p is what Megatron's cyclic sampler feeds at position p, to a run of these micro-batches and ranks.

    A loader with the same ``micro_batch_size`` and as many ranks gives each rank Megatron's micro-batches, and its
    position is ``consumed_samples``. With any other number of ranks the steps keep their samples, in the middle of an
    epoch too, where Megatron stops or goes on in another order.

    It goes on without an end: give the length to the run, ``Run(cyclic, order=Order(kind="none"), samples=...)``. A
    longer run keeps its beginning. Megatron shuffles epoch e by the seed e, whatever the seed of the run.

    Args:
        dataset: any, for Megatron's runs a `GPTDataset` or `GPTBlend`.
        micro_batch_size: of the run whose order this is, on one rank.
        data_parallel_size: its ranks.
        data_sharding: Megatron's option: each rank shuffles a part of the samples of its own.

    The first sample of an epoch costs its shuffle, 10 ns a sample with numba, 150 without; two are kept, 4 bytes each
    sample, or with ``data_sharding`` each sample of one rank.

    Raises:
        ConfigError: a number is below 1, or the dataset has fewer samples than one micro-batch of all ranks.
    """

    def __init__(
        self, dataset: Dataset, *, micro_batch_size: int, data_parallel_size: int, data_sharding: bool = True
    ) -> None:
        self.dataset = dataset
        self.order = CyclicOrder(
            len(dataset),
            micro_batch_size=index(micro_batch_size),
            data_parallel_size=index(data_parallel_size),
            data_sharding=bool(data_sharding),
        )

    def __len__(self) -> int:
        """Of 2^32 epochs: there are seeds for so many."""
        return len(self.order)

    @property
    def is_endless(self) -> bool:
        """True."""
        return True

    @property
    def fields(self) -> Fields:
        """Those of the dataset."""
        return self.dataset.fields

    @property
    def constants(self) -> Sample:
        """Those of the dataset."""
        return self.dataset.constants

    @property
    def num_tokens_per_sample(self) -> float:
        """That of the dataset."""
        return self.dataset.num_tokens_per_sample

    @property
    def deviation_tokens_per_sample(self) -> float:
        """That of the dataset."""
        return self.dataset.deviation_tokens_per_sample

    @property
    def is_packed(self) -> bool:
        """As the dataset is."""
        return self.dataset.is_packed

    @property
    def is_counted(self) -> bool:
        """As the dataset is."""
        return self.dataset.is_counted

    @property
    def is_masked(self) -> bool:
        """As the dataset is."""
        return self.dataset.is_masked

    @property
    def is_unshifted(self) -> bool:
        """As the dataset is."""
        return self.dataset.is_unshifted

    def count(self, addresses: IntArray) -> Counts:
        """What is in some samples of the dataset."""
        return self.dataset.count(addresses)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {
            "kind": "megatron_cyclic",
            "dataset": self.dataset.recipe,
            "num_samples": self.order.num_samples,
            "micro_batch_size": self.order.micro_batch_size,
            "data_parallel_size": self.order.data_parallel_size,
            "data_sharding": self.order.data_sharding,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the dataset; the order knows no keys."""
        return self.dataset.locate(self.order.locate(indices))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples of the dataset into ``rows`` of ``out``."""
        self.dataset.read_into(addresses, out, rows)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Of the dataset."""
        return self.dataset.origins(addresses)

    def describe(self) -> str:
        """One line."""
        order = self.order
        parts = "each a part of its own" if order.data_sharding else "dealt out in turn"
        return (
            f"Megatron's cyclic order for {order.data_parallel_size:,} ranks, {parts}, micro-batches of "
            f"{order.micro_batch_size:,}: {order.num_samples_per_epoch:,} of {order.num_samples:,} samples an epoch, "
            f"{self.dataset.describe()}"
        )
