"""Records as batches of tensors, for a torch ``DataLoader`` of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headrace.datasets import Dataset
from headrace.errors import ConfigError
from headrace.loader.spans import Batch

Collate = Callable[[Sequence[Mapping[str, Any]]], Batch]


class _Collate:
    """A class, so that worker processes that are spawned can take it with them."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        batch = self._dataset.collate(samples)
        return {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in batch.items()}


def collate_fn(dataset: Dataset) -> Collate:
    """Makes a batch of some samples of a dataset of records: ``DataLoader(dataset, collate_fn=collate_fn(dataset))``.

    The same tensors as the loader's, but for ``sample_positions`` and ``step_supervised_tokens``, which a
    ``DataLoader`` cannot know.

    Raises:
        ConfigError: samples of the dataset are all of one shape, which torch stacks by itself.
    """
    if not dataset.is_ragged:
        raise ConfigError(f"samples of {type(dataset).__name__} are all of one shape; leave collate_fn to torch")
    return _Collate(dataset)
