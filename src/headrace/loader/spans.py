"""The work of a loader cut into spans: some consecutive micro-batches, planned, read and handed over together.

How many micro-batches make a span: as many as are worth a hand-over, and as few as can be waited for.

Spans and samples in words, for errors and reports: which shard and key, at which position of which step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, repeat
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import Located, Run, Sample
from headrace.datasets.dataset import Origin
from headrace.datasets.media.face import Allocate
from headrace.errors import HeadraceError
from headrace.loader.balancing import ASSIGNED_POSITIONS, BalancedAssignment
from headrace.loader.ragged import Cost, divide_ragged, is_ragged, read_ragged
from headrace.plan import Draw, Share, micro_batches

SPAN_BYTES = 4 << 20
"""A span holds about this much: enough to spread the cost of a hand-over, little enough to stay in the cache."""

SPAN_ROWS = 512
"""And at most so many samples, since short ones are many reads."""

SPAN_ROWS_HERE = 64
"""Of media that this process reads itself: of more that live at once, the garbage collector would look through all."""

SPAN_SECONDS = 0.02
"""And takes no longer, of samples of which it shows only when they are read: a hand-over costs a hundredth of it."""


class Pace:
    """The micro-batches of the next span.

    The first span has one, so that the first batch comes at once, and each at most twice as many as one before. What
    samples hold and cost is known of tokens, and learnt of media as their spans come back.

    Args:
        micro_batch_size: samples of a micro-batch.
        row_bytes: of a sample; None where that is not known before it is read.
        is_here: whether this process reads them itself.
    """

    def __init__(self, micro_batch_size: int, row_bytes: int | None, *, is_here: bool = False) -> None:
        rows = SPAN_ROWS_HERE if is_here and row_bytes is None else SPAN_ROWS
        self._most = rows // micro_batch_size
        self._is_known = row_bytes is not None
        if row_bytes is not None:
            self._most = min(self._most, SPAN_BYTES // max(1, row_bytes * micro_batch_size))
        self._next = 1
        self._share = 0.0

    def take(self) -> int:
        """How many the next span has, at least 1."""
        found = self._next
        if self._is_known:
            self._next = max(1, min(2 * found, self._most))
        return found

    def learn(self, num_micro_batches: int, cost: Cost | None) -> None:
        """What a span has cost. Samples differ, so that half of what is held against the next ones is from before."""
        if self._is_known or cost is None or not num_micro_batches:
            return
        share = max(cost.seconds / SPAN_SECONDS, cost.num_bytes / SPAN_BYTES) / num_micro_batches
        self._share = max(share, (share + self._share) / 2)
        fits = self._most if self._share * self._most <= 1 else int(1 / self._share)
        self._next = max(1, min(2 * num_micro_batches, fits, self._most))


PLAN_POSITIONS = 8192
"""Positions planned at a time."""

Batch = dict[str, Any]
"""Name -> tensor; of packed samples also ``max_seqlen`` and counts, Python integers, and of records what they hold."""

Memory = Sample | Allocate | None
"""Where to read to: arrays of the run's fields; what makes memory for images; None, which is fresh memory."""


class BatchSpan(NamedTuple):
    """Consecutive micro-batches of one rank: the samples to read, and how they divide.

    ``sizes[i]`` rows belong to micro-batch i of global step ``steps[i]``; after it ``afters[i]`` slots of the run are
    given. ``located`` has the positions that they take.
    """

    located: Located
    sizes: list[int]
    steps: list[int]
    afters: list[int]


def pace_of(run: Run, share: Share, *, is_here: bool = True) -> Pace:
    """How large the spans of a stream become, read by this process or by others; tell it what they have cost."""
    return Pace(share.micro_batch_size, _row_bytes(run), is_here=is_here)


def spans(
    run: Run, share: Share, position: int, assignment: BalancedAssignment | Draw | None = None, pace: Pace | None = None
) -> Iterator[BatchSpan]:
    """All spans of a rank from ``position`` to the end of the run; ``dealing`` says which positions slots take."""
    pace = pace or pace_of(run, share)
    # The first plan is small, so that the first batch comes at once.
    wanted = PLAN_POSITIONS // 16
    while True:
        at_least = ASSIGNED_POSITIONS if isinstance(assignment, BalancedAssignment) else wanted * share.world_size
        planned = micro_batches(run.schedule, share, position=position, end=run.length, at_least=at_least)
        if not len(planned):
            return
        slots = planned.slots()
        located = run.locate(slots if assignment is None else assignment.positions(slots))
        sizes, steps, afters = planned.sizes.tolist(), planned.steps.tolist(), planned.afters.tolist()
        row = 0
        first = 0
        while first < len(sizes):
            last = first + pace.take()
            end = row + sum(sizes[first:last])
            yield BatchSpan(located.rows(row, end), sizes[first:last], steps[first:last], afters[first:last])
            row, first = end, last
        position = afters[-1]
        wanted = PLAN_POSITIONS


