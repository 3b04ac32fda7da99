"""The units of a measured source as numbers alone, without data or encoder; a trace uses them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from headrace.datasets.encoded.forms import MeasuredForm, form_recipe, recorded_form
from headrace.datasets.measuring.facts import MeasuredFacts, numbers_of
from headrace.datasets.origins import Origins, media_origins
from headrace.errors import ConfigError, StoreError
from headrace.io import cache_folder
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import EpochAddresses
from headrace.plan.measured import Grouping, Measured
from headrace.stores import SampleStore


class UnitRows(NamedTuple):
    """What some units are made of: unit i is the rows from ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` is (units + 1,) int64. The others are (rows,) int64: ``samples``, numbers in the dataset; ``outputs``,
    the number of an output of its sample; ``facts``, its number among the outputs of all samples. ``keys`` (rows,)
    uint64 are those of the epoch, or None.
    """

    offsets: IntArray
    samples: IntArray
    outputs: IntArray
    facts: IntArray
    keys: KeyArray | None


class MeasuredUnits:
    """Single outputs, groups or packs of them, by their numbers.

    An address is the number of a unit together with bits of the epoch's key. The other bits of the key have no effect:
    ``regroup`` and ``repack`` also make units by these bits alone.

    Args:
        store: the store of the samples, for their keys.
        facts: the facts that `measure` stored.
        form: what makes a unit; None makes each output a unit.
        exclude: numbers of samples that are left out.

    Raises:
        ConfigError: what `Measured` refuses; there is no such sample.
    """

    def __init__(
        self,
        store: SampleStore,
        facts: MeasuredFacts,
        form: MeasuredForm | None,
        exclude: Sequence[int] | IntArray = (),
    ) -> None:
        self._store = store
        self.facts = facts
        self.form = form
        self.exclude = np.unique(numbers_of(exclude))
        self.measured = Measured(facts.facts(self.exclude), form=form)
        self._addresses = EpochAddresses.of(len(self))

    @classmethod
    def saved(cls, store: SampleStore, recipe: Mapping[str, Any]) -> MeasuredUnits:
        """Return the units of a dataset of a saved run, with facts from the cache folder.

        Raises:
            StoreError: the facts are not there, or are not those of the run.
        """
        name, content = recipe["facts"]["name"], recipe["facts"]["xxh3_128"]
        folder = cache_folder("facts")
        facts = None if folder is None else MeasuredFacts.find(folder / name)
        if facts is None or facts.summary.xxh3_128 != content:
            raise StoreError(
                f"{folder}: has {'no' if facts is None else 'other'} facts {name}, so that samples are named by number"
                " alone; set HEADRACE_CACHE to the folder above facts/"
            )
        return cls(store, facts, recorded_form(recipe["form"]), recipe["exclude"])

    def __len__(self) -> int:
        return self.measured.num_units

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the units; JSON-safe."""
        return {
            "facts": {"name": self.facts.name, "xxh3_128": self.facts.summary.xxh3_128},
            "form": form_recipe(self.form),
            "exclude": self.exclude.tolist(),
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses of units, see `EpochAddresses`."""
        return self._addresses.join(indices, keys)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of units, without the bits of the epoch."""
        return self._addresses.indices(addresses)

    def rows(self, addresses: IntArray) -> UnitRows:
        """Return what the units at some addresses are made of; all must have an epoch, or none."""
        units = self.indices(addresses)
        keys = self._addresses.keys(addresses)
        found = self.measured.members(units, keys)
        counts = np.diff(found.offsets)
        outputs = self.measured.facts.outputs
        facts = found.samples if outputs is None else outputs.begins(found.samples) + found.outputs
        return UnitRows(
            found.offsets, found.samples, found.outputs, facts, None if keys is None else np.repeat(keys, counts)
        )

    @cached_property
    def differs_by_epoch(self) -> bool:
        """Whether a unit has other members in another epoch."""
        if isinstance(self.form, Grouping):
            return self.form.regroup
        return self.form is not None and self.form.repack

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: borders of the shards, in units; groups and packs are all one shard."""
        if self.form is not None:
            return np.array([0, len(self)], dtype=np.int64)
        facts, bounds = self.measured.facts, self._store.shard_bounds
        ends = bounds if facts.outputs is None else facts.outputs.begins(bounds)
        return np.unique(ends if facts.kept is None else facts.kept.rank(ends))

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return key and shard of each sample in each unit."""
        rows = self.rows(addresses)
        samples, places = np.unique(rows.samples, return_inverse=True)
        found = media_origins(self._store, samples)
        return [
            tuple(origin for place in places[low:high].tolist() for origin in found[place])
            for low, high in pairwise(rows.offsets.tolist())
        ]

    def find_keys(self, key: str) -> list[int]:
        """Return the units that hold outputs of a sample.

        Raises:
            ConfigError: no sample has this key, it is left out, or its units differ from epoch to epoch.
        """
        store = self._store
        try:
            sample = store.find(key)
        except KeyError:
            raise ConfigError(f"{store.path}: has no sample with the key {key!r}") from None
        if self.differs_by_epoch:
            raise ConfigError(
                f"with regroup or repack, the unit that holds {key!r} differs from epoch to epoch: ask by the number of"
                " a unit to see its members"
            )
        units = self.measured.units(sample)
        if not len(units):
            reason = "it is bad" if not self.facts.arrays["is_good"][sample] else "it has no output, or was left out"
            raise ConfigError(f"{key!r}, sample {sample:,} of {store.path}, is in no unit: {reason}")
        found: list[int] = units.tolist()
        return found

    def holders(self, document: int) -> IntArray:
        """Raise ConfigError: units are not made of documents."""
        raise ConfigError(f"{self._store.path}: it is not known which units hold document {document}; ask by a key")
