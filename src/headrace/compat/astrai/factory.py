"""AstrAI's ``DatasetFactory``, ``BaseDataset`` and its four training types, with items of torch tensors.

Each class wraps a dataset of Headrace, its attribute ``dataset``, which can be fed through a `Run` and a `Loader`.
torch is imported when an item is read. `StreamWindows` are AstrAI's windows over flat streams of several keys, for
comparison with runs of AstrAI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from headrace.compat.astrai.stores import (
    H5Store,
    JsonlStore,
    MmapStore,
    NoDataError,
    detect_format,
    holds_texts,
    lacks_offsets,
    shards_of,
)
from headrace.compat.astrai.transform import CONFIG_NAME, MESSAGES_CONFIG, PreferenceProcessor, TokenizeTransform
from headrace.config import whole
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
        self.window_size = whole(window_size, "window_size")
        self.stride = self.window_size if stride is None else whole(stride, "stride")
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
_ONLY_A_STORE = (
    "this dataset reads a store that was given, or raw records in memory, and has no dataset of Headrace behind it:"
    " prepare the data with `headrace prepare` and load the folder"
)
_TORCH_DTYPES: Final[dict[type | None, str]] = {np.int64: "int64", np.bool_: "bool", None: "float32"}
"""The dtypes of items from a store; rewards, the only field without a dtype, are float32 in records."""
_FORMATS = {"bin": "keyed", "h5": "hdf5", "jsonl": "jsonl"}


class BaseDataset:
    """A map-style dataset of one training type over the data at a path; empty until `load` is called.

    Items are dicts of tensors. With the layout ``"windows"`` they are those of `StreamWindows`, which follow AstrAI's
    arithmetic. With ``"records"`` they are whole records:

    - ``dpo``: ``chosen``, ``rejected`` int64, and ``chosen_mask``, ``rejected_mask`` bool;
    - ``grpo``: ``prompts`` (P,) int64, lists ``responses`` and ``masks`` of G tensors, and ``rewards`` (G,) float32;
    - ``sft``: the fields of `SFTDataset`.

    With ``store=`` the items come from an open store: a `Store` of this package, or any object with AstrAI's methods of
    that name. Such a dataset has no native ``dataset`` for a `Run`.

    Args:
        window_size: tokens of a window; it does not matter for records.
        stride: tokens from the begin of one window to the next, by default the window size.
        store: an open store, in place of `load`; it has the windows, or the records, of the training type.
        layout: by default ``"windows"`` for ``seq`` and ``sft``, and ``"records"`` for ``dpo`` and ``grpo``, since
            windows would tear their pairs and groups apart.
        collation: how the loader brings records to one length.

    Raises:
        ConfigError: a size is out of range, ``seq`` is asked for as records, or other arguments are given beside a
            store.
        KeyError: the store lacks a key of the training type.
    """

    train_type: ClassVar[TrainType]

    def __init__(
        self,
        window_size: int = 0,
        stride: int | None = None,
        *,
        store: Any = None,
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
        self._opened: tuple[str | os.PathLike[str], dict[str, Any]] | None = None
        self._face: Any = store
        if store is not None:
            if window_size or stride or layout or collation:
                raise ConfigError("the windows of a dataset with store= are those of the store: give only the store")
            self._check_keys(list(store.keys), "the store", computes=False)

    def load(self, load_path: str | os.PathLike[str], storage_type: str | None = None, **options: Any) -> None:
        """Open the data at a path; ``options`` are those of `headrace.open`.

        Raises:
            KeyError: a key that the training type needs is missing.
            ConfigError: the data have another storage type, or hold no records although records are wanted.
            StoreError: as `headrace.open`.
        """
        store = open_store(load_path, **options)
        _check_storage(store, storage_type)
        self._check_keys(store.keys, store.path, computes=True)
        if self.layout == "records":
            self._dataset = self._records(store)
        else:
            streams = open_keys(load_path, **options)
            self._dataset = StreamWindows(streams, self.train_type, window_size=self.window_size, stride=self.stride)
        self._store = store
        self._opened = (load_path, options)

    def _check_keys(self, keys: Sequence[str], where: str, *, computes: bool) -> None:
        """Raise KeyError if a key of the training type is missing that is not computed."""
        fields = FIELDS[self.train_type]
        needed = [field.keys for name, field in fields.items() if not (computes and name == COMPUTED)]
        missing = [names[0] for names in needed if not any(name in keys for name in names)]
        if missing:
            raise KeyError(
                f"{where}: training type {self.train_type!r} requires the keys {missing}; available are {list(keys)}"
            )

    def _records(self, store: Store) -> Dataset:
        _check_borders(store)
        if self.train_type == "dpo":
            return PreferenceDataset(store, self.collation)
        return GroupDataset(store, self.collation) if self.train_type == "grpo" else SFTDataset(store, self.collation)

    @property
    def dataset(self) -> Dataset:
        """The wrapped dataset of Headrace, for a `Run` and a `Loader`.

        Raises:
            RuntimeError: nothing is loaded, or the items come from a store that was given.
        """
        if self._dataset is None:
            raise RuntimeError(_NOT_LOADED if self._face is None else _ONLY_A_STORE)
        return self._dataset

    @property
    def store(self) -> Any:
        """The store with the tokens of this dataset, and its windows if it has windows.

        It is the one that was given, or one over the loaded files, which is opened when it is first asked for. None
        before anything is loaded, and for formats that AstrAI does not have.
        """
        if self._face is None and self._opened is not None and self._store is not None:
            kinds = [
                kind for kind in (MmapStore, H5Store, JsonlStore) if shards_of(self._store)[0].format in kind.formats
            ]
            if kinds:
                self._face = kinds[0](*((self.window_size, self.stride) if self.layout == "windows" else (0, None)))
                self._face.load(self._opened[0], **self._opened[1])
        return self._face

    @property
    def storage(self) -> Any:
        """The name of `store` in AstrAI up to 1.3.9."""
        return self.store

    @property
    def keys(self) -> list[str]:
        """The keys of the store; empty before it is loaded."""
        if self._store is None:
            return [] if self._face is None else list(self._face.keys)
        return list(self._store.keys)

    @property
    def count(self) -> int:
        """The number of tokens: of the shortest key for windows, of the main key for records; 0 before it is loaded."""
        if isinstance(self._dataset, StreamWindows):
            return self._dataset.count_tokens
        if self._store is None:
            return 0 if self._face is None else int(self._face.token_count)
        return self._store.num_tokens

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
        if self._dataset is None:
            return 0 if self._face is None else len(self._face)
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The items at ``indices``, read together."""
        import torch

        if self._dataset is None and self._face is not None:
            return [self._of_store(i) for i in indices]

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

    def _of_store(self, index: int) -> dict[str, Any]:
        """An item of the store that was given, by AstrAI's methods alone."""
        import torch

        def converted(value: Any, dtype: type | None) -> Any:
            if isinstance(value, list):
                return [converted(one, dtype) for one in value]
            return value.to(getattr(torch, _TORCH_DTYPES[dtype]))

        store, keys = self._face, list(self._face.keys)
        fields = {
            name: (next(key for key in field.keys if key in keys), field)
            for name, field in FIELDS[self.train_type].items()
        }
        if self.layout == "records":
            found = {name: store.fetch_record(index, key) for name, (key, _) in fields.items()}
        else:
            begin, end = store.sample_window(index)
            found = {
                name: store.fetch(begin + field.shift, end + field.shift, key) for name, (key, field) in fields.items()
            }
        return {name: converted(value, fields[name][1].dtype) for name, value in found.items()}

    def __repr__(self) -> str:
        shown = self._dataset if self._face is None or self._dataset is not None else self._face
        return f"<{type(self).__name__}: {'not loaded' if shown is None else repr(shown)}>"


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
    def create(cls, train_type: str, window_size: int = 0, stride: int | None = None, **options: Any) -> BaseDataset:
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
        load_path: str | os.PathLike[str] | None = None,
        window_size: int = 0,
        stride: int | None = None,
        storage_type: str | None = None,
        tokenizer_path: str | os.PathLike[str] | None = None,
        max_len: int = 2048,
        store: Any = None,
        **options: Any,
    ) -> BaseDataset:
        """Make a dataset and load the data at a path, or take an open store.

        A store that `headrace prepare` made is read from its files. JSON lines of texts are tokenised in memory:
        as the ``dataset_config.json`` beside them says; otherwise with ``tokenizer_path``, pairs of ``dpo`` when they
        are read, anything else as conversations under the key ``messages``.

        Args:
            train_type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.
            load_path: a file or a folder.
            window_size: as for `BaseDataset`.
            stride: as for `BaseDataset`.
            storage_type: ``"bin"``, ``"h5"`` or ``"jsonl"``, if the data must be of this type.
            tokenizer_path: a folder with ``tokenizer.json``, for JSON lines of texts; not used for tokens.
            max_len: tokens at which an answer of ``dpo`` is cut if the texts are tokenised here.
            store: an open store; the arguments above, except the first, are not used.
            options: ``layout`` and ``collation`` of `BaseDataset`.

        Raises:
            ConfigError: neither a path nor a store is given, or as for `create`.
            NoDataError: the path has JSON lines of texts, and there is neither a configuration nor a tokeniser. It is a
                FileNotFoundError.
            InputError: a record cannot be tokenised.
            KeyError, StoreError: as `BaseDataset.load`.
        """
        if store is not None:
            return cls.create(train_type, store=store)
        if load_path is None:
            raise ConfigError("DatasetFactory.load needs a load_path, or an open store as store=")
        if storage_type in (None, "jsonl") and _is_raw(load_path):
            windows = (window_size, stride) if train_type in ("seq", "sft") else (0, None)
            raw = _tokenised(JsonlStore(*windows), train_type, load_path, tokenizer_path, max_len)
            return cls.create(train_type, store=raw, **options)
        dataset = cls.create(train_type, window_size, stride, **options)
        dataset.load(load_path, storage_type=storage_type)
        return dataset

    @classmethod
    def list_registered(cls) -> list[str]:
        """The training types, sorted."""
        return sorted(cls._types)


