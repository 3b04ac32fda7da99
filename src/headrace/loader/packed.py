"""What micro-batches of packed samples carry besides their rows: segments, and the counts that a right loss needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import Run
from headrace.loader.spans import Batch, Span
from headrace.plan.packed_check import verify_packed

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
        """The supervised tokens of a step."""
        if step not in self._totals:
            self._totals = dict(self._count(step))
        return self._totals[step]

    def _count(self, step: int) -> Iterator[tuple[int, int]]:
        run = self._run
        steps = [step]
        positions = [run.positions(step)]
        num_samples = len(positions[0])
        while num_samples < COUNT_POSITIONS and (run.num_steps is None or steps[-1] + 1 < run.num_steps):
            steps.append(steps[-1] + 1)
            positions.append(run.positions(steps[-1]))
            num_samples += len(positions[-1])
        counted = run.count(run.locate(np.concatenate(positions))).supervised_tokens
        bounds = np.cumsum([0, *map(len, positions)])
        sums = np.concatenate([[0], np.cumsum(counted)])[bounds]
        return zip(steps, np.diff(sums).tolist(), strict=True)


def add_segments(batches: list[Batch], span: Span, totals: StepTotals) -> None:
    """Add to each micro-batch of a span what is said of packed ones.

    - ``cu_seqlens`` (segments + 1,) int32: where each segment begins in the flattened micro-batch, and its end;
    - ``max_seqlen`` int: tokens of the longest segment;
    - ``num_supervised_tokens`` int: labels in this micro-batch that are not -100;
    - ``step_supervised_tokens`` int: those of the whole global step, over all micro-batches and ranks.
    """
    for batch, step in zip(batches, span.steps, strict=True):
        bounds = _bounds(memoryview(batch["position_ids"].numpy().reshape(-1)))
        batch["cu_seqlens"] = torch.from_numpy(bounds)
        batch["max_seqlen"] = int(np.diff(bounds).max()) if len(bounds) > 1 else 0
        batch["num_supervised_tokens"] = int(np.count_nonzero(batch["loss_mask"].numpy()))
        batch["step_supervised_tokens"] = totals.of(step)


def _bounds(positions: memoryview) -> NDArray[np.int32]:
    """``cu_seqlens`` from the end: the last position of a segment says how long it is. O(segments), not tokens."""
    bounds = [len(positions)]
    while bounds[-1]:
        bounds.append(bounds[-1] - positions[bounds[-1] - 1] - 1)
    return np.array(bounds[::-1], dtype=np.int32)


def verify(batch: Batch) -> None:
    """Check every field of a packed micro-batch against every other one; raises HeadraceError with what is wrong."""
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    verify_packed(arrays)
