"""A task encoder for all datasets of a mix, or of what lies at a path."""

from __future__ import annotations

import copy
from typing import Any

from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.dataset import EncodedDataset
from headrace.datasets.encoded.samples import Encoder, Media
from headrace.datasets.media import JoinedMediaDataset, MediaDataset
from headrace.datasets.media.dataset import OfCrude
from headrace.datasets.metadataset import JoinedSource, Source, SourceOptions
from headrace.datasets.mix import Mix
from headrace.encoders import DefaultTaskEncoder, ErrorPolicy, TaskEncoder, bound_cookers
from headrace.errors import ConfigError


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

    def dataset(self, source: Source | JoinedSource) -> Dataset:
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
