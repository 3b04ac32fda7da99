"""`MapDataset`: a dataset whose samples are changed one by one by a function."""

from __future__ import annotations

import ast
import copy
import pickle
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from headrace.datasets.dataset import (
    CountedDataset,
    Counts,
    Dataset,
    Fields,
    FixedDataset,
    RaggedDataset,
    Sample,
    SampleWatch,
    Traits,
    Wrapper,
    counted,
    empty,
)
from headrace.datasets.origins import Origins, origin_words
from headrace.errors import ConfigError, raised
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import EpochAddresses
from headrace.plan.recipe import recorded_name
from headrace.stores.store import Extents

if TYPE_CHECKING:
    from headrace.datasets.recipes import Maker

_WATCHED_SAMPLES = 8
"""Number of samples in each process that are checked for random numbers from global generators."""


class MapDataset(Wrapper, CountedDataset):
    """Sample i is ``function(dataset[i])``.

    The result of the function must depend on the sample alone, not on chance or state, since a sample may be made again
    after a resume, or on another rank. A saved run records the function by module and name, not by its code.

    For random numbers pass ``seeded=True``: sample i is then ``function(dataset[i], rng)``, with a
    `numpy.random.Generator` that depends only on the run's seed, the source's path, the epoch and i. The numbers differ
    from epoch to epoch, and are the same after a resume and on other ranks or workers. With ``Order(kind="none")``, and
    for items of the dataset itself, there are no epochs, and a sample always draws the same numbers. torch and
    ``random`` can be seeded with it: ``torch.Generator().manual_seed(int(rng.integers(2**63)))``.

    A function that draws from the global generators of ``random``, NumPy or torch, and so returns something else each
    time, is an error. The first samples of each process are checked for it.

    Args:
        dataset: if its samples are collated batch by batch (media, records), the function maps any sample to any
            sample; if they are arrays of one shape, it maps a dict of arrays to a dict of arrays.
        function: sample -> sample, or (sample, generator) -> sample.
        fields: name -> (shape, dtype) of the arrays that the function returns, if they differ from those of the
            dataset.
        seeded: pass a generator to the function.

    Raises:
        ConfigError: not a dataset or a function; ``fields`` for samples that have none; while reading, a function that
            draws random numbers without ``seeded``.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> def masked(sample, rng):
        ...     hidden = rng.random(len(sample["labels"])) < 0.15
        ...     return {**sample, "labels": np.where(hidden, -100, sample["labels"])}
        >>> mapped = headrace.MapDataset(dataset, masked, seeded=True)
        >>> bool((mapped[0]["labels"] == mapped[0]["labels"]).all())
        True
    """

    def __new__(cls, dataset: Dataset | None = None, *args: Any, **options: Any) -> Self:
        """Return a dataset of the same kind as the inner one."""
        kind: Any = _RaggedMap if isinstance(dataset, RaggedDataset) else _FixedMap
        found: Self = super().__new__(kind if cls is MapDataset else cls)
        return found

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
        if fields is not None and isinstance(dataset, RaggedDataset):
            raise ConfigError(f"{type(dataset).__name__}: its samples have no fixed fields; leave fields out")
        self.dataset = dataset
        self.function = function
        self.seeded = seeded
        self._drawn_as: str | None = None
        self._watched = 0
        self._addresses = EpochAddresses.of(len(dataset))  # of seeded samples
        self._fields = None if fields is None else {name: (tuple(s), np.dtype(d)) for name, (s, d) in fields.items()}

    @property
    def fields(self) -> Fields:
        """Name -> (shape, dtype), as given, or those of the dataset."""
        return self.dataset.fields if self._fields is None else self._fields

    @property
    def traits(self) -> Traits:
        """Those of the dataset, except that the function sees its samples; counts are those of its own samples."""
        return msgspec.structs.replace(self.dataset.traits, is_plain=False, holds_interpreter=True)

    @property
    def shard_bounds(self) -> IntArray | None:
        """Those of the dataset."""
        return self.dataset.shard_bounds

    def _made(self, sample: Any, address: int) -> Any:
        """Map a sample; an error, or None in place of a sample, names it."""
        try:
            found = self._mapped(sample, address)
        except Exception as error:
            error = raised(error)
            error.add_note(f"in {self._name}: {self._words(address)}")
            raise error from error.__cause__
        if found is None:
            raise ConfigError(
                f"{self._name} returned None for {self._words(address)}: MapDataset has as many samples as its dataset,"
                " and leaves none out. Return a sample, or leave samples out before: by headrace quarantine, by Subset,"
                " or by a task encoder, where SkipSample replaces a sample or leaves it out"
            )
        return found

    def _words(self, address: int) -> str:
        return origin_words(self.origins, address) or "a sample"

    def _mapped(self, sample: Any, address: int) -> Any:
        """Map a sample, with its own generator if seeded; the first samples are checked for global random numbers."""
        if self.seeded:
            return self.function(sample, np.random.default_rng([self._key, address]))
        if self._watched >= _WATCHED_SAMPLES:
            return self.function(sample)
        self._watched += 1
        try:
            kept = copy.deepcopy(sample)
        except Exception:  # samples that cannot be copied, such as open files, are not checked
            return self.function(sample)
        before = _generators()
        found = self.function(sample)
        drawn = [name for name, state in _generators().items() if before.get(name, state) != state]
        # If another thread drew the numbers, the function returns the same again.
        if drawn and _differ(found, self.function(kept)):
            raise ConfigError(
                f"{self._name} draws random numbers from the global generator of {', '.join(drawn)}, and returns"
                " something else for a sample each time, so that no resume could be exact: use MapDataset(...,"
                " seeded=True), and draw from the generator that the function then gets, function(sample, rng)"
            )
        return found

    @cached_property
    def _key(self) -> int:
        # From the recipe, so that a mapped dataset within another draws other numbers.
        return int((self._drawn_as or self.fingerprint)[:16], 16)

    def _inner(self, addresses: IntArray) -> IntArray:
        """Return the addresses in the dataset below."""
        if not self.seeded:
            return addresses
        return self.dataset.locate(self._addresses.indices(addresses), self._addresses.keys(addresses))

    def count(self, addresses: IntArray) -> Counts:
        """Count what samples hold before the function."""
        return counted(self.dataset).count(self._inner(addresses))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; ``seeded`` is in it only if it is true."""
        recipe = {
            "kind": "mapped",
            "dataset": self.dataset.recipe,
            "function": self._name,
            "fields": repr(self._fields),
        }
        if self._drawn_as is not None:
            recipe["drawn_as"] = self._drawn_as
        return {**recipe, "seeded": True} if self.seeded else recipe

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker) -> MapDataset:
        """Return the dataset of a recipe; its function is imported."""
        function = maker.named(recipe["function"], "function")
        try:
            fields = ast.literal_eval(re.sub(r"dtype\(('[^']*')\)", r"\1", recipe["fields"]))
        except (ValueError, SyntaxError) as error:
            raise ConfigError(f"its fields are {recipe['fields']}, which cannot be made again") from error
        return cls(maker.dataset(recipe["dataset"]), function, fields=fields, seeded=bool(recipe.get("seeded")))

    @property
    def _name(self) -> str:
        return recorded_name(self.function)

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the dataset; for seeded samples their numbers, with bits of the epoch's key."""
        return self._addresses.join(indices, keys) if self.seeded else self.dataset.locate(indices, keys)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return what the samples of the dataset are made of."""
        return self.dataset.origins(self._inner(addresses))

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of the samples of the dataset."""
        return self.dataset.extents(self._inner(addresses))

    def read(self, addresses: IntArray) -> Sample:
        """Return the samples at some addresses as one new batch."""
        return super().read(addresses)  # type: ignore[safe-super]  # that of the kind, see __new__

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``, read together."""
        return super().__getitems__(indices)  # type: ignore[safe-super]  # that of the kind, see __new__

    def describe(self) -> str:
        """Describe the dataset and the function in one line."""
        return f"{self.dataset.describe()}, through {self._name}{' with random numbers' if self.seeded else ''}"

    def __repr__(self) -> str:
        return f"<MapDataset: {len(self):,} samples, {self.describe()}>"


class _FixedMap(MapDataset, FixedDataset):
    """Arrays of one shape, changed by a function."""

    dataset: FixedDataset

    @property
    def constants(self) -> Sample:
        """Name -> array, those of the dataset; the function does not get them."""
        return self.dataset.constants

    @property
    def pad_id(self) -> int | None:
        """That of the dataset."""
        return self.dataset.pad_id

    def without(self, documents: IntArray, pad_id: int) -> FixedDataset:
        """Return the same with documents masked out in the samples that the function gets, and with the same numbers.

        Raises:
            ConfigError: documents cannot be masked in the dataset, or the function returns no ``labels``.
        """
        if "labels" not in self.fields:
            raise ConfigError(f"{self._name} returns no labels, so that masked tokens might be trained on: how='drop'")
        found = copy.copy(self)
        found.dataset = self.dataset.without(documents, pad_id)
        for name in ("recipe", "fingerprint", "_key"):
            found.__dict__.pop(name, None)
        # All other samples stay as they are, and so the random numbers of all.
        found._drawn_as = (self._drawn_as or self.fingerprint) if self.seeded else None
        return found

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples, map them one by one, and write them into ``rows`` of ``out``."""
        batch = empty(self.dataset.fields, len(addresses))
        self.dataset.read_into(self._inner(addresses), batch, slice(None))
        places = np.arange(len(next(iter(out.values()))))[rows]
        for at, place in enumerate(places.tolist()):
            mapped = self._made({name: values[at] for name, values in batch.items()}, int(addresses[at]))
            if mapped.keys() != self.fields.keys():
                raise ConfigError(
                    f"{self._name} returned the fields {sorted(mapped)}, expected {sorted(self.fields)}: pass fields="
                    " for what it returns"
                )
            for name, (shape, dtype) in self.fields.items():
                value = np.asarray(mapped[name])
                if value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                    raise ConfigError(
                        f"{self._name} returned {name!r} of {value.shape} {value.dtype}, expected {shape} {dtype}: pass"
                        " fields= for what it returns"
                    )
                out[name][place] = value


