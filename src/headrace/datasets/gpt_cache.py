"""Reads Megatron's index caches, and goes on in their order where they belong to the data there are.

    folder/<md5>-GPTDataset-train-description.txt --> CacheFiles --> open_cache --> GPTDataset in the order of the cache
                                 -document_index.npy, ...    mapped     |
    data/web.bin, .idx  <- dataset_path                               every entry checked against the sizes

The names say nothing of the data: Megatron takes the indices of data that were replaced under their path. Here they are
refused, with the file and the row that differ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.gpt import ONE_PART_SPLITS, GPTDataset
from headrace.datasets.gpt_blend import GPTBlend
from headrace.datasets.gpt_masks import GPTMasks
from headrace.errors import ConfigError, StaleCacheError
from headrace.io import check_local
from headrace.plan.megatron import GPTOrder, GPTSampling
from headrace.plan.megatron.caches import (
    BLEND_SUFFIXES,
    DESCRIPTION,
    GPT_SUFFIXES,
    CacheDescription,
    CachedIndices,
    IndexFault,
    blend_facts,
    built_otherwise,
    check_blend_indices,
    check_indices,
    fitting_sampling,
    gpt_facts,
    parse_description,
)
from headrace.stores import Problem, Store
from headrace.stores.index_cache import map_array, read_text

_CHUNK = 1 << 20


class CacheFiles(NamedTuple):
    """A cache on disk: its folder, and what it is of."""

    folder: Path
    description: CacheDescription

    def path(self, suffix: str) -> Path:
        """One of its files."""
        return self.folder / self.description.file_name(suffix)

    def arrays(self, suffixes: Sequence[str]) -> list[NDArray[Any]]:
        """Its arrays, mapped; StoreError if one is missing or torn."""
        return [map_array(self.path(suffix)) for suffix in suffixes]


class CacheReading(NamedTuple):
    """What no description says; the fields are the arguments of `open_cache`."""

    add_extra_token_to_sequence: bool = True
    drop_last_partial_validation_sequence: bool = True
    moved: Mapping[str, str] | None = None
    masks: GPTMasks | None = None

    def place(self, dataset_path: str) -> str:
        """Where the data of this path are now."""
        for old, new in (self.moved or {}).items():
            if dataset_path.startswith(old):
                return new + dataset_path.removeprefix(old)
        return dataset_path


def open_cache(
    path: str | os.PathLike[str],
    *,
    add_extra_token_to_sequence: bool = True,
    drop_last_partial_validation_sequence: bool = True,
    moved: Mapping[str, str] | None = None,
    masks: GPTMasks | None = None,
) -> GPTDataset | GPTBlend:
    """The dataset or blend whose ``description.txt`` lies at a path, in the order that its cache holds.

    Nothing is shuffled: the arrays are mapped, and every entry is checked, about 40 ns each. Shuffles need not be those
    of the seed, if they are a whole order of these data. A saved state of such a run belongs to the cache's content.

    Args:
        path: ``.../<md5>-GPTDataset-train-description.txt``, or that of a blend, whose datasets' caches lie beside it.
        add_extra_token_to_sequence: with which the cache was built; no description says so.
        drop_last_partial_validation_sequence: the same.
        moved: beginnings of the paths in the description, and what they are now; relative ones are those of the
            current folder.
        masks: as of `GPTDataset`.

    Raises:
        StaleCacheError: it is not of these data: which file and row, what is there and what ought to be, and what it
            looks like, other data or other options.
        StoreError: there is no whole cache, or there are no data.
    """
    check_local(path)
    files = cache_at(Path(path))
    reading = CacheReading(add_extra_token_to_sequence, drop_last_partial_validation_sequence, moved, masks)
    return CachedGPTBlend(files, reading) if files.description.is_blend else CachedGPTDataset(files, reading)


def cache_at(path: Path) -> CacheFiles:
    """The cache whose description lies at a path; StoreError if it is none."""
    return CacheFiles(path.parent, parse_description(read_text(path), str(path)))


class CachedGPTDataset(GPTDataset):
    """A `GPTDataset` in the order that a cache holds; see `open_cache`.

    Attributes:
        cache: where it lies.
    """

    def __init__(self, cache: CacheFiles, reading: CacheReading) -> None:
        self.cache = cache
        facts = gpt_facts(cache.description, str(cache.path(DESCRIPTION)))
        self._found = CachedIndices(*cache.arrays(GPT_SUFFIXES))
        super().__init__(
            reading.place(facts.dataset_path),
            sequence_length=facts.sequence_length,
            num_samples=facts.num_samples,
            seed=facts.random_seed,
            split=facts.split or ONE_PART_SPLITS[facts.index_split],
            split_part=facts.index_split,
            add_extra_token_to_sequence=reading.add_extra_token_to_sequence,
            drop_last_partial_validation_sequence=reading.drop_last_partial_validation_sequence,
            masks=reading.masks,
        )

    def _ordered(self, sizes: NDArray[Any], first_sequence: int) -> GPTOrder:
        found = self._found
        self.sampling = fitting_sampling(found, sizes, self.sampling)
        faults = list(check_indices(found, sizes, self.sampling, first_sequence=first_sequence))
        if faults:
            other = built_otherwise(found, sizes, self.sampling, first_sequence=first_sequence)
            raise stale(self.cache, faults, _likely_cause(self.cache, self.store, other))
        self._part = sizes, first_sequence
        indices = found.document_index, found.shuffle_index
        return GPTOrder(sizes, self.sampling, first_sequence=first_sequence, indices=indices)

    def is_of_its_seed(self) -> bool:
        """Whether the order is the one that seed and options give; shuffles anew, to compare."""
        sizes, first_sequence = self._part
        own = GPTOrder(sizes, self.sampling, first_sequence=first_sequence)
        chunks = zip(own.document_index_chunks(_CHUNK), range(0, own.num_entries, _CHUNK), strict=True)
        documents = all(np.array_equal(chunk, self._found.document_index[at : at + _CHUNK]) for chunk, at in chunks)
        return documents and np.array_equal(own.shuffle_index, self._found.shuffle_index)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples: the content of the cache is part of it."""
        found = self._found
        indices = {"document_index": _hash(found.document_index), "shuffle_index": _hash(found.shuffle_index)}
        return {**super().recipe, "cache": indices}

    def describe(self) -> str:
        """One line."""
        return f"{super().describe()}, as the cache {self.cache.description.md5} has it"


