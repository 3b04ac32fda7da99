"""Whether Megatron's index caches belong to the data there are: every entry is compared with the sizes.

    folder/<md5>-GPTDataset-train-description.txt --> CacheFiles --> check_cache --> CacheVerdict
                                 -document_index.npy, ...    mapped     |
    data/web.bin, .idx  <- dataset_path                               every entry checked against the sizes

The names say nothing of the data: Megatron takes the indices of data that were replaced under their path. The check
names the file and the row that differ.

Arrays beside a text that describes them, in Megatron's layout of index caches.

    folder/<stem>-<array>.npy ...     each as NumPy writes it
    folder/<stem>-description.txt     here the last to appear: Megatron takes a cache only when all its files are there

What the names hash and what the arrays mean is no matter of this module.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.compat.megatron.gpt import ONE_PART_SPLITS, sizes_of_part
from headrace.errors import ConfigError, HeadraceError, OutputError, StoreError
from headrace.io import AtomicFile, commit, file_sum, map_npy, output_errors
from headrace.plan.megatron import GPTOrder, GPTSampling, build_blending_indices, build_exhaustive_blending_indices
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
from headrace.stores import open_tokens as open_store


class ChunkedArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array that is made a chunk at a time: ``chunks`` hold its elements in C order, of any shapes and dtypes."""

    suffix: str
    shape: tuple[int, ...]
    dtype: DTypeLike
    chunks: Iterable[NDArray[Any]]


def write_cache(folder: Path, stem: str, text: str, arrays: Sequence[ChunkedArray], *, replace: bool = False) -> bool:
    """Write the files of a cache, whole or not at all; False if they were there already, byte for byte.

    The memory is that of a chunk. The folder is made where it is missing; what a process that was killed left of a
    cache is replaced.

    Raises:
        OutputError: another whole cache has this name and ``replace`` is False, or the system refuses.
    """
    with output_errors(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)
    files: list[AtomicFile] = []
    try:
        for array in arrays:
            files.append(AtomicFile(folder / f"{stem}-{array.suffix}"))
            _write_npy(files[-1], array)
        files.append(AtomicFile(folder / f"{stem}-{DESCRIPTION}"))
        files[-1].write(text.encode())
        if all(file.path.is_file() for file in files):
            differing = [file.path for file in files if file_sum(file.path).xxh3_128 != file.sum.xxh3_128]
            if not differing:
                return False
            if not replace:
                raise OutputError(
                    f"{differing[0]}: another cache of this name is there, and a run may be in the middle of it:"
                    " check it; then replace it on purpose, or write to another folder"
                )
        commit(files)
    finally:
        for file in files:
            file.discard()
    return True


def map_array(path: Path) -> NDArray[Any]:
    """The array of an ``.npy``, mapped and read-only. O(1).

    Raises:
        StoreError: it is missing, incomplete, or not of numbers in C order.
    """
    try:
        return map_npy(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: missing; Megatron builds the cache anew without it") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: incomplete: {error}; remove the cache, and it is built anew") from error


def read_text(path: Path) -> str:
    """The text of a description.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("ascii")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: cannot be read: {error}; Megatron writes ASCII; remove the cache") from error


def _write_npy(file: AtomicFile, array: ChunkedArray) -> None:
    dtype = np.dtype(array.dtype)
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(header, facts)
    file.write(header.getvalue())
    for chunk in array.chunks:
        file.write(np.ascontiguousarray(chunk, dtype=dtype).data)
    due = len(header.getvalue()) + prod(array.shape) * dtype.itemsize
    if file.size != due:
        raise OutputError(f"{file.path}: {file.size:,} bytes were made of an array of {due:,}; nothing was written")


_CHUNK = 1 << 20


class CacheFiles(NamedTuple):
    """A cache on disk: its folder, and what it is of."""

    folder: Path
    description: CacheDescription

    def path(self, suffix: str) -> Path:
        """One of its files."""
        return self.folder / self.description.file_name(suffix)

    def arrays(self, suffixes: Sequence[str]) -> list[NDArray[Any]]:
        """Its arrays, mapped; StoreError if one is missing or incomplete."""
        return [map_array(self.path(suffix)) for suffix in suffixes]


class CacheReading(NamedTuple):
    """What no description says: options of the run that built a cache, and where its data are now.

    ``moved`` holds beginnings of paths in descriptions, and what they are now.
    """

    add_extra_token_to_sequence: bool = True
    drop_last_partial_validation_sequence: bool = True
    moved: Mapping[str, str] | None = None

    def place(self, dataset_path: str) -> str:
        """Where the data of this path are now."""
        for old, new in (self.moved or {}).items():
            if dataset_path.startswith(old):
                return new + dataset_path.removeprefix(old)
        return dataset_path


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
    """Whether the order is the one that seed, options and weights give; Megatron reads another whole one, too."""


class _Finding(NamedTuple):
    """What the arrays of a cache are, compared with the data."""

    samples: int = 0
    is_own_order: bool = False
    problems: tuple[Problem, ...] = ()
    cause: str = ""


def cache_at(path: Path) -> CacheFiles:
    """The cache whose description lies at a path; StoreError if it is none."""
    return CacheFiles(path.parent, parse_description(read_text(path), str(path)))


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


def check_cache(path: str | os.PathLike[str], reading: CacheReading) -> CacheVerdict:
    """Check every entry of one cache, by its description, and whether the order is the one that its options give.

    About 40 ns an entry, and a shuffle of the samples. What is wrong, missing files and data too, is in the verdict.
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
        raise ConfigError(f"{store.path}: {facts.index_split!r} of {split!r} has not one sample")
    return _Finding(own.num_samples, _is_same_order(found, own))


def _is_same_order(found: CachedIndices, own: GPTOrder) -> bool:
    chunks = zip(own.document_index_chunks(_CHUNK), range(0, own.num_entries, _CHUNK), strict=True)
    documents = all(np.array_equal(chunk, found.document_index[at : at + _CHUNK]) for chunk, at in chunks)
    return documents and np.array_equal(own.shuffle_index, found.shuffle_index)


def _check_blend(cache: CacheFiles, reading: CacheReading) -> _Finding:
    """Checks the caches of its datasets too, which lie beside its own: those come first."""
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
        reason = f"the blend of datasets of {facts.weights} samples; they have {lengths}"
        problems = _problems(cache, [IndexFault("dataset_index", "", reason)])
        return _Finding(problems=problems, cause="their data or options have changed")
    size = sum(lengths) if facts.size is None else facts.size
    if faults := list(check_blend_indices(dataset_index, dataset_sample_index, size=size, lengths=lengths)):
        cause = "it was made of other datasets, or it is damaged"
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
    """The error as a finding; those of caches and stores begin with the file they speak of."""
    file, _, message = str(error).partition(": ")
    if message and file.startswith(str(path.parent)):
        return Problem(path=file, place="", message=message)
    return Problem(path=str(path), place="", message=str(error))


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
