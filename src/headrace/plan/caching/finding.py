"""`positions_of`: at which positions many samples of a source come, found from the samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.plan.chaptered.chapters import AnyPlan, ChapteredPlan
from headrace.plan.chaptered.sequence import NOTHING, SeriesSection, SourceSequence
from headrace.plan.keys import IntArray
from headrace.plan.tree import Plan


def positions_of(plan: AnyPlan, source: int, indices: IntArray, *, begin: int, end: int) -> IntArray:
    """Return at which of the positions ``begin`` to ``end - 1`` some samples of a dataset come, not in order.

    As `Plan.find`, for (n,) samples at once. Each costs a lookup for each epoch of the source within these positions.
    """
    if isinstance(plan, ChapteredPlan):
        return _of_chapters(plan, source, indices, begin, end)
    leaf = plan.leaves[source]
    first, beyond = plan.counts(begin)[source], plan.counts(end)[source]
    positions = [NOTHING]
    for epoch in range(first // leaf.num_samples, -(-beyond // leaf.num_samples)):
        positions.append(_of_epoch(plan, source, indices, epoch, first, beyond))
    found = np.concatenate(positions)
    taken: IntArray = found[(found >= begin) & (found < end)]
    return taken


def _of_epoch(plan: Plan, source: int, indices: IntArray, epoch: int, first: int, beyond: int) -> IntArray:
    leaf = plan.leaves[source]
    keys = np.broadcast_to(plan.keys(source, np.array([epoch], dtype=np.int64)), indices.shape)
    within = plan.order.ranks(indices - leaf.first_sample, keys, leaf.num_samples, leaf.shards)
    ranks = epoch * leaf.num_samples + within
    return plan.ascend(source, ranks[(ranks >= first) & (ranks < beyond)])


def _of_chapters(plan: ChapteredPlan, source: int, indices: IntArray, begin: int, end: int) -> IntArray:
    number = plan.source_of[source]
    positions = [NOTHING]
    for chapter, last in plan.spans(begin, end):
        if number not in chapter.paths:
            continue
        first = max(begin, chapter.begin)
        low, high = (chapter.reached(place)[number] for place in (first, last))
        found = chapter.ascend(number, _of_sequence(plan.sequences[number], source, indices, low, high))
        positions.append(found[(found >= first) & (found < last)])
    return np.concatenate(positions)


def _of_sequence(sequence: SourceSequence, series: int, indices: IntArray, begin: int, end: int) -> IntArray:
    """Return at which of the ranks ``begin`` to ``end - 1`` of a source some samples of a series come."""
    ranks = [NOTHING]
    for section, low, last in _sections(sequence, series, begin, end):
        ranks.append(_of_section(section, indices, max(begin - low, 0), last) + low)
    return np.concatenate(ranks)


def _sections(sequence: SourceSequence, series: int, begin: int, end: int) -> Iterator[tuple[SeriesSection, int, int]]:
    """Yield the sections of a series with ranks in ``[begin, end)``, each with its first rank and its last item."""
    first = max(int(np.searchsorted(sequence.firsts, begin, side="right")) - 1, 0)
    for section, low in zip(sequence.sections[first:], sequence.firsts[first:].tolist(), strict=False):
        if low >= end:
            return
        if section.series.number == series:
            count = section.num_items
            yield section, low, end - low if count is None else min(end - low, count)


def _of_section(section: SeriesSection, indices: IntArray, begin: int, end: int) -> IntArray:
    """Return at which of the items ``begin`` to ``end - 1`` some samples come."""
    found = [NOTHING]
    kept = indices[~np.isin(indices, section.left_out)]
    if begin < end and len(kept):
        borders = section.ranks(np.array([begin, end - 1], dtype=np.int64)) // section.series.num_samples
        for number in range(int(borders[0]), int(borders[1]) + 1):
            ranks = section.series.ranks(kept, np.full(len(kept), number, dtype=np.int64))
            ranks = ranks[
                (ranks >= section.begin) & (ranks < (ranks.max() + 1 if section.end is None else section.end))
            ]
            items = section.items_of(ranks)
            found.append(items[(items >= begin) & (items < end)])
    return np.concatenate(found)