load_dataset = DatasetFactory.load


def _is_raw(path: str | os.PathLike[str]) -> bool:
    """Whether JSON lines of texts lie at a path."""
    place = Path(path)
    if place.is_file():
        return place.suffix.lower() == ".jsonl" and holds_texts(place)
    return place.is_dir() and detect_format(place) == "jsonl" and any(place.glob("*.jsonl")) and holds_texts(place)


def _tokenised(
    store: JsonlStore,
    train_type: str,
    path: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | None,
    max_len: int,
) -> JsonlStore:
    """Load JSON lines of texts into a store; see `DatasetFactory.load`."""
    config = Path(path) / CONFIG_NAME
    if train_type == "dpo" and tokenizer is not None:
        store.load(path, processor=PreferenceProcessor(tokenizer, max_len))
    elif config.is_file():
        store.load(path, transform=TokenizeTransform.from_config_file(config))
    elif tokenizer is not None:
        store.load(path, transform=TokenizeTransform(MESSAGES_CONFIG, tokenizer))
    else:
        raise NoDataError(
            f"{os.fspath(path)}: JSON lines of texts, and no {CONFIG_NAME} beside them that says how to tokenise them:"
            " add one, or pass tokenizer_path=; or prepare a store once, with `headrace prepare INPUT -o FOLDER"
            " --recipe CONFIG --tokenizer FOLDER`, and load that"
        )
    return store


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
