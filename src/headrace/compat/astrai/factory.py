"""AstrAI's ``DatasetFactory``, ``BaseDataset`` and its four training types, with items of torch tensors.

Each class wraps a dataset of Headrace, its attribute ``dataset``, which can be fed through a `Run` and a `Loader`.
torch is imported when an item is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from headrace.compat.astrai.stores import lacks_offsets, shards_of
from headrace.compat.astrai.windows import COMPUTED, FIELDS, StreamWindows, TrainType
from headrace.datasets.dataset import Dataset
from headrace.datasets.records import Collation, SFTDataset
from headrace.datasets.rl_records import GroupDataset, PreferenceDataset
from headrace.errors import ConfigError
from headrace.stores import Store, open_keys
from headrace.stores import open_tokens as open_store

Layout = Literal["windows", "records"]
_NOT_LOADED = "Dataset not loaded: call load(path) first"
_FORMATS = {"bin": "keyed", "h5": "hdf5", "jsonl": "jsonl"}


class BaseDataset:
    """A map-style dataset of one training type over the data at a path; empty until `load` is called.

    Items are dicts of tensors. With the layout ``"windows"`` they are those of `StreamWindows`, which follow AstrAI's
    arithmetic. With ``"records"`` they are whole records:

    - ``dpo``: ``chosen``, ``rejected`` int64, and ``chosen_mask``, ``rejected_mask`` bool;
    - ``grpo``: ``prompts`` (P,) int64, lists ``responses`` and ``masks`` of G tensors, and ``rewards`` (G,) float32;
    - ``sft``: the fields of `SFTDataset`.

    Args:
        window_size: tokens of a window; it does not matter for records.
        stride: tokens from the begin of one window to the next, by default the window size.
        layout: by default ``"windows"`` for ``seq`` and ``sft``, and ``"records"`` for ``dpo`` and ``grpo``, since
            windows would tear their pairs and groups apart.
        collation: how the loader brings records to one length.

    Raises:
        ConfigError: a size is out of range, or ``seq`` is asked for as records.
    """

    train_type: ClassVar[TrainType]

    def __init__(
        self,
        window_size: int,
        stride: int | None = None,
        *,
        layout: Layout | None = None,
        collation: Collation | None = None,
    ) -> None:
        if layout not in (None, "windows", "records") or (layout == "records" and self.train_type == "seq"):
            raise ConfigError(
                f"layout of {self.train_type!r} is {layout!r}; allowed are 'windows' and, except for 'seq', 'records'"
            )
        self.layout: Layout = layout or ("windows" if self.train_type in ("seq", "sft") else "records")
        self.window_size = window_size
        self.stride = stride or window_size
        self.collation = collation
        self._dataset: Dataset | None = None
        self._store: Store | None = None

    def load(self, load_path: str | os.PathLike[str], storage_type: str | None = None, **options: Any) -> None:
        """Open the data at a path; ``options`` are those of `headrace.open`.

        Raises:
            KeyError: a key that the training type needs is missing.
            ConfigError: the data have another storage type, or hold no records although records are wanted.
            StoreError: as `headrace.open`.
        """
        store = open_store(load_path, **options)
        _check_storage(store, storage_type)
        missing = [names[0] for names in self._needed() if not any(name in store.keys for name in names)]
        if missing:
            raise KeyError(
                f"{store.path}: training type {self.train_type!r} requires the keys {missing}; available are"
                f" {list(store.keys)}"
            )
        if self.layout == "records":
            self._dataset = self._records(store)
        else:
            streams = open_keys(load_path, **options)
            self._dataset = StreamWindows(streams, self.train_type, window_size=self.window_size, stride=self.stride)
        self._store = store

    def _needed(self) -> list[tuple[str, ...]]:
        fields = FIELDS[self.train_type]
        return [field.keys for name, field in fields.items() if name != COMPUTED]

    def _records(self, store: Store) -> Dataset:
        _check_borders(store)
        if self.train_type == "dpo":
            return PreferenceDataset(store, self.collation)
        return GroupDataset(store, self.collation) if self.train_type == "grpo" else SFTDataset(store, self.collation)

    @property
    def dataset(self) -> Dataset:
        """The wrapped dataset of Headrace, for a `Run` and a `Loader`.

        Raises:
            RuntimeError: nothing is loaded.
        """
        if self._dataset is None:
            raise RuntimeError(_NOT_LOADED)
        return self._dataset

    @property
    def keys(self) -> list[str]:
        """The keys of the store; empty before it is loaded."""
        return [] if self._store is None else list(self._store.keys)

    @property
    def count(self) -> int:
        """The number of tokens: of the shortest key for windows, of the main key for records; 0 before it is loaded."""
        if isinstance(self._dataset, StreamWindows):
            return self._dataset.count_tokens
        return 0 if self._store is None else self._store.num_tokens

    token_count = count

    def get_index(self, index: int) -> tuple[int, int]:
        """The tokens at which a window begins and ends.

        Raises:
            RuntimeError: nothing is loaded, or the layout is records.
            IndexError: there is no such window.
        """
        if not isinstance(self.dataset, StreamWindows):
            raise RuntimeError("records have no windows")
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        begin = int(self.dataset.locate(np.array([index]))[0])
        return begin, begin + self.window_size

    def __len__(self) -> int:
        return 0 if self._dataset is None else len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The items at ``indices``, read together."""
        import torch

        def tensors(value: Any) -> Any:
            return [torch.from_numpy(array) for array in value] if isinstance(value, list) else torch.from_numpy(value)

        found = [self._pair(i) for i in indices] if self._is_pairs else self.dataset.__getitems__(indices)
        return [{name: tensors(value) for name, value in sample.items()} for sample in found]

    @property
    def _is_pairs(self) -> bool:
        return self.train_type == "dpo" and self.layout == "records"

    def _pair(self, index: int) -> dict[str, Any]:
        """A record as it is stored: tokens and their masks, unlike `PreferenceDataset`, which returns labels."""
        if self._store is None:
            raise RuntimeError(_NOT_LOADED)
        fields = FIELDS["dpo"]
        record = self._store.document(index, keys=list(fields))
        return {name: record[name].astype(field.dtype) for name, field in fields.items()}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'not loaded' if self._dataset is None else repr(self._dataset)}>"


