"""The planner: from lengths and a strategy to a plan of packs, within windows of documents or over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError
from headrace.plan.keys import IntArray
from headrace.plan.packing.fitting import first_fit, next_fit, place
from headrace.plan.packing.lengths import ArrayLengths, Lengths, LengthSurvey, pieces_in_order, units
from headrace.plan.packing.options import Packing
from headrace.plan.packing.pack_plan import PackingLedger, PackPlan, PackPlanMeta

Sizes = NDArray[np.integer[Any]]


class Arrangement(NamedTuple):
    """Packs as runs of pieces.

    ``order`` is (num_pieces,): the piece in each place, pack after pack, or None if the pieces stay in their order.
    ``bounds`` is (num_packs + 1,) uint32: the first place of each pack. ``filled`` are the units that are filled in
    all packs.
    """

    order: IntArray | None
    bounds: NDArray[np.uint32]
    filled: int


def arrange(sizes: Sizes, packing: Packing) -> Arrangement:
    """Pack pieces of these sizes, (num_pieces,) integers from 1 to the capacity, in the order of arrival."""
    capacity, most = packing.capacity, packing.most_pieces
    if packing.strategy == "greedy":
        firsts = next_fit(cast("IntArray", sizes), capacity, most)
        return Arrangement(None, firsts.astype(np.uint32), int(sizes[: firsts[-1]].sum()))
    if packing.strategy == "first_fit":
        packs, room = first_fit(sizes, capacity, most)
        ends = np.cumsum(np.bincount(packs, minlength=len(room)))
        order = np.argsort(packs, kind="stable")
        return Arrangement(order, np.append(0, ends).astype(np.uint32), int((capacity - room).sum()))
    placement = place(np.bincount(sizes, minlength=capacity + 1), most)
    bounds = placement.bounds()
    by_length = np.argsort(-sizes, kind="stable")
    order = np.empty_like(by_length)
    at = 0
    for places in placement.places(bounds):
        order[places] = by_length[at : at + len(places)]
        at += len(places)
    return Arrangement(order, bounds, placement.num_packs * capacity - placement.room_left)


def by_length(
    lengths: Lengths, survey: LengthSurvey, packing: Packing
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Sort documents by the size of their own piece, longest first and stable, with a counting sort.

    Returns (documents with an own piece,) uint32, and where each size begins among them, (distinct sizes + 1,) uint32.
    """
    sizes = np.flatnonzero(survey.counts[1:])[::-1] + 1
    begins = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(survey.counts[sizes], out=begins[1:])
    # NumPy sorts 16-bit keys by radix, and there are rarely more sizes than fit into 16 bits.
    class_of = np.full(packing.capacity + 1, len(sizes), dtype=np.uint16 if len(sizes) < 1 << 16 else np.uint32)
    class_of[sizes] = np.arange(len(sizes))
    found = np.empty(int(begins[-1]), dtype=np.uint32)
    heads = begins[:-1].copy()
    document = 0
    for chunk in lengths.chunks():
        classes = class_of[units(chunk.astype(np.int64, copy=False), packing)]
        counts = np.bincount(classes, minlength=len(sizes) + 1)[: len(sizes)]
        ends = np.cumsum(counts)
        num_pieces = int(ends[-1]) if len(ends) else 0
        # Documents without an own piece are in the last class, which is left out.
        order = np.argsort(classes, kind="stable")[:num_pieces]
        ranks = np.arange(num_pieces, dtype=np.int64)
        ranks += np.repeat(heads - (ends - counts), counts)
        found[ranks] = order + document
        heads += counts
        document += len(chunk)
    return found, begins.astype(np.uint32)


Arrays = dict[str, NDArray[Any]]


