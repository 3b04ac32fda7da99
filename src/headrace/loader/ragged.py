"""Micro-batches of records, each of its own width, on their way from where they are read to where they are handed out.

A span of them is one flat tensor a field, one micro-batch after another, so that threads, workers and pinning move few
tensors; the shapes, and what is no array, go beside them. Each micro-batch is a view of its own part.

    widths 3 and 5, two rows each     input_ids (16,)   shapes (2, 3), (2, 5)
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from headrace.datasets import Located, Run
from headrace.plan import IntArray

_REST = "rest of ragged micro-batches"
"""Not the name of a field: for each micro-batch its shapes, and its values that are no arrays."""

Batch = dict[str, Any]


def read_ragged(run: Run, located: Located, sizes: list[int]) -> Batch:
    """The micro-batches of these sizes, each padded for itself."""
    ends = np.cumsum(sizes).tolist()
    batches = [run.read(located.rows(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    names = [name for name, value in batches[0].items() if isinstance(value, np.ndarray | torch.Tensor)]
    flat: Batch = {name: _flat([batch[name].reshape(-1) for batch in batches]) for name in names}
    shapes = [{name: batch[name].shape for name in names} for batch in batches]
    others = [{name: value for name, value in batch.items() if name not in flat} for batch in batches]
    flat[_REST] = list(zip(shapes, others, strict=True))
    return flat


def _flat(pieces: list[Any]) -> torch.Tensor:
    if isinstance(pieces[0], torch.Tensor):
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    # One micro-batch of images is large, and its memory its own but for constants, which cannot be written to.
    has_own = len(pieces) == 1 and pieces[0].flags.writeable and pieces[0].flags.c_contiguous
    return torch.from_numpy(pieces[0] if has_own else np.concatenate(pieces))


def is_ragged(batch: Batch) -> bool:
    """Whether a span was read by `read_ragged`."""
    return _REST in batch


def divide_ragged(span: Batch, positions: IntArray, sizes: list[int]) -> list[Batch]:
    """The micro-batches of a span: views of their parts, in the shapes they were read in, with their positions."""
    rest = span[_REST]
    parts = torch.from_numpy(positions).split_with_sizes(sizes)
    batches: list[Batch] = [{"sample_positions": mine} for mine in parts]
    for name in rest[0][0]:
        shapes = [shapes[name] for shapes, _ in rest]
        pieces = span[name].split_with_sizes([prod(shape) for shape in shapes])
        for batch, piece, shape in zip(batches, pieces, shapes, strict=True):
            batch[name] = piece.view(*shape)
    return [{**batch, **others} for batch, (_, others) in zip(batches, rest, strict=True)]
