"""Samples of media through a task encoder that gives one output for each, for one dataset or all of a mix.

A task encoder for all datasets of a mix, or of what lies at a path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from headrace.datasets.dataset import Dataset, Origins
from headrace.datasets.encoded.keys import address_of, marked, restore_key_of
from headrace.datasets.encoded.samples import Encoder, Media, SampleEncoder, one_batch
from headrace.datasets.media import JoinedMediaDataset, MediaDataset, SampleDataset
from headrace.datasets.media.dataset import OfCrude
from headrace.datasets.media.face import without_rows
from headrace.datasets.metadataset import JoinedSource, NamedSource, SourceOptions
from headrace.datasets.mix import Mix
from headrace.encoders import DefaultTaskEncoder, EncoderPipeline, ErrorPolicy, TaskEncoder, bound_cookers, collecting
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.samples.media.sample import BASE_FIELDS


class EncodedDataset(SampleDataset):
    """Sample i is sample i of a dataset, cooked and encoded by a task encoder; batches are made by its hooks.

    An address is the number of the sample together with bits of the epoch's key, so that a hook draws other random
    numbers in every epoch, the same on any rank, worker or resume. It is what ``current_sample_index`` shows, and the
    restore key of an output holds it: `restore_sample` needs nothing else. ``batch`` and ``encode_batch`` are run for
    each micro-batch, whose place is that of its first sample.

    Args:
        dataset: of media; crude samples without a cooker are cooked by those of the encoder.
        encoder: the task encoder. No generator, packing nor grouping: the number of outputs has to be known.
        seed: of the random numbers in hooks, beside that of the order.
        errors: what is done about samples that cannot be made.

    Raises:
        ConfigError: not a dataset of media; what `EncoderPipeline` refuses; an encoder that gives another number of
            outputs than one; ``cook_crude_sample`` for samples that have a cooker.
    """

    def __init__(
        self,
        dataset: Media,
        encoder: Encoder,
        *,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
    ) -> None:
        self.pipeline = EncoderPipeline(encoder)
        if self.pipeline.not_fixed:
            raise ConfigError(
                f"{type(encoder).__name__}: {', '.join(self.pipeline.not_fixed)}, so that a sample gives another number"
                " of outputs than one, and their places are not known beforehand. EncodedDataset is a fixed source:"
                " take a measured one, where the counts are stored once, or a framed one, where they show while running"
            )
        self.outputs = SampleEncoder(dataset, self.pipeline, seed=seed, errors=errors, may_skip=False)
        self.dataset = self.outputs.dataset
        self.store = self.dataset.store
        self.encoder = encoder
        self.seed = seed
        self.errors = self.outputs.errors
        self.faults = self.outputs.faults

    @classmethod
    def open(
        cls,
        path: Any,
        encoder: Encoder,
        *,
        seed: int = 0,
        errors: ErrorPolicy | None = None,
        **options: Any,
    ) -> EncodedDataset:
        """What lies at a path, decoded by the decoder of a task encoder, cooked by its cookers, encoded by its hooks.

        Args:
            path: see `MediaDataset.open`.
            encoder, seed, errors: see the class.
            options: those of `MediaDataset.open`, ``aux`` among them.

        Raises:
            StoreError, ConfigError: as `MediaDataset.open` and the class.
        """
        if not isinstance(encoder, TaskEncoder):
            raise ConfigError(f"task encoder is {encoder!r:.80}; expected a TaskEncoder, as DefaultTaskEncoder()")
        given = {"decoder": encoder.decoder, "cookers": OfCrude(bound_cookers(encoder)), **options}
        return cls(MediaDataset.open(path, **given), encoder, seed=seed, errors=errors)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that all samples have: what hooks make of them shows when they are read."""
        return BASE_FIELDS

    @property
    def collated_by(self) -> dict[str, Any]:
        """The encoder: a batch is made by the hooks of one."""
        return {"kind": "encoded samples", **self.pipeline.recipe}

    @property
    def unrestorable(self) -> str | None:
        """The first hook that is not marked ``@stateless``."""
        hook = self.outputs.not_stateless
        return None if hook is None else f"{type(self.encoder).__name__}.{hook}"

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: see `SampleEncoder.addresses`."""
        return self.outputs.addresses(indices, keys)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of samples, without what belongs to the epoch."""
        return self.outputs.indices(addresses)

    def makers(self, addresses: IntArray) -> list[Callable[[], Any]]:
        """See `SampleDataset.makers`; each cooks and encodes."""
        makers = self.outputs.makers(addresses)
        return [partial(self._only, address, make) for address, make in zip(addresses.tolist(), makers, strict=True)]

    def samples(self, addresses: IntArray) -> list[Any]:
        """See `SampleDataset.samples`; what a hook raises goes through, with a note that names hook and sample."""
        with self.pipeline:
            return super().samples(addresses)

    def _only(self, address: int, make: Callable[[], list[Output]]) -> Any:
        outputs = make()
        if len(outputs) != 1:
            index = int(self.indices(np.array([address], dtype=np.int64))[0])
            raise ConfigError(
                f"{type(self.encoder).__name__} gave {len(outputs)} outputs for sample {index:,} of {self.store.path};"
                " EncodedDataset is a fixed source and takes exactly one: return it, or take a measured or a framed one"
            )
        return marked(outputs[0].sample, address, type(self.encoder).__name__)

    def restore_sample(self, restore_key: Any) -> Any:
        """The output of a restore key again, bit for bit; of the list of keys of a batch, the batch.

        Raises:
            ConfigError: not a key of this dataset, or its samples are not those that it was made of.
        """
        if isinstance(restore_key, list):
            return self.collate([self.restore_sample(key) for key in restore_key])
        if self.outputs.not_stateless is not None:
            raise ConfigError(
                f"{type(self.encoder).__name__}.{self.outputs.not_stateless} is not marked @stateless: it may depend on"
                " what ran before, so that no sample can be made again; mark it"
            )
        address = address_of(restore_key)
        if address is None or address < 0 or self.indices(np.array([address]))[0] >= len(self):
            raise ConfigError(f"{restore_key!r:.80} is not a restore key of {self!r}")
        sample = self.samples(np.array([address], dtype=np.int64))[0]
        found = restore_key_of(sample)
        if found != restore_key:
            raise ConfigError(f"{restore_key!r} now gives the sample {found!r}: the data or the policy has changed")
        return sample

    def collate(self, samples: Sequence[Any]) -> Any:
        """Samples as one batch, by ``batch`` and ``encode_batch``, in columns.

        Without samples it is the batch of the first one, without its row: a rank that has none has the same fields.
        """
        if not samples:
            with collecting():  # its faults belong to the batch that it is in
                return without_rows(self.collate(self.samples(self.locate(np.zeros(1, dtype=np.int64)))))
        first = samples[0]
        key = restore_key_of(first)
        address = address_of(key)
        if address is None:
            raise ConfigError(f"{first!r:.80} has no restore key of EncodedDataset; collate what `samples` gives")
        return one_batch(
            self.pipeline,
            samples,
            self.outputs.place(address),
            key,
            kind="a fixed source",
            instead="leave samples out by substitutes, or take a framed source",
        )

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Those of the samples that were meant; a substitute shows in the restore key, and in ``faults``."""
        return self.dataset.origins(self.indices(addresses))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples: the encoder is told from others by name and version."""
        return {
            "kind": "encoded",
            "version": 1,
            "dataset": self.dataset.recipe,
            **self.pipeline.recipe,
            "seed": self.seed,
            "on_error": self.errors.on_error,
        }

    def describe(self) -> str:
        """One line."""
        return f"{self.dataset.describe()}, encoded by {type(self.encoder).__name__}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.dataset, self.encoder, self.seed, self.errors)