def plan_packs(lengths: IntArray | Lengths, packing: Packing) -> PackPlan:
    """Pack documents of these lengths: (num_documents,) integers, or a `Lengths` source.

    Makes two passes over the lengths. Takes 30 to 50 ns of CPU a document for ``best_fit`` and ``greedy``, 15 ns for
    ``wrapped`` and up to 3 us for ``first_fit``, and at most 24 bytes of memory a document, less with a source that
    yields its lengths in chunks. The plan is the same on every machine.

    Raises:
        ConfigError: the lengths are not integers of at least 0, there are too many documents, or there are over-long
            documents although ``over_long`` is ``"error"``.
    """
    if isinstance(lengths, np.ndarray) and (lengths.ndim != 1 or lengths.dtype.kind not in "iu"):
        raise ConfigError(f"lengths are {lengths.dtype} of shape {lengths.shape}; expected (num_documents,) integers")
    source: Lengths = ArrayLengths(lengths) if isinstance(lengths, np.ndarray) else lengths
    survey = LengthSurvey.of(source, packing)
    if packing.strategy == "wrapped":
        return _wrapped(source, survey, packing)
    arrays: Arrays = {}
    if survey.num_full:
        arrays["long_documents"] = np.concatenate(survey.long_documents).astype(np.uint32)
        arrays["long_ends"] = np.cumsum(np.concatenate(survey.long_pieces)).astype(np.uint32)
    num_full = 0
    if packing.strategy in ("best_fit", "best_fit_split") and packing.window_documents is None:
        # Each full piece is a pack of its own; these packs come first, and nothing has to be stored for them.
        num_full = survey.num_full
        filled = _best_fit(source, survey, packing, arrays)
    else:
        filled = _by_window(source, survey, packing, arrays)
    units = int((survey.counts * np.arange(len(survey.counts))).sum()) + (survey.num_full - num_full) * packing.capacity
    num_pieces = int(survey.counts[1:].sum()) + survey.num_full - num_full
    if (filled, int(arrays["bounds"][-1])) != (units, num_pieces):
        raise HeadraceError(
            f"the packs hold {int(arrays['bounds'][-1]):,} pieces of {filled:,} units in all, but the documents have "
            f"{num_pieces:,} pieces of {units:,}. This is a defect of Headrace: please report it"
        )
    return _plan(source, survey, packing, arrays, num_full, num_full + len(arrays["bounds"]) - 1)


def _best_fit(source: Lengths, survey: LengthSurvey, packing: Packing, arrays: Arrays) -> int:
    """Pack all documents best-fit and add the arrays; return how many units are filled."""
    placement = place(survey.counts, packing.most_pieces)
    arrays["bounds"] = bounds = placement.bounds()
    order, class_begins = by_length(source, survey, packing)
    pieces = np.empty_like(order)
    at = 0
    for places in placement.places(bounds):
        end = at + len(places)
        pieces[places] = np.arange(at, end, dtype=np.uint32) if packing.repack else order[at:end]
        at = end
    arrays["pieces"] = pieces
    if packing.repack:
        arrays["by_length"], arrays["class_begins"] = order, class_begins
    return placement.num_packs * packing.capacity - placement.room_left


def _by_window(source: Lengths, survey: LengthSurvey, packing: Packing, arrays: Arrays) -> int:
    """Pack each window of documents separately, or all documents as one window; returns the same as ``_best_fit``."""
    num_pieces = int(survey.counts[1:].sum()) + survey.num_full
    pieces = np.empty(num_pieces, dtype=np.uint32)
    bounds: list[NDArray[np.uint32]] = []
    at = filled = 0
    for numbers, sizes in _windows(source, survey, packing):
        found: Arrangement = arrange(sizes, packing)
        pieces[at : at + len(numbers)] = numbers if found.order is None else numbers[found.order]
        bounds.append(found.bounds[:-1] + np.uint32(at))
        at += len(numbers)
        filled += found.filled
    arrays["bounds"] = np.concatenate([*bounds, np.array([at], dtype=np.uint32)])
    if packing.strategy != "greedy" or num_pieces != len(source) or survey.num_full:
        arrays["pieces"] = pieces
    return filled


