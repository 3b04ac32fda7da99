"""A look at the first samples of a dataset, before it is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.prepare.energon.scanning import MAX_PARTS
from headrace.stores.tar.scan import scan_shard

MAX_JSON_BYTES: Final = 1 << 20
_MAX_TEXT: Final = 25
_MAX_ITEMS: Final = 3


class Peek(msgspec.Struct, frozen=True, kw_only=True):
    """What the first shard with samples holds.

    Attributes:
        shard: its name.
        samples: of the first ones: key, names of the parts, and the part ``json``, shortened, or None.
        parts: names of all parts in the shard, sorted, some at most.
    """

    shard: str
    samples: tuple[tuple[str, tuple[str, ...], Any], ...]
    parts: tuple[str, ...]


def peek(root: Path, names: Sequence[str], num_samples: int = 2) -> Peek | None:
    """Look into the first shard that has samples; None where none has.

    Raises:
        InputError: a shard is compressed.
        StoreError: one cannot be read.
    """
    for name in names:
        scanned = scan_shard(root / name, on_fault="keep")
        if not scanned.keys:
            continue
        bounds = scanned.part_bounds.tolist()
        samples = []
        for number, key in enumerate(scanned.keys[:num_samples]):
            parts = tuple(scanned.part_names[bounds[number] : bounds[number + 1]])
            found = None
            if "json" in parts:
                at = bounds[number] + parts.index("json")
                found = _json(root / name, int(scanned.part_offsets[at]), int(scanned.part_sizes[at]))
            samples.append((key, parts, found))
        parts = tuple(sorted(set(scanned.part_names))[:MAX_PARTS])
        return Peek(shard=name, samples=tuple(samples), parts=parts)
    return None


def _json(path: Path, offset: int, size: int) -> Any:
    if size > MAX_JSON_BYTES:
        return None
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    try:
        return shortened(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def shortened(value: Any) -> Any:
    """JSON data as people read it: long texts and lists are cut."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [*map(shortened, value[:_MAX_ITEMS]), *(["..."] if len(value) > _MAX_ITEMS else [])]
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return value[:_MAX_TEXT] + "..."
    return value
