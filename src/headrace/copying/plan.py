"""Plan which documents go where: ordered ranges of documents, cut into shards. Without I/O.

    sources A of 5 documents, B of 3          merge              (A 0-5, B 0-3)
    cut at the documents 4 and 6              split              (A 0-4) | (A 4-5, B 0-1) | (B 1-3)

`copied_documents` goes the other way: from a document of a copy to the document of the source, by the ranges in the
manifest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from headrace.copying.formats import CopyOptions
from headrace.errors import ConfigError, StoreError
from headrace.plan.megatron.sampling import split_ranges
from headrace.stores import Manifest
from headrace.stores.arguments import IntArray
from headrace.stores.writer import ShardFilling


class DocumentRange(msgspec.Struct, frozen=True):
    """``num_documents`` consecutive documents of a source, from ``first`` on."""

    source: int
    first: int
    num_documents: int

    @property
    def end(self) -> int:
        """Number of the document after the last one."""
        return self.first + self.num_documents


class FolderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One store that is written: its folder below the destination (empty for the destination itself) and its shards."""

    name: str
    shards: tuple[tuple[DocumentRange, ...], ...]

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return sum(piece.num_documents for shard in self.shards for piece in shard)


def whole(num_documents: Sequence[int]) -> list[DocumentRange]:
    """Return the ranges of all documents of sources with these numbers of documents."""
    return [DocumentRange(source, 0, count) for source, count in enumerate(num_documents)]


def cut(pieces: Sequence[DocumentRange], borders: Sequence[int]) -> list[list[DocumentRange]]:
    """Cut ranges of documents at borders into ``len(borders) + 1`` lists.

    Args:
        pieces: ranges of documents, which are counted from 0 over all of them.
        borders: the documents before which to cut, ascending, in [0, number of documents].
    """
    total = sum(piece.num_documents for piece in pieces)
    parts: list[list[DocumentRange]] = []
    rest = [piece for piece in pieces if piece.num_documents]
    rest.reverse()
    for begin, end in pairwise([0, *borders, total]):
        missing = end - begin
        part: list[DocumentRange] = []
        while missing:
            piece = rest.pop()
            count = min(missing, piece.num_documents)
            part.append(DocumentRange(piece.source, piece.first, count))
            if count < piece.num_documents:
                rest.append(DocumentRange(piece.source, piece.first + count, piece.num_documents - count))
            missing -= count
        parts.append(part)
    return parts


def shard_borders(lengths: Iterable[IntArray], shard_tokens: int) -> list[int]:
    """Return where shards begin, except the first, by the rule of `ShardFilling`, as in ``headrace prepare``.

    Args:
        lengths: tokens of each document, summed over all keys, in arrays of any size.
        shard_tokens: maximum number of tokens per shard.
    """
    borders: list[int] = []
    offset, filling = 0, ShardFilling()
    for chunk in lengths:
        borders += [offset + last for _, last, is_full in filling.cut(chunk, shard_tokens) if is_full]
        offset += len(chunk)
    return borders


