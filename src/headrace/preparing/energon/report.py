"""The report and the progress of a run, and a check that the field map fits the samples.

The check looks at some samples, spread evenly over the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from headrace.errors import DecodeError, FieldAccessError, HeadraceError
from headrace.io import AnyPath
from headrace.preparing.energon.state import ShardFault
from headrace.samples.media.decoding.basic import read_json
from headrace.samples.media.mapper import META_PARTS, FieldMap, first_that_works, parse_field_map
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.dataset_yaml import read_dataset
from headrace.stores.tar.store import TarStore

LOOKED_AT: Final = 256
"""Maximum number of samples to check."""


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that do not have what the field map of their dataset names.

    Attributes:
        samples: number of samples that the field map does not fit.
        looked_at: number of samples that were checked.
        shard, key: the first sample that it does not fit.
        reason: why it does not fit that sample.
    """

    samples: int
    looked_at: int
    shard: str
    key: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the field map does not fit {self.samples:,} of the {self.looked_at:,} samples that were checked"
            f" ({self.samples / self.looked_at:.1%}), the first {self.key!r} in {self.shard}: {self.reason}"
        )


def tell_misfit(
    root: AnyPath, dataset_config: str, shards: Sequence[str], on_notice: Callable[[str], None]
) -> Misfit | None:
    """Check samples spread over a dataset against its field map; if that does not fit, give a notice, no error.

    Parts are read only if the map leads into JSON. Other contents are not checked: their faults show in decoding.
    """
    found: list[tuple[str, str, str]] = []
    try:
        is_there = (root / META_FOLDER / dataset_config).exists()
        config = read_dataset(root, dataset_config) if is_there else None
        if config is None or config.field_map is None:
            return None
        fields = parse_field_map(config.field_map)
        with TarStore([root / shard for shard in shards]) as store:
            numbers = np.unique(np.linspace(0, len(store) - 1, LOOKED_AT).astype(np.int64)).tolist()
            for number in numbers:
                if (reason := _reason(store, number, fields)) is not None:
                    shard = shards[int(np.searchsorted(store.shard_bounds, number, side="right")) - 1]
                    found.append((shard, store.key(number), reason))
    except HeadraceError as error:
        on_notice(f"{dataset_config}: its field map could not be checked: {error}")
        return None
    if not found:
        return None
    shard, key, reason = found[0]
    misfit = Misfit(samples=len(found), looked_at=len(numbers), shard=shard, key=key, reason=reason)
    on_notice(f"{dataset_config}: {misfit}")
    return misfit


def _reason(store: TarStore, number: int, fields: FieldMap) -> str | None:
    """Return why a sample does not have all fields; None if it has them."""
    places = store.places(number)

    def part(name: str) -> Any:
        if name not in places:
            raise KeyError(name, tuple(places))
        data = store.read(np.array([number]), [name])[0].parts[name]
        return read_json(data)

    try:
        for field, options in fields.items():
            if any(_is_found(option.part, option.steps, places) for option in options):
                continue
            first_that_works(options, field, part)
    except FieldAccessError as error:
        return error.reason
    except DecodeError as error:
        return f"field {field!r}: {error}"
    return None


def _is_found(part: str, steps: tuple[str, ...], places: dict[str, Any]) -> bool:
    """Whether an option of the map leads to a part. Steps into JSON must be read, so they are not decided here."""
    return part in META_PARTS or (part in places and (not steps or part.rpartition(".")[2] != "json"))


Kind = Literal["shards", "jsonl", "media", "metadataset"]


class DuplicateKey(msgspec.Struct, frozen=True, kw_only=True):
    """A sample whose key an earlier sample of the dataset has too."""

    key: str
    shard: str
    sample: int
    first_shard: str
    first_sample: int


class EnergonReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        kind: what was prepared.
        path: the path of the dataset.
        shards: number of shards in the dataset.
        samples: number of samples in the shards, of files in a folder of media, of records in a JSONL file, or of rows
            of joins.
        parts: names of the parts, sorted; at most 50.
        read: number of shards that this run, or the unfinished run that it continued, has read.
        unchanged: number of shards that were not read, because they have not changed since an earlier run.
        new: number of shards that the dataset did not have before.
        removed: number of shards that the dataset had before and no longer has.
        empty: tars without samples, which are left out.
        faults: for each malformed shard its faults; samples are missing or cannot be read.
        duplicates: samples whose key an earlier sample has too.
        split: for each part of the split its numbers of shards and samples.
        media: number of media whose metadata are in the index; None if metadata were not asked for.
        uuid: uuid of the index; None if there is no index.
        written: new files of ``.nv-meta``, or paths of the files that were written.
        misfit: samples that the field map of ``dataset.yaml`` does not fit; None if it fits all that were checked.
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
