"""Samples as batches of tensors, with the segments of packs and the counts that a correct loss needs.

What micro-batches of packed samples carry besides their rows: the segments that they are made of.

The counts that a right loss needs: supervised tokens of a micro-batch and of the whole global step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import Dataset, Run
from headrace.datasets.supervision import refuse_unsupervised, supervised_tokens
from headrace.errors import ConfigError
from headrace.loader.spans import Batch, BatchSpan
from headrace.plan.packed_check import verify_packed
from headrace.plan.segments import IGNORED_LABEL


def add_segments(batches: list[Batch]) -> None:
    """Add to each micro-batch the segments that it is made of.

    - ``cu_seqlens`` (segments + 1,) int32: where each segment begins in the flattened micro-batch, and its end;
    - ``max_seqlen`` int: tokens of the longest segment.
    """
    for batch in batches:
        bounds = _bounds(memoryview(batch["position_ids"].numpy().reshape(-1)))
        batch["cu_seqlens"] = torch.from_numpy(bounds)
        batch["max_seqlen"] = int(np.diff(bounds).max()) if len(bounds) > 1 else 0


def _bounds(positions: memoryview) -> NDArray[np.int32]:
    """``cu_seqlens`` from the end: the last position of a segment says how long it is. O(segments), not tokens."""
    bounds = [len(positions)]
    while bounds[-1]:
        bounds.append(bounds[-1] - positions[bounds[-1] - 1] - 1)
    return np.array(bounds[::-1], dtype=np.int32)


def verify(batch: Batch, *, is_unshifted: bool) -> None:
    """Check every field of a packed micro-batch against every other one; raises HeadraceError with what is wrong."""
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    verify_packed(arrays, is_unshifted=is_unshifted)


COUNT_POSITIONS = 1024
"""Samples that are counted together, in whole steps."""


class StepTotals:
    """Supervised tokens of whole global steps, over all ranks: from the plan, without communication.

    Steps are asked for in order; some are counted at a time. O(samples of the step) on every rank, about 2 us each.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._totals: dict[int, int] = {}

    def of(self, step: int) -> int:
        """The supervised tokens of a step.

        Raises:
            ConfigError: it, or another of those counted with it, has none where a mask says what is trained on.
        """
        if step not in self._totals:
            self._totals = self._count(step)
        return self._totals[step]

    def _count(self, step: int) -> dict[int, int]:
        run = self._run
        totals: dict[int, int] = {}
        num_samples = 0
        last = step
        while num_samples < COUNT_POSITIONS and (run.num_steps is None or last < run.num_steps):
            num_samples += len(run.positions(last))
            last += 1
        for number, count in supervised_tokens(run, step, last, num_samples):
            refuse_unsupervised(run, number, count)
            totals[number] = count
        return totals


def add_totals(batches: list[Batch], span: BatchSpan, totals: StepTotals) -> None:
    """Add to each micro-batch of a span what its loss is divided by.

    - ``num_supervised_tokens`` int: labels in this micro-batch that are not -100;
    - ``step_supervised_tokens`` int: those of the whole global step, over all micro-batches and ranks.
    """
    for batch, step in zip(batches, span.steps, strict=True):
        add_supervised(batch)
        batch["step_supervised_tokens"] = totals.of(step)


def add_supervised(batch: Batch) -> None:
    """Add ``num_supervised_tokens`` to a micro-batch that has none."""
    if "num_supervised_tokens" not in batch:
        # Windows have no mask beside their labels.
        has_label = batch["loss_mask"] if "loss_mask" in batch else batch["labels"] != IGNORED_LABEL
        batch["num_supervised_tokens"] = int(np.count_nonzero(has_label.numpy()))


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
