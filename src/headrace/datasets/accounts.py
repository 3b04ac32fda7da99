"""What the samples of a run hold, by counted data; and steps without a supervised token, found before the run.

The loss of such a step would be a sum divided by 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import Counts, Dataset, counted
from headrace.datasets.run import Located, Run, by_source
from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.plan.segments import cu_seqlens

CHECKED_SAMPLES = 1 << 20
"""Samples that are checked before a run; later ones are checked ahead of their steps."""

CHECKED_MARKS = 1 << 24
"""Most tokens of windows and packs that are checked, since the mask of every token has to be read."""

CHECKED_ROWS = 1 << 15
"""Most windows or packs that are checked."""

COUNT_POSITIONS = 1024
"""Samples that `StepTotals` counts at a time, rounded up to whole steps."""

_AT_ONCE = 8192


def count_samples(run: Run, located: Located) -> Counts:
    """Count tokens, supervised tokens, pads and documents of planned samples, without reading if possible.

    Raises:
        ConfigError: a source of the run is not counted; only packs, records with labels and windows are.
    """
    found = Counts(*np.empty((len(Counts._fields), len(located.positions)), dtype=np.int64))
    for source, rows in by_source(located.sources):
        for column, values in zip(found, counted(run.datasets[source]).count(located.addresses[rows]), strict=True):
            column[rows] = values
    return found


def count_step(run: Run, step: int) -> dict[str, int]:
    """Return what a step holds over all ranks: ``tokens``, ``supervised_tokens``, ``pads`` and ``documents``."""
    counts = count_samples(run, run.locate(run.positions(step)))
    return {name: int(column.sum()) for name, column in counts._asdict().items()}


def check_supervised(run: Run, position: int = 0) -> None:
    """Look for steps without a supervised token from a position on; a loader does this when it begins to iterate.

    If every record has a supervised token, so has every step, and no step is counted; likewise if packs have neither
    a loss mask nor documents of a single token, which predicts nothing. Otherwise the steps of the next 2^20 samples
    are counted, or of windows and packs, whose loss mask has to be read, the next 2^15 samples or 2^24 tokens. Later
    steps are counted ahead of their turn, 1,024 samples at a time, and
    are errors then; no step is skipped, since that would renumber the steps.

    Raises:
        ConfigError: a step of counted samples has no supervised token; the message names the step.
    """
    if not run.traits.is_counted or not _may_lack_labels(run):
        return
    checked = min(map(most_counted, run.datasets))
    end = position + checked if run.length is None else min(run.length, position + checked)
    if position >= end:
        return
    step_of = run.schedule.step_of
    for begin in range(run.schedule.begin(step_of(position)), end, _AT_ONCE):
        some = np.arange(begin, min(begin + _AT_ONCE, end), dtype=np.int64)
        # Only if a sample has no supervised token are the steps counted one by one.
        if not count_samples(run, run.locate(some)).supervised_tokens.all():
            for step, count in supervised_tokens(run, step_of(begin), step_of(int(some[-1])) + 1):
                refuse_unsupervised(run, step, count)


def refuse_unsupervised(run: Run, step: int, supervised_tokens: int) -> None:
    """Raise ConfigError if a step of counted samples has no supervised token."""
    if supervised_tokens or not run.traits.is_counted:
        return
    positions = run.positions(step)
    found = run.lookup(positions[:1])
    where = f"source {run.paths[int(found.sources[0])]!r}, " if len(run.datasets) > 1 else ""
    raise ConfigError(
        f"step {step:,} has no supervised token in any of its {len(positions):,} samples (the first: {where}sample"
        f" {int(found.indices[0]):,}): a model would learn nothing from it. Leave such records out when you prepare"
        " the store, cut off fewer tokens (max_length, over_long), use larger global batches, or skip the step with"
        f" run.skip(range({step}, {step + 1}))"
    )


def supervised_tokens(run: Run, first: int, end: int, at_once: int = _AT_ONCE) -> Iterator[tuple[int, int]]:
    """Yield (step, supervised tokens over all ranks) for steps ``first`` to ``end - 1``, counting many at a time."""
    while first < end:
        steps: list[int] = []
        positions: list[IntArray] = []
        while first < end and sum(map(len, positions)) < at_once:
            steps.append(first)
            positions.append(run.positions(first))
            first += 1
        found = count_samples(run, run.locate(np.concatenate(positions))).supervised_tokens
        bounds = np.cumsum([0, *map(len, positions)])
        sums = np.concatenate([[0], np.cumsum(found)])[bounds]
        yield from zip(steps, np.diff(sums).tolist(), strict=True)


class StepTotals:
    """The supervised tokens of whole global steps, over all ranks, from the plan and without communication.

    Steps have to be asked for in order, since several are counted at a time. O(samples of the step) on every rank,
    about 2 us a sample.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._totals: dict[int, int] = {}

    def of(self, step: int) -> int:
        """Return the number of supervised tokens of a step.

        Raises:
            ConfigError: this step of counted samples, or one counted with it, has none.
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


def most_counted(dataset: Dataset) -> int:
    """Return how many samples of a dataset are counted one by one at most: about two seconds."""
    if dataset.traits.is_ragged:
        return CHECKED_SAMPLES
    return max(1, min(CHECKED_ROWS, int(CHECKED_MARKS / max(1.0, dataset.num_tokens_per_sample))))


def _may_lack_labels(run: Run) -> bool:
    # Each record would be looked at.
    if run.traits.is_ragged and sum(map(len, run.datasets)) > CHECKED_SAMPLES:
        return True
    return any(counted(dataset).has_unsupervised_samples for dataset in run.datasets)


def segment_borders(position_ids: IntArray) -> NDArray[np.int32]:
    """Return the `cu_seqlens` of packs, whose segments have the positions 0, 1, 2, ...; raises the same errors.

    The last position of a segment says where it begins, so that few of the positions are looked at. A segment takes 0.1
    us, and a pass over 128 tokens 0.2 us: where segments are short, all positions are looked at.
    """
    flat = position_ids.reshape(-1)
    places, at = flat.data, flat.size
    found = [at]
    while 0 < at <= found[0] < 1 << 31 and len(found) < 16 + (found[0] >> 7):
        at -= places[at - 1] + 1
        found.append(at)
    if not at:
        bounds = np.array(found[::-1], np.int32)
        if not (flat[bounds[:-1]].any() or position_ids[:, :1].any()):
            return bounds
    return cu_seqlens(position_ids)
