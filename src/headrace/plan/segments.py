"""The segments of packed rows, derived from their position ids, in the forms that attention kernels want.

A segment is a document, or a piece of one, with the pads that belong to it; the pads at the end of a row are one more.
Segments begin exactly where ``position_ids`` is 0, so that one field is enough:

    position_ids    0 1 2 0 1 0 | 0 1 0 1 2 3          two rows of six tokens
    cu_seqlens      0 3 5 6 8 12                       prefix sums over the rows one after another
    seq_lens        3 2 1 2 4
    seq_idx         0 0 0 1 1 2 | 0 0 1 1 1 1

Rows are (B, S), or (S,) for a single one. All are one pass over the tokens.

Which tokens of a packed micro-batch each context-parallel rank holds.

Under causal attention late tokens cost more than early ones. So each segment is cut into 2 * cp_size equal chunks, and
rank r takes chunk r and chunk 2 * cp_size - 1 - r: an early one and the late one opposite.

    cu_seqlens 0 8 12, 2 ranks       rank 0: [0 1] [6 7] [8] [11]
                                     rank 1: [2 3] [4 5] [9] [10]

Source: the thd format of Transformer Engine and Megatron, whose kernels expect just this split.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError
from headrace.plan.keys import IntArray

Int32Array = NDArray[np.int32]

IGNORED_LABEL = -100
"""The label of tokens that are not trained on: the default of torch's cross entropy."""


def cu_seqlens(position_ids: IntArray) -> Int32Array:
    """(n + 1,) int32: prefix sums of the segments' lengths over the rows one after another, from 0 to B * S.

    Strictly increasing; [0] where there are no tokens.

    Raises:
        ConfigError: a row does not begin with position 0, or there are more tokens than int32 counts.
    """
    rows = _rows(position_ids)
    if rows.size > np.iinfo(np.int32).max:
        raise ConfigError(f"{rows.size:,} tokens in one batch: cu_seqlens is int32; use smaller micro-batches")
    return np.append(np.flatnonzero(rows.reshape(-1) == 0), rows.size).astype(np.int32)


def seq_lens(position_ids: IntArray) -> Int32Array:
    """(n,) int32: the lengths of the segments, row after row; their sum is B * S. Raises as ``cu_seqlens``."""
    lengths: Int32Array = np.diff(cu_seqlens(position_ids))
    return lengths


def max_seqlen(position_ids: IntArray) -> int:
    """The length of the longest segment, 0 where there are no tokens."""
    positions = np.asarray(position_ids)
    return int(positions.max()) + 1 if positions.size else 0


def seq_idx(position_ids: IntArray) -> Int32Array:
    """The shape of ``position_ids``, int32: the number of each token's segment within its row, from 0.

    What hybrid and state-space models call ``seq_idx``. Raises ConfigError where a row does not begin with position 0.
    """
    rows = _rows(position_ids)
    numbers = np.cumsum(rows == 0, axis=1, dtype=np.int32) - np.int32(1)
    return numbers.reshape(np.shape(position_ids))


def flat_seq_idx(position_ids: IntArray) -> Int32Array:
    """(1, B * S) int32: the same over the rows one after another, counting on from row to row."""
    return seq_idx(_rows(position_ids).reshape(1, -1))


def real_cu_seqlens(cu_seqlens: Int32Array, document_ids: IntArray) -> Int32Array:
    """(n + 1,) int32: prefix sums of the segments' real lengths, beside the padded ones of ``cu_seqlens``.

    Transformer Engine's thd format takes both where segments are padded for context parallelism. ``cu_seqlens`` is
    (n + 1,) over the flattened rows, ``document_ids`` (B, S) with -1 at the pads. A segment of pads alone, at the end
    of a row, counts with all its tokens, so that the result is strictly increasing too.

    Raises:
        ConfigError: ``cu_seqlens`` does not run over exactly these tokens.
    """
    borders = np.asarray(cu_seqlens, dtype=np.int64)
    real = (np.asarray(document_ids).reshape(-1) >= 0).astype(np.int64)
    if borders.ndim != 1 or not len(borders) or borders[0] != 0 or borders[-1] != len(real):
        raise ConfigError(f"cu_seqlens {borders} does not run from 0 to the {len(real):,} tokens of document_ids")
    counted = np.diff(np.append(0, np.cumsum(real))[borders])
    padded = np.diff(borders)
    lengths = np.where(counted == 0, padded, counted)
    return np.append(0, np.cumsum(lengths)).astype(np.int32)


