"""From a document of a copy back to the document of the source, by the ranges in the manifest. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from headrace.copying.plan import Piece
from headrace.errors import StoreError
from headrace.stores import Manifest

OPTION = "copy"
"""The key of a manifest's ``options`` that says that the store is a copy."""


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source in the manifest of a copy.

    Attributes:
        path: as the run was given it.
        documents: what a document of it is, as for `headrace.open`.
        dialect: as for `headrace.open`; empty: as found.
        num_documents: how many it had.
    """

    path: str
    documents: str = "indices"
    dialect: str = ""
    num_documents: int


class CopyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the manifest of a copy keeps in its ``options``.

    Attributes:
        tool: ``merge``, ``convert`` or ``split``.
        request: what was asked for.
        sources: in order.
        ranges: (source, first document, number of documents) of all documents, in order.
    """

    tool: str
    request: dict[str, Any]
    sources: tuple[SourceEntry, ...]
    ranges: tuple[tuple[int, int, int], ...]


class CopiedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Where a document of a copy was: the source, and its number there, from 0."""

    source: SourceEntry
    document: int


def ranges_from(pieces: Sequence[Piece]) -> tuple[tuple[int, int, int], ...]:
    """Pieces as the manifest keeps them."""
    return tuple((piece.source, piece.first, piece.num_documents) for piece in pieces)


def is_copy(manifest: Manifest) -> bool:
    """Whether the manifest is that of a copy."""
    return OPTION in manifest.options


def copied_documents(manifest: Manifest, documents: Sequence[int]) -> list[CopiedDocument]:
    """Where documents of a copy were, by their numbers in it. O(ranges), and a bisection each.

    Raises:
        StoreError: the ranges are not those of this store.
    """
    try:
        entry = msgspec.convert(manifest.options[OPTION], CopyEntry)
    except (KeyError, msgspec.ValidationError) as error:
        raise StoreError(f"the manifest does not say of which documents it is a copy: {error}") from error
    ends = list(accumulate(count for _, _, count in entry.ranges))
    found = []
    for document in documents:
        at = bisect_right(ends, document)
        if not 0 <= document < (ends[-1] if ends else 0) or not 0 <= entry.ranges[at][0] < len(entry.sources):
            raise StoreError(f"the manifest's ranges do not lead to document {document}; it was changed")
        source, first, count = entry.ranges[at]
        found.append(CopiedDocument(source=entry.sources[source], document=first + document - ends[at] + count))
    return found