def _windows(source: Lengths, survey: LengthSurvey, packing: Packing) -> Iterator[tuple[Sizes, Sizes]]:
    """The numbers and sizes of the pieces of each window of documents."""
    if packing.window_documents is not None:
        yield from pieces_in_order(_Rechunked(source, packing.window_documents), packing)
        return
    num_pieces = int(survey.counts[1:].sum()) + survey.num_full
    every, sizes = np.empty(num_pieces, dtype=np.uint32), np.empty(num_pieces, dtype=np.int32)
    at = 0
    for numbers, some in pieces_in_order(source, packing):
        every[at : at + len(numbers)] = numbers
        sizes[at : at + len(numbers)] = some
        at += len(numbers)
    yield every, sizes


class _Rechunked:
    """Lengths in chunks of exactly ``size`` documents; the last chunk may be shorter."""

    def __init__(self, lengths: Lengths, size: int) -> None:
        self._lengths = lengths
        self._size = size

    def __len__(self) -> int:
        return len(self._lengths)

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        return self._lengths.spans(documents)

    def chunks(self) -> Iterator[IntArray]:
        pending: list[IntArray] = []
        num_pending = 0
        for chunk in self._lengths.chunks():
            pending.append(chunk)
            num_pending += len(chunk)
            if num_pending < self._size:
                continue
            joined = np.concatenate(pending)
            in_whole_windows = num_pending - num_pending % self._size
            for first in range(0, in_whole_windows, self._size):
                yield joined[first : first + self._size]
            pending, num_pending = [joined[in_whole_windows:]], num_pending - in_whole_windows
        if num_pending:
            yield np.concatenate(pending)


def _wrapped(source: Lengths, survey: LengthSurvey, packing: Packing) -> PackPlan:
    """Plan ``wrapped``: the packs follow from where each document ends in the token stream."""
    size = packing.seq_len
    ends = np.empty(len(source), dtype=np.int64)
    at = begin = cut = remainder = 0
    for chunk in source.chunks():
        part = ends[at : at + len(chunk)]
        np.cumsum(chunk, out=part)
        part += begin
        lengths = chunk.astype(np.int64, copy=False)
        last_pack = (part - 1) // size
        # An empty document is never counted as cut, since it begins where it ends.
        is_cut = part - lengths < last_pack * size
        cut += int(np.count_nonzero(is_cut))
        remainder += int((part - last_pack * size)[is_cut].sum())
        at += len(chunk)
        begin = int(part[-1]) if len(part) else begin
    num_packs = -(-begin // size)
    survey.over_long, survey.remainder_tokens = cut, remainder
    return _plan(source, survey, packing, {"ends": ends}, 0, num_packs)


def _plan(
    source: Lengths, survey: LengthSurvey, packing: Packing, arrays: Arrays, num_full: int, num_packs: int
) -> PackPlan:
    ledger = _ledger(survey, packing, num_packs)
    ledger.verify()
    meta = PackPlanMeta(
        packing=packing,
        num_documents=survey.num_documents,
        num_packs=num_packs,
        num_full=num_full,
        lengths_xxh3_128=survey.digest,
        ledger=ledger,
    )
    return PackPlan(meta, arrays, source)


def _ledger(survey: LengthSurvey, packing: Packing, num_packs: int) -> PackingLedger:
    over = survey.over_long
    splits = packing.splits or packing.cuts
    drops, truncates = packing.over_long == "drop", packing.over_long.startswith("truncate")
    truncated = survey.over_long_tokens - over * packing.seq_len if truncates else 0
    dropped = survey.over_long_tokens if drops else 0
    remainder = survey.remainder_tokens if splits else 0
    in_packs = survey.raw_tokens - truncated - dropped
    return PackingLedger(
        raw_documents=survey.num_documents,
        empty_documents=survey.empty,
        whole_documents=survey.num_documents - survey.empty - over,
        split_documents=over if splits else 0,
        truncated_documents=over if truncates else 0,
        dropped_documents=over if drops else 0,
        raw_tokens=survey.raw_tokens,
        packed_tokens=in_packs - remainder,
        split_remainder_tokens=remainder,
        truncated_tokens=truncated,
        dropped_tokens=dropped,
        num_packs=num_packs,
        pad_tokens=num_packs * packing.seq_len - in_packs,
    )
