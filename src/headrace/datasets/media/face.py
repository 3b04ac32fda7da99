"""`SampleDataset`, the base class of datasets of multi-modal samples, and how their samples become one batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import Fields, RaggedDataset, Sample, SampleWatch, Traits
from headrace.datasets.origins import Origins, media_origins
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.samples.media import pad_stack
from headrace.samples.media.batch import Allocate, BatchBlocks, fields_of
from headrace.samples.media.sample import pinned
from headrace.stores import SampleStore
from headrace.stores.arguments import sample_numbers

if TYPE_CHECKING:
    from headrace.encoders import ErrorPolicy

__all__ = ["Allocate", "BatchBlocks", "SampleDataset", "collated", "pinned", "without_rows"]

_STACKED = frozenset("?bBhHiIlLqQefdFD")
"""Codes of the dtypes that tensors can have."""


def for_tensor(values: NDArray[Any]) -> NDArray[Any] | None:
    """Return an array in the byte order of the machine, as tensors have it; None if tensors cannot have its dtype."""
    if values.dtype.char not in _STACKED:
        return None
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def collated(samples: Sequence[Any], blocks: BatchBlocks | None = None) -> dict[str, Any]:
    """Return samples, or dicts, as a dict of columns; row i of each column comes from sample i.

    If every sample has an array of numbers or a tensor in a field, the column is one array or tensor of shape (n,
    largest size of each axis ...), padded with zeros; every other column is a list of n values. `Batch.from_samples`
    does this for a batch type of your own. Images that were decoded into ``blocks`` are stacked without a copy.

    Raises:
        ConfigError: the samples have different fields, or the arrays of a field differ in rank or dtype.
    """
    rows = list(map(fields_of, samples))
    names = list(rows[0]) if rows else []
    for row in rows[1:]:
        if row.keys() != rows[0].keys():
            differ = ", ".join(sorted(row.keys() ^ rows[0].keys()))
            raise ConfigError(
                f"samples {_key(rows[0])} and {_key(row)} of one batch differ in {differ}: samples of one batch need"
                " the same fields; give the datasets one sample type, or cookers that make samples of one type"
            )
    return {name: _column(name, [row[name] for row in rows], rows, blocks) for name in names}


def without_rows(batch: Mapping[str, Any], num_rows: int = 1) -> dict[str, Any]:
    """Return a batch of ``num_rows`` samples without its rows: arrays (num_rows, ...) become (0, ...), lists empty.

    Arrays with another first axis, and other values, stay as they are.
    """

    def cut(value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) == num_rows:
            return []
        shape: tuple[int, ...] = getattr(value, "shape", ())
        return value[:0] if len(shape) and shape[0] == num_rows else value

    return {name: cut(value) for name, value in batch.items()}


def _column(name: str, values: list[Any], rows: Sequence[Mapping[str, Any]], blocks: BatchBlocks | None) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        arrays = list(map(for_tensor, values))
        if any(array is None for array in arrays):
            return values
        values = arrays
    # Tensors are recognised by a method, since torch may not be installed.
    elif not all(callable(getattr(value, "new_zeros", None)) for value in values):
        return values
    whole = None if blocks is None else blocks.stacked(values)
    if whole is not None:
        return whole
    try:
        return pad_stack(values)
    except ConfigError as error:
        raise ConfigError(f"field {name!r} of samples {_key(rows[0])} to {_key(rows[-1])}: {error}") from None


def _key(row: Mapping[str, Any]) -> str:
    return repr(row.get("__key__", "without a key"))


class SampleDataset(RaggedDataset):
    """Sample i is sample i of a store, made when it is read; samples are collated for each micro-batch.

    Samples count as samples, whatever they hold: they have no number of tokens to blend or to sort by.
    """

    store: SampleStore
    errors: ErrorPolicy | None = None
    """What happens when samples cannot be made; None raises."""

    def __len__(self) -> int:
        return len(self.store)

    @property
    def fields(self) -> Fields:
        """Empty: what a sample holds, and its size, is known only when it is read."""
        return {}

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: the borders of the shards of the store."""
        return self.store.shard_bounds

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(is_ragged=True, has_tokens=False, holds_interpreter=True)

    @property
    def num_tokens_per_sample(self) -> float:
        """Raises ConfigError, since media samples have no number of tokens; so does a blend by tokens."""
        raise ConfigError(
            f"{type(self).__name__}: media samples have no number of tokens; blend them by unit='samples'"
        )

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Raise ConfigError: media samples have no lengths in tokens."""
        raise ConfigError(f"{type(self).__name__}: media samples have no lengths in tokens; leave bucketing out")

    @property
    def collated_by(self) -> dict[str, Any]:
        """The same for all media datasets: `collated` makes their batches and checks that fields agree."""
        return {"kind": "media samples"}

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The code of the user that makes samples before any hook runs: cookers and joiners."""
        return ()

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the fields of the samples, as far as they are known before one is read."""

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return the samples at some addresses: all are read together, then decoded and cooked one by one.

        Raises:
            SampleError: a sample cannot be made (`DecodeError`, `FieldAccessError`); names file, key, part and byte.
            InputError: a sample is malformed on disk.
            StoreError: a file is missing, changed or cut short.
        """
        watch = watch or SampleWatch()
        return watch.make(addresses, self.makers(addresses, watch))

    @abstractmethod
    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read the samples at some addresses together; each returned function decodes and cooks one sample.

        Raises:
            InputError, StoreError: as in `samples`; the functions raise SampleError.
        """

    @cached_property
    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; functions are recorded by their names."""

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Return samples as one batch, see `collated`; without samples each column is an empty list."""
        return collated(samples) if samples else {name: [] for name in self.columns}  # type: ignore[misc]

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: numbers of samples."""
        return indices

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of the samples at some addresses; undoes ``locate``."""
        return addresses

    @abstractmethod
    def address_of(self, restore_key: Any) -> int | None:
        """Return the address of the sample with a restore key; None for a key that no sample of the dataset has."""

    def restore_sample(self, restore_key: Any) -> Any:
        """Make the sample of a restore key again. Raises ConfigError for a key of another dataset."""
        address = self.address_of(restore_key)
        if address is None:
            raise ConfigError(f"{restore_key!r:.80} is not a restore key of {self!r}")
        return self.samples(np.array([address], dtype=np.int64))[0]

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return key and shard of each sample; the store may have to read the head of a sample to find its key."""
        return media_origins(self.store, addresses)

    def find_key(self, key: str) -> int:
        """Return the first sample with a key. Raises ConfigError if there is none."""
        try:
            return self.store.find(key)
        except KeyError:
            raise ConfigError(f"{self.store.path}: has no sample with the key {key!r}") from None

    def find_keys(self, key: str) -> list[int]:
        """Return all samples with a key: one for each time that its shard is listed. Raises as `find_key`."""
        store, first = self.store, self.find_key(key)
        begins = store.shard_bounds
        shard = int(np.searchsorted(begins, first, side="right")) - 1
        within = first - int(begins[shard])
        twins = [i for i, name in enumerate(store.shards) if name == store.shards[shard]]
        numbers = [int(begins[i]) + within for i in twins if within < begins[i + 1] - begins[i]]
        return [number for number in numbers if store.key(number) == key]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``; negative ones count from the end."""
        return self.samples(sample_numbers(indices, len(self), self.store.path))

    def close(self) -> None:
        """Close the files. Samples that were returned stay valid."""
        self.store.close()
