"""Writes the index caches that Megatron looks for, so that it starts without building them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.compat.megatron.blend import GPTBlend
from headrace.compat.megatron.caches import ChunkedArray, write_cache
from headrace.compat.megatron.gpt import ONE_PART_SPLITS, SPLIT_PARTS, GPTDataset
from headrace.datasets.dataset import Dataset
from headrace.errors import ConfigError
from headrace.io import check_local
from headrace.plan.megatron import GPTOrder, split_ranges
from headrace.plan.megatron.caches import (
    BLEND_SUFFIXES,
    DESCRIPTION,
    GPT_SUFFIXES,
    CacheDescription,
    CacheEra,
    GPTFacts,
    describe_blend,
    describe_gpt,
)
from headrace.stores import IndexedStore

_CHUNK = 1 << 20


class ExportedCache(msgspec.Struct, frozen=True, kw_only=True):
    """A cache that is there now: its description, what it is of, and whether it was ``written`` or there already."""

    description: str
    of: str
    part: str
    samples: int
    written: bool


def export_cache(
    dataset: Dataset,
    *,
    tokenizer: Mapping[str, Any] | None,
    path_to_cache: str | os.PathLike[str] | None = None,
    one_part: bool = False,
    class_name: str = "GPTDataset",
    era: CacheEra = "core",
    replace: bool = False,
) -> list[ExportedCache]:
    """Write the caches of a `GPTDataset`, or of a `GPTBlend` and all its datasets, each whole or not at all.

    Megatron finds them if it is given the same paths of data, to the letter, and the same options. All arrays are
    written a chunk at a time.

    Args:
        dataset: of Megatron-Core's dialect, over pairs that were opened by the paths that Megatron is given.
        tokenizer: the ``unique_identifiers`` of Megatron's tokenizer: they are in the name. ``core_v0.4`` has none.
        path_to_cache: Megatron's ``--data-cache-path``; None is ``<prefix>/cache/GPTDataset_indices`` beside each pair,
            and then blends have no cache.
        one_part: the data are those of one part alone (``--train-data-path`` and its like), and Megatron has no split.
        class_name: of the datasets.
        era: whose names: of megatron-core since 0.7, of 0.5 and 0.6, or of 0.4.
        replace: whether another cache of the same name gives way; else it is an error.

    Raises:
        ConfigError: Megatron has no such order, or could not find it.
        OutputError: the system refuses, or another cache is there.
    """
    check_local(path_to_cache)
    if (tokenizer is None) != (era == "core_v0.4"):
        raise ConfigError(
            f"the tokenizer is {tokenizer!r} and the era {era!r}: the names hash the tokenizer's unique_identifiers,"
            " but for core_v0.4, which has none"
        )
    try:
        json.dumps(tokenizer)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the tokenizer's unique_identifiers are no JSON: {error}") from error
    members = [_checked(member, one_part) for member in _members(dataset)]
    descriptions = [
        describe_gpt(
            GPTFacts(
                dataset_path=path,
                num_samples=member.sampling.num_samples,
                index_split=member.split_part,
                random_seed=member.sampling.seed,
                sequence_length=member.sequence_length,
                split=None if one_part else member.split,
            ),
            tokenizer=tokenizer,
            class_name=class_name,
            era=era,
        )
        for member, path, _ in members
    ]
    parts = {member.split_part for member, _, _ in members}
    if len(parts) > 1:
        raise ConfigError(f"a blend of Megatron's is of one part, found {', '.join(sorted(parts))}")
    made: dict[Path, ExportedCache] = {}
    for (member, path, order), description in zip(members, descriptions, strict=True):
        folder = Path(path_to_cache if path_to_cache is not None else f"{path}/cache/{class_name}_indices")
        place = folder / description.file_name(DESCRIPTION)
        if place not in made:
            made[place] = ExportedCache(
                description=str(place),
                of=path,
                part=member.split_part,
                samples=order.epochs.num_samples,
                written=_write(order, description, folder, replace),
            )
    if isinstance(dataset, GPTBlend) and path_to_cache is not None:
        lengths = [len(member) for member, _, _ in members]
        weights, size = (lengths, None) if dataset.weights is None else (dataset.weights, len(dataset))
        blend = describe_blend(descriptions, part=min(parts), weights=weights, size=size)
        place = Path(path_to_cache) / blend.file_name(DESCRIPTION)
        made[place] = ExportedCache(
            description=str(place),
            of=f"a blend of {len(members):,} datasets",
            part=min(parts),
            samples=len(dataset),
            written=_write_blend(dataset, blend, place.parent, replace),
        )
    return list(made.values())


def _members(dataset: Dataset) -> list[GPTDataset]:
    members = dataset.datasets if isinstance(dataset, GPTBlend) else (dataset,)
    found = [member for member in members if isinstance(member, GPTDataset)]
    if len(found) < len(members):
        raise ConfigError(f"only GPTDataset and blends of it have caches of Megatron's, found {dataset!r}")
    return found


def _checked(dataset: GPTDataset, one_part: bool) -> tuple[GPTDataset, str, GPTOrder]:
    """The dataset, its path as Megatron is given it, and its order."""
    store, sampling, order = dataset.store, dataset.sampling, dataset.order
    if not isinstance(store, IndexedStore):
        raise ConfigError(f"{store.path}: Megatron reads single pairs of .bin and .idx, this is a {store.format} store")
    if store.options.documents != "sequences":
        raise ConfigError(f"{store.path}: Megatron takes sequences; open it with documents='sequences'")
    if sampling.dialect != "core" or sampling.last_epoch != "auto" or not isinstance(order, GPTOrder):
        raise ConfigError(
            f"{store.path}: Megatron-Core would take the cache for its own order, and this is that of dialect "
            f"{sampling.dialect!r} with last_epoch={sampling.last_epoch!r}"
        )
    if one_part:
        ranges = split_ranges(dataset.split, store.num_documents, era="core")
        if ranges[SPLIT_PARTS.index(dataset.split_part)] != (0, store.num_documents):
            whole = ONE_PART_SPLITS[dataset.split_part]
            raise ConfigError(f"{store.path}: data of one part alone have split={whole!r}, found {dataset.split!r}")
    return dataset, store.prefix, order


def _write(order: GPTOrder, description: CacheDescription, folder: Path, replace: bool) -> bool:
    entries, num_samples = order.num_entries, order.epochs.num_samples
    documents, samples, shuffles = GPT_SUFFIXES
    arrays = [
        ChunkedArray(suffix=documents, shape=(entries,), dtype=np.int32, chunks=order.document_index_chunks(_CHUNK)),
        ChunkedArray(
            suffix=samples,
            shape=(num_samples + 1, 2),
            dtype=np.int32 if entries < 1 << 31 else np.int64,
            chunks=order.sample_index_chunks(),
        ),
        _whole(shuffles, order.shuffle_index),
    ]
    return write_cache(folder, description.stem, description.text, arrays, replace=replace)


def _write_blend(blend: GPTBlend, description: CacheDescription, folder: Path, replace: bool) -> bool:
    datasets, samples = BLEND_SUFFIXES
    arrays = [_whole(datasets, blend.dataset_index), _whole(samples, blend.dataset_sample_index)]
    return write_cache(folder, description.stem, description.text, arrays, replace=replace)


def _whole(suffix: str, array: NDArray[Any]) -> ChunkedArray:
    return ChunkedArray(suffix=suffix, shape=array.shape, dtype=array.dtype, chunks=(array,))
