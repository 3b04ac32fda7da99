"""Spans: consecutive micro-batches of one rank that are planned, read and handed over together.

`Pace` decides how many micro-batches make a span: enough to be worth a hand-over, few enough to wait for. Spans and
their samples can be described in words, for errors and reports: shard and key, position and step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import check_choice
from headrace.datasets import Dataset, Located, Run, Sample
from headrace.datasets.dataset import Fields, StageTimes, Tell
from headrace.datasets.origins import origin_words
from headrace.errors import ConfigError
from headrace.loader.memory import ALIGNED
from headrace.plan import IntArray, Share, micro_batches

if TYPE_CHECKING:
    from headrace.encoders import Fault
    from headrace.loader.ranks import Ranks

SPAN_BYTES = 9 << 20
"""The most bytes of a span: enough to spread the cost of a hand-over, few enough to stay in the cache.

Two micro-batches of 32 packs of 4,096 tokens take a little more than 8 MiB.
"""

SPAN_BYTES_AWAY = 16 << 20
"""The most bytes of a span that another process reads. Its hand-over is dearer, and takes time of the training loop."""

SPAN_ROWS = 512
"""The most samples of a span, since each is a read."""

SPAN_ROWS_HERE = 64
"""The most samples of a span of media that this process reads itself. With more alive at once, the garbage collector
would go through all of them."""

SPAN_SECONDS = 0.02
"""The longest time to read a span, for samples whose cost is learnt by reading. A hand-over costs a hundredth of it."""


class Cost(NamedTuple):
    """What it took to read a span: bytes, and time without that of getting them, of which a longer span needs less."""

    seconds: float
    num_bytes: int

    @classmethod
    def of(cls, times: StageTimes, num_bytes: int) -> Cost:
        """Return the cost of samples whose stages took these times."""
        return cls(sum(times) - times.read, num_bytes)


class Pace:
    """Decides how many micro-batches the next span has.

    The first span has one, so that the first batch comes at once; each later one has at most twice as many as the one
    before. The size of samples is known for tokens. For media, size and cost are learnt as spans come back.

    Args:
        micro_batch_size: samples of a micro-batch.
        row_bytes: bytes of a sample; None if they are not known before it is read.
        is_here: whether this process reads the samples itself.
        keeps_samples: whether the samples live as long as their batch, which is not so if they were collated.
    """

    def __init__(
        self, micro_batch_size: int, row_bytes: int | None, *, is_here: bool = False, keeps_samples: bool = True
    ) -> None:
        rows = SPAN_ROWS_HERE if is_here and keeps_samples and row_bytes is None else SPAN_ROWS
        self._most_bytes = SPAN_BYTES if is_here else SPAN_BYTES_AWAY
        self._most = rows // micro_batch_size
        self._is_known = row_bytes is not None
        if row_bytes is not None:
            self._most = min(self._most, self._most_bytes // max(1, row_bytes * micro_batch_size))
        self._next = 1
        self._share = 0.0

    def take(self) -> int:
        """Return the number of micro-batches of the next span, at least 1."""
        found = self._next
        if self._is_known:
            self._next = max(1, min(2 * found, self._most))
        return found

    def learn(self, num_micro_batches: int, cost: Cost | None) -> None:
        """Learn from the cost of a span. A cheap span counts only half against those before, since samples differ."""
        if self._is_known or cost is None or not num_micro_batches:
            return
        share = max(cost.seconds / SPAN_SECONDS, cost.num_bytes / self._most_bytes) / num_micro_batches
        self._share = max(share, (share + self._share) / 2)
        fits = self._most if self._share * self._most <= 1 else int(1 / self._share)
        self._next = max(1, min(2 * num_micro_batches, fits, self._most))


PLAN_POSITIONS = 8192
"""Positions planned at a time."""

Ids = Literal["int64", "int32"]
"""The dtype of ``input_ids`` and ``labels`` in the batches of a loader."""

Batch = dict[str, Any]
"""Name -> tensor. Packed samples also have ``max_seqlen`` and counts, Python ints; records may hold any values."""


class BatchSpan(NamedTuple):
    """Consecutive micro-batches of one rank: the samples to read, and how to divide them.

    Micro-batch i has the next ``sizes[i]`` rows of ``located``, and belongs to global step ``steps[i]``. After it, the
    position of the run is ``afters[i]``.
    """

    located: Located
    sizes: list[int]
    steps: list[int]
    afters: list[int]


class RaggedBatch(NamedTuple):
    """What a ragged micro-batch has beside its parts of the flat tensors: their shapes, and all other values."""

    shapes: dict[str, tuple[int, ...]]
    others: dict[str, Any]


class FileTime(NamedTuple):
    """How long it took to read some bytes of one file alone; see `headrace.loader.shard_times`."""

    file: str
    seconds: float
    num_bytes: int


class SpanRows(NamedTuple):
    """The samples of a span, as threads and workers hand them over.

    Attributes:
        columns: name -> tensor: (rows, ...) for samples of one shape; for ragged samples flat, one micro-batch after
            another.
        ragged: one entry for each micro-batch of ragged samples; None for samples of one shape.
        cost: what it took to read ragged samples; None where that is known before, as for tokens.
        faults: the faults of the samples.
        times: how long each stage took.
        counts: what each micro-batch has besides, counted where it was read; empty if the loader still has to count.
        timed: the time of one of the files, if it was read alone.
        batches: the micro-batches, if a thread has divided the samples already; ``columns`` is empty then.
    """

    columns: Batch
    ragged: list[RaggedBatch] | None = None
    cost: Cost | None = None
    faults: Sequence[Fault] = ()
    times: StageTimes = StageTimes()
    counts: Sequence[Batch] = ()
    timed: FileTime | None = None
    batches: Sequence[Batch] = ()


def pace_of(run: Run, share: Share, ids: Ids = "int64", *, is_here: bool = True) -> Pace:
    """Return the `Pace` of a new stream; tell it what spans have cost with `Pace.learn`."""
    return Pace(share.micro_batch_size, _row_bytes(run, ids), is_here=is_here, keeps_samples=not run.traits.is_opaque)


class SlotAssignment(Protocol):
    """Says which positions fill the slots of a step."""

    def positions(self, slots: IntArray, /) -> IntArray:
        """Return (n,) int64: the position of the sample that fills each of these slots, which are in rising order."""


def spans(
    run: Run,
    share: Share,
    position: int,
    assignment: SlotAssignment | None = None,
    pace: Pace | None = None,
    planned_positions: int | None = None,
) -> Iterator[BatchSpan]:
    """Yield all spans of a rank from ``position`` to the end of the run.

    Args:
        run: the run.
        share: the rank.
        position: where the first span begins.
        assignment: which positions fill the slots of a step; without one, a slot is its own position.
        pace: how many micro-batches a span has.
        planned_positions: how many positions of all ranks are planned at a time, at least; None for the default.
    """
    pace = pace or pace_of(run, share)
    # The first plan is small, so that the first batch comes at once.
    wanted = PLAN_POSITIONS // 16
    while True:
        at_least = planned_positions or wanted * share.world_size
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


def fields_with(run: Run, ids: Ids) -> Fields:
    """Return the fields of a run of samples of one shape, with ``input_ids`` and ``labels`` of this dtype.

    Raises:
        ConfigError: ``ids`` is not allowed, or the run has no such fields, whose ids it could hold.
    """
    check_choice("ids", ids, get_args(Ids))
    if ids == "int64":
        return {} if run.traits.is_ragged else run.fields
    if run.traits.is_ragged or "input_ids" not in run.fields:
        raise ConfigError(f"ids is {ids!r}, for windows and packs alone, and this run has other samples: leave ids out")
    return {
        name: (shape, np.dtype(ids) if name in ("input_ids", "labels") and dtype == np.int64 else dtype)
        for name, (shape, dtype) in run.fields.items()
    }


def _row_bytes(run: Run, ids: Ids) -> int | None:
    """Return the bytes of a sample in a batch: about, for records; None for media, where they are not known."""
    if not run.traits.has_tokens:
        return None
    tokens = int(max(dataset.num_tokens_per_sample for dataset in run.datasets)) if run.traits.is_ragged else 1
    fields = run.fields if run.traits.is_ragged else fields_with(run, ids)
    return sum(abs(prod(shape)) * tokens * dtype.itemsize for shape, dtype in fields.values())


Allocate = Callable[[int], NDArray[np.uint8]]
"""Returns at least as many bytes as asked for, contiguous, uninitialised, and used by nobody else."""

ReadRows = Callable[[Run, BatchSpan, Any, Tell | None], SpanRows]
"""Reads a span into memory: arrays of the run's fields, or for ragged samples an `Allocate`; None is fresh memory. It
tells of each sample that user code makes, see `SampleWatch`."""


def room_for(run: Run, span: BatchSpan, allocate: Allocate, ids: Ids = "int64") -> Sample | Allocate:
    """Return what a span is read into: uninitialised (rows, ...) arrays of the fields, next to each other.

    For ragged samples it is ``allocate`` itself, since their shapes are not known before.
    """
    if run.traits.is_ragged:
        return allocate
    rows, fields = len(span.located.positions), fields_with(run, ids)
    sizes = [rows * prod(shape) * dtype.itemsize for shape, dtype in fields.values()]
    begins = list(accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes), initial=0))
    whole = allocate(begins[-1])
    return {
        name: whole[begin : begin + size].view(dtype).reshape(rows, *shape)
        for (name, (shape, dtype)), begin, size in zip(fields.items(), begins, sizes, strict=False)
    }


def read_rows(run: Run, span: BatchSpan, out: Sample | None, tell: Tell | None = None) -> SpanRows:
    """Read the samples of a span, which have one shape."""
    begin = perf_counter()
    columns = {name: torch.from_numpy(values) for name, values in run.read(span.located, out).items()}
    return SpanRows(columns, times=StageTimes(read=perf_counter() - begin))


def divide(rows: SpanRows, span: BatchSpan, constants: Sample) -> list[Batch]:
    """Divide a span into micro-batches: views of their rows, and for each constant a row of their own, expanded."""
    if rows.batches:
        return list(rows.batches)
    if rows.ragged is not None:
        return _divide_ragged(rows.columns, rows.ragged, span)
    whole = {**rows.columns, "sample_positions": torch.from_numpy(span.located.positions)}
    columns = {name: _split(values, span.sizes) for name, values in whole.items()}
    for name, value in constants.items():
        columns[name] = _expanded(value, span.sizes)
    # A dict for each micro-batch, made without a Python loop, which would be most of the cost of short batches.
    return list(map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True))))


def _divide_ragged(columns: Batch, ragged: list[RaggedBatch], span: BatchSpan) -> list[Batch]:
    """Return views of the parts of each micro-batch, in their shapes, and its other values."""
    positions = _split(torch.from_numpy(span.located.positions), span.sizes)
    batches: list[Batch] = [{"sample_positions": one} for one in positions]
    for name in dict.fromkeys(name for shapes, _ in ragged for name in shapes):
        having = [(batch, shapes[name]) for batch, (shapes, _) in zip(batches, ragged, strict=True) if name in shapes]
        pieces = _split(columns[name], [prod(shape) for _, shape in having])
        for (batch, shape), piece in zip(having, pieces, strict=True):
            batch[name] = piece.view(*shape)
    for batch, (_, others) in zip(batches, ragged, strict=True):
        batch.update(others)
    return batches


def _split(values: torch.Tensor, sizes: list[int], dim: int = 0) -> tuple[torch.Tensor, ...]:
    """Return consecutive parts in the same memory, without a note in each of the tensor that it is a part of.

    Autograd, which nobody asks of data, would read that note. It takes half of the time, and a change of one batch
    would count as a change of all others.
    """
    return torch.unsafe_split_with_sizes(values, sizes, dim)


def _expanded(value: NDArray[Any], sizes: list[int]) -> tuple[torch.Tensor, ...]:
    """Return for each size a (size, ...) view of a fresh copy of ``value``."""
    copies = np.empty((len(sizes), *value.shape), dtype=value.dtype)
    copies[:] = value
    flat, parts = torch.from_numpy(copies).view(-1), [value.size] * len(sizes)
    if value.ndim == 1 and sizes.count(sizes[0]) == len(sizes):
        return _split(flat.expand(sizes[0], -1), parts, dim=1)
    rows = zip(_split(flat, parts), sizes, strict=True)
    return tuple(row.view(value.shape).expand(size, *value.shape) for row, size in rows)


def span_words(span: BatchSpan, ranks: Ranks | None = None) -> str:
    """Return ``samples at positions 12 to 15 of step 3``, and the rank; unlike `describe_span` it reads nothing."""
    positions = span.located.positions
    where = rank_words(ranks)
    if not len(positions):
        return f"no samples of step {span.steps[0]:,}{where}"
    between = f"{int(positions.min()):,} to {int(positions.max()):,}"
    return f"samples at positions {between} of {steps_words(span.steps)}{where}"


def rank_words(ranks: Ranks | None) -> str:
    """Return `` on rank 0 of 2``; nothing for None."""
    return "" if ranks is None else f" on rank {ranks.rank} of {ranks.world_size}"


def steps_words(steps: Sequence[int]) -> str:
    """Return ``step 3``, or ``steps 3 to 5``."""
    return f"step {steps[0]:,}" if steps[0] == steps[-1] else f"steps {steps[0]:,} to {steps[-1]:,}"


def describe_span(run: Run, span: BatchSpan, ranks: Ranks | None = None) -> str:
    """Return ``samples at positions 12 to 15 of step 3 (the first is sample 'K' of SHARD)``, and the rank.

    This reads the index of the store.
    """
    positions = span.located.positions
    if not len(positions):
        return span_words(span, ranks)
    first = int(positions.min())
    origin = origin_words(run.datasets[int(span.located.sources[0])].origins, int(span.located.addresses[0]))
    if len(positions) == 1:
        what = f", {origin}" if origin else ""
        return f"the sample at position {first:,} of step {span.steps[0]:,}{what}{rank_words(ranks)}"
    return f"{span_words(span)}{f' (the first is {origin})' if origin else ''}{rank_words(ranks)}"


def describe_sample(run: Run, span: BatchSpan, address: int) -> str:
    """Return ``sample 'K' of SHARD (position 13, step 3)``, for the address that its dataset gave a sample."""
    rows = np.flatnonzero(span.located.addresses == address).tolist()
    if not rows:
        return describe_span(run, span)
    row = rows[0]
    ends = list(accumulate(span.sizes))
    step = span.steps[bisect_right(ends, row)]
    place = f"position {int(span.located.positions[row]):,}, step {step:,}"
    # An address names a sample of one source; several sources may have one of that address in the same span.
    samples = [(run.datasets[source], address) for source in span.located.sources[rows].tolist()]
    return f"{sample_words(samples)} ({place})"


_SHOWN = 3


def sample_words(samples: Iterable[tuple[Dataset, int]]) -> str:
    """Return ``sample 'K' of SHARD``, for the dataset and the address of a sample, or for all that it may be."""
    names = list(dict.fromkeys(name for one in samples if (name := origin_words(one[0].origins, one[1])))) or [
        "a sample"
    ]
    more = f" or of {len(names) - _SHOWN} other datasets" if len(names) > _SHOWN else ""
    return " or ".join(names[:_SHOWN]) + more


def begun_samples(run: Run, position: int) -> int:
    """Return how many samples of its step come before a position; 0 where a step begins, and at the end of the run."""
    return 0 if position == run.length else position - run.schedule.begin(run.schedule.step_of(position))


UNTOLD: Final = "and a number of samples does not say which of them were taken, "


def check_between_steps(run: Run, position: int, why: str) -> None:
    """Raise ConfigError for a position within a step, for the reason ``why``."""
    if begun_samples(run, position):
        step = run.schedule.step_of(position)
        begin, end = (run.schedule.begin(one) for one in (step, step + 1))
        raise ConfigError(
            f"position {position:,} is within step {step:,}, {why}: start where a step begins, such as {begin:,} (step "
            f"{step:,}) or {end:,} (step {step + 1:,}), or load a saved state"
        )
