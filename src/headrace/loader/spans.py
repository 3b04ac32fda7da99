"""The work of a loader cut into spans: some consecutive micro-batches, planned, read and handed over together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import Located, Run, Sample
from headrace.datasets.media.collating import Allocate
from headrace.loader.balancing import DEALT_POSITIONS, Dealing
from headrace.loader.pace import Pace
from headrace.loader.ragged import divide_ragged, is_ragged, read_ragged
from headrace.plan import Draw, Share, micro_batches

PLAN_POSITIONS = 8192
"""Positions planned at a time."""

Batch = dict[str, Any]
"""Name -> tensor; of packed samples also ``max_seqlen`` and counts, Python integers, and of records what they hold."""

Memory = Sample | Allocate | None
"""Where to read to: arrays of the run's fields; what makes memory for images; None, which is fresh memory."""


class Span(NamedTuple):
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
    run: Run, share: Share, position: int, dealing: Dealing | Draw | None = None, pace: Pace | None = None
) -> Iterator[Span]:
    """All spans of a rank from ``position`` to the end of the run; ``dealing`` says which positions slots take."""
    pace = pace or pace_of(run, share)
    # The first plan is small, so that the first batch comes at once.
    wanted = PLAN_POSITIONS // 16
    while True:
        at_least = DEALT_POSITIONS if isinstance(dealing, Dealing) else wanted * share.world_size
        planned = micro_batches(run.schedule, share, position=position, end=run.length, at_least=at_least)
        if not len(planned):
            return
        slots = planned.slots()
        located = run.locate(slots if dealing is None else dealing.positions(slots))
        sizes, steps, afters = planned.sizes.tolist(), planned.steps.tolist(), planned.afters.tolist()
        row = 0
        first = 0
        while first < len(sizes):
            last = first + pace.take()
            end = row + sum(sizes[first:last])
            yield Span(located.rows(row, end), sizes[first:last], steps[first:last], afters[first:last])
            row, first = end, last
        position = afters[-1]
        wanted = PLAN_POSITIONS


def _row_bytes(run: Run) -> int | None:
    """Bytes of a sample in a batch; of records about, of media not known."""
    if not all(dataset.has_tokens for dataset in run.datasets):
        return None
    tokens = int(max(dataset.num_tokens_per_sample for dataset in run.datasets)) if run.is_ragged else 1
    return sum(abs(prod(shape)) * tokens * dtype.itemsize for shape, dtype in run.fields.values())


def read(run: Run, span: Span, out: Memory = None) -> Batch:
    """All rows of a span as tensors, (rows, ...) each, in the memory of ``out`` or fresh; of records see `ragged`."""
    if run.is_ragged or callable(out):
        return read_ragged(run, span.located, span.sizes, out if callable(out) else None)
    return {name: torch.from_numpy(values) for name, values in run.read(span.located, out).items()}


def divide(batch: Batch, span: Span, constants: Sample) -> list[Batch]:
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
