"""Pieces of texts in characters, spans of tokens in bytes -> one mask bit a token. Whole batches at once, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.samples.masking.marking import Marked
from headrace.samples.masking.token_spans import IntArray, Spanned, byte_places


class Borders(NamedTuple):
    """Of a batch of texts, in bytes of the UTF-8 of all texts in a row."""

    trained: IntArray
    """(k, 2) stretches that are trained, ascending, none touching the next."""
    ends: IntArray
    """(e, 2) ends of turns that must be trained."""
    end_texts: IntArray
    """(e,) number of each one's text."""
    sizes: IntArray
    """(number of texts,) bytes."""


def borders(batch: Sequence[Marked]) -> Borders:
    """The borders of a batch. A Python loop a turn, not a character or token."""
    trained: list[int] = []
    ends: list[int] = []
    end_texts: list[int] = []
    sizes = []
    base = 0
    for number, marked in enumerate(batch):
        text = marked.text
        places = None if text.isascii() else byte_places(text)
        size = len(text) if places is None else int(places[-1])
        for piece in marked.pieces:
            if piece.is_trained:
                begin, end = piece.begin, piece.end
                if places is not None:
                    begin, end = int(places[begin]), int(places[end])
                if trained and trained[-1] == base + begin:
                    trained[-1] = base + end
                else:
                    trained += (base + begin, base + end)
        for begin, end in marked.ends:
            ends += (
                (base + begin, base + end) if places is None else (base + int(places[begin]), base + int(places[end]))
            )
            end_texts.append(number)
        sizes.append(size)
        base += size
    return Borders(
        np.array(trained, np.int64).reshape(-1, 2),
        np.array(ends, np.int64).reshape(-1, 2),
        np.array(end_texts, np.int64),
        np.array(sizes, np.int64),
    )


def loss_mask(spanned: Spanned, trained: IntArray, *, straddling: bool) -> tuple[NDArray[np.uint8], IntArray]:
    """(n,) mask, and the numbers of the tokens that have trained and untrained bytes; those get ``straddling``.

    Example: trained bytes [5, 9), tokens [3, 6), [6, 8), [8, 9): the first straddles, the others are trained. A token
    without bytes is never trained. O(n + k log n) for k stretches: a look-up a border, and one pass over the tokens.
    """
    begins, ends = spanned.begins, spanned.ends
    if not spanned.in_order and (np.any(begins[1:] < begins[:-1]) or np.any(ends[1:] < ends[:-1])):
        return _loss_mask_of_any_order(spanned, trained, straddling=straddling)
    first = np.searchsorted(begins, trained[:, 0], "left")
    last = np.maximum(first, np.searchsorted(ends, trained[:, 1], "right"))
    edges = np.concatenate(([0], np.stack((first, last), 1).reshape(-1), [len(begins)]))
    # Where two stretches lie in one token, the first of the second is before the last of the first by none.
    lengths = np.diff(np.maximum.accumulate(edges))
    mask = np.repeat(np.arange(len(lengths), dtype=np.uint8) & np.uint8(1), lengths)
    places = trained.reshape(-1)
    low = np.searchsorted(ends, places, "right")
    high = np.searchsorted(begins, places, "left")
    rows = [np.arange(one, other) for one, other in zip(low.tolist(), high.tolist(), strict=True) if one < other]
    straddles: IntArray = np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
    if straddling:
        mask[straddles] = 1
    if not spanned.in_order:
        mask &= ends > begins
    return mask, straddles


def _loss_mask_of_any_order(
    spanned: Spanned, trained: IntArray, *, straddling: bool
) -> tuple[NDArray[np.uint8], IntArray]:
    """The same for tokens that do not stand in order, by the number of trained bytes in each. O(n log k)."""
    found = _bytes_before(spanned.ends, trained) - _bytes_before(spanned.begins, trained)
    sizes = spanned.ends - spanned.begins
    mask = found > 0 if straddling else (found == sizes) & (sizes > 0)
    return mask.astype(np.uint8), np.flatnonzero((found > 0) & (found < sizes))


def untrained_ends(spanned: Spanned, mask: NDArray[np.uint8], ends: IntArray) -> NDArray[np.bool_]:
    """(e,) which stretches ``ends`` have a token that begins in them and is not trained, or none."""
    first = np.searchsorted(spanned.begins, ends[:, 0], "left")
    last = np.searchsorted(spanned.begins, ends[:, 1], "left")
    untrained: NDArray[np.bool_]
    if np.all(last - first == 1):
        untrained = mask[first] == 0
    else:
        before = np.concatenate(([0], np.cumsum(mask, dtype=np.int64)))
        untrained = (before[last] - before[first] < last - first) | (first >= last)
    return untrained


def _bytes_before(places: IntArray, trained: IntArray) -> IntArray:
    """(n,) trained bytes before each place."""
    if not len(trained):
        return np.zeros(len(places), np.int64)
    begins, ends = trained[:, 0], trained[:, 1]
    before = np.concatenate(([0], np.cumsum(ends - begins)))
    row = np.searchsorted(begins, places, "right") - 1
    inside = np.minimum(places, ends[row]) - begins[row]
    return np.where(row < 0, 0, before[np.maximum(row, 0)] + inside)
