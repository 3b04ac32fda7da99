"""What of a dataset is opened: its info and its split file, and how far they may disagree."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.stores.energon.info import Info, read_info
from headrace.stores.energon.splits import DEFAULT_PART, SplitPart, find_splits, read_splits, split_part, whole
from headrace.stores.tar.index import index_path

_ENTRY_BYTES: Final = 8
_log = logging.getLogger("headrace")


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of a dataset and of the part of it that is wanted, and the files that say so, the last one last."""

    info: Info
    part: SplitPart
    files: tuple[Path, ...]


def open_dataset(root: Path, part: str | None, split_config: str | None, strict: bool) -> Opened:
    """Read info and split of a dataset.

    Raises:
        StoreError: missing, malformed, or at odds.
        ConfigError: there is no such part; a split file is named and no part.
    """
    if part is None and split_config is not None:
        raise ConfigError(f"{root}: split_config={split_config!r} needs a split_part, as 'train'")
    info = read_info(root, strict=strict)
    if part is None:
        opened = Opened(info=info, part=whole(info), files=(info.path,))
    else:
        splits = read_splits(root, split_config) if strict else find_splits(root, split_config, strict=False)
        if splits is not None:
            opened = Opened(info=info, part=split_part(splits, part, info), files=(info.path, splits.path))
        elif part == DEFAULT_PART:
            _log.warning("%s: no split file; all shards are taken as %s", root, part)
            opened = Opened(info=info, part=whole(info), files=(info.path,))
        else:
            raise ConfigError(f"{root}: no part {part!r}: there is no split file, so all shards are {DEFAULT_PART!r}")
    return opened if strict else _as_indexed(root, opened)


def _as_indexed(root: Path, opened: Opened) -> Opened:
    """The same with the counts that the indices of the shards have, where there is one and it has another."""
    counts = dict(opened.info.shard_counts)
    differing = []
    for name in dict.fromkeys(opened.part.shards):
        found = indexed_count(root / name)
        if found is not None and found != counts[name]:
            differing.append(f"{name} has {found:,}, not {counts[name]:,}")
            counts[name] = found
    if not differing:
        return opened
    more = "" if len(differing) == 1 else f", and {len(differing) - 1} more"
    _log.warning("%s: counts other than in the indices of the shards, which hold: %s%s", root, differing[0], more)
    return msgspec.structs.replace(opened, info=msgspec.structs.replace(opened.info, shard_counts=counts))


def indexed_count(tar: Path) -> int | None:
    """The samples of a tar by the size of its index; None where there is none, or it is no tar.

    Raises:
        StoreError: the index cannot be one.
    """
    if tar.suffix != ".tar":
        return None
    place = index_path(tar)
    try:
        size = place.stat().st_size
    except OSError:
        return None
    if size < _ENTRY_BYTES or size % _ENTRY_BYTES:
        raise StoreError(f"{place}: {size} bytes, which is no index: 8 bytes a sample and 8 more; prepare it again")
    return size // _ENTRY_BYTES - 1
