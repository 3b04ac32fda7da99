"""A store of samples -> those that a user wants to see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

import msgspec
import numpy as np

from headrace.cli.media.opening import SampleOptions, dataset_of, open_sample_store
from headrace.cli.media.parts import PartViewer
from headrace.cli.media.samples import LookedAtSample, look_at
from headrace.cli.views.choosing import MAX_SAMPLES
from headrace.errors import ConfigError
from headrace.samples.media import parse_field_map
from headrace.samples.media.field_map import FieldMap
from headrace.stores.sample_store import SampleStore

OrderKind = Literal["full", "blocks", "shards", "none"]


class SamplePreviewOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of a store of samples."""

    numbers: tuple[int, ...] | None = None
    """Numbers of samples; None takes the first ``num``."""

    num: int = 3
    key: str | None = None
    """The sample of this key alone."""

    max_chars: int = 2000
    pictures: bool = True
    dataset: SampleOptions = SampleOptions()


class SamplePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a store is whose samples are shown."""

    path: str
    format: str
    split_part: str | None
    num_samples: int
    num_shards: int
    sample_type: str | None
    field_map: dict[str, str] | None


class MixFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a metadataset is whose samples are shown."""

    path: str
    format: str
    split_part: str
    num_samples: int | None
    """Of one pass; None of a mix without an end."""

    sources: tuple[str, ...]
    order: OrderKind
    seed: int


class StorePreview:
    """An open store, and the samples of it that a user wants to see: each is read and looked at when its turn comes.

    Attributes:
        facts: of the store.
        numbers: of the samples.
    """

    def __init__(self, store: SampleStore, options: SamplePreviewOptions) -> None:
        dataset = dataset_of(store)
        self._store = store
        self._viewer = PartViewer(max_chars=options.max_chars, pictures=options.pictures)
        self._fields = field_map_of(store)
        self.numbers = _numbers(store, options)
        self.facts = SamplePreview(
            path=store.path,
            format=store.format,
            split_part=options.dataset.split_part,
            num_samples=len(store),
            num_shards=len(store.shards),
            sample_type=None if dataset is None else "crude" if dataset.kind == "crude" else type_name(store),
            field_map=None if dataset is None else dataset.field_map,
        )

    def __iter__(self) -> Iterator[LookedAtSample]:
        """The samples. What is wrong with their parts is said there.

        Raises:
            InputError: a sample is malformed.
            StoreError: a file is missing, or changed.
        """
        for number in self.numbers:
            yield look_at(self._store.read(np.array([number]))[0], number, self._fields, self._viewer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()


def open_preview(path: str, options: SamplePreviewOptions) -> StorePreview | None:
    """The store at a path, to look at; None where it holds no samples.

    Raises:
        HeadraceError: it does not open.
        ConfigError: there is no such sample.
    """
    store = open_sample_store(path, options.dataset)
    if store is None:
        return None
    try:
        return StorePreview(store, options)
    except BaseException:
        store.close()
        raise


def field_map_of(store: SampleStore) -> FieldMap | None:
    """The field map that a dataset of Energon's says, if it does.

    Raises:
        ConfigError: it cannot be read.
    """
    dataset = dataset_of(store)
    return None if dataset is None or dataset.field_map is None else parse_field_map(dataset.field_map)


def type_name(store: SampleStore) -> str | None:
    """The sample type, as the ``dataset.yaml`` names it."""
    dataset = dataset_of(store)
    if dataset is None:
        return None
    return dataset.class_ref.name if dataset.sample_type is None else dataset.sample_type.name


def find_sample(store: SampleStore, key: str) -> int:
    """The number of the sample of a key.

    Raises:
        ConfigError: there is none.
    """
    try:
        return store.find(key)
    except KeyError:
        raise ConfigError(f"{store.path}: has no sample {key!r}; headrace ls lists the keys") from None


def _numbers(store: SampleStore, options: SamplePreviewOptions) -> list[int]:
    if options.key is not None:
        return [find_sample(store, options.key)]
    if options.numbers is None:
        if not 1 <= options.num <= MAX_SAMPLES:
            raise ConfigError(f"--num {options.num}: from 1 to {MAX_SAMPLES:,} samples are shown at once")
        return list(range(min(options.num, len(store))))
    for number in options.numbers:
        if number >= len(store):
            raise ConfigError(f"{store.path}: has no sample {number:,}; its {len(store):,} samples are counted from 0")
    return list(options.numbers)
