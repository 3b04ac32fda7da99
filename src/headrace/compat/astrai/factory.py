"""AstrAI's ``DatasetFactory``, ``BaseDataset`` and its four training types, with items of torch tensors.

Each class wraps a dataset of Headrace, its attribute ``dataset``, which can be fed through a `Run` and a `Loader`.
torch is imported when an item is read. `StreamWindows` are AstrAI's windows over flat streams of several keys, for
comparison with runs of AstrAI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from headrace.compat.astrai.stores import lacks_offsets, shards_of
from headrace.datasets.dataset import Dataset, Fields, FixedDataset, Sample
from headrace.datasets.loss_masks import unused_text, warn_unused
from headrace.datasets.origins import Origins, window_origins, windows_over
from headrace.datasets.records import Collation, SFTDataset
from headrace.datasets.rl_records import GroupDataset, PreferenceDataset
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.stores import Store, open_keys
from headrace.stores import open_tokens as open_store

TrainType = Literal["seq", "sft", "dpo", "grpo"]


class _Field(NamedTuple):
    """One field of a window: the possible names of its key, its dtype (None: as on disk), and its shift in tokens."""

    keys: tuple[str, ...]
    dtype: type | None
    shift: int = 0


_IDS = ("sequence", "tokens", "text")
FIELDS: Final[dict[str, dict[str, _Field]]] = {
    "seq": {"input_ids": _Field(_IDS, np.int64), "target_ids": _Field(_IDS, np.int64, 1)},
    "sft": {
        "input_ids": _Field(_IDS, np.int64),
        "target_ids": _Field(_IDS, np.int64, 1),
        "loss_mask": _Field(("loss_mask",), np.bool_, 1),
        "position_ids": _Field(("position_ids",), np.int64),
    },
    "dpo": {
        "chosen": _Field(("chosen",), np.int64),
        "rejected": _Field(("rejected",), np.int64),
        "chosen_mask": _Field(("chosen_mask",), np.bool_),
        "rejected_mask": _Field(("rejected_mask",), np.bool_),
    },
    "grpo": {
        "prompts": _Field(("prompts",), np.int64),
        "responses": _Field(("responses",), np.int64),
        "masks": _Field(("masks",), np.bool_),
        "rewards": _Field(("rewards",), None),
    },
}
"""The fields of a window for each training type."""

COMPUTED: Final = "position_ids"
"""The one key that may be missing, since positions in documents can be computed."""


class StreamWindows(FixedDataset):
    """Windows at the same places of several keys, by AstrAI's arithmetic.

    Window i begins at token ``min(i * stride, N - 1 - window_size)`` of every key, where N is the number of tokens of
    the shortest key. Each field is (window_size,):

    - ``seq``: ``input_ids`` int64, and ``target_ids`` int64, the tokens one position later;
    - ``sft``: the same, ``loss_mask`` bool for the targets, and ``position_ids`` int64, computed within each document
      if the store has none;
    - ``dpo``: ``chosen``, ``rejected`` int64, ``chosen_mask``, ``rejected_mask`` bool;
    - ``grpo``: ``prompts``, ``responses`` int64, ``masks`` bool, ``rewards`` as stored.

    There are ``(N - 1 - window_size) // stride + 1`` windows, or none if N is not above the window size. Windows of
    ``dpo`` and ``grpo`` cut records anywhere and combine parts of different records. They serve only for comparison
    with AstrAI.

    Args:
        streams: for each key of the training type, a store whose main key it is.
        train_type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.
        window_size: tokens of a window.
        stride: tokens from the begin of one window to the next, by default ``window_size``.

    Raises:
        ConfigError: the type is unknown, a size is below 1, a key is missing, or a mask and its tokens differ in
            length. (AstrAI reads such a mask anyway, shifted against its tokens.)

    Example:
        >>> streams = {"sequence": headrace.open("stores/web")}
        >>> windows = headrace.compat.astrai.StreamWindows(streams, "seq", window_size=128)
        >>> bool((windows[0]["target_ids"][:-1] == windows[0]["input_ids"][1:]).all())
        True
    """

    def __init__(
        self, streams: Mapping[str, Store], train_type: TrainType, *, window_size: int, stride: int | None = None
    ) -> None:
        if train_type not in FIELDS:
            raise ConfigError(f"train_type is {train_type!r}; allowed are {', '.join(map(repr, FIELDS))}")
        self.train_type = train_type
        self.window_size = index(window_size)
        self.stride = self.window_size if stride is None else index(stride)
        if self.window_size < 1 or self.stride < 1:
            raise ConfigError(f"window_size and stride are at least 1, found {self.window_size} and {self.stride}")
        self._fields = FIELDS[train_type]
        self._streams: dict[str, Store] = {}
        for name, field in self._fields.items():
            key = next((key for key in field.keys if key in streams), None)
            if key is not None:
                self._streams[name] = streams[key]
            elif name != COMPUTED:
                raise ConfigError(
                    f"training type {train_type!r} needs the key {field.keys[0]!r}; the store has"
                    f" {', '.join(map(repr, streams))}"
                )
        self._check_masks()
        main = self.stores[0]
        # AstrAI's "seq" trains on every token, whatever else the store has.
        self._unused = "loss_mask" if train_type == "seq" and "loss_mask" in streams else None
        warn_unused(main, self._unused, "training type 'seq'")
        self.count_tokens = min(stream.num_tokens for stream in self._streams.values())
        slack = self.count_tokens - 1 - self.window_size
        self._num_samples = slack // self.stride + 1 if slack >= 0 else 0

    def _check_masks(self) -> None:
        parallel = [("input_ids", "loss_mask"), ("input_ids", COMPUTED), ("responses", "masks")]
        parallel += [("chosen", "chosen_mask"), ("rejected", "rejected_mask")]
        for tokens, marks in parallel:
            if tokens in self._streams and marks in self._streams:
                counts = [self._streams[name].num_tokens for name in (tokens, marks)]
                if counts[0] != counts[1]:
                    raise ConfigError(
                        f"{self._streams[tokens].path}: {counts[0]:,} tokens and {counts[1]:,} values of {marks!r}: the"
                        " mask is shifted against its tokens; prepare the store again"
                    )

    def __len__(self) -> int:
        return self._num_samples

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); each field is (window_size,)."""
        dtypes = {
            name: np.dtype(field.dtype) if field.dtype is not None else self._dtype(name)
            for name, field in self._fields.items()
        }
        return {name: ((self.window_size,), dtype) for name, dtype in dtypes.items()}

    def _dtype(self, name: str) -> np.dtype[Any]:
        stream = self._streams[name]
        return stream.dtypes[stream.keys[0]]

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores of the fields, one a stream."""
        return tuple(self._streams.values())

    @property
    def num_tokens_per_sample(self) -> float:
        """Always ``window_size``."""
        return float(self.window_size)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "stream_windows",
            "train_type": self.train_type,
            "stores": {name: stream.fingerprint for name, stream in self._streams.items()},
            "num_tokens": self.count_tokens,
            "window_size": self.window_size,
            "stride": self.stride,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: where each window begins. The last windows are moved back so that every token has a target."""
        return np.minimum(indices * self.stride, self.count_tokens - 1 - self.window_size)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read the windows that begin at ``addresses`` into ``rows`` of ``out``."""
        for name, field in self._fields.items():
            if name in self._streams:
                out[name][rows] = self._streams[name].gather(addresses + field.shift, self.window_size)
            else:
                out[name][rows] = self._positions(addresses)

    def _positions(self, begins: IntArray) -> IntArray:
        tokens = self._streams["input_ids"]
        places = begins[:, None] + np.arange(self.window_size)
        documents = tokens.find_documents(places.reshape(-1))
        return places - tokens.document_begins(documents).reshape(places.shape)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """The documents of the first key whose tokens are in each window."""
        return window_origins(self.stores[0], addresses, self.window_size)

    def holders(self, document: int) -> IntArray:
        """The windows that hold a token of a document of the first key."""
        size = self.window_size
        return windows_over(self.stores[0], document, stride=self.stride, length=size, phases=1, num_samples=len(self))

    def describe(self) -> str:
        """One line: the window size, the training type and the number of tokens."""
        return (
            f"windows of {self.window_size:,} tokens as AstrAI's {self.train_type}, over {self.count_tokens:,} tokens"
            f"{unused_text(self._unused)}"
        )


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