def _again(dataset: Media, encoder: Encoder, seed: int, errors: ErrorPolicy) -> EncodedDataset:
    return EncodedDataset(dataset, encoder, seed=seed, errors=errors)


def encoder_or_none(encoder: object) -> Encoder | None:
    """The encoder; None for ``DefaultTaskEncoder()`` as it is, which changes nothing.

    Raises:
        ConfigError: not a task encoder.
    """
    if encoder is None or (type(encoder) is DefaultTaskEncoder and vars(encoder) == vars(DefaultTaskEncoder())):
        return None
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"task encoder is {encoder!r:.80}; expected a TaskEncoder, as DefaultTaskEncoder()")
    return encoder


def opening_options(encoder: Encoder, given: dict[str, Any]) -> dict[str, Any]:
    """The decoder and the cookers of an encoder, below the options that are given."""
    return {"decoder": encoder.decoder, "cookers": OfCrude(bound_cookers(encoder)), **given}


class EncodedSources(SourceOptions, frozen=True, kw_only=True):
    """Opens the datasets of a metadataset, each with the encoder around it.

    Attributes:
        encoder: of all of them.
        seed: of the random numbers in hooks.
        errors: what is done about samples that cannot be made.
    """

    encoder: Encoder
    seed: int
    errors: ErrorPolicy | None = None

    def dataset(self, source: NamedSource | JoinedSource) -> Dataset:
        """See `SourceOptions.dataset`; what `EncodedDataset` refuses is a ConfigError that names the place, too."""
        found = super().dataset(source)
        try:
            return EncodedDataset(_media(found), self.encoder, seed=self.seed, errors=self.errors)
        except ConfigError as error:
            raise ConfigError(f"{source.where}: {error}") from error


def encoded(data: Dataset | Mix, encoder: Encoder, *, seed: int, errors: ErrorPolicy | None = None) -> Dataset | Mix:
    """The same mix with an `EncodedDataset` around each dataset.

    Raises:
        ConfigError: what `EncodedDataset` refuses.
    """
    if not isinstance(data, Mix):
        return EncodedDataset(_media(data), encoder, seed=seed, errors=errors)
    # A mix reads nothing: it is numbers, and the children that they are of, as many samples as before.
    again = copy.copy(data)
    again.children = {name: encoded(child, encoder, seed=seed, errors=errors) for name, child in data.children.items()}
    for name in ("data", "dataset"):
        if name in vars(again):
            setattr(again, name, again.children[""])
    return again


def _media(dataset: Dataset) -> Media:
    if isinstance(dataset, EncodedDataset):
        raise ConfigError(f"{dataset!r} is encoded by a task encoder already; leave task_encoder out")
    if not isinstance(dataset, MediaDataset | JoinedMediaDataset):
        raise ConfigError(f"a task encoder is for samples of media, found {dataset!r}")
    return dataset
