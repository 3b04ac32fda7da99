"""Samples as batches of tensors, for a torch ``DataLoader`` of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headrace.datasets import Dataset
from headrace.errors import ConfigError
from headrace.loader.packed import add_segments
from headrace.loader.spans import Batch
from headrace.loader.totals import add_supervised

Collate = Callable[[Sequence[Mapping[str, Any]]], Batch]


class _Collate:
    """A class, so that worker processes that are spawned can take it with them."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        dataset = self._dataset
        batch: dict[str, Any]
        if dataset.is_ragged:
            batch = dataset.collate(samples)
        else:
            # Items of packs have their own segments besides, whose numbers differ.
            names = (*dataset.fields, *dataset.constants)
            batch = {name: np.stack([sample[name] for sample in samples]) for name in names}
        batch = {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in batch.items()}
        if not dataset.is_ragged and dataset.is_counted:
            add_supervised(batch)
        if dataset.is_packed:
            add_segments([batch])
        return batch


def collate_fn(dataset: Dataset) -> Collate:
    """Makes a batch of some samples of a dataset: ``DataLoader(dataset, collate_fn=collate_fn(dataset))``.

    The same tensors as the loader's, of packs their ``cu_seqlens`` and ``max_seqlen`` among them; but for
    ``sample_positions`` and ``step_supervised_tokens``, which a ``DataLoader`` cannot know.

    Raises:
        ConfigError: not a dataset.
    """
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"dataset is {dataset!r:.80}; expected the dataset that the DataLoader is of")
    return _Collate(dataset)
