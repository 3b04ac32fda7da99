"""Marked texts -> ids, masks, what is odd about them, and the evidence on request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.samples.masking.marking import Marked
from headrace.samples.masking.pieces import Why
from headrace.samples.masking.results import Evidence
from headrace.samples.masking.token_masks import borders, loss_mask, untrained_ends
from headrace.samples.masking.token_spans import IntArray, SpanEncoder, Spanned, byte_places


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """One text as tokens."""

    ids: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]
    num_supervised: int
    num_straddling: int
    """Tokens with trained and untrained bytes."""
    has_untrained_end: bool
    """The end of a turn that must be trained is not."""
    has_doubled_bos: bool
    """It begins with two BOS."""
    is_partly_trained: bool
    """Some of its messages must not be trained."""
    evidence: Evidence | None = None


def encode(
    batch: Sequence[Marked],
    spans: SpanEncoder,
    *,
    straddling: bool,
    bos: int | None,
    roles: Sequence[tuple[str, ...]] | None,
) -> list[Encoded]:
    """Encode texts together. ``roles``: of the messages of each, where evidence is wanted.

    Raises:
        InputError: the tokeniser refuses a text, or contradicts itself.
    """
    spanned = spans.encode([marked.text for marked in batch])
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
        Encoded(
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
    if roles is None:
        return result
    bases = (np.cumsum(found.sizes) - found.sizes).tolist()
    for number, marked in enumerate(batch):
        rows = slice(starts[number], starts[number + 1])
        own = Spanned(ids[rows], spanned.lengths[number : number + 1], spanned.begins[rows], spanned.ends[rows])
        within = straddles[(straddles >= rows.start) & (straddles < rows.stop)] - rows.start
        evidence = _evidence(marked, own, bases[number], within, roles[number])
        result[number] = replace(result[number], evidence=evidence)
    return result


def _evidence(marked: Marked, spanned: Spanned, base: int, straddles: IntArray, roles: tuple[str, ...]) -> Evidence:
    """A token has the region of the piece that its first byte is in."""
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
    """(number of texts,) whether a text begins with two BOS."""
    found = np.zeros(len(begins), np.bool_)
    if bos is not None:
        long = np.flatnonzero(spanned.lengths > 1)
        found[long] = (spanned.ids[begins[long]] == bos) & (spanned.ids[begins[long] + 1] == bos)
    return found