def limited(shard: Sequence[DocumentRange], max_documents: int | None) -> list[list[DocumentRange]]:
    """Return the shard itself, or if it has too many documents, as few nearly equal shards as possible."""
    total = sum(piece.num_documents for piece in shard)
    if max_documents is None or total <= max_documents:
        return [list(shard)]
    count = -(-total // max_documents)
    return cut(shard, [number * total // count for number in range(1, count)])


def part_borders(lengths: Iterable[IntArray], num_parts: int, *, num_documents: int, num_tokens: int) -> list[int]:
    """Return (num_parts - 1) borders between documents, each the nearest to its share of the tokens.

    Of two borders that are equally near, the earlier is used. If there are no tokens, the documents are shared out. A
    part differs from its share by at most the length of the longest document.
    """
    if num_tokens == 0:
        return [part * num_documents // num_parts for part in range(1, num_parts)]
    borders: list[int] = []
    offset = tokens = 0
    for chunk in lengths:
        ends = np.concatenate(([0], np.cumsum(chunk))) + tokens
        while len(borders) < num_parts - 1:
            share = (len(borders) + 1) * num_tokens  # in units of 1 / num_parts tokens
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
    """Return (name, first, end) of the documents of each part whose share is above 0, with Megatron's borders.

    Raises:
        ConfigError: the split is malformed, or the number of names does not fit it.
    """
    parts = split_ranges(split, num_documents, era=era)
    num_shares = max(number + 1 for number, part in enumerate(parts) if part is not None)
    if not num_shares <= len(names) <= len(parts):
        raise ConfigError(
            f"{len(names)} names are given for the split {split!r}: give one for each of its {num_shares} parts"
        )
    return [(name, *part) for name, part in zip(names, parts, strict=False) if part is not None]


def ranges_of(shards: Iterable[Iterable[DocumentRange]]) -> list[DocumentRange]:
    """Return the documents of shards as few ranges, by joining each piece to the one that it continues."""
    found: list[DocumentRange] = []
    for piece in (piece for shard in shards for piece in shard):
        if found and found[-1].source == piece.source and found[-1].end == piece.first:
            last = found.pop()
            found.append(DocumentRange(last.source, last.first, last.num_documents + piece.num_documents))
        else:
            found.append(piece)
    return found


OPTION = "copy"
"""The key in the ``options`` of a manifest that marks a copy."""


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source in the manifest of a copy.

    Attributes:
        path: the path as the user gave it.
        documents: what a document of a pair is, as for `headrace.open`.
        dialect: as for `headrace.open`; empty if it was recognised by the bytes.
        num_documents: number of its documents.
        dtype: as for `headrace.open`, and so are ``eod`` and ``bos``; only if they were given.
    """

    path: str
    documents: str = "indices"
    dialect: str = ""
    num_documents: int
    dtype: str | UnsetType = UNSET
    eod: int | UnsetType = UNSET
    bos: int | UnsetType = UNSET

    @classmethod
    def of(cls, path: str, num_documents: int, options: CopyOptions) -> SourceEntry:
        """Return the entry of a source that was opened with the options of a copy."""
        given: dict[str, Any] = {name: value for name, value in options.opening.items() if value is not None}
        return cls(path=path, num_documents=num_documents, **given)


class CopyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the manifest of a copy keeps in its ``options``.

    Attributes:
        tool: ``merge``, ``convert`` or ``split``.
        request: the options of the tool.
        sources: the sources, in order.
        ranges: all documents in order, as (source, first document, number of documents).
    """

    tool: str
    request: dict[str, Any]
    sources: tuple[SourceEntry, ...]
    ranges: tuple[tuple[int, int, int], ...]


class CopiedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a document of a copy: the source, and the number of the document there, from 0."""

    source: SourceEntry
    document: int


def is_copy(manifest: Manifest) -> bool:
    """Whether a manifest is that of a copy."""
    return OPTION in manifest.options


def copied_documents(manifest: Manifest, documents: Sequence[int]) -> list[CopiedDocument]:
    """Find the origins of documents of a copy by their numbers. O(ranges), and a bisection for each document.

    Raises:
        StoreError: the manifest is that of no copy, or its ranges do not hold such a document.
    """
    try:
        entry = msgspec.convert(manifest.options[OPTION], CopyEntry)
    except (KeyError, msgspec.ValidationError) as error:
        raise StoreError(f"the manifest does not say which documents were copied: {error}") from error
    ends = list(accumulate(count for _, _, count in entry.ranges))
    found = []
    for document in documents:
        at = bisect_right(ends, document)
        if not 0 <= document < (ends[-1] if ends else 0) or not 0 <= entry.ranges[at][0] < len(entry.sources):
            raise StoreError(f"the ranges in the manifest do not hold document {document}; the manifest is damaged")
        source, first, count = entry.ranges[at]
        found.append(CopiedDocument(source=entry.sources[source], document=first + document - ends[at] + count))
    return found