def megatron_cu_seqlens(
    position_ids: IntArray, document_ids: IntArray | None = None, *, num_entries: int | None = None
) -> dict[str, Int32Array]:
    """Each row's own borders at a fixed length, as Megatron's datasets give them and CUDA graphs need them.

    ``cu_seqlens`` is (B, num_entries) int32, from 0 to S, the last value repeated to the end; ``max_seqlen`` is (B,)
    int32. ``num_entries`` is S + 1 by default, the most there can be. With ``document_ids`` the pads at the end of a
    row belong to its last document, as in Megatron's own samples; otherwise they are a segment of their own.
    Source: Megatron-LM, ``inter_document_masking`` of ``GPTDataset``, and ``PackedSeqParams``.

    Raises:
        ConfigError: a row has more borders than ``num_entries``, or does not begin with position 0.
    """
    rows = _rows(position_ids)
    borders = _borders(rows, document_ids)
    most = max(map(len, borders), default=1)
    entries = rows.shape[1] + 1 if num_entries is None else num_entries
    if most > entries:
        raise ConfigError(f"a row has {most - 1} segments, {most} borders; num_entries is {entries}: allow {most}")
    table = _table(borders, entries, rows.shape[1])
    longest = np.diff(table, axis=1).max(axis=1, initial=0)
    return {"cu_seqlens": table, "max_seqlen": longest.astype(np.int32)}


def nemo_cu_seqlens(position_ids: IntArray, document_ids: IntArray | None = None) -> dict[str, NDArray[np.integer]]:
    """Each row's own borders, filled up with -1, as NeMo collates them.

    ``cu_seqlens`` is (B, m + 1) int32 where the row with most borders has m, so every row ends with a -1;
    ``cu_seqlens_argmin`` (B, 1) int64, how many borders each row has, which is where its first -1 stands;
    ``max_seqlen`` (B, 1) int32. ``document_ids`` as for ``megatron_cu_seqlens``.
    Source: NeMo, ``GPTSFTPackedDataset.collate_fn``.

    Raises:
        ConfigError: a row does not begin with position 0.
    """
    borders = _borders(_rows(position_ids), document_ids)
    counts = np.array([[len(row)] for row in borders], dtype=np.int64).reshape(-1, 1)
    table = _table(borders, int(counts.max(initial=0)) + 1, -1)
    longest = np.array([[np.diff(row).max(initial=0)] for row in borders], dtype=np.int32).reshape(-1, 1)
    return {"cu_seqlens": table, "cu_seqlens_argmin": counts, "max_seqlen": longest}


def _rows(position_ids: IntArray) -> IntArray:
    """(B, S), each row beginning with position 0."""
    rows = np.atleast_2d(position_ids)
    if rows.ndim != 2:
        raise ConfigError(f"position_ids has the shape {rows.shape}; expected (B, S) or (S,)")
    wrong = np.flatnonzero(rows[:, :1] != 0)
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(
            f"row {row} begins with position {rows[row, 0]}; every row begins a segment, and its positions count from "
            "0: lay the packs out with positions that restart"
        )
    return rows


def _borders(rows: IntArray, document_ids: IntArray | None) -> list[IntArray]:
    """For each row its borders from 0 to S; with ``document_ids`` without the one where the pads at its end begin."""
    begins = rows == 0
    if document_ids is not None:
        # Pads inside a row follow a token of their segment; a segment that begins with a pad is the end of the row.
        begins &= (np.asarray(document_ids).reshape(rows.shape) >= 0) | (np.arange(rows.shape[1]) == 0)
    return [np.append(np.flatnonzero(row), rows.shape[1]) for row in begins]


def _table(borders: list[IntArray], num_entries: int, fill: int) -> Int32Array:
    table = np.full((len(borders), num_entries), fill, dtype=np.int32)
    for row, found in zip(table, borders, strict=True):
        row[: len(found)] = found
    return table


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


def integers(values: Any, what: str) -> IntArray:
    """(n,) int64 of a list, array or tensor of integers; InputError, naming ``what``, for anything else."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} are not a sequence of integers: {error}") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise InputError(f"{what} are {array.dtype} of shape {array.shape}; expected a sequence of integers")
    return array.astype(np.int64, copy=False)
