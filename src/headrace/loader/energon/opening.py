"""What lies at a path, or was made before, as the data of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.datasets import Dataset, MediaDataset
from headrace.datasets.concat import ConcatDataset
from headrace.datasets.encoded.sources import EncodedSources, Encoder, encoded, opening_options
from headrace.datasets.lengths import SubsetDataset
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.datasets.mix import Mix, named_datasets
from headrace.errors import ConfigError

Given = str | os.PathLike[str] | Dataset | Mix


def opened(
    given: Given,
    split_part: str,
    *,
    training: bool,
    global_batch_size: Any,
    options: dict[str, Any],
    encoder: Encoder | None = None,
    seed: int = 0,
) -> Dataset | Mix:
    """A path opened to train on or to validate with; data as they are.

    Args:
        given: a path or data.
        split_part: of a dataset of Energon's or a metadataset.
        training: mix; else one after another.
        global_batch_size: of the run, for metadatasets that count in steps.
        options: of `MediaDataset.open`, and ``subset``; of a metadataset those of `SourceOptions`.
        encoder: around every dataset; its decoder and cookers open what is not open.
        seed: of the random numbers in its hooks.

    Raises:
        ConfigError: options that do not go with it; what opening it raises.
        StoreError: nothing is there, or it is malformed.
    """
    if isinstance(given, Dataset | Mix):
        if options:
            raise ConfigError(f"{', '.join(options)}: says how a path is opened, and the data is open already")
        return given if encoder is None else encoded(given, encoder, seed=seed)
    if Path(given).suffix in (".yaml", ".yml"):
        known = SourceOptions.__struct_fields__
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(
                f"{', '.join(unknown)}: of a metadataset its file says it; allowed here are {', '.join(known)}"
            )
        metadataset = load_dataset(given)
        opening = (
            SourceOptions(**options)
            if encoder is None
            else EncodedSources(**opening_options(encoder, options), encoder=encoder, seed=seed)
        )
        if training:
            return metadataset.train(split_part, options=opening, global_batch_size=global_batch_size)
        return metadataset.validation(split_part, options=opening)
    subset = options.pop("subset", None)
    # Plain shards and JSONL files are of one part, whatever it is called.
    part = split_part if Path(given, ".nv-meta").is_dir() else None
    if encoder is not None:
        options = opening_options(encoder, options)
    dataset = MediaDataset.open(given, part, **options)
    data = dataset if subset is None else SubsetDataset(dataset, subset)
    return data if encoder is None else encoded(data, encoder, seed=seed)


def parts(data: Dataset | Mix) -> list[Dataset | Mix]:
    """The datasets that are one after another, depth first, each with the range or the limit around it.

    Raises:
        ConfigError: something else than `ConcatDataset` is around several.
    """
    if isinstance(data, ConcatDataset):
        return [part for child in data.children.values() for part in parts(child)]
    if len(named_datasets(data)) > 1:
        raise ConfigError(f"{data!r}: is of several datasets together, which cannot be validated with one by one")
    return [data]