class SeqDataset(BaseDataset):
    """Pre-training: items have ``input_ids`` and ``target_ids``."""

    train_type = "seq"


class SFTWindows(BaseDataset):
    """Fine-tuning: items have ``input_ids``, ``target_ids``, ``loss_mask`` and ``position_ids``."""

    train_type = "sft"


class DPODataset(BaseDataset):
    """Preferences: items have ``chosen``, ``rejected``, ``chosen_mask`` and ``rejected_mask``."""

    train_type = "dpo"


class GRPODataset(BaseDataset):
    """Groups with rewards: items have ``prompts``, ``responses``, ``masks`` and ``rewards``."""

    train_type = "grpo"


class DatasetFactory:
    """Makes a `BaseDataset` by its training type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.

    Example:
        >>> dataset = headrace.compat.astrai.DatasetFactory.load("seq", "stores/web", window_size=128)
        >>> sorted(dataset[0])
        ['input_ids', 'target_ids']
        >>> dataset[0]["input_ids"].shape
        torch.Size([128])
    """

    _types: ClassVar[dict[str, type[BaseDataset]]] = {
        kind.train_type: kind for kind in (SeqDataset, SFTWindows, DPODataset, GRPODataset)
    }

    @classmethod
    def create(cls, train_type: str, window_size: int, stride: int | None = None, **options: Any) -> BaseDataset:
        """Make a dataset that is not loaded yet; ``options`` are those of `BaseDataset`.

        Raises:
            ConfigError: the training type is unknown, or as for `BaseDataset`.
        """
        if train_type not in cls._types:
            raise ConfigError(f"Unknown component: {train_type!r}. Supported types: {cls.list_registered()}")
        return cls._types[train_type](window_size, stride, **options)

    @classmethod
    def load(
        cls,
        train_type: str,
        load_path: str | os.PathLike[str],
        window_size: int,
        stride: int | None = None,
        storage_type: str | None = None,
        **options: Any,
    ) -> BaseDataset:
        """Make a dataset and load the data at a path. Raises the errors of `create` and `BaseDataset.load`."""
        dataset = cls.create(train_type, window_size, stride, **options)
        dataset.load(load_path, storage_type=storage_type)
        return dataset

    @classmethod
    def list_registered(cls) -> list[str]:
        """The training types, sorted."""
        return sorted(cls._types)


load_dataset = DatasetFactory.load


def _check_storage(store: Store, storage_type: str | None) -> None:
    if storage_type is None:
        return
    if storage_type not in _FORMATS:
        raise ConfigError(f"Unknown component: {storage_type!r}. Supported types: {sorted(_FORMATS)}")
    found = shards_of(store)[0].format
    if found != _FORMATS[storage_type]:
        raise ConfigError(
            f"{store.path}: storage_type is {storage_type!r}, but the data there have the format {found!r}"
        )


def _check_borders(store: Store) -> None:
    """Raise ConfigError if every shard is one piece, since AstrAI's own pipeline does not write the borders of records.

    A shard with offsets may well hold a single record. A single dataset of HDF5 may hold one record or all of them, so
    it is refused.
    """
    shards = shards_of(store)
    if all(lacks_offsets(shard) or (shard.format == "hdf5" and len(shard) <= 1) for shard in shards):
        raise ConfigError(
            f"{store.path}: {len(shards)} shards of one piece each: the borders of records were not stored. Prepare"
            " the store again, or use AstrAI's windows for comparison, layout='windows'"
        )
