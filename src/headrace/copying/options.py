"""What the caller may choose about a copy, and the defaults, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from headrace.copying.formats import FORMATS, FormatName
from headrace.errors import ConfigError
from headrace.stores import Dialect, Documents, IndexedOptions

SortBy = Literal["given", "name", "natural"]
Shards = int | Literal["single", "source"]


class CopyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `merge`, `convert` and `split`; the only place that owns their defaults.

    Raises:
        ConfigError: a value that cannot be.
    """

    format: FormatName | None = None
    """Of what is written; None keeps that of the sources, which must then be the same."""

    dtype: str | Mapping[str, str] | None = None
    """Of the tokens on disk: for all keys of whole numbers wider than a byte, or by key. None keeps that of the
    sources. Values that do not fit are an error."""

    shards: Shards | None = None
    """One shard (``"single"``), those of the source (``"source"``), or at most so many tokens a shard, all keys
    together. None: `convert` keeps those of the source, the others write one."""

    dialect: Dialect | None = None
    """Of pairs, who wrote them, as for `headrace.open`."""

    documents: Documents = "indices"
    """Of pairs, what a document is, as for `headrace.open`."""

    allow_different_tokenizers: bool = False
    """Merge stores whose manifests name different tokenisers; the result then names none."""

    drop_modes: bool = False
    """Leave out the modes of multimodal sequences where the format cannot hold them, or not all sources have some."""

    overwrite: bool = False
    """Replace stores that are there already, once the new ones are complete."""

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"format={self.format!r} is unknown; the formats are {', '.join(map(repr, FORMATS))}")
        is_number = isinstance(self.shards, int) and not isinstance(self.shards, bool) and self.shards >= 1
        if self.shards not in (None, "single", "source") and not is_number:
            raise ConfigError(f"shards={self.shards!r}: allowed are 'single', 'source', or tokens, at least 1")
        IndexedOptions(dialect=self.dialect, documents=self.documents)  # which refuses unknown ones


def check_sort_by(sort_by: str) -> None:
    """Refuse an order that is unknown.

    Raises:
        ConfigError: it is.
    """
    if sort_by not in get_args(SortBy):
        raise ConfigError(f"sort_by={sort_by!r} is unknown; allowed are {', '.join(map(repr, get_args(SortBy)))}")
