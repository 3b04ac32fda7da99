"""Spans of ragged micro-batches: records and media, where each micro-batch has its own width.

A span holds one flat tensor for each field, one micro-batch after another, so that threads, workers and pinning move
few tensors. Shapes, and values that are no arrays, travel beside them. Each micro-batch is a view of its own part.

    widths 3 and 5, two rows each     input_ids (16,)   shapes (2, 3), (2, 5)
"""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import Any

import numpy as np
import torch

from headrace.datasets import Located, Run
from headrace.datasets.media.face import Allocate, BatchBlocks, reading_rows
from headrace.encoders import collecting
from headrace.loader.spans import Batch, BatchSpan, Cost, RaggedBatch, SpanRows


def read_ragged(run: Run, span: BatchSpan, allocate: Allocate | None = None) -> SpanRows:
    """Read the micro-batches of a span, each padded to its own longest sample, with their cost and faults.

    Args:
        run: the run, which reads all samples together.
        span: the samples, and the number of them in each micro-batch.
        allocate: returns memory into which images are decoded next to each other, where that is possible.
    """
    begin = perf_counter()
    located, num_rows = span.located, len(span.located.positions)
    with collecting() as faults:
        if allocate is None or not num_rows or not _is_plain(run, located):
            columns, ragged = _read(run, located, span.sizes, None)
        else:
            with reading_rows(allocate, num_rows) as rows:
                columns, ragged = _read(run, located, span.sizes, rows)
    num_bytes = sum(
        _num_bytes(value) for values in (columns, *(one.others for one in ragged)) for value in values.values()
    )
    return SpanRows(columns, ragged, Cost(perf_counter() - begin, num_bytes), faults)


def _is_plain(run: Run, located: Located) -> bool:
    """Whether all samples are of one source, and nothing but their batch will refer to them."""
    source = int(located.sources[0])
    return bool(getattr(run.datasets[source], "is_plain", False)) and bool((located.sources == source).all())


def _read(run: Run, located: Located, sizes: list[int], rows: BatchBlocks | None) -> tuple[Batch, list[RaggedBatch]]:
    samples = run.samples(located)
    ends = np.cumsum(sizes).tolist()
    batches = [run.datasets[0].collate(samples[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
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
    return {name: _flat(some, rows) for name, some in pieces.items()}, ragged


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value.dtype}"


def _flat(pieces: list[Any], rows: BatchBlocks | None) -> torch.Tensor:
    whole = None if rows is None else rows.joined(pieces)
    pieces = [piece.reshape(-1) for piece in (pieces if whole is None else [whole])]
    if isinstance(pieces[0], torch.Tensor):
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    # The array of a single micro-batch is used without a copy, since images are large. Constants cannot be written to,
    # and are copied.
    has_own = len(pieces) == 1 and pieces[0].flags.writeable and pieces[0].flags.c_contiguous
    return torch.from_numpy(pieces[0] if has_own else np.concatenate(pieces))


def _num_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of a list of bytes or strings; other values are small or of unknown size."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list) and value and isinstance(value[0], bytes | str):
        with contextlib.suppress(TypeError):  # some entries are None
            return sum(map(len, value))
    return 0
