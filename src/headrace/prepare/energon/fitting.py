"""Whether samples have what the field map of their dataset names: some are looked at, spread evenly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import DecodeError, FieldAccessError
from headrace.samples.media.decoding.basic import read_json
from headrace.samples.media.field_map import META_PARTS, FieldMap, first_that_works, parse_field_map
from headrace.stores.energon.dataset_yaml import read_dataset
from headrace.stores.tar.store import TarStore

LOOKED_AT: Final = 256
"""Samples at most."""


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that the field map of their dataset does not fit.

    Attributes:
        samples: that it does not fit.
        looked_at: of so many.
        shard, key: of the first one.
        reason: why it does not.
    """

    samples: int
    looked_at: int
    shard: str
    key: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the field map does not fit {self.samples:,} of {self.looked_at:,} samples that were looked at"
            f" ({self.samples / self.looked_at:.1%}), the first {self.key!r} in {self.shard}: {self.reason}"
        )


def find_misfit(root: Path, dataset_config: str, shards: Sequence[str]) -> Misfit | None:
    """What of the first samples and of others throughout a dataset its field map does not fit; None: all fit.

    Parts are read only where the map leads into JSON. What else a part holds shows when it is decoded.

    Raises:
        StoreError, ConfigError: ``dataset.yaml`` or a shard cannot be read, or the map.
    """
    config = read_dataset(root, dataset_config)
    if config is None or config.field_map is None:
        return None
    fields = parse_field_map(config.field_map)
    found: list[tuple[str, str, str]] = []
    with TarStore([root / shard for shard in shards]) as store:
        numbers = np.unique(np.linspace(0, len(store) - 1, LOOKED_AT).astype(np.int64)).tolist()
        for number in numbers:
            if (reason := _reason(store, number, fields)) is not None:
                shard = shards[int(np.searchsorted(store.shard_bounds, number, side="right")) - 1]
                found.append((shard, store.key(number), reason))
    if not found:
        return None
    shard, key, reason = found[0]
    return Misfit(samples=len(found), looked_at=len(numbers), shard=shard, key=key, reason=reason)


def _reason(store: TarStore, number: int, fields: FieldMap) -> str | None:
    """Why a sample does not have all fields; None: it has."""
    there = store.places(number)

    def part(name: str) -> Any:
        if name not in there:
            raise KeyError(name, tuple(there))
        data = store.read(np.array([number]), [name])[0].parts[name]
        return read_json(data)

    try:
        for field, options in fields.items():
            if any(_is_found(option.part, option.steps, there) for option in options):
                continue
            first_that_works(options, field, part)
    except FieldAccessError as error:
        return error.reason
    except DecodeError as error:
        return f"field {field!r}: {error}"
    return None


def _is_found(part: str, steps: tuple[str, ...], there: dict[str, Any]) -> bool:
    """Whether an option leads somewhere, without reading: to a part, or to what is in one that is not JSON."""
    return part in META_PARTS or (part in there and (not steps or part.rpartition(".")[2] != "json"))
