"""Batches of tensors from samples, with the segments of packs and the token counts that a correct loss needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from headrace.datasets import Dataset, FixedDataset, RaggedDataset, Run, Sample
from headrace.datasets.accounts import StepTotals, check_supervised
from headrace.datasets.dataset import Tell, Traits
from headrace.errors import ConfigError
from headrace.loader.spans import Batch, BatchSpan, SpanRows, read_rows
from headrace.plan.packed_check import verify_packed
from headrace.plan.segments import IGNORED_LABEL, cu_seqlens, segment_borders


def _segments(batch: Batch, traits: Traits) -> Batch:
    """Return the segments of the packs of a micro-batch.

    - ``cu_seqlens``, (segments + 1,) int32: where each segment begins in the flattened micro-batch, and the end;
    - ``max_seqlen``, int: the number of tokens of the longest segment.
    """
    # Code of the user may have made positions that do not count up; segments begin where they are 0 all the same.
    borders = cu_seqlens if traits.holds_interpreter else segment_borders
    bounds = borders(batch["position_ids"].numpy())
    return {"cu_seqlens": torch.from_numpy(bounds), "max_seqlen": int(np.diff(bounds).max(initial=0))}


def read_counted(run: Run, span: BatchSpan, out: Sample | None, tell: Tell | None = None) -> SpanRows:
    """Read the samples of a span as `read_rows` does, and count there what the loss and the attention need."""
    rows = read_rows(run, span, out, tell)
    # Only the columns that are counted are divided here: the loader divides all of them, once.
    counted = {name: rows.columns[name].split_with_sizes(span.sizes) for name in _COUNTED if name in rows.columns}
    parts = zip(*counted.values(), strict=True)
    return rows._replace(counts=[_counts(dict(zip(counted, part, strict=True)), run) for part in parts])


_COUNTED: Final = ("num_supervised_tokens", "loss_mask", "labels", "position_ids")
"""The columns from which the loss and the attention are counted."""


def _counts(batch: Batch, run: Run) -> Batch:
    """Return the supervised tokens and the segments of a micro-batch."""
    found: Batch = {}
    if "num_supervised_tokens" not in batch:
        found["num_supervised_tokens"] = _num_supervised(batch)
    if run.traits.is_packed:
        found.update(_segments(batch, run.traits))
    return found


class BatchCounts:
    """Adds to the micro-batches of counted samples what their loss and their attention need.

    - ``num_supervised_tokens``, int: the labels of this micro-batch that are not -100;
    - ``step_supervised_tokens``, int: those of the whole global step, over all micro-batches and ranks;
    - for packs ``cu_seqlens``, (segments + 1,) int32, where each segment begins in the flattened micro-batch, and the
      end; and ``max_seqlen``, int, the tokens of the longest segment.

    Raises:
        ConfigError: samples from ``position`` on have no supervised token, see `check_supervised`.
    """

    def __init__(self, run: Run, position: int) -> None:
        check_supervised(run, position)
        self._run = run
        self._totals = StepTotals(run)

    def add(self, batches: list[Batch], span: BatchSpan, counts: Sequence[Batch]) -> None:
        """Add them to each micro-batch of a span; ``counts`` are those found where it was read, if it was there."""
        for batch, step, found in zip(
            batches, span.steps, counts or [_counts(one, self._run) for one in batches], strict=True
        ):
            if "num_supervised_tokens" in found:
                batch["num_supervised_tokens"] = found["num_supervised_tokens"]
            batch["step_supervised_tokens"] = self._totals.of(step)
            batch.update(found)

    def verified(self, batch: Batch) -> Batch:
        """Return a micro-batch. Of a packed one, raise HeadraceError if two fields contradict each other."""
        if self._run.traits.is_packed:
            arrays = {
                name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()
            }
            verify_packed(arrays, is_unshifted=self._run.traits.is_unshifted)
        return batch


def _num_supervised(batch: Batch) -> int:
    # Windows have no mask of their own; their labels say it.
    has_label = batch["loss_mask"] if "loss_mask" in batch else batch["labels"] != IGNORED_LABEL
    return int(np.count_nonzero(has_label.numpy()))


Collate = Callable[[Sequence[Mapping[str, Any]]], Batch]


class _Collate:
    """A class and not a closure, so that it can be pickled for spawned worker processes."""

    def __init__(self, dataset: FixedDataset | RaggedDataset) -> None:
        self._dataset = dataset

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        dataset = self._dataset
        batch: dict[str, Any]
        if isinstance(dataset, RaggedDataset):
            batch = dataset.collate(samples)
        else:
            # Items of packs also have their own segments, whose numbers differ and cannot be stacked.
            names = (*dataset.fields, *dataset.constants)
            batch = {name: np.stack([sample[name] for sample in samples]) for name in names}
        batch = {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in batch.items()}
        if dataset.traits.is_counted and not dataset.traits.is_ragged and "num_supervised_tokens" not in batch:
            batch["num_supervised_tokens"] = _num_supervised(batch)
        if dataset.traits.is_packed:
            batch.update(_segments(batch, dataset.traits))
        return batch


def collate_fn(dataset: Dataset) -> Collate:
    """Return a collate function for torch's ``DataLoader``: ``DataLoader(dataset, collate_fn=collate_fn(dataset))``.

    Batches have the same tensors as those of `Loader`, including ``cu_seqlens`` and ``max_seqlen`` of packs, except
    ``sample_positions`` and ``step_supervised_tokens``, which a ``DataLoader`` cannot know.

    Raises:
        ConfigError: ``dataset`` is not a dataset.
    """
    if not isinstance(dataset, FixedDataset | RaggedDataset):
        raise ConfigError(f"dataset is {dataset!r:.80}; expected the dataset that the DataLoader reads")
    return _Collate(dataset)
