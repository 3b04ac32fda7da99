"""Megatron's index caches: checks whether they belong to the data, and writes those that Megatron looks for.

    folder/<md5>-GPTDataset-train-description.txt --> CacheFiles --> check_cache --> CacheVerdict
                                 -document_index.npy, ...    mapped     |
    data/web.bin, .idx  <- dataset_path                               every entry checked against the sizes

The names of the files do not depend on the contents of the data, so Megatron uses old indices even if the data were
replaced under their path. The check names the file and the row that differ.

`headrace.plan.megatron.caches` knows what the names hash and what the arrays mean.

With the caches that `export_cache` writes, Megatron starts without building them. Arrays are written as NumPy does, and
the ``description.txt`` last, since Megatron uses a cache only if all its files exist.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.compat.megatron.blend import GPTBlend
from headrace.compat.megatron.gpt import ONE_PART_SPLITS, SPLIT_PARTS, GPTDataset, sizes_of_part
from headrace.datasets.dataset import Dataset
from headrace.errors import ConfigError, HeadraceError, OutputError, StoreAwayError, StoreError
from headrace.io import AtomicFile, check_local, commit, file_sum, map_npy, output_errors, read_small
from headrace.plan.megatron import (
    GPTOrder,
    GPTSampling,
    build_blending_indices,
    build_exhaustive_blending_indices,
    split_ranges,
)
from headrace.plan.megatron.caches import (
    BLEND_SUFFIXES,
    CHUNK,
    DESCRIPTION,
    GPT_SUFFIXES,
    CacheDescription,
    CachedIndices,
    CacheEra,
    GPTFacts,
    IndexFault,
    blend_facts,
    built_otherwise,
    check_blend_indices,
    check_indices,
    describe_blend,
    describe_gpt,
    fitting_sampling,
    gpt_facts,
    parse_description,
)
from headrace.stores import IndexedStore, Problem, Store
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
        return read_small(path).decode("ascii")
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
    except StoreAwayError:
        raise
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


class ExportedCache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache after an export.

    Attributes:
        description: the path of its ``description.txt``.
        of: the path of the data, or a phrase that says how many datasets the blend has.
        part: ``"train"``, ``"valid"`` or ``"test"``.
        samples: the number of samples.
        written: False if the same cache existed already.
    """

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
    """Write the caches of a `GPTDataset`, or of a `GPTBlend` and all its datasets, each completely or not at all.

    Megatron finds them if it is given exactly the same paths of the data and the same options. All arrays are written
    in chunks.

    Args:
        dataset: a dataset of Megatron-Core's dialect, over pairs that were opened by the paths that Megatron is given.
        tokenizer: the ``unique_identifiers`` of Megatron's tokenizer, which are hashed into the names of the files.
            None for ``core_v0.4``, whose names do not contain them.
        path_to_cache: Megatron's ``--data-cache-path``. None means ``<prefix>/cache/GPTDataset_indices`` beside each
            pair; then blends have no cache.
        one_part: whether the data belong to one part only (``--train-data-path`` and similar), so that Megatron has no
            split.
        class_name: the class name of the datasets, which is part of the names.
        era: whose names to use: those of megatron-core since 0.7, of 0.5 and 0.6, or of 0.4.
        replace: replace another cache of the same name; otherwise it is an error.

    Raises:
        ConfigError: Megatron has no such order, or could not find the cache.
        OutputError: the system refuses, or another cache exists.
    """
    check_local(path_to_cache)
    if (tokenizer is None) != (era == "core_v0.4"):
        raise ConfigError(
            f"the tokenizer is {tokenizer!r} and the era {era!r}: names contain a hash of the tokenizer's"
            " unique_identifiers, except in core_v0.4, which must have None"
        )
    try:
        json.dumps(tokenizer)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the tokenizer's unique_identifiers cannot be written as JSON: {error}") from error
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
        raise ConfigError(f"all datasets of a Megatron blend belong to one part, found {', '.join(sorted(parts))}")
    made: dict[Path, ExportedCache] = {}
    for (member, path, order), description in zip(members, descriptions, strict=True):
        folder_name = path_to_cache if path_to_cache is not None else f"{path}/cache/{class_name}_indices"
        check_local(folder_name)
        folder = Path(folder_name)
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
        raise ConfigError(f"Megatron has caches only for GPTDataset and blends of it, found {dataset!r}")
    return found


