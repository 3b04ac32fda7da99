"""Megatron's index caches: checks whether they belong to the data.

    folder/<md5>-GPTDataset-train-description.txt --> CacheFiles --> check_cache --> CacheVerdict
                                 -document_index.npy, ...    mapped     |
    data/web.bin, .idx  <- dataset_path                               every entry checked against the sizes

The names of the files do not depend on the contents of the data, so Megatron uses old indices even if the data were
replaced under their path. The check names the file and the row that differ.

`headrace.plan.megatron.caches` knows what the names hash and what the arrays mean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.compat.megatron.gpt import ONE_PART_SPLITS, sizes_of_part
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import map_npy
from headrace.plan.megatron import GPTOrder, GPTSampling, build_blending_indices, build_exhaustive_blending_indices
from headrace.plan.megatron.caches import (
    BLEND_SUFFIXES,
    CHUNK,
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
from headrace.stores import open_tokens as open_store


def map_array(path: Path) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped and read-only. O(1).

    Raises:
        StoreError: the file is missing or incomplete, or holds something other than numbers in C order.
    """
    try:
        return map_npy(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: missing; without it Megatron builds the cache again") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: incomplete: {error}; remove the cache so that it is built again") from error


def read_text(path: Path) -> str:
    """The text of a description.

    Raises:
        StoreError: the file cannot be read, or is not ASCII.
    """
    try:
        return path.read_bytes().decode("ascii")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: cannot be read: {error}; Megatron writes ASCII; remove the cache") from error


class CacheFiles(NamedTuple):
    """A cache on disk: its folder, and the description of the data and options that it was built for."""

    folder: Path
    description: CacheDescription

    def path(self, suffix: str) -> Path:
        """The path of the file with this suffix."""
        return self.folder / self.description.file_name(suffix)

    def arrays(self, suffixes: Sequence[str]) -> list[NDArray[Any]]:
        """The arrays with these suffixes, mapped; raises StoreError if one is missing or incomplete."""
        return [map_array(self.path(suffix)) for suffix in suffixes]


class CacheReading(NamedTuple):
    """What a description does not say: some options of the run that built the cache, and where the data are now.

    ``moved`` maps beginnings of the paths in descriptions to what they are now.
    """

    add_extra_token_to_sequence: bool = True
    drop_last_partial_validation_sequence: bool = True
    moved: Mapping[str, str] | None = None

    def place(self, dataset_path: str) -> str:
        """The present path of the data at this path."""
        for old, new in (self.moved or {}).items():
            if dataset_path.startswith(old):
                return new + dataset_path.removeprefix(old)
        return dataset_path


class CacheVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of one cache found."""

    path: str
    """The path of the ``description.txt``."""

    of: str
    """The path of the data, or a phrase that says how many datasets the blend has."""

    part: str
    ok: bool
    problems: tuple[Problem, ...]
    cause: str
    """The likely reason why the cache does not fit the data; empty if it fits."""

    samples: int
    is_own_order: bool
    """Whether the order is the one that follows from seed, options and weights. Megatron also reads any other complete
    order."""


class _Finding(NamedTuple):
    """The result of comparing the arrays of a cache with the data."""

    samples: int = 0
    is_own_order: bool = False
    problems: tuple[Problem, ...] = ()
    cause: str = ""


def cache_at(path: Path) -> CacheFiles:
    """The cache whose description lies at a path; raises StoreError if the file is not a description."""
    return CacheFiles(path.parent, parse_description(read_text(path), str(path)))


def find_descriptions(path: Path) -> list[Path]:
    """All descriptions in a folder of caches, or beside the pair with this prefix, sorted. A file is returned as it is.

    Raises:
        StoreError: no description was found.
    """
    if path.is_file():
        return [path]
    found = sorted(path.glob(f"*-{DESCRIPTION}")) or sorted(path.glob(f"cache/*_indices/*-{DESCRIPTION}"))
    if not found:
        raise StoreError(
            f"{path}: no caches found; looked for <md5>-<class>-<part>-{DESCRIPTION}, which Megatron writes with its"
            " arrays to --data-cache-path, or to <prefix>/cache/GPTDataset_indices; give that folder, or the prefix"
        )
    return found


def check_cache(path: str | os.PathLike[str], reading: CacheReading) -> CacheVerdict:
    """Check every entry of one cache against its data, and whether its order is the one that its options produce.

    ``path`` is the description of the cache. Costs about 40 ns an entry, and one shuffle of the samples. All problems
    are reported in the verdict, including missing files and data.
    """
    path = Path(path)
    of, part, finding = "", "", _Finding()
    try:
        cache = cache_at(path)
        identifiers, part = cache.description.identifiers, cache.description.part
        if cache.description.is_blend:
            of = f"a blend of {len(identifiers.get('datasets', ())):,} datasets"
            finding = _check_blend(cache, reading)
        else:
            of = str(identifiers.get("dataset_path", identifiers.get("path_prefix", "")))
            finding = _check_dataset(cache, reading)
    except HeadraceError as error:
        finding = _Finding(problems=(_as_problem(error, path),))
    return CacheVerdict(
        path=str(path),
        of=of,
        part=part,
        ok=not finding.problems,
        problems=finding.problems,
        cause=finding.cause,
        samples=finding.samples,
        is_own_order=finding.is_own_order,
    )


def _check_dataset(cache: CacheFiles, reading: CacheReading) -> _Finding:
    facts = gpt_facts(cache.description, str(cache.path(DESCRIPTION)))
    found = CachedIndices(*cache.arrays(GPT_SUFFIXES))
    sampling = GPTSampling(
        sequence_length=facts.sequence_length,
        num_samples=facts.num_samples,
        seed=facts.random_seed,
        add_extra_token=reading.add_extra_token_to_sequence,
        drop_last_partial=reading.drop_last_partial_validation_sequence or facts.index_split != "valid",
    )
    with open_store(reading.place(facts.dataset_path), documents="sequences") as store:
        split = facts.split or ONE_PART_SPLITS[facts.index_split]
        sizes, first = sizes_of_part(store, split, facts.index_split, era="core")
        sampling = fitting_sampling(found, sizes, sampling)
        if faults := list(check_indices(found, sizes, sampling, first_sequence=first)):
            other = built_otherwise(found, sizes, sampling, first_sequence=first)
            return _Finding(problems=_problems(cache, faults), cause=_likely_cause(cache, store, other))
    own = GPTOrder(sizes, sampling, first_sequence=first)
    if not own.num_samples:
        raise ConfigError(f"{store.path}: {facts.index_split!r} of {split!r} has no samples")
    return _Finding(own.num_samples, _is_same_order(found, own))


def _is_same_order(found: CachedIndices, own: GPTOrder) -> bool:
    chunks = zip(own.document_index_chunks(CHUNK), range(0, own.num_entries, CHUNK), strict=True)
    documents = all(np.array_equal(chunk, found.document_index[at : at + CHUNK]) for chunk, at in chunks)
    return documents and np.array_equal(own.shuffle_index, found.shuffle_index)


def _check_blend(cache: CacheFiles, reading: CacheReading) -> _Finding:
    """Check the caches of the blend's datasets, which lie in the same folder, then the cache of the blend itself."""
    facts = blend_facts(cache.description, str(cache.path(DESCRIPTION)))
    era = cache.description.era
    lengths = []
    for identifiers in facts.datasets:
        member = CacheFiles(cache.folder, CacheDescription(identifiers=identifiers, era=era))
        finding = _check_dataset(cache_at(member.path(DESCRIPTION)), reading)
        if finding.problems:
            return finding
        lengths.append(finding.samples)
    dataset_index, dataset_sample_index = cache.arrays(BLEND_SUFFIXES)
    if facts.size is None and facts.weights != lengths:
        reason = f"the blend is of datasets with {facts.weights} samples; they have {lengths}"
        problems = _problems(cache, [IndexFault("dataset_index", "", reason)])
        return _Finding(problems=problems, cause="their data or options have changed")
    size = sum(lengths) if facts.size is None else facts.size
    if faults := list(check_blend_indices(dataset_index, dataset_sample_index, size=size, lengths=lengths)):
        cause = "it was built from other datasets, or it is damaged"
        return _Finding(problems=_problems(cache, faults), cause=cause)
    if not size:
        raise ConfigError(f"{cache.path(DESCRIPTION)}: a blend of no samples")
    if facts.size is None:
        due, _ = build_exhaustive_blending_indices(lengths)
    else:
        due, _ = build_blending_indices([float(weight) for weight in facts.weights], size)
    return _Finding(size, np.array_equal(due, dataset_index))


def _problems(cache: CacheFiles, faults: Sequence[IndexFault]) -> tuple[Problem, ...]:
    return tuple(
        Problem(path=str(cache.path(f"{fault.array}.npy")), place=fault.place, message=fault.message)
        for fault in faults
    )


def _as_problem(error: HeadraceError, path: Path) -> Problem:
    """The error as a problem. Messages of caches and stores begin with the file that they are about."""
    file, _, message = str(error).partition(": ")
    if message and file.startswith(str(path.parent)):
        return Problem(path=file, place="", message=message)
    return Problem(path=str(path), place="", message=str(error))


def _likely_cause(cache: CacheFiles, store: Store, other: GPTSampling | None) -> str:
    """The likely reason why a cache does not fit the data; ``other`` are options with which it would fit."""
    if other is not None:
        return (
            f"it fits add_extra_token_to_sequence={other.add_extra_token} and drop_last_partial_validation_sequence="
            f"{other.drop_last_partial}, which are not part of its name"
        )
    changed_s = max(file.stat().st_mtime for file in store.files)
    newer = changed_s > cache.path(GPT_SUFFIXES[0]).stat().st_mtime
    when = f"{store.path}, written after it" if newer else store.path
    return f"it fits no other options either: it does not belong to these data ({when}), or it is damaged"
