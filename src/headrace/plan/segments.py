"""The segments of packed rows, derived from their position ids, in the forms that attention kernels expect.

A segment is a document, or the part of a split document that lies in this pack, with the pads that belong to it. The
pads at the end of a row form one more segment. Segments begin exactly where ``position_ids`` is 0, so that this field
is enough:

    position_ids    0 1 2 0 1 0 | 0 1 0 1 2 3          two rows of six tokens
    cu_seqlens      0 3 5 6 8 12                       prefix sums over the rows one after another
    seq_lens        3 2 1 2 4
    seq_idx         0 0 0 1 1 2 | 0 0 1 1 1 1

Rows are (B, S), or (S,) for a single one. Each function takes one pass over the tokens.

``context_parallel_indices`` returns the tokens of a packed micro-batch that each context-parallel rank holds. Under
causal attention late tokens cost more than early ones. So each segment is cut into 2 * cp_size equal chunks, and rank r
holds chunk r and chunk 2 * cp_size - 1 - r, an early one and the late one opposite to it.

    cu_seqlens 0 8 12, 2 ranks       rank 0: [0 1] [6 7] [8] [11]
                                     rank 1: [2 3] [4 5] [9] [10]

Source: the thd format of Transformer Engine and Megatron, whose kernels expect exactly this split.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray

Int32Array = NDArray[np.int32]

IGNORED_LABEL = -100
"""The label of tokens that are not trained on; it is the default ``ignore_index`` of torch's cross entropy."""


def cu_seqlens(position_ids: IntArray) -> Int32Array:
    """Return (n + 1,) int32: prefix sums of the segments' lengths over the flattened rows, from 0 to B * S.

    They are strictly increasing; the result is [0] if there are no tokens.

    Raises:
        ConfigError: a row does not begin with position 0, or there are more tokens than int32 can count.
    """
    rows = _rows(position_ids)
    if rows.size > np.iinfo(np.int32).max:
        raise ConfigError(
            f"the batch has {rows.size:,} tokens, more than cu_seqlens can count in int32: use smaller micro-batches"
        )
    return np.append(np.flatnonzero(rows.reshape(-1) == 0), rows.size).astype(np.int32)


def segment_borders(position_ids: IntArray) -> Int32Array:
    """Return the `cu_seqlens` of packs, whose segments have the positions 0, 1, 2, ...; raises the same errors.

    The last position of a segment says where it begins, so that few of the positions are looked at. A segment takes 0.1
    us, and a pass over 128 tokens 0.2 us: where segments are short, all positions are looked at.
    """
    flat = position_ids.reshape(-1)
    places, at = flat.data, flat.size
    found = [at]
    while 0 < at <= found[0] < 1 << 31 and len(found) < 16 + (found[0] >> 7):
        at -= places[at - 1] + 1
        found.append(at)
    if not at:
        bounds = np.array(found[::-1], np.int32)
        if not (flat[bounds[:-1]].any() or position_ids[:, :1].any()):
            return bounds
    return cu_seqlens(position_ids)


def seq_lens(position_ids: IntArray) -> Int32Array:
    """Return (n,) int32: the lengths of the segments, row after row, with the sum B * S. Raises as ``cu_seqlens``."""
    lengths: Int32Array = np.diff(cu_seqlens(position_ids))
    return lengths


def max_seqlen(position_ids: IntArray) -> int:
    """Return the length of the longest segment, or 0 if there are no tokens."""
    positions = np.asarray(position_ids)
    return int(positions.max()) + 1 if positions.size else 0


def seq_idx(position_ids: IntArray) -> Int32Array:
    """Return int32 in the shape of ``position_ids``: the number of each token's segment within its row, from 0.

    Hybrid and state-space models call this ``seq_idx``. Raises ConfigError if a row does not begin with position 0.
    """
    rows = _rows(position_ids)
    numbers = np.cumsum(rows == 0, axis=1, dtype=np.int32) - np.int32(1)
    return numbers.reshape(np.shape(position_ids))


def real_cu_seqlens(cu_seqlens: Int32Array, document_ids: IntArray) -> Int32Array:
    """Return (n + 1,) int32: prefix sums of the segments' lengths without pads; ``cu_seqlens`` includes the pads.

    Transformer Engine's thd format takes both if segments are padded for context parallelism. ``cu_seqlens`` is
    (n + 1,) over the flattened rows, and ``document_ids`` is (B, S) with -1 at the pads. A segment of pads alone, at
    the end of a row, counts with all its tokens, so that the result is strictly increasing too.

    Raises:
        ConfigError: ``cu_seqlens`` does not run over exactly these tokens.
    """
    borders = np.asarray(cu_seqlens, dtype=np.int64)
    real = (np.asarray(document_ids).reshape(-1) >= 0).astype(np.int64)
    if borders.ndim != 1 or not len(borders) or borders[0] != 0 or borders[-1] != len(real):
        raise ConfigError(f"cu_seqlens is {borders}; it must run from 0 to {len(real):,}, the tokens of document_ids")
    counted = np.diff(np.append(0, np.cumsum(real))[borders])
    padded = np.diff(borders)
    lengths = np.where(counted == 0, padded, counted)
    return np.append(0, np.cumsum(lengths)).astype(np.int32)