class CachedGPTBlend(GPTBlend):
    """A `GPTBlend` in the order that a cache holds, of datasets in the order of theirs; see `open_cache`.

    Attributes:
        cache: where it lies.
    """

    def __init__(self, cache: CacheFiles, reading: CacheReading) -> None:
        self.cache = cache
        path = str(cache.path(DESCRIPTION))
        facts = blend_facts(cache.description, path)
        datasets = tuple(CachedGPTDataset(each, reading) for each in member_caches(cache))
        self.dataset_index, self.dataset_sample_index = cache.arrays(BLEND_SUFFIXES)
        lengths = [len(each) for each in datasets]
        if facts.size is None and facts.weights != lengths:
            reason = f"the blend of datasets of {facts.weights} samples; they have {lengths}"
            raise stale(cache, [IndexFault("dataset_index", "", reason)], "their data or options have changed")
        size = sum(lengths) if facts.size is None else facts.size
        faults = list(check_blend_indices(self.dataset_index, self.dataset_sample_index, size=size, lengths=lengths))
        if faults:
            raise stale(cache, faults, "it was made of other datasets, or it is damaged")
        if not size:
            raise ConfigError(f"{path}: a blend of no samples")
        self.datasets = datasets
        # They are normalised already.
        self.weights = None if facts.size is None else [float(weight) for weight in facts.weights]

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples: the content of the cache is part of it."""
        return {**super().recipe, "cache": _hash(self.dataset_index)}


def member_caches(cache: CacheFiles) -> list[CacheFiles]:
    """The caches of the datasets of a blend, which lie beside its own; StoreError if one is missing."""
    facts = blend_facts(cache.description, str(cache.path(DESCRIPTION)))
    era = cache.description.era
    members = [CacheFiles(cache.folder, CacheDescription(identifiers=each, era=era)) for each in facts.datasets]
    return [cache_at(member.path(DESCRIPTION)) for member in members]


def stale(cache: CacheFiles, faults: Sequence[IndexFault], cause: str) -> StaleCacheError:
    """The error that refuses a cache, with the first of its faults in the message, and all as problems."""
    problems = tuple(
        Problem(path=str(cache.path(f"{fault.array}.npy")), place=fault.place, message=fault.message)
        for fault in faults
    )
    return StaleCacheError(f"{problems[0]}; {cause}. Remove the cache, and it is built anew", problems, cause)


def _likely_cause(cache: CacheFiles, store: Store, other: GPTSampling | None) -> str:
    """What a cache that does not fit looks like; ``other`` are the options with which it would."""
    if other is not None:
        return (
            f"it fits add_extra_token_to_sequence={other.add_extra_token} and drop_last_partial_validation_sequence="
            f"{other.drop_last_partial}, which its name does not tell"
        )
    changed_s = max(file.stat().st_mtime for file in store.files)
    newer = changed_s > cache.path(GPT_SUFFIXES[0]).stat().st_mtime
    when = f"{store.path}, written after it" if newer else store.path
    return f"it fits no other options either: it is not of these data ({when}), or it is damaged"


def _hash(array: NDArray[Any]) -> str:
    hasher = xxhash.xxh3_128()
    for at in range(0, len(array), _CHUNK):
        hasher.update(np.ascontiguousarray(array[at : at + _CHUNK]).data)
    return hasher.hexdigest()
