"""What a run did, how far it is, and whether the samples have what the field map of their dataset names.

Whether samples have what the field map of their dataset names: some are looked at, spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from headrace.errors import DecodeError, FieldAccessError
from headrace.prepare.energon.state import ShardFault
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


Kind = Literal["shards", "jsonl", "media", "metadataset"]


class DuplicateKey(msgspec.Struct, frozen=True, kw_only=True):
    """A sample whose key an earlier one has."""

    key: str
    shard: str
    sample: int
    first_shard: str
    first_sample: int


class EnergonReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        kind: what was prepared.
        path: of the dataset.
        shards: of the dataset.
        samples: in them, or records of a JSONL file, or rows of joins.
        parts: names of parts, some at most.
        read: shards that were read, by this run or the unfinished one that it went on with.
        unchanged: shards that were not, because they are as they were.
        new: shards that the dataset did not have before.
        removed: shards that it has no more.
        empty: tars without samples, which are left out.
        faults: shard -> what is wrong with it: samples from there on are missing.
        duplicates: samples whose key was there before.
        split: part -> its shards and samples.
        media: media whose facts are in the index; None where none were asked for.
        uuid: of the index; None where there is none.
        written: files of ``.nv-meta`` that are new, or the files that were written.
        misfit: samples that the field map of ``dataset.yaml`` does not fit; None where all fit that were looked at.
    """

    kind: Kind
    path: str
    shards: int = 0
    samples: int = 0
    parts: tuple[str, ...] = ()
    read: int = 0
    unchanged: int = 0
    new: int = 0
    removed: int = 0
    empty: tuple[str, ...] = ()
    faults: dict[str, tuple[ShardFault, ...]] = {}
    duplicates: tuple[DuplicateKey, ...] = ()
    split: dict[str, tuple[int, int]] = {}
    media: int | None = None
    uuid: str | None = None
    written: tuple[str, ...] = ()
    misfit: Misfit | None = None


class EnergonProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        done: shards or files that are done.
        total: of them all.
        done_bytes: of the tars that are done.
        total_bytes: of all.
        samples: in what is done.
    """

    done: int
    total: int
    done_bytes: int
    total_bytes: int
    samples: int
