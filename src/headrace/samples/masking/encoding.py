"""Encode marked texts to ids and masks, whole batches at once in NumPy, with findings and, on request, the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.samples.masking.marking import Marked, decide
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.pieces import Why
from headrace.samples.masking.results import (
    ALL_SUPERVISED,
    DOUBLED_BOS,
    NO_SUPERVISED,
    UNTRAINED_END,
    Counts,
    EncodedText,
    Evidence,
)
from headrace.samples.masking.token_spans import IntArray, SpanEncoder, Spanned, byte_places


class Borders(NamedTuple):
    """The borders of a batch of texts, in bytes of the UTF-8 of all texts in a row."""

    trained: IntArray
    """(k, 2) stretches that are trained, ascending and not adjacent."""
    ends: IntArray
    """(e, 2) ends of turns that must be trained."""
    end_texts: IntArray
    """(e,) the number of the text of each end."""
    sizes: IntArray
    """(number of texts,) bytes of each text."""


def borders(batch: Sequence[Marked]) -> Borders:
    """Return the borders of a batch. This is a Python loop over turns, not over characters or tokens."""
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
    """Return the (n,) mask, and the numbers of tokens with trained and untrained bytes, whose mask is ``straddling``.

    Example: trained bytes [5, 9), tokens [3, 6), [6, 8), [8, 9): the first straddles, the others are trained. A token
    without bytes is never trained. O(n + k log n) for k stretches: one look-up for each border, and one pass over the
    tokens.
    """
    begins, ends = spanned.begins, spanned.ends
    if not spanned.in_order and (np.any(begins[1:] < begins[:-1]) or np.any(ends[1:] < ends[:-1])):
        return _loss_mask_of_any_order(spanned, trained, straddling=straddling)
    first = np.searchsorted(begins, trained[:, 0], "left")
    last = np.maximum(first, np.searchsorted(ends, trained[:, 1], "right"))
    edges = np.concatenate(([0], np.stack((first, last), 1).reshape(-1), [len(begins)]))
    # The running maximum keeps lengths from being negative if two stretches lie in one token.
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
    """Do the same for tokens that are not in order, by the number of trained bytes in each. O(n log k)."""
    found = _bytes_before(spanned.ends, trained) - _bytes_before(spanned.begins, trained)
    sizes = spanned.ends - spanned.begins
    mask = found > 0 if straddling else (found == sizes) & (sizes > 0)
    return mask.astype(np.uint8), np.flatnonzero((found > 0) & (found < sizes))


def untrained_ends(spanned: Spanned, mask: NDArray[np.uint8], ends: IntArray) -> NDArray[np.bool_]:
    """Return which of the stretches ``ends`` have an untrained token that begins in them, or no token: (e,)."""
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
    """Return the number of trained bytes before each place: (n,)."""
    if not len(trained):
        return np.zeros(len(places), np.int64)
    begins, ends = trained[:, 0], trained[:, 1]
    before = np.concatenate(([0], np.cumsum(ends - begins)))
    row = np.searchsorted(begins, places, "right") - 1
    inside = np.minimum(places, ends[row]) - begins[row]
    return np.where(row < 0, 0, before[np.maximum(row, 0)] + inside)


def encode(
    batch: Sequence[Marked],
    spans: SpanEncoder,
    *,
    straddling: bool,
    bos: int | None,
    roles: Sequence[tuple[str, ...]] | None,
) -> list[EncodedText]:
    """Encode texts together. ``roles`` are the roles of the messages of each text, if evidence is wanted.

    Raises:
        InputError: If the tokeniser refuses a text, or two ways of encoding disagree.
    """
    texts, literal = [marked.text for marked in batch], [marked.literal for marked in batch]
    spanned = spans.encode_literally(texts, literal) if any(literal) else spans.encode(texts)
    found = borders(batch)
    mask, straddles = loss_mask(spanned, found.trained, straddling=straddling)
    odd_ends = set(found.end_texts[untrained_ends(spanned, mask, found.ends)].tolist())
    borders_of = np.concatenate(([0], np.cumsum(spanned.lengths)))
    trained_before = np.concatenate(([0], np.cumsum(mask, dtype=np.int64)))
    supervised = np.diff(trained_before[borders_of]).tolist()
    straddling_tokens = np.diff(np.searchsorted(straddles, borders_of)).tolist()
    doubled = _doubled_bos(spanned, borders_of[:-1], bos).tolist()
    starts = borders_of.tolist()
    ids = spanned.ids
    result = [
        EncodedText(
            ids=ids[starts[number] : starts[number + 1]],
            loss_mask=mask[starts[number] : starts[number + 1]],
            num_supervised=supervised[number],
            num_straddling=straddling_tokens[number],
            has_untrained_end=number in odd_ends,
            has_doubled_bos=doubled[number],
            is_partly_trained=marked.is_partly_trained,
        )
        for number, marked in enumerate(batch)
    ]
    bases = (np.cumsum(found.sizes) - found.sizes).tolist()
    for number, one in enumerate(result):
        if one.num_straddling and not one.num_supervised:
            token = int(straddles[np.searchsorted(straddles, starts[number])])
            place = slice(int(spanned.begins[token]) - bases[number], int(spanned.ends[token]) - bases[number])
            word = texts[number].encode("utf-8", "replace")[place].decode("utf-8", "replace")
            result[number] = replace(one, straddling=word)
    if roles is None:
        return result
    for number, marked in enumerate(batch):
        rows = slice(starts[number], starts[number + 1])
        own = Spanned(ids[rows], spanned.lengths[number : number + 1], spanned.begins[rows], spanned.ends[rows])
        within = straddles[(straddles >= rows.start) & (straddles < rows.stop)] - rows.start
        evidence = _evidence(marked, own, bases[number], within, roles[number])
        result[number] = replace(result[number], evidence=evidence)
    return result


def _evidence(marked: Marked, spanned: Spanned, base: int, straddles: IntArray, roles: tuple[str, ...]) -> Evidence:
    """Return the evidence for a text. A token has the region of the piece that holds its first byte."""
    places = byte_places(marked.text)
    begins = places[np.array([piece.begin for piece in marked.pieces], np.int64)]
    piece = np.maximum(np.searchsorted(begins, spanned.begins - base, "right") - 1, 0)
    whys = np.array([piece.why for piece in marked.pieces], np.uint8)[piece]
    whys[straddles] = Why.STRADDLE
    return Evidence(
        text=marked.text,
        roles=roles,
        begins=spanned.begins - base,
        ends=spanned.ends - base,
        messages=np.array([piece.message for piece in marked.pieces], np.int32)[piece],
        regions=np.array([piece.region for piece in marked.pieces], np.uint8)[piece],
        whys=whys,
    )


def _doubled_bos(spanned: Spanned, begins: IntArray, bos: int | None) -> NDArray[np.bool_]:
    """Return whether each text begins with two BOS: (number of texts,)."""
    found = np.zeros(len(begins), np.bool_)
    if bos is not None:
        long = np.flatnonzero(spanned.lengths > 1)
        found[long] = (spanned.ids[begins[long]] == bos) & (spanned.ids[begins[long] + 1] == bos)
    return found


def check_encoded(row: EncodedText, options: MaskOptions, counts: Counts) -> None:
    """Apply the policies to one encoded text, which lead to nothing, a count, a drop or an error.

    Raises:
        InputError: If a policy refuses the text.
        DroppedError: If a policy drops it.
    """
    num_supervised = row.num_supervised
    if not num_supervised:
        if row.num_straddling:
            why = (
                f"{row.num_straddling:,} lie across a border, as of a prompt and its answer, and have trained and "
                f"untrained bytes, such as {row.straddling!r}. `mask: {{straddle: train}}` trains them as a whole"
            )
        else:
            why = (
                f"no message has one of the roles {', '.join(options.roles)}, flags exclude all of these, or the "
                "template does not write their content"
            )
        message = f"none of its {len(row.ids):,} tokens is trained: {why}"
        decide(options.on_no_supervised, NO_SUPERVISED, message, counts)
    elif num_supervised == len(row.ids) and row.is_partly_trained:
        message = f"all of its {len(row.ids):,} tokens are trained, though some of its messages should not be"
        decide(options.on_all_supervised, ALL_SUPERVISED, message, counts)
    if row.has_doubled_bos:
        message = (
            f"it begins with two BOS (id {int(row.ids[0])}): the template writes one, and the text of the first "
            "message begins with another. Remove one of them"
        )
        decide(options.on_doubled_bos, DOUBLED_BOS, message, counts)
    if row.has_untrained_end:
        message = (
            "the token that ends a turn is not trained: the tokeniser joins it with text that is not trained, so it is "
            "not a special token there. Use the tokeniser that belongs to the template; `straddle: train` trains such "
            "tokens as a whole, `on_untrained_end: allow` leaves them untrained"
        )
        decide(options.on_untrained_end, UNTRAINED_END, message, counts)
    if row.num_straddling:
        counts["straddling_tokens"] += row.num_straddling