def megatron_cu_seqlens(
    position_ids: IntArray, document_ids: IntArray | None = None, *, num_entries: int | None = None
) -> dict[str, Int32Array]:
    """Return the borders of each row at a fixed length, as Megatron's datasets do and CUDA graphs need.

    ``cu_seqlens`` is (B, num_entries) int32, from 0 to S, with the last value repeated to the end; ``max_seqlen`` is
    (B,) int32. By default ``num_entries`` is S + 1, the most that there can be. With ``document_ids`` the pads at the
    end of a row belong to its last document, as in Megatron's own samples; otherwise they are a segment of their own.
    Source: Megatron-LM, ``inter_document_masking`` of ``GPTDataset``, and ``PackedSeqParams``.

    Raises:
        ConfigError: a row has more borders than ``num_entries``, or does not begin with position 0.
    """
    rows = _rows(position_ids)
    borders = _borders(rows, document_ids)
    most = max(map(len, borders), default=1)
    entries = rows.shape[1] + 1 if num_entries is None else num_entries
    if most > entries:
        raise ConfigError(
            f"a row has {most - 1} segments and so {most} borders, but num_entries is {entries}: raise it to {most}"
        )
    table = _table(borders, entries, rows.shape[1])
    longest = np.diff(table, axis=1).max(axis=1, initial=0)
    return {"cu_seqlens": table, "max_seqlen": longest.astype(np.int32)}


def nemo_cu_seqlens(position_ids: IntArray, document_ids: IntArray | None = None) -> dict[str, NDArray[np.integer]]:
    """Return the borders of each row, filled up with -1, as NeMo collates them.

    ``cu_seqlens`` is (B, m + 1) int32, where m is the most borders of any row, so that every row ends with a -1.
    ``cu_seqlens_argmin`` is (B, 1) int64: how many borders each row has, which is where its first -1 is. ``max_seqlen``
    is (B, 1) int32. ``document_ids`` is as in ``megatron_cu_seqlens``.
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
    """Return ``position_ids`` as (B, S), after checking that each row begins with position 0."""
    rows = np.atleast_2d(position_ids)
    if rows.ndim != 2:
        raise ConfigError(f"position_ids has the shape {rows.shape}; expected (B, S) or (S,)")
    wrong = np.flatnonzero(rows[:, :1] != 0)
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(
            f"row {row} begins with position {rows[row, 0]}; every row must begin a segment at position 0: use a "
            "layout in which positions restart in each pack"
        )
    return rows


def _borders(rows: IntArray, document_ids: IntArray | None) -> list[IntArray]:
    """The borders of each row from 0 to S; with ``document_ids``, without the border before the pads at its end."""
    begins = rows == 0
    if document_ids is not None:
        # Pads within a row follow a token of their segment, so a segment that begins with a pad is the end of the row.
        begins &= (np.asarray(document_ids).reshape(rows.shape) >= 0) | (np.arange(rows.shape[1]) == 0)
    return [np.append(np.flatnonzero(row), rows.shape[1]) for row in begins]


def _table(borders: list[IntArray], num_entries: int, fill: int) -> Int32Array:
    table = np.full((len(borders), num_entries), fill, dtype=np.int32)
    for row, found in zip(table, borders, strict=True):
        row[: len(found)] = found
    return table


def context_parallel_indices(cu_seqlens_padded: Int32Array, cp_size: int, cp_rank: int) -> IntArray:
    """Return (T / cp_size,) int64: the tokens that a rank holds, as indices into the flattened micro-batch.

    ``cu_seqlens_padded`` is (n + 1,) from 0 to T. The length of each segment is a multiple of 2 * cp_size, and may be
    0. With a single rank these are all tokens, and segments may have any length. All ranks together hold each token
    once.

    Raises:
        ConfigError: there is no such rank, ``cu_seqlens_padded`` are not prefix sums, or a segment has another length;
            the message names the segment.
    """
    if cp_size < 1 or not 0 <= cp_rank < cp_size:
        raise ConfigError(f"the context-parallel rank is {cp_rank} of {cp_size}; ranks run from 0 to cp_size - 1")
    borders = np.asarray(cu_seqlens_padded, dtype=np.int64)
    lengths = np.diff(borders)
    if borders.ndim != 1 or not len(borders) or borders[0] != 0 or (lengths < 0).any():
        raise ConfigError("cu_seqlens_padded must be one row of prefix sums, which begins with 0 and never decreases")
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
    # Two chunks of each segment, the second one opposite to the first.
    begins = borders[:-1, None] + chunks[:, None] * np.array([cp_rank, multiple - 1 - cp_rank])
    sizes = np.repeat(chunks, 2)
    ends = np.cumsum(sizes)
    shifts = np.repeat(begins.reshape(-1) - (ends - sizes), sizes)
    indices: IntArray = np.arange(len(shifts), dtype=np.int64) + shifts
    return indices