def _checked(dataset: GPTDataset, one_part: bool) -> tuple[GPTDataset, str, GPTOrder]:
    """The dataset, the path that Megatron is given for it, and its order."""
    store, sampling, order = dataset.store, dataset.sampling, dataset.order
    if not isinstance(store, IndexedStore):
        raise ConfigError(f"{store.path}: Megatron reads single pairs of .bin and .idx, this is a {store.format} store")
    if store.options.documents != "sequences":
        raise ConfigError(f"{store.path}: Megatron reads sequences; open the store with documents='sequences'")
    if sampling.dialect != "core" or sampling.last_epoch != "auto" or not isinstance(order, GPTOrder):
        raise ConfigError(
            f"{store.path}: Megatron-Core would use the cache as its own order, but this is the order of dialect "
            f"{sampling.dialect!r} with last_epoch={sampling.last_epoch!r}"
        )
    if one_part:
        ranges = split_ranges(dataset.split, store.num_documents, era="core")
        if ranges[SPLIT_PARTS.index(dataset.split_part)] != (0, store.num_documents):
            whole = ONE_PART_SPLITS[dataset.split_part]
            raise ConfigError(f"{store.path}: data of one part only have split={whole!r}, found {dataset.split!r}")
    return dataset, store.prefix, order


def _write(order: GPTOrder, description: CacheDescription, folder: Path, replace: bool) -> bool:
    entries, num_samples = order.num_entries, order.epochs.num_samples
    documents, samples, shuffles = GPT_SUFFIXES
    arrays = [
        ChunkedArray(suffix=documents, shape=(entries,), dtype=np.int32, chunks=order.document_index_chunks(CHUNK)),
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


class ChunkedArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array that is computed in chunks. ``chunks`` hold its elements in C order, in any shapes and dtypes."""

    suffix: str
    shape: tuple[int, ...]
    dtype: DTypeLike
    chunks: Iterable[NDArray[Any]]


def write_cache(folder: Path, stem: str, text: str, arrays: Sequence[ChunkedArray], *, replace: bool = False) -> bool:
    """Write all files of a cache or none; return False if the same files, byte for byte, existed already.

    Needs memory for one chunk. The folder is created if it is missing. If a killed process left parts of a cache, they
    are replaced.

    Raises:
        OutputError: another complete cache has this name and ``replace`` is False, or the system refuses.
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
                    f"{differing[0]}: another cache of this name exists, and a run may be using it; check it, then"
                    " replace it explicitly, or write to another folder"
                )
        commit(files)
    finally:
        for file in files:
            file.discard()
    return True


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
        raise OutputError(
            f"{file.path}: the chunks hold {file.size:,} bytes, the array needs {due:,}; nothing was written"
        )


DEFAULTS: Final[Mapping[str, Any]] = {
    "seed": 1234,
    "split": "969, 30, 1",
    "class_name": "GPTDataset",
    "era": "core",
    "tokenizer": None,
}
"""Megatron's own. ``split`` is its text character for character, since the names of the caches depend on it."""


def cache_options(chosen: Mapping[str, Any], *, like: str | None, data_of: str | None) -> dict[str, Any]:
    """Return what decides the name of a cache: the chosen options win over those of a description, and over defaults.

    Args:
        chosen: some of ``seed``, ``split``, ``sequence_length``, ``class_name``, ``era``, ``blend_era``, ``tokenizer``.
        like: the path of a ``description.txt`` that Megatron wrote.
        data_of: the part that the data are for: ``"train"``, ``"valid"`` or ``"test"``; None if they are to be split.

    Raises:
        ConfigError: an option is missing, or given twice.
        StoreError: the file is not a description.
    """
    found = {**DEFAULTS, **({} if like is None else _described(like)), **chosen}
    found.setdefault("blend_era", "core" if found["era"] == "core" else "before_2025_02")
    if data_of is not None:
        if "split" in chosen:
            raise ConfigError(
                f"`split={chosen['split']!r}` and `data_of={data_of}`: data for one part have no split; leave one out"
            )
        found["split"] = ",".join("1" if part == data_of else "0" for part in SPLIT_PARTS)
    if found["split"] is None:
        raise ConfigError(f"{like} describes data for one part only: name the part with `data_of`, or give `split`")
    if "sequence_length" not in found:
        raise ConfigError(
            "the length of a sample is missing: give `sequence_length=S`, or `like=FILE`, a description.txt"
        )
    if found["tokenizer"] is None and found["era"] != "core_v0.4":
        raise ConfigError(
            "the names of the caches depend on the tokenizer: give its unique_identifiers as JSON with"
            " `tokenizer=FILE`, or a description.txt that Megatron wrote with it with `like=FILE`"
        )
    return found


def _described(path: str) -> dict[str, Any]:
    """Return the options in a description."""
    description = cache_at(Path(path)).description
    if description.is_blend:
        raise ConfigError(
            f"{path} describes a blend: use the description of one of its datasets, which has all options"
        )
    facts = gpt_facts(description, path)
    return {
        "seed": facts.random_seed,
        "sequence_length": facts.sequence_length,
        "split": facts.split,
        "class_name": description.class_name,
        "era": description.era,
        "tokenizer": description.identifiers.get("tokenizer"),
    }
