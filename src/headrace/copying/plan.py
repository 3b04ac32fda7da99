"""Which documents go where: ordered ranges of documents of sources, cut into shards, and the way back.

sources A of 5 documents, B of 3          merge              (A 0-5, B 0-3)
cut at the documents 4 and 6              split              (A 0-4) | (A 4-5, B 0-1) | (B 1-3)

From a document of a copy back to the document of the source, by the ranges in the manifest. No I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.copying.formats import FormatName
from headrace.errors import ConfigError, StoreError
from headrace.plan.megatron.splits import split_ranges
from headrace.stores import Manifest
from headrace.stores.arguments import IntArray


class DocumentRange(msgspec.Struct, frozen=True):
    """``num_documents`` documents of a source, from ``first`` on."""

    source: int
    first: int
    num_documents: int

    @property
    def end(self) -> int:
        """The document behind the last."""
        return self.first + self.num_documents


class FolderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One store that is written: its place below the destination (empty: the destination itself), and its shards."""

    name: str
    shards: tuple[tuple[DocumentRange, ...], ...]

    @property
    def num_documents(self) -> int:
        """Documents of all shards."""
        return sum(piece.num_documents for shard in self.shards for piece in shard)


class CopyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All stores that are written.

    Attributes:
        folders: the stores, in the order in which they are written.
        dtypes: of each key on disk, in the order of the keys.
        format: of what is written.
    """

    folders: tuple[FolderPlan, ...]
    dtypes: dict[str, str]
    format: FormatName


def whole(num_documents: Sequence[int]) -> list[DocumentRange]:
    """All documents of sources that have so many, one source after another."""
    return [DocumentRange(source, 0, count) for source, count in enumerate(num_documents)]


def cut(pieces: Sequence[DocumentRange], borders: Sequence[int]) -> list[list[DocumentRange]]:
    """The pieces cut before the documents at these places, which do not decrease, into ``len(borders) + 1`` lists.

    Args:
        pieces: ranges of documents, counted from 0 over all of them.
        borders: in [0, number of documents].
    """
    total = sum(piece.num_documents for piece in pieces)
    parts: list[list[DocumentRange]] = []
    rest = [piece for piece in pieces if piece.num_documents]
    rest.reverse()
    for begin, end in pairwise([0, *borders, total]):
        left = end - begin
        part: list[DocumentRange] = []
        while left:
            piece = rest.pop()
            count = min(left, piece.num_documents)
            part.append(DocumentRange(piece.source, piece.first, count))
            if count < piece.num_documents:
                rest.append(DocumentRange(piece.source, piece.first + count, piece.num_documents - count))
            left -= count
        parts.append(part)
    return parts


def shard_borders(lengths: Iterable[IntArray], shard_tokens: int) -> list[int]:
    """Where shards begin, but for the first: each ends before the document that takes it over so many tokens.

    The rule of ``headrace prepare``. A longer document is a shard of its own.

    Args:
        lengths: tokens of each document, all keys together, in pieces of any size.
        shard_tokens: most tokens of a shard.
    """
    borders: list[int] = []
    offset = tokens = 0
    is_empty = True
    for chunk in lengths:
        ends = np.cumsum(chunk)
        first = begin = 0
        while first < len(chunk):
            last = int(np.searchsorted(ends, begin + shard_tokens - tokens, side="right"))
            if last <= first and is_empty:
                last = first + 1  # a document that is longer than a shard
            if last > first:
                tokens += int(ends[last - 1]) - begin
                begin, first, is_empty = int(ends[last - 1]), last, False
            if first < len(chunk):
                borders.append(offset + first)
                tokens, is_empty = 0, True
        offset += len(chunk)
    return borders


def limited(shard: Sequence[DocumentRange], max_documents: int | None) -> list[list[DocumentRange]]:
    """The shard itself, or as few of nearly equal numbers of documents as hold at most so many each."""
    total = sum(piece.num_documents for piece in shard)
    if max_documents is None or total <= max_documents:
        return [list(shard)]
    count = -(-total // max_documents)
    return cut(shard, [number * total // count for number in range(1, count)])


def part_borders(lengths: Iterable[IntArray], num_parts: int, *, num_documents: int, num_tokens: int) -> list[int]:
    """(num_parts - 1) borders between documents, each the nearest to its share of the tokens; the earlier of two.

    Without tokens the documents are assigned. A part has at most the length of the longest document more or less than
    its share.
    """
    if num_tokens == 0:
        return [part * num_documents // num_parts for part in range(1, num_parts)]
    borders: list[int] = []
    offset = tokens = 0
    for chunk in lengths:
        ends = np.concatenate(([0], np.cumsum(chunk))) + tokens
        while len(borders) < num_parts - 1:
            share = (len(borders) + 1) * num_tokens  # in parts of a token
            if share > int(ends[-1]) * num_parts:
                break
            at = int(np.searchsorted(ends, -(-share // num_parts)))
            before, after = (int(end) * num_parts for end in ends[at - 1 : at + 1])
            borders.append(offset + at - (share - before <= after - share))
        offset, tokens = offset + len(chunk), int(ends[-1])
    return borders


def named_split(
    split: str, num_documents: int, *, era: Literal["core", "legacy"], names: Sequence[str]
) -> list[tuple[str, int, int]]:
    """(name, first, end) of the documents of each part with a share above 0, by Megatron's borders.

    Raises:
        ConfigError: the split cannot be read, or there are not as many names as numbers.
    """
    parts = split_ranges(split, num_documents, era=era)
    num_shares = max(number + 1 for number, part in enumerate(parts) if part is not None)
    if not num_shares <= len(names) <= len(parts):
        raise ConfigError(f"{len(names)} names for the split {split!r}: name each of its {num_shares} parts")
    return [(name, *part) for name, part in zip(names, parts, strict=False) if part is not None]


def ranges_of(shards: Iterable[Iterable[DocumentRange]]) -> list[DocumentRange]:
    """The documents of shards as few ranges: what goes on where the piece before it ended is one with it."""
    found: list[DocumentRange] = []
    for piece in (piece for shard in shards for piece in shard):
        if found and found[-1].source == piece.source and found[-1].end == piece.first:
            last = found.pop()
            found.append(DocumentRange(last.source, last.first, last.num_documents + piece.num_documents))
        else:
            found.append(piece)
    return found


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


def ranges_from(pieces: Sequence[DocumentRange]) -> tuple[tuple[int, int, int], ...]:
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
