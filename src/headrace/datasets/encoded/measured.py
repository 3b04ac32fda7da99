"""`MeasuredDataset`: outputs, groups and packs of samples under a task encoder, planned from measured facts.

`MeasuredUnits` are the units as numbers alone, without data or encoder, as a trace uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.datasets.dataset import SampleWatch, Traits
from headrace.datasets.encoded.framed import (
    MeasuredForm,
    check_form,
    form_by_hooks,
    form_recipe,
    is_groups,
    recorded_form,
)
from headrace.datasets.encoded.samples import (
    Encoder,
    EncoderDataset,
    Media,
    RestoreKey,
    keyed,
    packed,
    raise_failure,
    restore_key_of,
)
from headrace.datasets.exclusions import rising_numbers
from headrace.datasets.measuring.chunk import MeasuredFacts, facts_recipe, key_text, measured_pipeline
from headrace.datasets.origins import Origins, media_origins
from headrace.encoders import EncoderPipeline, HookFailure
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError, StaleCacheError, StateError, StoreError
from headrace.io import cache_folder
from headrace.plan import IntArray, KeyArray
from headrace.plan.framed import Singles
from headrace.plan.keys import EpochAddresses
from headrace.plan.measured import Grouping, Measured, Members
from headrace.plan.packing import Packing
from headrace.stores import SampleStore
from headrace.stores.store import Extents


class MeasuredUnits:
    """Single outputs, groups or packs of them, by their numbers.

    An address is the number of a unit together with bits of the epoch's key. The other bits of the key have no effect:
    ``regroup`` and ``repack`` also make units by these bits alone.

    Args:
        store: the store of the samples, for their keys.
        facts: the facts that `measure` stored.
        form: what makes a unit.
        exclude: numbers of samples that are left out.

    Raises:
        ConfigError: what `Measured` refuses; there is no such sample.
    """

    def __init__(
        self,
        store: SampleStore,
        facts: MeasuredFacts,
        form: MeasuredForm,
        exclude: Sequence[int] | IntArray = (),
    ) -> None:
        self.store = store
        self.facts = facts
        self.form = form
        self.exclude = rising_numbers("exclude", exclude)
        self.measured = Measured(facts.facts(self.exclude), form=None if isinstance(form, Singles) else form)
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

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses of units, see `EpochAddresses`."""
        return self._addresses.join(indices, keys)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of units, without the bits of the epoch."""
        return self._addresses.indices(addresses)

    def rows(self, addresses: IntArray) -> Members:
        """Return what the units at some addresses are made of; all must have an epoch, or none."""
        return self.measured.members(self.indices(addresses), self._addresses.keys(addresses))

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the range of each sample in each unit."""
        rows = self.rows(addresses)
        units = np.repeat(np.arange(len(addresses), dtype=np.int64), np.diff(rows.offsets))
        found = self.store.extents(rows.samples)
        return [found._replace(rows=units[found.rows])]

    @cached_property
    def differs_by_epoch(self) -> bool:
        """Whether a unit has other members in another epoch."""
        form = self.form
        return form.regroup if isinstance(form, Grouping) else isinstance(form, Packing) and form.repack

    @property
    def shard_bounds(self) -> IntArray:
        """(shards + 1,) int64: borders of the shards, in units; groups and packs are all one shard."""
        if not isinstance(self.form, Singles):
            return np.array([0, len(self)], dtype=np.int64)
        return np.unique(self.measured.facts.begins(self.store.shard_bounds))

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return key and shard of each sample in each unit."""
        rows = self.rows(addresses)
        samples, places = np.unique(rows.samples, return_inverse=True)
        found = media_origins(self.store, samples)
        return [
            tuple(origin for place in places[low:high].tolist() for origin in found[place])
            for low, high in pairwise(rows.offsets.tolist())
        ]

    def find_keys(self, key: str) -> list[int]:
        """Return the units that hold outputs of a sample.

        Raises:
            ConfigError: no sample has this key, it is left out, or its units differ from epoch to epoch.
        """
        store = self.store
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
        raise ConfigError(f"{self.store.path}: it is not known which units hold document {document}; ask by a key")


def check_facts(facts: MeasuredFacts, dataset: Media, pipeline: EncoderPipeline) -> None:
    """Raise StaleCacheError if the facts are of another dataset or encoder."""
    summary, encoder = facts.summary, facts_recipe(pipeline)
    problems = []
    if not facts.is_of(dataset) or summary.samples != len(dataset):
        problems.append(f"of another dataset ({summary.samples:,} samples; {dataset!r} has the fingerprint"
                        f" {dataset.fingerprint}, and {summary.dataset} was measured)")  # fmt: skip
    if summary.encoder != encoder:
        names = [name for name in {**summary.encoder, **encoder} if summary.encoder.get(name) != encoder.get(name)]
        pairs = [f"{name} {summary.encoder.get(name)!r} and not {encoder.get(name)!r}" for name in names]
        problems.append(f"of another encoder: {', '.join(pairs)}")
    if problems:
        raise StaleCacheError(
            f"{facts.path}: these facts are {'; '.join(problems)}. Measure again with `headrace measure`, or"
            " headrace.datasets.measure(dataset, encoder)",
            tuple(problems),
        )


class _Source:
    """The outputs of one sample, made when the first is asked for; each is returned once."""

    def __init__(self, make: Callable[[], list[Output]], count: int) -> None:
        self.count = count
        self._make = make
        self._outputs: dict[int, Output] = {}

    def outputs(self, number: int) -> int | None:
        """Make the outputs if this one is missing. Returns their number if it is not the measured one, else None."""
        if number not in self._outputs:
            made = self._make()
            if len(made) != self.count:
                return len(made)
            self._outputs = dict(enumerate(made))
        return None

    def take(self, number: int) -> Output:
        # The caller may change it, so an output that is asked for twice is made twice.
        return self._outputs.pop(number)


class UnitRow(NamedTuple):
    """An output in a unit: its ``sample``, its number there, ``output``, and among all outputs, ``fact``."""

    source: _Source
    sample: int
    output: int
    fact: int


class MeasuredDataset(MeasuredUnits, EncoderDataset):
    """Sample i is unit i: an output of a good sample, a pack of outputs, or a batch of outputs of one group.

    The number of units and the outputs in each are known without reading, from facts that `measure` stored. So blends,
    orders, epochs and resume work as for any dataset, and the state is a position. Bad samples and samples without
    outputs are left out. Each output is compared when it is made: another number of outputs, length or group than was
    measured is an error.

    An address is the number of the unit with bits of the epoch's key; the restore key of a sample holds it, and the
    number of the sample in its batch. Random numbers in ``cook``, ``encode`` and ``postencode`` hooks depend on sample
    and epoch, those of ``pack_selected_samples`` on the pack's first sample, those of batches on their first unit. An
    output that is asked for without its siblings costs the encoding of its whole sample.

    Args:
        dataset: the dataset of media that was measured.
        encoder: the task encoder, as it was measured.
        facts: the result of `measure`, or the folder of the facts.
        form: what makes a unit. For an encoder that packs, a `Packing` by lengths, which replaces
            ``select_samples_to_pack``; outputs are not cut. For one with ``batch_group_criterion``, a `Grouping`; then
            a unit is a whole batch, and a micro-batch holds one unit. None chooses by the hooks: a `Grouping`, or
            single outputs.
        exclude: numbers of samples that are left out in addition to the bad ones.
        seed: seed of the random numbers in hooks, in addition to that of the order.

    Raises:
        StaleCacheError: the facts are of another dataset, or another encoder or version of it.
        ConfigError: what `EncoderPipeline` refuses; a form without its facts or hooks; no units.
        StoreError: there are no facts, or they are damaged.

    Example:
        >>> dataset = headrace.MediaDataset(headrace.open("shards"))
        >>> encoder = headrace.encoders.DefaultTaskEncoder()
        >>> facts = headrace.datasets.measure(dataset, encoder, folder="facts")
        >>> len(headrace.MeasuredDataset(dataset, encoder, facts, exclude=[0, 5])) == len(dataset) - 2
        True
    """

    key_kind = "Measured"
    batch_words = ("a measured source", "leave samples out in encode_sample, and measure again")

    def __init__(
        self,
        dataset: Media,
        encoder: Encoder,
        facts: MeasuredFacts | str | os.PathLike[str],
        *,
        form: MeasuredForm | None = None,
        exclude: Sequence[int] | IntArray = (),
        seed: int = 0,
    ) -> None:
        EncoderDataset.__init__(self, dataset, measured_pipeline(encoder), seed=seed, errors=None, may_skip=True)
        facts = facts if isinstance(facts, MeasuredFacts) else MeasuredFacts.open(facts)
        check_facts(facts, self.dataset, self.pipeline)
        asked: Any = form_by_hooks(encoder, is_measured=True) if form is None else form
        check_form(asked, self.pipeline, is_measured=True)
        if isinstance(asked, Grouping) and asked.size is None:
            asked = facts.sized(asked)
        MeasuredUnits.__init__(self, self.store, facts, asked, exclude)

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples; with a `Grouping`, a unit is a whole batch of one group."""
        return msgspec.structs.replace(super().traits, is_group_batches=is_groups(self.form))

    @property
    def collated_by(self) -> dict[str, Any]:
        """The encoder, whose hooks make the batches."""
        return {"kind": "measured batches" if is_groups(self.form) else "measured units", **self.pipeline.recipe}

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read the samples of some units together; each returned function makes one unit, with groups a list."""
        addresses = np.asarray(addresses, dtype=np.int64)
        with_epoch = addresses != self.indices(addresses)
        if with_epoch.any() and not with_epoch.all():
            return [self.makers(addresses[row : row + 1], watch)[0] for row in range(len(addresses))]
        rows = self.rows(addresses)
        found = self._rows(rows, self._addresses.keys(addresses), watch)
        bounds = pairwise(rows.offsets.tolist())
        return [
            partial(self._unit, address, found[low:high])
            for address, (low, high) in zip(addresses.tolist(), bounds, strict=True)
        ]

    def _rows(self, rows: Members, keys: KeyArray | None, watch: SampleWatch | None) -> list[UnitRow]:
        """Return one entry for each row, and read the bytes of all their samples together."""
        keys = None if keys is None else np.repeat(keys, np.diff(rows.offsets))
        samples, places = np.unique(self.outputs.addresses(rows.samples, keys), return_inverse=True)
        counts = self.facts.arrays["num_outputs"][self.outputs.indices(samples)].tolist()
        makers = self.outputs.makers(samples, watch)
        sources = [_Source(make, count) for make, count in zip(makers, counts, strict=True)]
        facts = self.measured.facts.rows(rows.samples, rows.outputs)
        numbers = zip(rows.samples.tolist(), rows.outputs.tolist(), facts.tolist(), strict=True)
        return [UnitRow(sources[place], *one) for place, one in zip(places.tolist(), numbers, strict=True)]

    def _output(self, row: UnitRow) -> Output:
        """Return the output of a row. Raises StateError if it is not what was measured, and whatever hooks raise."""
        found = row.source.outputs(row.output)
        if found is not None:
            raise self._differs(row, f"{found} outputs", f"{row.source.count}")
        one = row.source.take(row.output)
        try:
            if isinstance(self.form, Packing):
                measured = int(self.facts.arrays["lengths"][row.fact])
                if (length := self.pipeline.length(one)) != measured:
                    raise self._differs(row, f"an output of length {length:,}", f"{measured:,}")
            elif isinstance(self.form, Grouping):
                group = self.facts.summary.groups[int(self.facts.arrays["groups"][row.fact])]
                key, size = self.pipeline.criterion(one)
                if (key_text(key), size) != (group.key, group.size):
                    raise self._differs(row, f"an output of the group {key!r}, {size}", f"{group.key}, {group.size}")
        except HookFailure as failure:
            raise_failure(failure, type(self.encoder).__name__, f"sample {row.sample:,} of {self.store.path}")
        return one

    def _differs(self, row: UnitRow, found: str, measured: str) -> StateError:
        return StateError(
            f"{type(self.encoder).__name__} returned {found} for sample {row.sample:,} of {self.store.path}, where"
            f" {measured} was measured ({self.facts.path}): if its code was changed, raise its `version` and measure"
            " again; hooks must not decide such facts by random numbers"
        )

    def _unit(self, address: int, rows: list[UnitRow]) -> Any:
        kind = type(self.encoder).__name__
        outputs = [self._output(row) for row in rows]
        if isinstance(self.form, Packing):
            first = restore_key_of(outputs[0].sample)
            packs = packed(self.pipeline, outputs, first, "leave samples out in preencode_sample, and measure again")
            if len(packs) != 1:
                raise ConfigError(
                    f"{kind}.pack_selected_samples returned {len(packs)} packs of {len(outputs)} samples, of which the"
                    f" first is {first!r} of {self.store.path}; a measured source needs one"
                )
            pack = packs[0].sample
            return keyed(pack, RestoreKey("Measured", restore_key_of(pack), address), kind)
        made = [
            keyed(one.sample, RestoreKey("Measured", restore_key_of(one.sample), address, number), kind)
            for number, one in enumerate(outputs)
        ]
        return made if self.traits.is_group_batches else made[0]

    def find_key(self, key: str) -> int:
        """Return the first unit of `find_keys`."""
        return self.find_keys(key)[0]

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; the encoder is recorded by name and version, facts by their content."""
        return {
            "kind": "measured",
            "version": 1,
            "dataset": self.dataset.recipe,
            **self.pipeline.recipe,
            "seed": self.seed,
            "facts": {"name": self.facts.name, "xxh3_128": self.facts.summary.xxh3_128},
            "form": form_recipe(self.form),
            "exclude": self.exclude.tolist(),
        }

    def describe(self) -> str:
        """Describe dataset, encoder, outputs and units in one line."""
        summary = self.facts.summary
        left = len(self.exclude) + summary.bad_samples + summary.skipped_samples
        what = f"{self.dataset.describe()}, encoded by {type(self.encoder).__name__}"
        form = ""
        if isinstance(self.form, Packing):
            packs = self.measured.packs
            share = packs.ledger.num_tokens / (len(packs) * self.form.seq_len) if packs else 0.0
            form = f", {self.form.strategy} packs of {self.form.seq_len:,}, {share:.1%} full"
            if packs and (empty := packs.ledger.empty_documents):
                form += f"; {empty:,} outputs of length 0 are in none"
        elif self.traits.is_group_batches and self.measured.groups is not None:
            form = f", batches of one of {self.measured.groups.num_groups:,} groups"
        return f"{what}: {summary.outputs:,} outputs of {summary.samples:,} samples, {left:,} left out{form}"

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(MeasuredDataset, form=self.form, exclude=self.exclude, seed=self.seed)
        return again, (self.dataset, self.encoder, self.facts)
