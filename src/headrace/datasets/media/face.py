"""What datasets of multi-modal samples share: samples of any shape, numbered through the shards of a store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from headrace.datasets.dataset import Dataset, Fields, Sample
from headrace.datasets.media.collating import collated
from headrace.datasets.trace_origins import Origins, media_origins
from headrace.datasets.watched import made
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.stores import SampleStore
from headrace.stores.arguments import sample_numbers


class SampleDataset(Dataset):
    """Sample i is sample i of a store, made when it is read; a batch is put together micro-batch by micro-batch.

    Samples are counted as samples, whatever is in them: they have no tokens to blend or to sort by.
    """

    store: SampleStore

    def __len__(self) -> int:
        return len(self.store)

    @property
    def fields(self) -> Fields:
        """Nothing: what a sample holds, and how large that is, shows when it is read."""
        return {}

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: the borders of the shards, for an order that reads neighbours together."""
        return self.store.shard_bounds

    @property
    def has_tokens(self) -> bool:
        """False."""
        return False

    @property
    def num_tokens_per_sample(self) -> float:
        """Not known: raises ConfigError, as a blend by tokens does then."""
        raise ConfigError(
            f"{type(self).__name__}: media samples have no number of tokens; blend them by unit='samples'"
        )

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Not known: raises ConfigError."""
        raise ConfigError(f"{type(self).__name__}: media samples have no lengths in tokens; leave bucketing out")

    @property
    def is_ragged(self) -> bool:
        """True."""
        return True

    @property
    def collated_by(self) -> dict[str, Any]:
        """Alike for all datasets of samples, whose batches `collated` makes; whether fields agree shows there."""
        return {"kind": "media samples"}

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the fields of its samples, as far as they are known before any is read."""

    def samples(self, addresses: IntArray) -> list[Any]:
        """The samples at some addresses: all are read together, then decoded and cooked one by one.

        Raises:
            SampleError: one cannot be made (`DecodeError`, `FieldAccessError`); names file, key, part and byte.
            InputError: one is malformed on disk.
            StoreError: a file is missing, changed or cut short.
        """
        return made(addresses, self.makers(addresses))

    @abstractmethod
    def makers(self, addresses: IntArray) -> list[Callable[[], Any]]:
        """Reads samples at some addresses, all together; each function then decodes and cooks one.

        Raises:
            InputError, StoreError: as of `samples`; the functions raise SampleError.
        """

    @cached_property
    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; functions by their names."""

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Samples as one batch, see `collated`; without samples each column is an empty list."""
        return collated(samples) if samples else {name: [] for name in self.columns}  # type: ignore[misc]

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: numbers of samples."""
        return indices

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Key and shard of each; the store may have to look at the head of a sample for its key."""
        return media_origins(self.store, addresses)

    def find_key(self, key: str) -> int:
        """The first sample of a key. Raises ConfigError: there is none."""
        try:
            return self.store.find(key)
        except KeyError:
            raise ConfigError(f"{self.store.path}: has no sample with the key {key!r}") from None

    def read(self, addresses: IntArray) -> Sample:
        """The samples at some addresses as one batch."""
        return self.collate(self.samples(addresses))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Not for samples, whose batches have shapes of their own: raises ConfigError."""
        raise ConfigError(f"{type(self).__name__}: samples have no shape that is known before; use read or collate")

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples at ``indices``, negative ones from the end."""
        return self.samples(sample_numbers(indices, len(self), self.store.path))

    def close(self) -> None:
        """Let go of the files. Samples handed out stay valid."""
        self.store.close()
