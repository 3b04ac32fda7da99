"""Megatron's index caches, written as Megatron names and looks for them, so that it starts without building them.

    GPTDataset, GPTBlend --> export_cache --> <md5>-GPTDataset-train-description.txt, -document_index.npy, ...
    {                                           |
        "class": "GPTDataset",       text ------+
        "dataset_path": "data/web",
        "num_samples": 1000, ...

The md5 is that of the text in the ``description.txt``, which names the data only by their path. It holds neither their
content nor the options of the extra token and of the partial sample, so Megatron reads a cache for data that were
replaced.

Arrays are written as NumPy does, and the ``description.txt`` last, since Megatron uses a cache only if all its files
exist.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.compat.megatron.blend import GPTBlend
from headrace.compat.megatron.gpt import ONE_PART_SPLITS, SPLIT_PARTS, GPTDataset
from headrace.config import check_choice
from headrace.datasets import Dataset
from headrace.errors import ConfigError, OutputError, StoreError
from headrace.io import AtomicFile, check_local, commit, file_sum, output_errors, read_small
from headrace.plan.megatron import GPTOrder, parse_split, split_ranges
from headrace.stores import IndexedStore

CacheEra = Literal["core", "core_v0.5", "core_v0.4"]
"""Versions of megatron-core that name caches differently.

``core`` is 0.7 and later. ``core_v0.5`` is 0.5 and 0.6, which leave the part out of the names of files, and the part of
a blend out of its text. ``core_v0.4`` has fewer keys, and another name for the path.
"""

Part = Literal["train", "valid", "test"]
BLEND: Final = "BlendedDataset"
GPT_SUFFIXES: Final = ("document_index.npy", "sample_index.npy", "shuffle_index.npy")
BLEND_SUFFIXES: Final = ("dataset_index.npy", "dataset_sample_index.npy")
DESCRIPTION: Final = "description.txt"

_NAME = re.compile(rf"([0-9a-f]{{32}})-(\w+?)(-(?:{'|'.join(SPLIT_PARTS)}))?-{re.escape(DESCRIPTION)}")


class CacheDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The description that identifies a cache.

    ``identifiers`` are JSON values in Megatron's order; ``era`` decides how files are named.
    """

    identifiers: dict[str, Any]
    era: CacheEra = "core"

    @property
    def text(self) -> str:
        """The content of ``description.txt``, in ASCII."""
        return json.dumps(self.identifiers, indent=4)

    @property
    def md5(self) -> str:
        """The md5 of the text, 32 hex digits."""
        return _md5(self.text.encode())

    @property
    def class_name(self) -> str:
        """The name of Megatron's class, such as ``GPTDataset`` or ``BlendedDataset``."""
        return str(self.identifiers["class"])

    @property
    def is_blend(self) -> bool:
        """Whether this is the cache of a blend."""
        return self.class_name == BLEND

    @property
    def part(self) -> str:
        """``"train"``, ``"valid"`` or ``"test"``; empty for blends before 0.7, which do not say it."""
        return str(self.identifiers.get("split" if self.is_blend else "index_split") or "")

    @property
    def stem(self) -> str:
        """The beginning of the names of all files of the cache."""
        return "-".join([self.md5, self.class_name, *([self.part] if self.era == "core" else [])])

    def file_name(self, suffix: str) -> str:
        """Return the name of a file of the cache; ``suffix`` is ``"description.txt"`` or the name of an array."""
        return f"{self.stem}-{suffix}"


class GPTFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the description of a dataset says about its order; ``split`` is None if the data have only one part."""

    dataset_path: str
    num_samples: int | None
    index_split: Part
    random_seed: int
    sequence_length: int
    split: str | None


def describe_gpt(
    facts: GPTFacts, *, tokenizer: Mapping[str, Any] | None, class_name: str = "GPTDataset", era: CacheEra = "core"
) -> CacheDescription:
    """Return the description that Megatron writes for one dataset.

    Args:
        facts: the path as it is passed to Megatron, and the options as they are in its configuration.
        tokenizer: the ``unique_identifiers`` of Megatron's tokeniser, in their order; ``core_v0.4`` has none.
        class_name: the name of the dataset's class.
        era: the version that names the files.

    Raises:
        ConfigError: the split cannot be read, or the era is unknown.
    """
    check_choice("the era", era, get_args(CacheEra))
    old = era == "core_v0.4"
    identifiers: dict[str, Any] = {
        "class": class_name,
        "path_prefix" if old else "dataset_path": facts.dataset_path,
        "num_samples": facts.num_samples,
        "index_split": facts.index_split,
    }
    if old:
        identifiers["split"] = facts.split
    identifiers |= {"random_seed": facts.random_seed, "sequence_length": facts.sequence_length}
    if not old:
        identifiers["split"] = facts.split
        identifiers["split_matrix"] = None if facts.split is None else split_matrix(facts.split)
        identifiers["tokenizer"] = None if tokenizer is None else dict(tokenizer)
    return CacheDescription(identifiers=identifiers, era=era)


def describe_blend(
    members: Sequence[CacheDescription], *, part: str, weights: Sequence[float], size: int | None
) -> CacheDescription:
    """Return the description of a blend. With a ``size`` the weights must be normalised; without, they are lengths."""
    era = members[0].era
    identifiers: dict[str, Any] = {"class": BLEND, "datasets": [member.identifiers for member in members]}
    if era == "core":
        identifiers["split"] = part
    return CacheDescription(identifiers=identifiers | {"weights": list(weights), "size": size}, era=era)


def split_matrix(split: str) -> list[list[float] | None]:
    """Return the begin and end of each part's share, or None for an empty part.

    The first begins with an integer 0, as in Megatron.

    >>> split_matrix("98,2")
    [[0, 0.98], [0.98, 1.0], None]
    """
    borders = accumulate(parse_split(split), initial=0)
    return [[begin, end] if end > begin else None for begin, end in pairwise(borders)]


def read_description(path: str) -> CacheDescription:
    """Return the description in a ``description.txt``.

    Raises:
        StoreError: the file cannot be read, its name or its text is not that of a description, or the name does not
            hash the text.
    """
    named = _NAME.fullmatch(Path(path).name)
    if named is None:
        raise StoreError(
            f"{path}: this is not the description of a cache, which is named <md5>-<class>-<part>-{DESCRIPTION}"
        )
    try:
        text = read_small(Path(path))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if _md5(text) != named[1]:
        raise StoreError(
            f"{path}: incomplete or changed: its name hashes another text, with the md5 {named[1]}; remove the cache"
        )
    try:
        identifiers = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path}: not valid JSON: {error}; remove the cache") from error
    if not isinstance(identifiers, dict) or identifiers.get("class") != named[2]:
        raise StoreError(f"{path}: it does not describe the class {named[2]!r} of its name; remove the cache")
    era: CacheEra = "core" if named[3] else "core_v0.4" if b'"path_prefix":' in text else "core_v0.5"
    found = CacheDescription(identifiers=identifiers, era=era)
    if found.file_name(DESCRIPTION) != named[0]:
        raise StoreError(f"{path}: by its content, its name should be {found.file_name(DESCRIPTION)}; remove the cache")
    return found


def gpt_facts(description: CacheDescription, path: str) -> GPTFacts:
    """Return the facts in the description of one dataset; ``path`` is for messages.

    Raises:
        StoreError: a fact is missing, or has another type.
    """
    identifiers = description.identifiers
    if "path_prefix" in identifiers:
        identifiers = {**identifiers, "dataset_path": identifiers["path_prefix"]}
    try:
        return msgspec.convert(identifiers, GPTFacts)
    except msgspec.ValidationError as error:
        what = f"not the description of a {description.class_name} of Megatron: {error}"
        raise StoreError(f"{path}: {what}; only GPTDataset and similar classes can be read") from error


def _md5(text: bytes) -> str:
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


CHUNK = 1 << 20


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
    exported: dict[Path, ExportedCache] = {}

    def export(folder: Path, description: CacheDescription, of: str, samples: int, arrays: list[ChunkedArray]) -> None:
        place = folder / description.file_name(DESCRIPTION)
        if place not in exported:
            written = write_cache(folder, description.stem, description.text, arrays, replace=replace)
            exported[place] = ExportedCache(
                description=str(place), of=of, part=min(parts), samples=samples, written=written
            )

    for (_, path, order), description in zip(members, descriptions, strict=True):
        folder = path_to_cache if path_to_cache is not None else f"{path}/cache/{class_name}_indices"
        check_local(folder)
        export(Path(folder), description, path, order.epochs.num_samples, _arrays_of(order))
    if isinstance(dataset, GPTBlend) and path_to_cache is not None:
        lengths = [len(member) for member, _, _ in members]
        weights, size = (lengths, None) if dataset.weights is None else (dataset.weights, len(dataset))
        blend = describe_blend(descriptions, part=min(parts), weights=weights, size=size)
        datasets, samples = BLEND_SUFFIXES
        arrays = [_whole(datasets, dataset.dataset_index), _whole(samples, dataset.dataset_sample_index)]
        export(Path(path_to_cache), blend, f"a blend of {len(members):,} datasets", len(dataset), arrays)
    return list(exported.values())


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


def _arrays_of(order: GPTOrder) -> list[ChunkedArray]:
    entries, num_samples = order.num_entries, order.epochs.num_samples
    documents, samples, shuffles = GPT_SUFFIXES
    return [
        ChunkedArray(suffix=documents, shape=(entries,), dtype=np.int32, chunks=order.document_index_chunks(CHUNK)),
        ChunkedArray(
            suffix=samples,
            shape=(num_samples + 1, 2),
            dtype=np.int32 if entries < 1 << 31 else np.int64,
            chunks=order.sample_index_chunks(),
        ),
        _whole(shuffles, order.shuffle_index),
    ]


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
    description = read_description(path)
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
