"""Samples changed one by one."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from headrace.datasets.dataset import Counts, Dataset, Fields, Origins, Sample, empty
from headrace.datasets.watched import made
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.recorded_names import recorded_name

_WATCHED_SAMPLES = 8
"""So many samples of each process are looked at for random numbers that nobody asked for."""


class MapDataset(Dataset):
    """Every sample of a dataset put through a function: sample i of it is ``function(dataset[i])``.

    The function must be of the sample alone, without luck and state, since a sample may be made again after a resume,
    or on another rank. It is told from others by its module and name; what is in it is not looked at.

    For random numbers say ``seeded=True``: sample i is then ``function(dataset[i], rng)``, with a
    `numpy.random.Generator` that is a function of the run's seed, the source's path, the epoch and i. Each epoch draws
    others, and a resume, other ranks or workers the same. With ``Order(kind="none")``, and for items of the dataset
    itself, there are no epochs, and a sample always draws the same. torch and ``random`` can be seeded by it:
    ``torch.Generator().manual_seed(int(rng.integers(2**63)))``.

    A function that draws from the global generators of ``random``, NumPy or torch, and so makes something else each
    time, is an error, which is looked for in the first samples.

    Args:
        dataset: of samples that are put together batch by batch (media, records), whose function takes and gives any
            sample; or of arrays, whose function takes a dict of arrays and gives one.
        function: sample -> sample, or (sample, generator) -> sample.
        fields: of a dataset of arrays, name -> (shape, dtype) of what the function gives, where that is not as before.
        seeded: give the function a generator.

    Raises:
        ConfigError: not a dataset or a function; ``fields`` of samples that have none; on reading, a function that
            draws random numbers without ``seeded``.
    """

    def __init__(
        self,
        dataset: Dataset,
        function: Callable[..., Any],
        *,
        fields: Mapping[str, Any] | None = None,
        seeded: bool = False,
    ) -> None:
        if not isinstance(dataset, Dataset) or not callable(function):
            raise ConfigError(f"expected a dataset and a function, found {dataset!r:.80} and {function!r:.80}")
        if fields is not None and dataset.is_ragged:
            raise ConfigError(f"{type(dataset).__name__}: its samples have no fixed fields; leave fields out")
        self.dataset = dataset
        self.function = function
        self.seeded = seeded
        self._watched = 0
        # Addresses of seeded samples: the number of the sample below, and what belongs to the epoch above.
        self._bits = max(1, (len(dataset) - 1).bit_length())
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
        samples = self.dataset.samples(self._inner(addresses))
        pairs = zip(samples, addresses.tolist(), strict=True)
        return made(addresses, [partial(self._made, sample, address) for sample, address in pairs])

    def _made(self, sample: Any, address: int) -> Any:
        """A sample through the function, with a generator of its own or watched for drawing without one."""
        if self.seeded:
            return self.function(sample, np.random.default_rng([self._key, address]))
        if self._watched >= _WATCHED_SAMPLES:
            return self.function(sample)
        self._watched += 1
        try:
            kept = copy.deepcopy(sample)
        except Exception:  # open files and the like: what cannot be copied is not looked at
            return self.function(sample)
        before = _generators()
        found = self.function(sample)
        drawn = [name for name, state in _generators().items() if before.get(name, state) != state]
        # Where another thread has drawn, the function makes the same again.
        if drawn and _differ(found, self.function(kept)):
            raise ConfigError(
                f"{self._name} draws random numbers from the global generator of {', '.join(drawn)}, and makes"
                " something else of a sample each time, so that no resume could be exact: say MapDataset(...,"
                " seeded=True), and draw from the generator that the function then gets, function(sample, rng)"
            )
        return found

    @cached_property
    def _key(self) -> int:
        # Of the recipe, so that two functions, one over the other, do not draw alike.
        return int(self.fingerprint[:16], 16)

    def _inner(self, addresses: IntArray) -> IntArray:
        """Addresses in the dataset."""
        if not self.seeded:
            return addresses
        indices = addresses & np.int64((1 << self._bits) - 1)
        epochs = (addresses >> np.int64(self._bits)).astype(np.uint64)
        if not epochs.any():
            return self.dataset.locate(indices)
        return self.dataset.locate(indices, epochs << np.uint64(self._bits + 1))

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """As the dataset does."""
        return self.dataset.collate(samples)

    @property
    def collated_by(self) -> dict[str, Any]:
        """As of the dataset."""
        return self.dataset.collated_by

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Of the dataset."""
        return self.dataset.sample_lengths(self._inner(addresses))

    def count(self, addresses: IntArray) -> Counts:
        """Of the dataset."""
        return self.dataset.count(self._inner(addresses))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; ``seeded`` is in it where it is used."""
        recipe = {
            "kind": "mapped",
            "dataset": self.dataset.recipe,
            "function": self._name,
            "fields": repr(self._fields),
        }
        return {**recipe, "seeded": True} if self.seeded else recipe

    @property
    def _name(self) -> str:
        return recorded_name(self.function)

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Those of the dataset; of seeded samples their numbers, and bits of the epoch's key above."""
        if not self.seeded:
            return self.dataset.locate(indices, keys)
        if keys is None:
            return indices
        shift = np.uint64(self._bits)
        return indices | ((np.asarray(keys, dtype=np.uint64) >> (shift + np.uint64(1))) << shift).astype(np.int64)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Of the dataset."""
        return self.dataset.origins(self._inner(addresses))

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
        self.dataset.read_into(self._inner(addresses), given, slice(None))
        places = np.arange(len(next(iter(out.values()))))[rows]
        for at, place in enumerate(places.tolist()):
            made = self._made({name: values[at] for name, values in given.items()}, int(addresses[at]))
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
        return f"{self.dataset.describe()}, through {self._name}{' with random numbers' if self.seeded else ''}"


def _generators() -> dict[str, Any]:
    """The states of the global generators that are there."""
    states: dict[str, Any] = {"random": random.getstate()}
    states["numpy.random"] = pickle.dumps(np.random.get_state())  # noqa: NPY002 - to see whether others use it
    torch = getattr(sys.modules.get("torch"), "default_generator", None)
    if torch is not None:
        states["torch"] = torch.get_state().numpy().tobytes()
    return states


def _differ(one: Any, other: Any) -> bool:
    try:
        return pickle.dumps(one) != pickle.dumps(other)
    except Exception:  # what cannot be compared is not taken for the same
        return True
