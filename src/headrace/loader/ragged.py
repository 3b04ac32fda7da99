"""Spans of ragged micro-batches: records and media, where each micro-batch has its own width.

A span holds one flat tensor for each field, one micro-batch after another, so that threads, workers and pinning move
few tensors. Shapes, and values that are no arrays, travel beside them. Each micro-batch is a view of its own part.

    widths 3 and 5, two rows each     input_ids (16,)   shapes (2, 3), (2, 5)
"""

from __future__ import annotations

import contextlib
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.datasets import Located, Run
from headrace.datasets.media.face import Allocate, BatchBlocks, reading_rows
from headrace.encoders import Fault, collecting
from headrace.plan import IntArray

_REST = "rest of ragged micro-batches"
"""Key of a span that is no field: for each micro-batch its shapes, and its values that are no arrays."""

_COST = "cost of ragged micro-batches"
"""Key of a span that is no field: its `Cost`."""

_FAULTS = "faults of ragged micro-batches"
"""Key of a span that is no field: the faults of its samples; left out if there are none."""

Batch = dict[str, Any]


class Cost(NamedTuple):
    """What it took to read a span: time, and bytes of its values."""

    seconds: float
    num_bytes: int


def read_ragged(run: Run, located: Located, sizes: list[int], allocate: Allocate | None = None) -> Batch:
    """Read the micro-batches of a span, each padded to its own longest sample, with their cost and faults.

    Args:
        run: the run, which reads all samples together.
        located: the samples.
        sizes: the number of samples of each micro-batch.
        allocate: returns memory into which images are decoded next to each other, where that is possible.
    """
    begin = perf_counter()
    num_rows = len(located.positions)
    with collecting() as faults:
        if allocate is None or not num_rows or not _is_plain(run, located):
            flat = _read(run, located, sizes, None)
        else:
            with reading_rows(allocate, num_rows) as rows:
                flat = _read(run, located, sizes, rows)
    num_bytes = sum(_num_bytes(value) for name, value in flat.items() if name != _REST)
    num_bytes += sum(_num_bytes(value) for _, others in flat[_REST] for value in others.values())
    flat[_COST] = Cost(perf_counter() - begin, num_bytes)
    if faults:
        flat[_FAULTS] = faults
    return flat


def _is_plain(run: Run, located: Located) -> bool:
    """Whether all samples are of one source, and nothing but their batch will refer to them."""
    source = int(located.sources[0])
    return bool(getattr(run.datasets[source], "is_plain", False)) and bool((located.sources == source).all())


def _read(run: Run, located: Located, sizes: list[int], rows: BatchBlocks | None) -> Batch:
    samples = run.samples(located)
    ends = np.cumsum(sizes).tolist()
    batches = [run.datasets[0].collate(samples[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    # A field is flat if it is an array; but an empty micro-batch has lists, and another dataset may use another dtype.
    kinds: dict[str, str] = {}
    for batch in batches:
        for name, value in batch.items():
            if isinstance(value, np.ndarray | torch.Tensor):
                kinds.setdefault(name, _kind(value))
    rest = []
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
        rest.append((shapes, others))
    flat: Batch = {name: _flat(some, rows) for name, some in pieces.items()}
    flat[_REST] = rest
    return flat


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


def cost_of(span: Batch) -> Cost | None:
    """Return what it took to read a span; None for spans of tokens, whose cost is known before."""
    return span.get(_COST)


def faults_of(span: Batch) -> list[Fault]:
    """Return the faults of the samples of a span."""
    found: list[Fault] = span.get(_FAULTS, [])
    return found


def is_ragged(batch: Batch) -> bool:
    """Whether a span was read by `read_ragged`."""
    return _REST in batch


def divide_ragged(span: Batch, positions: IntArray, sizes: list[int]) -> list[Batch]:
    """Divide a span into its micro-batches: views of their parts, in their shapes, with ``sample_positions``."""
    rest = span[_REST]
    parts = torch.from_numpy(positions).split_with_sizes(sizes)
    batches: list[Batch] = [{"sample_positions": mine} for mine in parts]
    for name in dict.fromkeys(name for shapes, _ in rest for name in shapes):
        having = [(batch, shapes[name]) for batch, (shapes, _) in zip(batches, rest, strict=True) if name in shapes]
        pieces = span[name].split_with_sizes([prod(shape) for _, shape in having])
        for (batch, shape), piece in zip(having, pieces, strict=True):
            batch[name] = piece.view(*shape)
    return [{**batch, **others} for batch, (_, others) in zip(batches, rest, strict=True)]
