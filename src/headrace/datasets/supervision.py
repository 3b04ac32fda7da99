"""Finds steps without a supervised token before the run; their loss would be a sum divided by 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.plan import IntArray

if TYPE_CHECKING:
    from headrace.datasets.run import Run

CHECKED_SAMPLES = 1 << 20
"""Samples that are checked before a run; later ones are checked ahead of their steps."""

CHECKED_MARKS = 1 << 24
"""Most tokens of windows and packs that are checked, since the mask of every token has to be read."""

CHECKED_ROWS = 1 << 15
"""Most windows or packs that are checked."""

_AT_ONCE = 8192


def check_supervised(run: Run, position: int) -> None:
    """Raise ConfigError if a step from a position on has no supervised token; see `Run.check_supervised`."""
    if not run.is_masked or (_num_samples(run) <= CHECKED_SAMPLES and not run.has_unsupervised_samples):
        return
    checked = _num_checked(run)
    end = position + checked if run.length is None else min(run.length, position + checked)
    if position >= end:
        return
    step_of = run.schedule.step_of
    for begin in range(run.schedule.begin(step_of(position)), end, _AT_ONCE):
        some = np.arange(begin, min(begin + _AT_ONCE, end), dtype=np.int64)
        # Only if a sample has no supervised token are the steps counted one by one.
        if not run.count(run.locate(some)).supervised_tokens.all():
            for step, count in supervised_tokens(run, step_of(begin), step_of(int(some[-1])) + 1):
                refuse_unsupervised(run, step, count)


def refuse_unsupervised(run: Run, step: int, supervised_tokens: int) -> None:
    """Raise ConfigError if a step of masked samples has no supervised token."""
    if supervised_tokens or not run.is_masked:
        return
    positions = run.positions(step)
    found = run.lookup(positions[:1])
    where = f"source {run.paths[int(found.sources[0])]!r}, " if len(run.datasets) > 1 else ""
    raise ConfigError(
        f"step {step:,} has no supervised token in any of its {len(positions):,} samples (the first: {where}sample"
        f" {int(found.indices[0]):,}): a model would learn nothing from it. Leave such records out when you prepare"
        " the store, cut off fewer tokens (max_length, over_long), or use larger global batches"
    )


def any_unsupervised(run: Run) -> bool:
    """Return whether any sample of any dataset has no supervised token. Looks at each sample once."""
    for dataset in run.datasets:
        for first in range(0, len(dataset), _AT_ONCE):
            indices = np.arange(first, min(first + _AT_ONCE, len(dataset)), dtype=np.int64)
            if not dataset.count(dataset.locate(indices)).supervised_tokens.all():
                return True
    return False


def supervised_tokens(run: Run, first: int, end: int, at_once: int = _AT_ONCE) -> Iterator[tuple[int, int]]:
    """Yield (step, supervised tokens over all ranks) for steps ``first`` to ``end - 1``, counting many at a time."""
    while first < end:
        steps: list[int] = []
        positions: list[IntArray] = []
        while first < end and sum(map(len, positions)) < at_once:
            steps.append(first)
            positions.append(run.positions(first))
            first += 1
        counted = run.count(run.locate(np.concatenate(positions))).supervised_tokens
        bounds = np.cumsum([0, *map(len, positions)])
        sums = np.concatenate([[0], np.cumsum(counted)])[bounds]
        yield from zip(steps, np.diff(sums).tolist(), strict=True)


def _num_checked(run: Run) -> int:
    if run.is_ragged:
        return CHECKED_SAMPLES
    tokens = max(dataset.num_tokens_per_sample for dataset in run.datasets)
    return max(1, min(CHECKED_ROWS, int(CHECKED_MARKS / max(1.0, tokens))))


def _num_samples(run: Run) -> int:
    # Packs may hold other documents in each epoch, so that checking one epoch says nothing about the next.
    return sum(map(len, run.datasets)) if run.is_ragged else CHECKED_SAMPLES + 1
