"""`Origin` says what a sample is made of, and which samples hold a document.

A sample is made of tokens of one or several documents of a store, of a whole record, or of a media sample with a key.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.plan import IntArray
from headrace.stores import SampleStore, Store


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of a sample: tokens of a document, a record, or a media sample.

    Attributes:
        store: path of the store, as it was opened.
        document: number of the document or record in the store.
        begin: first token of the document that is in the piece; None for records, which are used whole.
        tokens: number of tokens in the piece.
        key: key of the media sample in the store.
        shard: shard of the media sample.
        sample: number of the media sample in its shard.
        input: path of the file that the store was prepared from, as it was given then; filled in by the command line.
        unit: what is counted in that file: ``line``, ``row``, ``record``, ...
        number: which of these units the piece comes from, in the numbering that people use.
    """

    store: str
    document: int | None = None
    begin: int | None = None
    tokens: int | None = None
    key: str | None = None
    shard: str | None = None
    sample: int | None = None
    input: str | None = None
    unit: str | None = None
    number: int | None = None


Origins = tuple[Origin, ...]


def origin_words(origins: Callable[[IntArray], list[Origins]], address: int) -> str:
    """Return ``sample 'K' of SHARD`` or ``document 3 of STORE`` for an address; an empty string if it is not known.

    ``origins`` is that of the dataset.
    """
    try:
        [found] = origins(np.array([address], dtype=np.int64))
    except HeadraceError:
        # This describes another fault, which must not be hidden by this one.
        return ""
    if not found:
        return ""
    first, more = found[0], f" and {len(found) - 1} more" if len(found) > 1 else ""
    if first.key is not None:
        return f"sample {first.key!r} of {first.shard or first.store}{more}"
    if first.document is None:
        return f"sample {first.sample} of {first.store}{more}"
    return f"document {first.document} of {first.store}{more}"


def pieces(store: Store, offsets: IntArray, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[Origins]:
    """Return the origins of samples made of tokens: sample i has pieces ``offsets[i]`` up to ``offsets[i + 1]``."""
    columns = zip(documents.tolist(), begins.tolist(), lengths.tolist(), strict=True)
    found = [Origin(store=store.path, document=one, begin=begin, tokens=tokens) for one, begin, tokens in columns]
    return [tuple(found[low:high]) for low, high in pairwise(offsets.tolist())]


def record_origins(store: Store, numbers: IntArray) -> list[Origins]:
    """Return the origins of samples that are one record each."""
    return [(Origin(store=store.path, document=number),) for number in numbers.tolist()]


def checked(store: Store, document: int) -> int:
    """Return the number of a document unchanged. Raises ConfigError if the store has no such document."""
    if not 0 <= document < store.num_documents:
        raise ConfigError(f"{store.path} has no document {document:,}; it has {store.num_documents:,}, counted from 0")
    return document


def document_spans(store: Store, documents: IntArray) -> tuple[IntArray, IntArray]:
    """Return two (n,) int64 arrays: where documents begin in the token stream, and their lengths. O(1) each."""
    bounds = store.document_begins(np.concatenate([documents, documents + 1]))
    begins = bounds[: len(documents)]
    return begins, bounds[len(documents) :] - begins


def media_origins(store: SampleStore, numbers: IntArray) -> list[Origins]:
    """Return the origins of media samples. Reads what the store needs to find their keys."""
    bounds = store.shard_bounds
    found: list[Origins] = []
    for number in numbers.tolist():
        at = int(np.searchsorted(bounds, number, side="right")) - 1
        begin = int(bounds[at])
        origin = Origin(store=store.path, key=store.key(number), shard=store.shards[at], sample=number - begin)
        found.append((origin,))
    return found


def window_origins(store: Store, begins: IntArray, length: int) -> list[Origins]:
    """Return the origins of windows of ``length`` tokens that begin at ``begins`` in the token stream."""
    cuts = store.cut_windows(begins, length)
    # An empty document between two others has no tokens in the window.
    some = cuts.lengths > 0
    offsets = np.searchsorted(cuts.ranges[some], np.arange(len(begins) + 1))
    return pieces(store, offsets, cuts.parts[some], cuts.firsts[some], cuts.lengths[some])


def windows_over(store: Store, document: int, *, stride: int, length: int, phases: int, num_samples: int) -> IntArray:
    """(n,) int64: the windows that hold a token of a document in any of the phases 0 to ``phases - 1``."""
    checked(store, document)
    begin, end = store.document_begins(np.array([document, document + 1], dtype=np.int64)).tolist()
    if begin == end:
        return np.empty(0, dtype=np.int64)
    first = max(0, -(-(begin - length - (phases - 1) + 1) // stride))
    last = min((end - 1) // stride, num_samples - 1)
    return np.arange(first, last + 1, dtype=np.int64)
