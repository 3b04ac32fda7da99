"""Spans of ragged micro-batches: records and media, where each micro-batch has its own width.

A span holds one flat tensor for each field, one micro-batch after another, so that threads, workers and pinning move
few tensors. Shapes, and values that are no arrays, travel beside them. Each micro-batch is a view of its own part.

    widths 3 and 5, two rows each     input_ids (16,)   shapes (2, 3), (2, 5)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import Run, Sample
from headrace.datasets.dataset import SampleWatch, StageTimes, Tell
from headrace.datasets.map_style import GENERATORS
from headrace.datasets.media.face import Room, collated
from headrace.encoders.pipeline import in_main_thread
from headrace.errors import ConfigError
from headrace.loader.faults import blaming
from headrace.loader.reading import Reading
from headrace.loader.spans import SPAN_BYTES_AWAY, Allocate, Batch, BatchSpan, Cost, RaggedBatch, SpanRows

_log = logging.getLogger("headrace")


def read_ragged(run: Run, span: BatchSpan, allocate: Allocate | None, tell: Tell | None = None) -> SpanRows:
    """Read the micro-batches of a span, each padded to its own longest sample, with their cost and faults.

    Args:
        run: the run, which reads all samples together.
        span: the samples, and the number of them in each micro-batch.
        allocate: returns memory for pictures, and for all of a single micro-batch, if no code of the user sees them.
        tell: called before each sample, see `SampleWatch`.

    Raises:
        SampleFailure: samples could not be made.
    """
    begin = perf_counter()
    flat = run.flat_batches(span.located, span.sizes, allocate or fresh)
    if flat is not None:
        columns = {name: torch.from_numpy(values) for name, values in flat.columns.items()}
        parts = list(map(RaggedBatch, flat.shapes, flat.others))
        return SpanRows(columns, parts, times=StageTimes(read=perf_counter() - begin))
    # A micro-batch is padded to its largest picture, but a large one must not count for all of a span.
    most_bytes = None if len(span.sizes) == 1 else 4 * SPAN_BYTES_AWAY
    room = Room(allocate or fresh, len(span.located.positions), most_bytes) if _is_plain(run, span) else None
    watch = SampleWatch(tell=tell, room=room)
    batches, first = [], 0
    stacks: Sample = {}
    with blaming(watch):
        samples = run.samples(span.located, watch)
        made = perf_counter()
        if room is not None:
            samples, stacks = room.taken(samples)
        for size in span.sizes:
            some, rows = samples[first : first + size], slice(first, first + size)
            if room is not None and some:
                own = {name: stack[rows] for name, stack in stacks.items()}
                batches.append(collated(some, allocate if len(span.sizes) == 1 else None) | own)
            else:
                batches.append(run.collate(some))
            first += size
    columns, ragged = _flattened(batches, stacks, allocate or fresh)
    num_bytes = sum(map(_num_bytes, columns.values()))
    num_bytes += sum(_num_bytes(value) for _, others in ragged for value in others.values())
    times = watch.take_times(made - begin, perf_counter() - made)
    return SpanRows(columns, ragged, Cost.of(times, num_bytes), watch.faults, times)


def read_opaque(run: Run, span: BatchSpan, allocate: Allocate | None, tell: Tell | None = None) -> SpanRows:
    """Read the micro-batches of a span, each of them what a function of the user makes of its samples.

    The datasets seed the global random generators, which are left as they were.

    Raises:
        SampleFailure: samples could not be made.
    """
    begin = perf_counter()
    seed = run.order.seed if run.traits.is_seeded else None
    watch = SampleWatch(tell=tell, seed=seed)
    batches, first, collating_s = [], 0, 0.0
    if seed is not None and not in_main_thread():
        _tell_unseeded()
    with blaming(watch), contextlib.nullcontext() if seed is None else GENERATORS:
        for size in span.sizes:
            some = span.located.rows(first, first + size)
            first += size
            samples = run.samples(some, watch)
            made = perf_counter()
            batches.append(RaggedBatch({}, run.collate(samples)))
            del samples
            collating_s += perf_counter() - made
    times = watch.take_times(perf_counter() - begin - collating_s, collating_s)
    return SpanRows({}, batches, Cost.of(times, 0), watch.faults, times)


@cache
def _tell_unseeded() -> None:
    _log.warning(
        "samples of a map-style dataset are made in the thread %s: the random numbers that they draw are not seeded,"
        " since threads share their generators. Use num_workers, or iterate the loader in the main thread",
        threading.current_thread().name,
    )


def check_seeded(asked: Reading | None) -> None:
    """Raise ConfigError if samples that draw random numbers would be read in a thread."""
    if asked is not None and asked.num_threads and not asked.num_workers:
        raise ConfigError(
            "samples of a map-style dataset may draw random numbers, whose generators a thread shares with the training"
            " loop: pass Reading(num_threads=0) or Reading(num_workers=2), or MapStyleDataset(..., seeded=False)"
        )


def fresh(num_bytes: int) -> NDArray[np.uint8]:
    """Return (num_bytes,) uint8 of new memory."""
    return np.empty(num_bytes, np.uint8)


def _is_plain(run: Run, span: BatchSpan) -> bool:
    """Whether all samples are of one source, whose batches no code of the user makes."""
    sources = set(span.located.sources.tolist())
    return len(sources) == 1 and run.datasets[sources.pop()].traits.is_plain


def _flattened(batches: list[Batch], stacks: Sample, allocate: Allocate) -> tuple[Batch, list[RaggedBatch]]:
    """Return the flat tensors of all micro-batches, and what each of these has beside them.

    ``stacks`` are the columns of which the micro-batches have views; others are joined in memory of ``allocate``.
    """
    # A field is flat if it is an array; but an empty micro-batch has lists, and another dataset may use another dtype.
    kinds: dict[str, str] = {}
    for batch in batches:
        for name, value in batch.items():
            if isinstance(value, np.ndarray | torch.Tensor):
                kinds.setdefault(name, _kind(value))
    ragged = []
    pieces: dict[str, list[Any]] = {name: [] for name in kinds}
    for batch in batches:
        shapes: dict[str, tuple[int, ...]] = {}
        others: dict[str, Any] = {}
        for name, value in batch.items():
            if name in kinds and isinstance(value, np.ndarray | torch.Tensor) and _kind(value) == kinds[name]:
                shapes[name] = value.shape
                pieces[name].append(value)
            else:
                others[name] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        ragged.append(RaggedBatch(shapes, others))
    return {name: _flat([stacks[name]] if name in stacks else some, allocate) for name, some in pieces.items()}, ragged


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value.dtype}"


def _flat(pieces: list[Any], allocate: Allocate) -> torch.Tensor:
    pieces = [piece.reshape(-1) for piece in pieces]
    if isinstance(pieces[0], torch.Tensor):
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    # The array of a single micro-batch is used without a copy, since images are large. Constants cannot be written to,
    # and are copied.
    if len(pieces) == 1 and pieces[0].flags.writeable and pieces[0].flags.c_contiguous:
        return torch.from_numpy(pieces[0])
    num_bytes = sum(piece.nbytes for piece in pieces)
    return torch.from_numpy(np.concatenate(pieces, out=allocate(num_bytes)[:num_bytes].view(pieces[0].dtype)))


def _num_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of a list of bytes or strings; other values are small or of unknown size."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list) and value and isinstance(value[0], bytes | str):
        with contextlib.suppress(TypeError):  # some entries are None
            return sum(map(len, value))
    return 0
