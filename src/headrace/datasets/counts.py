"""`Counts`, and the datasets that can count what their samples hold."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.datasets.dataset import Dataset
from headrace.errors import ConfigError
from headrace.plan import IntArray

_AT_ONCE = 8192


class Counts(NamedTuple):
    """What some samples hold, each (n,) int64: tokens, supervised tokens, pads, and documents or pieces of them."""

    tokens: IntArray
    supervised_tokens: IntArray
    pads: IntArray
    documents: IntArray


class CountedDataset(Dataset):
    """A dataset whose samples may hold different numbers of supervised tokens: packs, records, masked windows.

    If one source of a run is counted (`Traits.is_counted`), `count` is called for all its sources.
    """

    @abstractmethod
    def count(self, addresses: IntArray) -> Counts:
        """Count tokens, pads and documents of the samples at some addresses, without reading them where possible."""

    @cached_property
    def has_unsupervised_samples(self) -> bool:
        """Whether any sample has no supervised token. Looks at each sample once, 1 to 2 us a sample."""
        for first in range(0, len(self), _AT_ONCE):
            indices = np.arange(first, min(first + _AT_ONCE, len(self)), dtype=np.int64)
            if not self.count(self.locate(indices)).supervised_tokens.all():
                return True
        return False


def counted(dataset: Dataset) -> CountedDataset:
    """Return the dataset unchanged. Raises ConfigError if it cannot count what its samples hold."""
    if not isinstance(dataset, CountedDataset):
        raise ConfigError(
            f"{type(dataset).__name__}: only packs, records and masked windows are counted; all samples here are alike"
        )
    return dataset