def _row_bytes(run: Run) -> int | None:
    """Bytes of a sample in a batch; of records about, of media not known."""
    if not all(dataset.has_tokens for dataset in run.datasets):
        return None
    tokens = int(max(dataset.num_tokens_per_sample for dataset in run.datasets)) if run.is_ragged else 1
    return sum(abs(prod(shape)) * tokens * dtype.itemsize for shape, dtype in run.fields.values())


def read(run: Run, span: BatchSpan, out: Memory = None) -> Batch:
    """All rows of a span as tensors, (rows, ...) each, in the memory of ``out`` or fresh; of records see `ragged`."""
    if run.is_ragged or callable(out):
        return read_ragged(run, span.located, span.sizes, out if callable(out) else None)
    return {name: torch.from_numpy(values) for name, values in run.read(span.located, out).items()}


def divide(batch: Batch, span: BatchSpan, constants: Sample) -> list[Batch]:
    """The micro-batches of a span: each a view of its own rows, and of one row of its own of each constant."""
    if is_ragged(batch):
        return divide_ragged(batch, span.located.positions, span.sizes)
    whole = {**batch, "sample_positions": torch.from_numpy(span.located.positions)}
    columns = {name: values.split_with_sizes(span.sizes) for name, values in whole.items()}
    for name, value in constants.items():
        columns[name] = _expanded(value, span.sizes)
    # A dict for each row of the columns, built without a step of the interpreter: this is the cost of short batches.
    return list(map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True))))


def _expanded(value: NDArray[Any], sizes: list[int]) -> tuple[torch.Tensor, ...]:
    """For each size a (size, ...) view of a fresh copy of ``value``."""
    copies = np.empty((len(sizes), *value.shape), dtype=value.dtype)
    copies[:] = value
    rows = torch.from_numpy(copies)
    if sizes.count(sizes[0]) == len(sizes):
        return rows.unsqueeze(1).expand(len(sizes), sizes[0], *value.shape).unbind(0)
    return tuple(row.expand(size, *value.shape) for row, size in zip(rows, sizes, strict=True))


def describe_span(run: Run, span: BatchSpan) -> str:
    """``samples at positions 12 to 15 of step 3 (the first is sample 'K' of SHARD)``; reads the store's index."""
    positions = span.located.positions
    if not len(positions):
        return f"no samples of step {span.steps[0]:,}"
    first, last = int(positions.min()), int(positions.max())
    origin = _origin(run, span, 0)
    where = f" (the first is {origin})" if origin else ""
    if len(positions) == 1:
        return f"the sample at position {first:,} of step {span.steps[0]:,}{f', {origin}' if origin else ''}"
    return f"samples at positions {first:,} to {last:,} of step {span.steps[0]:,}{where}"


def describe_sample(run: Run, span: BatchSpan, address: int) -> str:
    """``sample 'K' of SHARD (position 13, step 3)``, by the address that its dataset gave it."""
    rows = np.flatnonzero(span.located.addresses == address).tolist()
    if not rows:
        return describe_span(run, span)
    row = rows[0]
    ends = list(accumulate(span.sizes))
    step = span.steps[bisect_right(ends, row)]
    place = f"position {int(span.located.positions[row]):,}, step {step:,}"
    # Sources that have a sample of this address each, in one micro-batch, cannot be told apart.
    origins = dict.fromkeys(_origin(run, span, one) or "a sample" for one in rows)
    return f"{' or '.join(origins)} ({place})"


def _origin(run: Run, span: BatchSpan, row: int) -> str:
    """What the sample of a row is made of; empty where that is not known."""
    source = int(span.located.sources[row])
    try:
        [origins] = run.datasets[source].origins(span.located.addresses[row : row + 1])
    except HeadraceError:
        # What is told is another fault.
        return ""
    more = f" and {len(origins) - 1} more" if len(origins) > 1 else ""
    return f"{_words(origins[0])}{more}" if origins else ""


def _words(origin: Origin) -> str:
    if origin.key is not None:
        return f"sample {origin.key!r} of {origin.shard or origin.store}"
    return f"document {origin.document} of {origin.store}"
