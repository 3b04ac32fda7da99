"""AstrAI's datasets, sampler and stores under its own names, for programs that were written against it.

    DatasetFactory.load("sft", path, window_size)    a `BaseDataset` of one of four training types
    ResumableDistributedSampler                      the order of indices of each rank
    detect_format(path) -> "h5" | "bin"
    StoreFactory.create("bin") -> MmapStore -> load(path) -> fetch(begin, end, keys)

Each key is read by a store of `headrace.stores`. New programs use `headrace.open` instead. Results are torch tensors,
as AstrAI's are; torch is imported when the first one is made.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self, overload

import numpy as np

from headrace.config import whole
from headrace.datasets import GroupDataset, PreferenceDataset
from headrace.datasets.loss_masks import warn_unused_mask
from headrace.errors import ConfigError, StoreError
from headrace.io import check_local
from headrace.plan import IntArray
from headrace.plan.torch_draws import torch_randperm
from headrace.stores import KeyedStore, ShardedStore, Store as HeadraceStore, open_keys, open_tokens as open_store
from headrace.stores.arguments import KeyList

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

__all__ = [
    "BaseDataset",
    "DPODataset",
    "DatasetFactory",
    "GRPODataset",
    "H5Store",
    "MmapStore",
    "ResumableDistributedSampler",
    "SEQDataset",
    "SFTDataset",
    "Store",
    "StoreFactory",
    "detect_format",
]

FormatName = Literal["h5", "bin"]


class NoDataError(StoreError, FileNotFoundError):
    """Raised if there is nothing to load at a path."""


def detect_format(path: str | os.PathLike[str]) -> FormatName:
    """Find out which of AstrAI's formats lies at a path.

    If a folder holds both, ``"h5"`` comes before ``"bin"``. Hidden files and folders are ignored. A pair of ``.bin``
    and ``.idx`` is ``"bin"``, too.

    Raises:
        ConfigError: the file has another suffix. It is a ValueError.
        NoDataError: nothing is there. It is a FileNotFoundError.
    """
    check_local(path)
    place = Path(path)
    if place.is_file():
        suffix = place.suffix.lower()
        if suffix in (".h5", ".hdf5"):
            return "h5"
        raise ConfigError(f"Unsupported file format: {suffix or place.name!r}; allowed are .h5 and .hdf5")
    found = set()
    for _, folders, files in os.walk(place, followlinks=False):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found |= {name if name == "meta.json" else Path(name).suffix.lower() for name in files if name[0] != "."}
    if found & {".h5", ".hdf5"}:
        return "h5"
    if ".bin" in found and found & {"meta.json", ".idx"}:
        return "bin"
    raise NoDataError(f"No supported data files found at {place}; looked for .h5, and .bin with meta.json")


class Store:
    """The data at a path; empty until `load` is called. It is pickled as its paths, so workers can receive it.

    Tensors are copies. Files are mapped and read by ranges, so that all processes of a machine share one copy in the
    page cache. ``len(store)`` is the number of tokens of the shortest key.
    """

    formats: ClassVar[tuple[str, ...]] = ()
    """The formats of `headrace.stores` that this class reads."""

    wanted: ClassVar[str] = ""
    """The files that this class reads, for messages."""

    def __init__(self) -> None:
        self._streams: dict[str, HeadraceStore] = {}

    def load(self, path: str | os.PathLike[str]) -> None:
        """Open the data at a path.

        Raises:
            ConfigError: the data have another format.
            StoreError: nothing is there, the data are damaged, or their shards have different keys.
        """
        streams = open_keys(path)
        for stream in streams.values():
            found = _shards_of(stream)[0].format
            if found not in self.formats:
                raise ConfigError(
                    f"{os.fspath(path)}: {type(self).__name__} reads {self.wanted}, but the data there have the"
                    f" format {found!r}; detect_format says which store to use"
                )
        self._streams = dict(streams)

    @property
    def keys(self) -> list[str]:
        """The keys; empty before it is loaded."""
        return list(self._streams)

    @overload
    def fetch(self, begin: int, end: int, keys: str) -> Tensor: ...
    @overload
    def fetch(self, begin: int, end: int, keys: KeyList) -> dict[str, Tensor]: ...
    def fetch(self, begin: int, end: int, keys: str | KeyList) -> Tensor | dict[str, Tensor]:
        """(end - begin,) tokens of the stream of one key, or of several; empty if ``begin == end``.

        As in AstrAI, every key is read at the same places, whether the keys are parallel or not. `headrace.open`
        refuses keys whose places do not correspond.

        Raises:
            RuntimeError: nothing is loaded.
            ConfigError: the range exceeds the shortest key. It is a ValueError.
            KeyError: there is no such key.
        """
        import torch

        if not self._streams:
            raise RuntimeError("Store not loaded")
        length = len(self)
        if not (0 <= begin < length and 0 <= end <= length):
            raise ConfigError(f"Index out of bounds: begin={begin}, end={end}, length={length}")
        if begin > end:
            raise ConfigError(f"Index out of bounds: begin={begin} is after end={end}, length={length}")
        names = [keys] if isinstance(keys, str) else keys
        for key in names:
            if key not in self._streams:
                raise KeyError(f"{key}; the keys are {', '.join(self._streams)}")
        found = {key: torch.from_numpy(self._streams[key].fetch(begin, end).copy()) for key in names}
        return found[keys] if isinstance(keys, str) else found

    def share_memory_(self) -> Self:
        """Return the store itself, since mapped files are shared already."""
        return self

    def __len__(self) -> int:
        return min((stream.num_tokens for stream in self._streams.values()), default=0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} tokens of {', '.join(self.keys) or 'nothing'}>"


class H5Store(Store):
    """Reads ``.h5`` files."""

    formats = ("hdf5",)
    wanted = ".h5 or .hdf5"


class MmapStore(Store):
    """Reads ``.bin`` files with a ``meta.json`` or an ``.idx``."""

    formats = ("keyed", "indexed", "tntidx", "aleph-alpha")
    wanted = "meta.json"


class StoreFactory:
    """Makes a `Store` by the name of its format: ``"bin"`` or ``"h5"``.

    Example:
        >>> store = headrace.compat.astrai.StoreFactory.create("bin")
        >>> store.load("stores/web")
        >>> store.fetch(0, 128, store.keys[0]).shape
        torch.Size([128])
    """

    _kinds: ClassVar[Mapping[str, type[Store]]] = {"bin": MmapStore, "h5": H5Store}

    @classmethod
    def create(cls, name: str) -> Store:
        """Make a store that is not loaded yet. Raises ConfigError, a ValueError, for another name."""
        return cls.kind(name)()

    @classmethod
    def kind(cls, name: str) -> type[Store]:
        """The class of a name. Raises as `create`."""
        if name not in cls._kinds:
            raise ConfigError(f"Unknown component: {name!r}. Supported types: {sorted(cls._kinds)}")
        return cls._kinds[name]


class _Field(NamedTuple):
    """A field of an item: the possible names of its key, its dtype, and its shift in tokens."""

    keys: tuple[str, ...]
    dtype: type
    shift: int = 0


_IDS = ("sequence", "tokens", "text")
COMPUTED: Final = "position_ids"
"""The one key that may be missing, since positions in documents can be computed."""


class BaseDataset(ABC):
    """A map-style dataset of one training type over the data at a path; empty until `load` is called.

    Items are dicts of tensors. Those of ``seq`` and ``sft`` are windows by AstrAI's arithmetic. Those of ``dpo`` and
    ``grpo`` are whole records, since windows would tear pairs and groups apart.

    Args:
        window_size: tokens of a window; it does not matter for records.
        stride: tokens from the begin of one window to the next, by default the window size.
    """

    train_type: ClassVar[str]
    fields: ClassVar[Mapping[str, _Field]]
    """The fields of an item."""

    def __init__(self, window_size: int = 0, stride: int | None = None) -> None:
        self.window_size = window_size
        self.stride = stride or window_size
        self._store: HeadraceStore | None = None

    def load(self, load_path: str | os.PathLike[str], storage_type: str | None = None) -> None:
        """Open the data at a path.

        Raises:
            KeyError: a key that the training type needs is missing.
            ConfigError: the data have another storage type, the windows no size, or the records no borders.
            StoreError: as `headrace.open`.
        """
        store = open_store(load_path)
        if storage_type is not None:
            found = _shards_of(store)[0].format
            if found not in StoreFactory.kind(storage_type).formats:
                raise ConfigError(
                    f"{store.path}: storage_type is {storage_type!r}, but the data there have the format {found!r}"
                )
        needed = [field.keys for name, field in self.fields.items() if name != COMPUTED]
        missing = [names[0] for names in needed if not any(name in store.keys for name in names)]
        if missing:
            raise KeyError(
                f"{store.path}: training type {self.train_type!r} requires the keys {missing}; available are"
                f" {list(store.keys)}"
            )
        self._use(store, load_path)
        self._store = store

    @abstractmethod
    def _use(self, store: HeadraceStore, path: str | os.PathLike[str]) -> None:
        """Check the data, and open what the items are read from."""

    @property
    def keys(self) -> list[str]:
        """The keys of the data; empty before they are loaded."""
        return [] if self._store is None else list(self._store.keys)

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        store = self._loaded()
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")

        def tensors(value: Any) -> Any:
            return [torch.from_numpy(array) for array in value] if isinstance(value, list) else torch.from_numpy(value)

        return {name: tensors(value) for name, value in self._item(store, index).items()}

    def _loaded(self) -> HeadraceStore:
        if self._store is None:
            raise RuntimeError("Dataset not loaded: call load(path) first")
        return self._store

    @abstractmethod
    def _item(self, store: HeadraceStore, index: int) -> dict[str, Any]:
        """The arrays of an item, or lists of arrays."""

    def __repr__(self) -> str:
        shown = "not loaded" if self._store is None else f"{len(self):,} items of {self._store.path}"
        return f"<{type(self).__name__}: {shown}>"


class _OfWindows(BaseDataset):
    """Window i begins at token ``min(i * stride, N - 1 - window_size)``, where N is the number of tokens.

    There are ``(N - 1 - window_size) // stride + 1`` windows, or none if N is not above the window size.
    """

    def _use(self, store: HeadraceStore, path: str | os.PathLike[str]) -> None:
        whole(self.window_size, "window_size", least=1)
        whole(self.stride, "stride", least=1)
        streams = open_keys(path)
        named = {name: next((key for key in field.keys if key in streams), None) for name, field in self.fields.items()}
        self._streams = {name: streams[key] for name, key in named.items() if key is not None}
        tokens = self._streams["input_ids"].num_tokens
        for name, stream in self._streams.items():
            if stream.num_tokens != tokens:
                raise ConfigError(
                    f"{store.path}: {tokens:,} tokens and {stream.num_tokens:,} values of {name!r}: the mask is shifted"
                    " against its tokens; prepare the store again"
                )
        if "loss_mask" not in self.fields:
            warn_unused_mask(store, f"training type {self.train_type!r}")

    @property
    def count(self) -> int:
        """The number of tokens; 0 before the data are loaded."""
        return 0 if self._store is None else self._streams["input_ids"].num_tokens

    def __len__(self) -> int:
        slack = self.count - 1 - self.window_size
        return slack // self.stride + 1 if self.count and slack >= 0 else 0

    def get_index(self, index: int) -> tuple[int, int]:
        """The tokens at which a window begins and ends.

        Raises:
            RuntimeError: nothing is loaded.
            IndexError: there is no such window.
        """
        self._loaded()
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        begin = min(index * self.stride, self.count - 1 - self.window_size)
        return begin, begin + self.window_size

    def _item(self, store: HeadraceStore, index: int) -> dict[str, Any]:
        begin, end = self.get_index(index)
        found: dict[str, Any] = {}
        for name, field in self.fields.items():
            if name in self._streams:
                found[name] = self._streams[name].fetch(begin + field.shift, end + field.shift).astype(field.dtype)
            else:
                places, tokens = np.arange(begin, end), self._streams["input_ids"]
                found[name] = places - tokens.document_begins(tokens.find_documents(places))
        return found


class SEQDataset(_OfWindows):
    """Pre-training: items have ``input_ids`` and ``target_ids`` int64, the tokens one position later."""

    train_type = "seq"
    fields: ClassVar = {"input_ids": _Field(_IDS, np.int64), "target_ids": _Field(_IDS, np.int64, 1)}


class SFTWindows(_OfWindows):
    """Fine-tuning: items of `SEQDataset` with ``loss_mask`` bool of the targets and ``position_ids`` int64.

    If the data have no ``position_ids``, they are computed within each document.
    """

    train_type = "sft"
    fields: ClassVar = {
        **SEQDataset.fields,
        "loss_mask": _Field(("loss_mask",), np.bool_, 1),
        COMPUTED: _Field((COMPUTED,), np.int64),
    }


SFTDataset = SFTWindows


class _OfRecords(BaseDataset):
    """Item i is record i."""

    _kind: ClassVar[type[PreferenceDataset | GroupDataset]]

    def _use(self, store: HeadraceStore, path: str | os.PathLike[str]) -> None:
        # AstrAI's own pipeline does not write the borders of records. A shard with offsets may well hold a single
        # record; a single dataset of HDF5 may hold one record or all of them.
        shards = _shards_of(store)
        if all(_lacks_offsets(shard) or (shard.format == "hdf5" and len(shard) <= 1) for shard in shards):
            raise ConfigError(
                f"{store.path}: {len(shards)} shards of one piece each: the borders of records were not stored. Prepare"
                " the store again"
            )
        self._records = self._kind(store)

    def __len__(self) -> int:
        return 0 if self._store is None else len(self._records)


class DPODataset(_OfRecords):
    """Preferences: items have ``chosen``, ``rejected`` int64, and ``chosen_mask``, ``rejected_mask`` bool."""

    train_type = "dpo"
    fields: ClassVar = {
        "chosen": _Field(("chosen",), np.int64),
        "rejected": _Field(("rejected",), np.int64),
        "chosen_mask": _Field(("chosen_mask",), np.bool_),
        "rejected_mask": _Field(("rejected_mask",), np.bool_),
    }
    _kind = PreferenceDataset

    def _item(self, store: HeadraceStore, index: int) -> dict[str, Any]:
        # As it is stored, unlike `PreferenceDataset`, which returns labels.
        record = store.document(index, keys=list(self.fields))
        return {name: record[name].astype(field.dtype) for name, field in self.fields.items()}


class GRPODataset(_OfRecords):
    """Groups: items have ``prompts`` int64, lists ``responses`` and ``masks`` of tensors, and ``rewards`` float32."""

    train_type = "grpo"
    fields: ClassVar = {
        "prompts": _Field(("prompts",), np.int64),
        "responses": _Field(("responses",), np.int64),
        "masks": _Field(("masks",), np.bool_),
        "rewards": _Field(("rewards",), np.float32),
    }
    _kind = GroupDataset

    def _item(self, store: HeadraceStore, index: int) -> dict[str, Any]:
        return dict(self._records[index])


class DatasetFactory:
    """Makes a `BaseDataset` by its training type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.

    Example:
        >>> dataset = headrace.compat.astrai.DatasetFactory.load("seq", "stores/web", window_size=128)
        >>> sorted(dataset[0])
        ['input_ids', 'target_ids']
        >>> dataset[0]["input_ids"].shape
        torch.Size([128])
    """

    _types: ClassVar[Mapping[str, type[BaseDataset]]] = {
        kind.train_type: kind for kind in (SEQDataset, SFTWindows, DPODataset, GRPODataset)
    }

    @classmethod
    def load(
        cls,
        train_type: str,
        load_path: str | os.PathLike[str],
        window_size: int = 0,
        stride: int | None = None,
        storage_type: str | None = None,
    ) -> BaseDataset:
        """Make a dataset and load the data at a path.

        Args:
            train_type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.
            load_path: a file or a folder, such as a store of `headrace prepare`.
            window_size: as for `BaseDataset`.
            stride: as for `BaseDataset`.
            storage_type: ``"bin"`` or ``"h5"``, if the data must be of this type.

        Raises:
            ConfigError: the training type is unknown.
            KeyError, ConfigError, StoreError: as `BaseDataset.load`.
        """
        if train_type not in cls._types:
            raise ConfigError(f"Unknown component: {train_type!r}. Supported types: {sorted(cls._types)}")
        dataset = cls._types[train_type](window_size, stride)
        dataset.load(load_path, storage_type)
        return dataset


def _shards_of(stream: HeadraceStore) -> tuple[HeadraceStore, ...]:
    """Return the shards of a store, or the store itself if it has none."""
    return stream.shards if isinstance(stream, ShardedStore) else (stream,)


def _lacks_offsets(shard: HeadraceStore) -> bool:
    """Return whether a shard is of the keyed format and does not say where its records begin."""
    return isinstance(shard, KeyedStore) and not shard.has_offsets


class ResumableDistributedSampler:
    """Yields this rank's indices of an epoch, and begins the next epoch when it is iterated again.

    An epoch is ``torch.randperm`` with the seed ``seed + epoch``, or 0, 1, 2, ... without ``shuffle``. It is extended
    from its beginning to a multiple of the number of ranks, or with ``drop_last`` cut to one. Of R ranks, rank r gets
    every R-th index, starting at r. ``len`` is the number of indices that are left of the epoch.

    There are two ways to resume:

    - ``start_batch`` and ``batch_size``: the number of batches that this rank was given since ``start_epoch``, whole
      and partial ones, over any number of epochs. Set ``drop_last_batch`` if the ``DataLoader`` leaves out partial
      batches;
    - ``start_iter``: AstrAI's count of samples, taken modulo the epoch. As in AstrAI, it is wrong if the last batch of
      an epoch was partial but counted as whole, and at the very end of an epoch it repeats that epoch.

    Differences from AstrAI's sampler: with more than twice as many ranks as samples, every rank gets as many indices as
    ``len`` says, where AstrAI gives the last ranks fewer. An epoch without indices is an error that says so, not a
    division by zero. If an iterator is abandoned and another one is begun, the epoch begins again where the first
    iterator began, and so does its count.

    `headrace.Loader` needs no such arguments: its state is exact on any number of ranks.

    Args:
        data_source: an object whose length is the number of samples of an epoch.
        start_epoch: the first epoch.
        start_iter: see above.
        seed: the seed of epoch 0.
        drop_last: leave out the last samples if there are not enough for every rank.
        shuffle: whether epochs are shuffled.
        process_group: a process group of torch. By default the default group if there is one, otherwise one rank.
        start_batch: see above.
        batch_size: the batch size of the ``DataLoader`` on one rank.
        drop_last_batch: whether the ``DataLoader`` leaves out partial batches.

    Raises:
        ConfigError: an epoch has no indices, a number is negative, or both ways to resume are used.

    Example:
        >>> sampler = headrace.compat.astrai.ResumableDistributedSampler(range(10), shuffle=False, start_iter=7)
        >>> list(sampler)
        [7, 8, 9]
    """

    def __init__(
        self,
        data_source: Sized,
        start_epoch: int = 0,
        start_iter: int = 0,
        seed: int = 42,
        drop_last: bool = False,
        shuffle: bool = True,
        process_group: ProcessGroup | None = None,
        *,
        start_batch: int = 0,
        batch_size: int | None = None,
        drop_last_batch: bool = False,
    ) -> None:
        self.num_samples = len(data_source)
        self.rank, self.num_replicas = _place(process_group)
        self.seed = whole(seed, "seed")
        self.drop_last = drop_last
        self.shuffle = shuffle
        ranks = self.num_replicas
        self.num_samples_per_replica = self.num_samples // ranks if drop_last else -(-self.num_samples // ranks)
        if not self.num_samples_per_replica:
            raise ConfigError(
                f"{self.num_samples} samples over {ranks} ranks with drop_last={drop_last}: an epoch has no indices;"
                " give more samples, or set drop_last=False"
            )
        self.epoch = whole(start_epoch, "start_epoch", least=0)
        start_iter = whole(start_iter, "start_iter", least=0)
        start_batch = whole(start_batch, "start_batch", least=0)
        self.iter = start_iter % self.num_samples_per_replica
        if batch_size is None:
            if start_batch or drop_last_batch:
                raise ConfigError("start_batch and drop_last_batch count batches; give their batch_size")
            return
        if start_iter:
            raise ConfigError(
                f"start_iter={start_iter} and batch_size={batch_size}: resume by samples or by batches, not by both"
            )
        self._skip_batches(start_batch, whole(batch_size, "batch_size", least=1), drop_last_batch)

    def _skip_batches(self, batches: int, batch_size: int, drop_last_batch: bool) -> None:
        each = self.num_samples_per_replica
        batches_per_epoch = each // batch_size if drop_last_batch else -(-each // batch_size)
        if not batches_per_epoch:
            raise ConfigError(
                f"an epoch has {each} samples a rank: no whole batch of {batch_size}, and drop_last_batch leaves out"
                " partial batches"
            )
        self.epoch += batches // batches_per_epoch
        self.iter = batches % batches_per_epoch * batch_size

    def __iter__(self) -> Iterator[int]:
        """Yield the rest of the epoch; the next iteration begins the next epoch."""
        epoch = self.epoch
        yield from self._indices(epoch)[self.iter :].tolist()
        self.epoch, self.iter = epoch + 1, 0

    def _indices(self, epoch: int) -> IntArray:
        """(num_samples_per_replica,) int64: the whole epoch of this rank."""
        if self.shuffle:
            order = torch_randperm(self.num_samples, (self.seed + epoch) & 0xFFFF_FFFF)
        else:
            order = np.arange(self.num_samples, dtype=np.int64)
        total = self.num_samples_per_replica * self.num_replicas
        return np.resize(order, total)[self.rank :: self.num_replicas]

    def __len__(self) -> int:
        return self.num_samples_per_replica - self.iter


def _place(group: ProcessGroup | None) -> tuple[int, int]:
    """The rank and the number of ranks. A process that has not imported torch has no process group either."""
    if group is None and "torch" not in sys.modules:
        return 0, 1
    import torch.distributed as dist

    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)