class _RaggedMap(MapDataset, RaggedDataset):
    """Samples with shapes of their own, changed by a function."""

    dataset: RaggedDataset

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return samples of the dataset, each mapped by the function."""
        watch = watch or SampleWatch()
        samples = self.dataset.samples(self._inner(addresses), watch)
        pairs = zip(samples, addresses.tolist(), strict=True)
        return watch.make(addresses, [partial(self._made, sample, address) for sample, address in pairs])

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Return samples as one batch, as the dataset does."""
        return self.dataset.collate(samples)

    @property
    def collated_by(self) -> dict[str, Any]:
        """What must be the same to collate in a blend: that of the dataset."""
        return self.dataset.collated_by

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens of each sample before the function."""
        return self.dataset.sample_lengths(self._inner(addresses))


def _generators() -> dict[str, Any]:
    """Return the states of the global random generators that exist in this process."""
    states: dict[str, Any] = {"random": random.getstate()}
    states["numpy.random"] = pickle.dumps(np.random.get_state())  # noqa: NPY002 - to see whether the function uses it
    torch = getattr(sys.modules.get("torch"), "default_generator", None)
    if torch is not None:
        states["torch"] = torch.get_state().numpy().tobytes()
    return states


def _differ(one: Any, other: Any) -> bool:
    try:
        return pickle.dumps(one) != pickle.dumps(other)
    except Exception:  # values that cannot be compared count as different
        return True
