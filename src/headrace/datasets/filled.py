"""A dataset filled up to a multiple with samples that do not count, so that every rank gets as many."""

from __future__ import annotations

from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from headrace.datasets.dataset import Dataset, Fields, Sample
from headrace.datasets.trace_origins import Origins
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray


class FilledDataset(Dataset):
    """The samples of a dataset, and behind them copies of sample 0 with a ``loss_mask`` of zeros, up to a multiple.

    For validation where no rank may get fewer samples than another (pipelines): with the global batch size for
    ``multiple_of`` every step is whole, and a loss that is summed over ``loss_mask`` is that of the samples themselves.
    Megatron gives a sample of this kind for the index None.

    Raises:
        ConfigError: the dataset has no ``loss_mask``, or no end.
    """

    def __init__(self, dataset: Dataset, *, multiple_of: int) -> None:
        if "loss_mask" not in dataset.fields or dataset.is_counted:
            raise ConfigError(
                f"samples that do not count are told by a field loss_mask alone; {type(dataset).__name__} has "
                f"{', '.join(dataset.fields)}: feed the last step as it is, or leave it out with drop_last=True"
            )
        if dataset.is_endless:
            raise ConfigError(f"{type(dataset).__name__} has no last step: there is nothing to fill up")
        if index(multiple_of) < 1:
            raise ConfigError(f"multiple_of is at least 1, found {multiple_of}")
        self.dataset = dataset
        self.multiple_of = index(multiple_of)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.multiple_of) * self.multiple_of

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
        """Of the dataset, spread over all samples."""
        return self.dataset.num_tokens_per_sample * len(self.dataset) / len(self)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {"kind": "filled", "dataset": self.dataset.recipe, "num_samples": len(self)}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: those of the dataset, and for samples that do not count -1 minus that of sample 0."""
        fillers = indices >= len(self.dataset)
        found = self.dataset.locate(np.where(fillers, 0, indices), keys)
        return np.where(fillers, -1 - found, found)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples into ``rows`` of ``out``."""
        fillers = addresses < 0
        self.dataset.read_into(np.where(fillers, -1 - addresses, addresses), out, rows)
        places = np.arange(len(out["loss_mask"]))[rows]
        out["loss_mask"][places[fillers]] = 0

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Of the dataset; nothing for samples that do not count."""
        found = self.dataset.origins(np.maximum(addresses, 0))
        return [() if filler else one for filler, one in zip((addresses < 0).tolist(), found, strict=True)]

    def holders(self, document: int) -> IntArray:
        """Of the dataset."""
        return self.dataset.holders(document)

    def describe(self) -> str:
        """One line."""
        return f"{self.dataset.describe()}, and {len(self) - len(self.dataset):,} without loss"
