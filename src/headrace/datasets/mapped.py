"""Samples changed one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from headrace.datasets.dataset import Counts, Dataset, Fields, Sample, empty
from headrace.datasets.trace_origins import Origins
from headrace.datasets.watched import made
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray


class MapDataset(Dataset):
    """Every sample of a dataset put through a function: sample i of it is ``function(dataset[i])``.

    The function must be of the sample alone, without luck and state, since a sample may be made again after a resume,
    or on another rank. It is told from others by its module and name; what is in it is not looked at.

    Args:
        dataset: of samples that are put together batch by batch (media, records), whose function takes and gives any
            sample; or of arrays, whose function takes a dict of arrays and gives one.
        function: sample -> sample.
        fields: of a dataset of arrays, name -> (shape, dtype) of what the function gives, where that is not as before.

    Raises:
        ConfigError: not a dataset or a function; ``fields`` of samples that have none.
    """

    def __init__(
        self, dataset: Dataset, function: Callable[[Any], Any], *, fields: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(dataset, Dataset) or not callable(function):
            raise ConfigError(f"expected a dataset and a function, found {dataset!r:.80} and {function!r:.80}")
        if fields is not None and dataset.is_ragged:
            raise ConfigError(f"{type(dataset).__name__}: its samples have no fixed fields; leave fields out")
        self.dataset = dataset
        self.function = function
        self._fields = None if fields is None else {name: (tuple(s), np.dtype(d)) for name, (s, d) in fields.items()}

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def fields(self) -> Fields:
        """Those given, or those of the dataset."""
        return self.dataset.fields if self._fields is None else self._fields

    @property
    def constants(self) -> Sample:
        """Those of the dataset, which the function does not get."""
        return self.dataset.constants

    @property
    def shard_bounds(self) -> IntArray | None:
        """Of the dataset, where it has shards."""
        found: IntArray | None = getattr(self.dataset, "shard_bounds", None)
        return found

    @property
    def num_tokens_per_sample(self) -> float:
        """Of the dataset."""
        return self.dataset.num_tokens_per_sample

    @property
    def has_tokens(self) -> bool:
        """As of the dataset."""
        return self.dataset.has_tokens

    @property
    def deviation_tokens_per_sample(self) -> float:
        """Of the dataset."""
        return self.dataset.deviation_tokens_per_sample

    @property
    def is_endless(self) -> bool:
        """As of the dataset."""
        return self.dataset.is_endless

    @property
    def is_packed(self) -> bool:
        """As of the dataset."""
        return self.dataset.is_packed

    @property
    def is_counted(self) -> bool:
        """As of the dataset: what is counted is what it holds."""
        return self.dataset.is_counted

    @property
    def is_masked(self) -> bool:
        """As of the dataset."""
        return self.dataset.is_masked

    @property
    def is_unshifted(self) -> bool:
        """As of the dataset."""
        return self.dataset.is_unshifted

    @property
    def is_ragged(self) -> bool:
        """As of the dataset."""
        return self.dataset.is_ragged

    @property
    def unrestorable(self) -> str | None:
        """As of the dataset; the function is one of the sample alone."""
        return self.dataset.unrestorable

    def samples(self, addresses: IntArray) -> list[Any]:
        """Those of the dataset, each put through the function."""
        samples = self.dataset.samples(addresses)
        return made(addresses, [partial(self.function, sample) for sample in samples])

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """As the dataset does."""
        return self.dataset.collate(samples)

    @property
    def collated_by(self) -> dict[str, Any]:
        """As of the dataset."""
        return self.dataset.collated_by

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Of the dataset."""
        return self.dataset.sample_lengths(addresses)

    def count(self, addresses: IntArray) -> Counts:
        """Of the dataset."""
        return self.dataset.count(addresses)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples."""
        return {"kind": "mapped", "dataset": self.dataset.recipe, "function": self._name, "fields": repr(self._fields)}

    @property
    def _name(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{self.function.__module__}.{name}"

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Those of the dataset."""
        return self.dataset.locate(indices, keys)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Of the dataset."""
        return self.dataset.origins(addresses)

    def holders(self, document: int) -> IntArray:
        """Of the dataset."""
        return self.dataset.holders(document)

    def find_key(self, key: str) -> int:
        """Of the dataset."""
        return self.dataset.find_key(key)

    def find_keys(self, key: str) -> list[int]:
        """Of the dataset."""
        return self.dataset.find_keys(key)

    def read(self, addresses: IntArray) -> Sample:
        """The samples at some addresses as one batch."""
        return self.collate(self.samples(addresses)) if self.is_ragged else super().read(addresses)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples, put them through the function one by one, and write them into ``rows`` of ``out``."""
        given = empty(self.dataset.fields, len(addresses))
        self.dataset.read_into(addresses, given, slice(None))
        places = np.arange(len(next(iter(out.values()))))[rows]
        for at, place in enumerate(places.tolist()):
            made = self.function({name: values[at] for name, values in given.items()})
            if made.keys() != self.fields.keys():
                raise ConfigError(
                    f"{self._name} gave the fields {sorted(made)}, expected {sorted(self.fields)}: say fields= of"
                    " what it gives"
                )
            for name, (shape, dtype) in self.fields.items():
                value = np.asarray(made[name])
                if value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                    raise ConfigError(
                        f"{self._name} gave {name!r} of {value.shape} {value.dtype}, expected {shape} {dtype}: say "
                        "fields= of what it gives"
                    )
                out[name][place] = value

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0] if self.is_ragged else super().__getitem__(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples at ``indices``, negative ones from the end."""
        if not self.is_ragged:
            return super().__getitems__(indices)
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self)):
            raise IndexError(f"samples {wanted.min()} .. {wanted.max()} of a dataset of {len(self)}")
        return self.samples(self.locate(wanted % len(self)))

    def describe(self) -> str:
        """One line."""
        return f"{self.dataset.describe()}, through {self._name}"
