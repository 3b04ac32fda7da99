"""What lies at a path, or was made before, as the data of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from headrace.datasets import Dataset, Framed, MediaDataset
from headrace.datasets.concat import ConcatDataset
from headrace.datasets.lengths import SubsetDataset
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.datasets.mix import Mix, named_datasets
from headrace.errors import ConfigError
from headrace.loader.energon.making import Making

Given = str | os.PathLike[str] | Dataset | Mix | Framed


class Opened(NamedTuple):
    """The data, and the units that are made of them; None where samples are fed as they are."""

    data: Dataset | Mix
    units: Framed | None


def opened(
    given: Given, split_part: str, making: Making, *, training: bool, global_batch_size: Any, options: dict[str, Any]
) -> Opened:
    """A path opened to train on or to validate with; data as they are.

    Args:
        given: a path or data.
        split_part: of a dataset of Energon's or a metadataset.
        making: what a task encoder does with them.
        training: mix; else one after another.
        global_batch_size: of the run, for metadatasets that count in steps.
        options: of `MediaDataset.open`, and ``subset``; of a metadataset those of `SourceOptions`.

    Raises:
        ConfigError: options that do not go with it; what opening it raises.
        StoreError: nothing is there, or it is malformed.
    """
    if isinstance(given, Framed):
        return Opened(given.data, making.only_lanes(given, options))
    data = _data(given, split_part, making, training=training, global_batch_size=global_batch_size, options=options)
    return Opened(data, making.units(data))


def _data(
    given: str | os.PathLike[str] | Dataset | Mix,
    split_part: str,
    making: Making,
    *,
    training: bool,
    global_batch_size: Any,
    options: dict[str, Any],
) -> Dataset | Mix:
    if isinstance(given, Dataset | Mix):
        if options:
            raise ConfigError(f"{', '.join(options)}: says how a path is opened, and the data is open already")
        return making.around(given)
    if Path(given).suffix in (".yaml", ".yml"):
        known = SourceOptions.__struct_fields__
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(
                f"{', '.join(unknown)}: of a metadataset its file says it; allowed here are {', '.join(known)}"
            )
        metadataset = load_dataset(given)
        opening = making.sources(options)
        if training:
            return metadataset.train(split_part, options=opening, global_batch_size=global_batch_size)
        return metadataset.validation(split_part, options=opening)
    subset = options.pop("subset", None)
    # Plain shards and JSONL files are of one part, whatever it is called.
    part = split_part if Path(given, ".nv-meta").is_dir() else None
    dataset = MediaDataset.open(given, part, **making.opening(options))
    return making.around(dataset if subset is None else SubsetDataset(dataset, subset))


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
