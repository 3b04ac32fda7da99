"""The sources of a run as they stand in ``run.json``, and datasets of which no more is known.

    Dataset -- SourceTable --> SavedSource: recipe, length, StorePlace -- RecordedDataset --> Dataset

The plan, the recipe and the past of a run need no more than `RecordedDataset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec import UNSET, UnsetType

from headrace.datasets import Dataset, RaggedDataset, Traits
from headrace.datasets.dataset import Fields, Sample, SampleWatch
from headrace.datasets.exclusions import excluded_recipe
from headrace.datasets.mix import Mix, leaf_of, named_datasets, store_of
from headrace.datasets.recipes import DataRecipe, recipe_of
from headrace.errors import ConfigError, StateError, StoreError
from headrace.io import folder_of
from headrace.plan import IntArray, KeyArray, Shards
from headrace.plan.recipe import without_contents
from headrace.stores import EnergonStore, SampleStore, Store, open as open_store, open_tokens


class StorePlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a store lies: the path as it was opened, and the fingerprint of its content.

    ``key`` is the main key of a store with several. ``contents`` is its ``contents_fingerprint``, if ``fingerprint``
    sees the layout only. ``options`` are those of `headrace.open` without which its documents would be others.
    """

    path: str
    format: str
    fingerprint: str
    split_part: str | None = None
    key: str | UnsetType = UNSET
    contents: str | UnsetType = UNSET
    options: tuple[tuple[str, Any], ...] | UnsetType = UNSET

    @classmethod
    def of(cls, dataset: Dataset) -> StorePlace | None:
        """Return where the store behind a dataset lies; None if there is not exactly one."""
        inner: Any = dataset
        while not isinstance(inner, RecordedDataset) and isinstance(getattr(inner, "dataset", None), Dataset):
            inner = inner.dataset
        if isinstance(inner, RecordedDataset):
            return inner.source.store
        if (store := store_of(dataset)) is None:
            return None
        layout, contents = store.layout_fingerprint, store.contents_fingerprint
        return cls(
            path=store.path,
            format=store.format,
            fingerprint=layout,
            split_part=getattr(store, "split_part", None),
            key=store.keys[0] if isinstance(store, Store) and len(store.keys) > 1 else UNSET,
            contents=UNSET if contents == layout else contents,
            options=(isinstance(store, Store) and tuple(store.opening.items())) or UNSET,
        )

    def path_from(self, folder: str) -> str:
        """Return the path of the store; ``folder`` is that of the training, to which paths are relative."""
        if not folder_of(self.path):
            return self.path
        path = Path(folder, self.path)
        # In the folder of the training the name stays as it was, since samples of media tell it.
        is_there = path.exists() or path.parent.is_dir()
        return str(path) if is_there and Path.cwd() != Path(folder) else self.path

    def open(self, folder: str, *, as_samples: bool) -> Store | SampleStore:
        """Open the store.

        Args:
            folder: the folder of the training, to which paths are relative.
            as_samples: whether its samples are needed, and not tokens.

        Raises:
            StoreError: it is missing, or does not hold the data of the run.
        """
        name = self.path_from(folder)
        found: Store | SampleStore
        if self.format == EnergonStore.format:
            found = EnergonStore(name, split_part=self.split_part)
        else:
            found = open_store(name) if as_samples else self._open_tokens(name)
        layout, contents = found.layout_fingerprint, found.contents_fingerprint
        # Some stores at URLs do not know their contents.
        is_same = self.contents is UNSET or contents in (layout, self.contents)
        if layout != self.fingerprint or not is_same:
            raise StoreError(f"{name}: does not hold the data that the run was fed from")
        return found

    def _open_tokens(self, name: str) -> Store:
        key = None if self.key is UNSET else self.key
        options = {} if self.options is UNSET else dict(self.options)
        found = open_tokens(name, **options)
        if key is not None and found.keys[0] != key:
            found = open_tokens(name, key=key, **options)
        if found.fingerprint != self.fingerprint and self.format == found.format == "indexed":
            return open_tokens(name, key=key, documents="sequences")
        return found


class SavedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dataset: the first path in the mix that it has, its length and shards, its store, and its recipe.

    ``tokens`` is the mean number of tokens of a sample, of a blend by tokens.
    """

    path: str
    num_samples: int
    shards: str | None = None
    store: StorePlace | None = None
    recipe: dict[str, Any]
    is_endless: bool | UnsetType = UNSET
    tokens: float | UnsetType = UNSET


class SourceTable:
    """The datasets of a run, each written once, however often the mixes of its edits name it.

    Args:
        with_tokens: whether to write how many tokens the samples of each have.
    """

    def __init__(self, *, with_tokens: bool) -> None:
        self.sources: list[SavedSource] = []
        self.with_tokens = with_tokens
        self._numbers: dict[tuple[Any, ...], int] = {}

    def recipe(self, data: Dataset | Mix) -> DataRecipe:
        """Return data over the numbers of their datasets, which are written if they are new."""
        paths = {id(dataset): path for path, dataset in named_datasets(data).items()}
        return recipe_of(data, lambda dataset: self._number(paths[id(dataset)], dataset))

    def _number(self, path: str, dataset: Dataset) -> int:
        place = StorePlace.of(dataset)
        key = len(dataset), dataset.fingerprint, place
        if key not in self._numbers:
            self._numbers[key] = len(self.sources)
            self.sources.append(
                SavedSource(
                    path=path,
                    num_samples=len(dataset),
                    shards=shards_text(leaf_of("", dataset).shards),
                    store=place,
                    recipe=dataset.recipe,
                    is_endless=True if dataset.traits.is_endless else UNSET,
                    tokens=dataset.num_tokens_per_sample if self.with_tokens else UNSET,
                )
            )
        return self._numbers[key]


class RecordedDataset(RaggedDataset):
    """A dataset of which only the recipe and the length are known. It cannot be read."""

    def __init__(self, source: SavedSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return self.source.num_samples

    @property
    def fields(self) -> Fields:
        """None are known."""
        return {}

    @property
    def collated_by(self) -> dict[str, Any]:
        """The same for all, since they stood in one batch."""
        return {}

    @property
    def traits(self) -> Traits:
        """Whether the dataset is endless, and whether the number of its tokens was saved; nothing else is known."""
        has_tokens = self.source.tokens is not UNSET
        return Traits(is_ragged=True, is_endless=self.source.is_endless is True, has_tokens=has_tokens)

    @cached_property
    def shard_bounds(self) -> IntArray | None:
        """As they were saved."""
        return None if self.source.shards is None else text_shards(self.source.shards).bounds

    @property
    def num_tokens_per_sample(self) -> float:
        """As it was saved. Raises ConfigError if it was not, since no blend by tokens needed it."""
        if self.source.tokens is UNSET:
            raise ConfigError(f"the file does not say how many tokens a sample of {self.source.path!r} has")
        return self.source.tokens

    @property
    def recipe(self) -> dict[str, Any]:
        """As it was saved."""
        return self.source.recipe

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the numbers of samples."""
        return indices

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Raise ConfigError."""
        raise self._unread()

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Raise ConfigError."""
        raise self._unread()

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Raise ConfigError."""
        raise self._unread()

    def without(self, documents: IntArray, pad_id: int) -> RecordedDataset:
        """Return the dataset with the recipe that it has without some documents."""
        recipe = _masked(self.recipe, documents, pad_id, self.fingerprint)
        return RecordedDataset(msgspec.structs.replace(self.source, recipe=recipe))

    def _unread(self) -> ConfigError:
        return ConfigError(f"{self.source.path or 'the dataset'!r} is known by its recipe only, and cannot be read")

    def describe(self) -> str:
        """Describe the kind of the dataset, and the place of its store."""
        store = self.source.store
        return f"{self.source.recipe.get('kind')}" + ("" if store is None else f" of {store.path}")


def _masked(recipe: dict[str, Any], documents: IntArray, pad_id: int, fingerprint: str) -> dict[str, Any]:
    """Return a recipe with documents masked out, as the datasets themselves do it; see `MapDataset.without`."""
    if recipe.get("kind") != "mapped":
        return excluded_recipe(recipe, documents, pad_id)
    inner = recipe["dataset"]
    hashed = xxhash.xxh3_128_hexdigest(msgspec.json.encode(without_contents(inner), order="sorted"))
    found = {**recipe, "dataset": _masked(inner, documents, pad_id, hashed)}
    if recipe.get("seeded"):
        found["drawn_as"] = recipe.get("drawn_as", fingerprint)
    return found


def shards_text(shards: Shards | None) -> str | None:
    """Return the samples of each shard as a text, with equal neighbours together: ``"10000x127 4711"``."""
    if shards is None:
        return None
    sizes = np.diff(shards.bounds)
    firsts = np.flatnonzero(np.diff(sizes, prepend=-1))
    counts = np.diff(firsts, append=len(sizes))
    pairs = zip(sizes[firsts].tolist(), counts.tolist(), strict=True)
    return " ".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in pairs)


def text_shards(text: str) -> Shards:
    """Return the borders of shards that were written. Raises StateError for a malformed text."""
    sizes: list[int] = []
    for part in text.split():
        size, _, count = part.partition("x")
        try:
            sizes += [int(size)] * int(count or 1)
        except ValueError:
            raise StateError(f"{part!r} is not a size of shards; expected the form 10000x127") from None
    return Shards.of_counts(sizes)
