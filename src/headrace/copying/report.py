"""What a copy says of itself: how far it is, and what it made."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.stores import InputFile, OutputShard


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy is; the check of the result counts the same documents again, store by store."""

    phase: Literal["copy", "check"]
    documents: int
    total_documents: int
    tokens: int
    """Of all keys."""


class CopiedStore(msgspec.Struct, frozen=True, kw_only=True):
    """One store that was written."""

    name: str
    """Its place below the destination; empty: the destination itself."""

    path: str
    documents: int
    tokens: int
    """Of all keys."""

    num_shards: int
    bytes: int
    """Of the shards; of a plan only those of the tokens."""

    shards: tuple[OutputShard, ...]
    """None for a plan."""


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `merge`, `convert` or `split` made, or would make."""

    tool: str
    output: str
    is_dry_run: bool
    format: str
    keys: dict[str, str]
    """Dtype of each key on disk."""

    documents: int
    tokens: int
    sources: tuple[str, ...]
    """In the order in which they were copied."""

    stores: tuple[CopiedStore, ...]
    inputs: tuple[InputFile, ...]
    """The files of the sources with their hashes; none for a plan."""

    warnings: tuple[str, ...]
    """What was not kept, and what differs from what one might expect."""
