"""The counts that a right loss needs: supervised tokens of a micro-batch and of the whole global step."""

from __future__ import annotations

import numpy as np

from headrace.datasets import Run
from headrace.datasets.supervision import refuse_unsupervised, supervised_tokens
from headrace.loader.spans import Batch, Span
from headrace.plan.segments import IGNORED_LABEL

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


def add_totals(batches: list[Batch], span: Span, totals: StepTotals) -> None:
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
