"""Which tokens of a packed micro-batch each context-parallel rank holds.

Under causal attention late tokens cost more than early ones. So each segment is cut into 2 * cp_size equal chunks, and
rank r takes chunk r and chunk 2 * cp_size - 1 - r: an early one and the late one opposite.

    cu_seqlens 0 8 12, 2 ranks       rank 0: [0 1] [6 7] [8] [11]
                                     rank 1: [2 3] [4 5] [9] [10]

Source: the thd format of Transformer Engine and Megatron, whose kernels expect just this split.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.segments import Int32Array


def context_parallel_indices(cu_seqlens_padded: Int32Array, cp_size: int, cp_rank: int) -> IntArray:
    """(T / cp_size,) int64: the flattened tokens that a rank holds, in its order.

    ``cu_seqlens_padded`` is (n + 1,) from 0 to T; each segment's length is a multiple of 2 * cp_size, and may be 0.
    With one rank these are all tokens, of segments of any length. All ranks together hold each token once.

    Raises:
        ConfigError: no such rank, prefix sums that are none, or a segment of another length; the message names it.
    """
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise ConfigError(f"context-parallel rank {cp_rank} of {cp_size}: ranks run from 0 to cp_size - 1")
    borders = np.asarray(cu_seqlens_padded, dtype=np.int64)
    lengths = np.diff(borders)
    if borders.ndim != 1 or not len(borders) or borders[0] != 0 or (lengths < 0).any():
        raise ConfigError("cu_seqlens_padded is one row of prefix sums: it begins with 0 and never decreases")
    if cp_size == 1:
        return np.arange(borders[-1], dtype=np.int64)
    multiple = 2 * cp_size
    wrong = np.flatnonzero(lengths % multiple)
    if wrong.size:
        i = int(wrong[0])
        raise ConfigError(
            f"segment {i}, tokens {borders[i]} to {borders[i + 1]} of the micro-batch, has {lengths[i]} tokens; "
            f"{cp_size} context-parallel ranks need a multiple of {multiple}: pack with segment_multiple={multiple}"
        )
    chunks = lengths // multiple
    # Two stretches of each segment, the second one opposite to the first.
    begins = borders[:-1, None] + chunks[:, None] * np.array([cp_rank, multiple - 1 - cp_rank])
    sizes = np.repeat(chunks, 2)
    ends = np.cumsum(sizes)
    shifts = np.repeat(begins.reshape(-1) - (ends - sizes), sizes)
    indices: IntArray = np.arange(len(shifts), dtype=np.int64) + shifts
    return indices


def context_parallel_order(cu_seqlens_padded: Int32Array, cp_size: int) -> IntArray:
    """(T,) int64: where each token lies in the parts of all ranks one after another; this puts them together again.

    ``np.concatenate(parts)[order]`` is the whole, where ``parts[r]`` are the tokens that rank r holds.
    Raises as ``context_parallel_indices``.
    """
    taken = [context_parallel_indices(cu_seqlens_padded, cp_size, rank) for rank in range(max(cp_size, 1))]
    indices = np.concatenate(taken)
    order = np.empty_like(indices)
    order[indices] = np.arange(len(indices), dtype=np.int64)
    return order
