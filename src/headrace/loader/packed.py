"""What micro-batches of packed samples carry besides their rows: the segments that they are made of."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.loader.spans import Batch
from headrace.plan.packed_check import verify_packed


def add_segments(batches: list[Batch]) -> None:
    """Add to each micro-batch the segments that it is made of.

    - ``cu_seqlens`` (segments + 1,) int32: where each segment begins in the flattened micro-batch, and its end;
    - ``max_seqlen`` int: tokens of the longest segment.
    """
    for batch in batches:
        bounds = _bounds(memoryview(batch["position_ids"].numpy().reshape(-1)))
        batch["cu_seqlens"] = torch.from_numpy(bounds)
        batch["max_seqlen"] = int(np.diff(bounds).max()) if len(bounds) > 1 else 0


def _bounds(positions: memoryview) -> NDArray[np.int32]:
    """``cu_seqlens`` from the end: the last position of a segment says how long it is. O(segments), not tokens."""
    bounds = [len(positions)]
    while bounds[-1]:
        bounds.append(bounds[-1] - positions[bounds[-1] - 1] - 1)
    return np.array(bounds[::-1], dtype=np.int32)


def verify(batch: Batch, *, is_unshifted: bool) -> None:
    """Check every field of a packed micro-batch against every other one; raises HeadraceError with what is wrong."""
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    verify_packed(arrays, is_unshifted=is_unshifted)
