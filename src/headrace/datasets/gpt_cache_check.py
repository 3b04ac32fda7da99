"""Looks through a folder of Megatron's index caches, and says of each whether it belongs to the data there are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from headrace.datasets.gpt_cache import CachedGPTBlend, CachedGPTDataset, CacheReading, cache_at
from headrace.errors import HeadraceError, StaleCacheError, StoreError
from headrace.plan.megatron import build_blending_indices, build_exhaustive_blending_indices
from headrace.plan.megatron.caches import DESCRIPTION
from headrace.stores import Problem


class CacheVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of one cache found."""

    path: str
    """Its ``description.txt``."""

    of: str
    """The path of the data, or of how many datasets it is a blend."""

    part: str
    ok: bool
    problems: tuple[Problem, ...]
    cause: str
    """What a cache that does not fit looks like, else empty."""

    samples: int
    is_own_order: bool
    """Whether the order is the one that seed, options and weights give; another whole one is usable too."""


def find_descriptions(path: Path) -> list[Path]:
    """All descriptions in a folder of caches, or beside the pair with this prefix, sorted; a description is itself one.

    Raises:
        StoreError: there are none.
    """
    if path.is_file():
        return [path]
    found = sorted(path.glob(f"*-{DESCRIPTION}")) or sorted(path.glob(f"cache/*_indices/*-{DESCRIPTION}"))
    if not found:
        raise StoreError(
            f"{path}: no caches; these are <md5>-<class>-<part>-{DESCRIPTION} with arrays beside it, in Megatron's"
            " --data-cache-path, or in <prefix>/cache/GPTDataset_indices: give that folder, or the prefix"
        )
    return found


def check_cache(path: Path, reading: CacheReading) -> CacheVerdict:
    """Check every entry of one cache, by its description, and whether the order is the one that its options give."""
    of, part, cause, samples, own = "", "", "", 0, False
    problems: tuple[Problem, ...] = ()
    try:
        cache = cache_at(path)
        identifiers, part = cache.description.identifiers, cache.description.part
        if cache.description.is_blend:
            of = f"a blend of {len(identifiers.get('datasets', ())):,} datasets"
            blend = CachedGPTBlend(cache, reading)
            samples, own = len(blend), _is_greedy(blend)
        else:
            of = str(identifiers.get("dataset_path", identifiers.get("path_prefix", "")))
            dataset = CachedGPTDataset(cache, reading)
            samples, own = len(dataset), dataset.is_of_its_seed()
    except StaleCacheError as error:
        problems = tuple(problem for problem in error.problems if isinstance(problem, Problem))
        cause = error.cause
    except HeadraceError as error:
        problems = (_as_problem(error, path),)
    return CacheVerdict(
        path=str(path),
        of=of,
        part=part,
        ok=not problems,
        problems=problems,
        cause=cause,
        samples=samples,
        is_own_order=own,
    )


def _as_problem(error: HeadraceError, path: Path) -> Problem:
    """The error as a finding; those of caches and stores begin with the file they speak of."""
    file, _, message = str(error).partition(": ")
    if message and file.startswith(str(path.parent)):
        return Problem(path=file, place="", message=message)
    return Problem(path=str(path), place="", message=str(error))


def _is_greedy(blend: CachedGPTBlend) -> bool:
    if blend.weights is None:
        due, _ = build_exhaustive_blending_indices([len(dataset) for dataset in blend.datasets])
    else:
        due, _ = build_blending_indices(blend.weights, len(blend))
    return np.array_equal(due, blend.dataset_index)
