"""Megatron's index caches: their names, and whether the arrays in them belong to the data.

The names of Megatron's index caches: a text that describes the dataset, its md5, and what follows it.

    description.txt                       files
    {                                     <md5 of the text>-GPTDataset-train-description.txt
        "class": "GPTDataset",                                             -document_index.npy
        "dataset_path": "data/web",                                        -sample_index.npy
        "num_samples": 1000, ...          <md5>-BlendedDataset-train-dataset_index.npy, ...

Of the data the text holds the path alone; neither their content nor the extra token is in it, nor whether a partial
sample is dropped. Data that changed under their path have the old name, and the old cache.

Whether index arrays that were stored are an order of the sequences there are now.

The name of a cache says nothing of the data, so the arrays themselves are asked: every sequence of the part is there as
often as there are epochs, every sample begins where the sizes put it, and every sample comes once.

    about 30 ns an entry of the document index, a few a sample; 4.5 bytes a sequence and one a sample while it runs
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, StoreError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.sampling import Epochs, GPTSampling, count_epochs
from headrace.plan.megatron.splits import SPLITS, parse_split
from headrace.plan.megatron.stream import Integers, SequenceStream, checked_sizes

CacheEra = Literal["core", "core_v0.5", "core_v0.4"]
"""``core``: megatron-core since 0.7; ``core_v0.5`` and its like 0.6 leave the part out of the names of files, and the
part of a blend out of its text; ``core_v0.4`` has fewer keys, and another name for the path."""

Part = Literal["train", "valid", "test"]
BLEND: Final = "BlendedDataset"
GPT_SUFFIXES: Final = ("document_index.npy", "sample_index.npy", "shuffle_index.npy")
BLEND_SUFFIXES: Final = ("dataset_index.npy", "dataset_sample_index.npy")
DESCRIPTION: Final = "description.txt"

_NAME = re.compile(rf"([0-9a-f]{{32}})-(\w+?)(-(?:{'|'.join(SPLITS)}))?-{re.escape(DESCRIPTION)}")


class CacheDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a cache: ``identifiers``, JSON values in Megatron's order, and the ``era`` that names files."""

    identifiers: dict[str, Any]
    era: CacheEra = "core"

    @property
    def text(self) -> str:
        """The content of ``description.txt``, all of it ASCII."""
        return json.dumps(self.identifiers, indent=4)

    @property
    def md5(self) -> str:
        """Of the text: 32 digits in hex."""
        return _md5(self.text)

    @property
    def class_name(self) -> str:
        """Megatron's class, ``GPTDataset`` or ``BlendedDataset``."""
        return str(self.identifiers["class"])

    @property
    def is_blend(self) -> bool:
        """Whether it is of a blend."""
        return self.class_name == BLEND

    @property
    def part(self) -> str:
        """``"train"``, ``"valid"`` or ``"test"``; empty where it is not said, in blends before 0.7."""
        return str(self.identifiers.get("split" if self.is_blend else "index_split") or "")

    @property
    def stem(self) -> str:
        """What the names of all its files begin with."""
        return "-".join([self.md5, self.class_name, *([self.part] if self.era == "core" else [])])

    def file_name(self, suffix: str) -> str:
        """The name of one of its files, ``"description.txt"`` or an ``.npy``."""
        return f"{self.stem}-{suffix}"


class GPTFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the description of one dataset says of its order; ``split`` is None for data of one part alone."""

    dataset_path: str
    num_samples: int | None
    index_split: Part
    random_seed: int
    sequence_length: int
    split: str | None


class BlendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the description of a blend says: datasets, weights and size; without a size the weights are lengths."""

    datasets: list[dict[str, Any]]
    weights: list[int | float]
    size: int | None


Facts = TypeVar("Facts", GPTFacts, BlendFacts)


def describe_gpt(
    facts: GPTFacts, *, tokenizer: Mapping[str, Any] | None, class_name: str = "GPTDataset", era: CacheEra = "core"
) -> CacheDescription:
    """The description that Megatron writes for one dataset.

    Args:
        facts: the path as Megatron is given it, and the options as they are in its configuration.
        tokenizer: the ``unique_identifiers`` of Megatron's tokenizer, in their order; ``core_v0.4`` has none.
        class_name: of the dataset.
        era: whose names.

    Raises:
        ConfigError: the split cannot be read, or the era is unknown.
    """
    if era not in get_args(CacheEra):
        raise ConfigError(f"the era is {era!r}; allowed are {', '.join(map(repr, get_args(CacheEra)))}")
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
    """The description of a blend of datasets; weights as `BlendFacts` has them, normalised where there is a size."""
    era = members[0].era
    identifiers: dict[str, Any] = {"class": BLEND, "datasets": [member.identifiers for member in members]}
    if era == "core":
        identifiers["split"] = part
    return CacheDescription(identifiers=identifiers | {"weights": list(weights), "size": size}, era=era)


def split_matrix(split: str) -> list[list[float] | None]:
    """Begin and end of each part's share, None where there is none; the first begins with an integer, as Megatron's.

    >>> split_matrix("98,2")
    [[0, 0.98], [0.98, 1.0], None]
    """
    borders = accumulate(parse_split(split), initial=0)
    return [[begin, end] if end > begin else None for begin, end in pairwise(borders)]


def parse_description(text: str, path: str) -> CacheDescription:
    """What a ``description.txt`` at ``path`` says.

    Raises:
        StoreError: it is no such name or text, or the text is not the one that the name hashes.
    """
    named = _NAME.fullmatch(path.rpartition("/")[2])
    if named is None:
        raise StoreError(f"{path}: no description of a cache; these are called <md5>-<class>-<part>-{DESCRIPTION}")
    if _md5(text) != named[1]:
        raise StoreError(
            f"{path}: incomplete or changed: its name hashes another text, of md5 {named[1]}; remove the cache"
        )
    try:
        identifiers = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path}: no JSON: {error}; remove the cache") from error
    if not isinstance(identifiers, dict) or identifiers.get("class") != named[2]:
        raise StoreError(f"{path}: not of the class {named[2]!r} that its name says; remove the cache")
    era: CacheEra = "core" if named[3] else "core_v0.4" if '"path_prefix":' in text else "core_v0.5"
    found = CacheDescription(identifiers=identifiers, era=era)
    if found.file_name(DESCRIPTION) != named[0]:
        raise StoreError(f"{path}: by what it says its name is {found.file_name(DESCRIPTION)}; remove the cache")
    return found


def gpt_facts(description: CacheDescription, path: str) -> GPTFacts:
    """The facts of the description of one dataset, found at ``path``.

    Raises:
        StoreError: one is missing, or of another type.
    """
    identifiers = description.identifiers
    if "path_prefix" in identifiers:
        identifiers = {**identifiers, "dataset_path": identifiers["path_prefix"]}
    return _converted(identifiers, GPTFacts, path)


def blend_facts(description: CacheDescription, path: str) -> BlendFacts:
    """The facts of the description of a blend, found at ``path``.

    Raises:
        StoreError: one is missing, of another type, or there is not one weight for each dataset.
    """
    facts = _converted(description.identifiers, BlendFacts, path)
    if not facts.datasets or len(facts.datasets) != len(facts.weights):
        raise StoreError(f"{path}: {len(facts.datasets)} datasets and {len(facts.weights)} weights; remove the cache")
    return facts


def _converted(identifiers: dict[str, Any], kind: type[Facts], path: str) -> Facts:
    try:
        return msgspec.convert(identifiers, kind)
    except msgspec.ValidationError as error:
        what = f"not what a {identifiers['class']} of Megatron is described by: {error}"
        raise StoreError(f"{path}: {what}; only GPTDataset, its like, and blends are read") from error


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


_CHUNK = 1 << 20


class CachedIndices(NamedTuple):
    """The three arrays of a `GPTDataset`'s cache, as they were found."""

    document_index: NDArray[Any]
    sample_index: NDArray[Any]
    shuffle_index: NDArray[Any]


class IndexFault(NamedTuple):
    """Which array is wrong, where in it (``"row 17"``, or empty), and what is there and ought to be."""

    array: str
    place: str
    message: str


_FORMS: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("document_index", (), ("int32",)),
    ("sample_index", (2,), ("int32", "int64")),
    ("shuffle_index", (), ("uint32", "int64")),
)
"""Name, shape of a row, and dtypes of each array."""


def fitting_sampling(found: CachedIndices, sizes: Integers, sampling: GPTSampling) -> GPTSampling:
    """``sampling`` with the rounding of the number of samples, exact or Megatron's, that the cache was built with."""
    if sampling.drop_last_partial or found.shuffle_index.ndim != 1:
        return sampling
    rounded = msgspec.structs.replace(sampling, float32_ceil=True)
    tokens = int(sizes.sum(dtype=np.int64))
    exact, in_float32 = (count_epochs(tokens, each).num_samples for each in (sampling, rounded))
    return rounded if exact != len(found.shuffle_index) == in_float32 else sampling


def check_indices(
    found: CachedIndices, sizes: Integers, sampling: GPTSampling, *, first_sequence: int = 0
) -> Iterator[IndexFault]:
    """What is wrong with the arrays of a cache, the first fault of each; nothing if they are an order of these data.

    Args:
        found: the arrays.
        sizes: (sequences,) tokens of each sequence of the part.
        sampling: what the cache ought to be built for; of the dialect ``core``.
        first_sequence: the number of the first of them.
    """
    sizes = checked_sizes(sizes)
    wrong_forms = list(_forms(found))
    if wrong_forms:
        yield from wrong_forms
        return
    try:
        epochs = count_epochs(int(sizes.sum(dtype=np.int64)), sampling)
    except ConfigError as error:
        yield IndexFault("document_index", "", str(error))
        return
    num_samples = epochs.num_samples
    fault = _document_fault(found.document_index, len(sizes), epochs, first_sequence)
    if fault is not None:
        yield fault
    if len(found.sample_index) != num_samples + 1:
        rows = f"{len(found.sample_index):,} rows, {num_samples + 1:,} are due: one a sample, and the end"
        yield IndexFault("sample_index", "", rows)
    elif fault is None:
        entries = found.document_index - first_sequence if first_sequence else found.document_index
        yield from _sample_fault(found.sample_index, SequenceStream(entries, sizes), num_samples, sampling)
    if len(found.shuffle_index) != num_samples:
        yield IndexFault("shuffle_index", "", f"{len(found.shuffle_index):,} entries, {num_samples:,} are due")
    else:
        yield from _shuffle_fault(found.shuffle_index, epochs)


def built_otherwise(
    found: CachedIndices, sizes: Integers, sampling: GPTSampling, *, first_sequence: int = 0
) -> GPTSampling | None:
    """The options that no name hashes with which the arrays are an order of these data; None if there are none."""
    for extra in (True, False):
        for drop in (True, False):
            if (extra, drop) == (sampling.add_extra_token, sampling.drop_last_partial):
                continue
            other = msgspec.structs.replace(sampling, add_extra_token=extra, drop_last_partial=drop, float32_ceil=False)
            try:
                other = fitting_sampling(found, sizes, other)
            except ConfigError:
                continue
            if next(check_indices(found, sizes, other, first_sequence=first_sequence), None) is None:
                return other
    return None


def check_blend_indices(
    dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], *, size: int, lengths: Sequence[int]
) -> Iterator[IndexFault]:
    """What is wrong with the arrays of a blend of datasets of these lengths: the first fault.

    Every dataset is drawn from in its own order, from its first sample on, and never beyond its last.
    """
    for name, array, dtype in (
        ("dataset_index", dataset_index, "int16"),
        ("dataset_sample_index", dataset_sample_index, "int64"),
    ):
        if array.dtype != dtype or array.shape != (size,):
            yield IndexFault(name, "", f"{array.dtype} of shape {array.shape}, {dtype} of shape {(size,)} is due")
            return
    drawn = np.zeros(len(lengths), dtype=np.int64)
    for first in range(0, size, _CHUNK):
        chosen = dataset_index[first : first + _CHUNK].astype(np.int64)
        bad = np.flatnonzero((chosen < 0) | (chosen >= len(lengths)))
        if len(bad):
            message = f"dataset {chosen[bad[0]]}, of {len(lengths):,} datasets"
            yield IndexFault("dataset_index", f"entry {first + int(bad[0]):,}", message)
            return
        ranks = _ranks(chosen, drawn)
        bad = np.flatnonzero(ranks != dataset_sample_index[first : first + _CHUNK])
        if len(bad):
            at = first + int(bad[0])
            there = f"sample {dataset_sample_index[at]:,} of dataset {chosen[bad[0]]}"
            yield IndexFault("dataset_sample_index", f"entry {at:,}", f"{there}, {ranks[bad[0]]:,} is due")
            return
        drawn += np.bincount(chosen, minlength=len(lengths))
    for number, (draws, length) in enumerate(zip(drawn.tolist(), lengths, strict=True)):
        if draws > length:
            yield IndexFault("dataset_index", "", f"{draws:,} samples of dataset {number}, which has {length:,}")
            return


def _forms(found: CachedIndices) -> Iterator[IndexFault]:
    for (name, row, dtypes), array in zip(_FORMS, found, strict=True):
        if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype not in dtypes:
            due = " or ".join(dtypes) + (f" of {row[0]} columns" if row else " of one dimension")
            yield IndexFault(name, "", f"{array.dtype} of shape {array.shape}, {due} is due")


def _document_fault(index: NDArray[Any], count: int, epochs: Epochs, first: int) -> IndexFault | None:
    """Whether each of ``count`` sequences from ``first`` on comes once an epoch, also in a last one that is apart."""
    name, wanted, size = "document_index", epochs.num_epochs, len(index)
    if size != wanted * count:
        due = f"{wanted:,} {'epoch' if wanted == 1 else 'epochs'} of {count:,} sequences are due"
        return IndexFault(name, "", f"{size:,} entries, {due}")
    apart = [(0, size - count, wanted - 1), (size - count, size, 1)]
    for begin, end, times in apart if epochs.separate_last_epoch else [(0, size, wanted)]:
        counts = np.zeros(count, dtype=np.int32)
        for at in range(begin, end, _CHUNK):
            chunk = index[at : min(at + _CHUNK, end)].astype(np.int64) - first
            outside = np.flatnonzero((chunk < 0) | (chunk >= count))
            if len(outside):
                message = (
                    f"sequence {int(chunk[outside[0]]) + first:,}, the part has {first:,} to {first + count - 1:,}"
                )
                return IndexFault(name, f"entry {at + int(outside[0]):,}", message)
            np.add.at(counts, chunk, np.int32(1))
        wrong = np.flatnonzero(counts != times)
        if len(wrong):
            there = f"sequence {first + int(wrong[0]):,} comes {int(counts[wrong[0]]):,} times, {times:,} are due"
            return IndexFault(name, f"entries {begin:,} to {end - 1:,}", there)
    return None


def _sample_fault(
    index: NDArray[Any], stream: SequenceStream, num_samples: int, sampling: GPTSampling
) -> Iterator[IndexFault]:
    """The first row that is not where the sizes put it."""
    extra = int(sampling.add_extra_token)
    for begin, entries, offsets in stream.sample_rows(sampling.sequence_length, num_samples, extra):
        rows = index[begin : begin + len(entries)]
        wrong = np.flatnonzero((rows[:, 0] != entries) | (rows[:, 1] != offsets))
        if len(wrong):
            row = int(wrong[0])
            there = f"entry {rows[row, 0]:,} at token {rows[row, 1]:,}"
            due = f"entry {entries[row]:,} at token {offsets[row]:,} is due"
            yield IndexFault("sample_index", f"row {begin + row:,}", f"{there}, {due}")
            return


def _shuffle_fault(index: NDArray[Any], epochs: Epochs) -> Iterator[IndexFault]:
    """Whether it is a permutation, and those samples first that begin before a last epoch that is apart."""
    size = epochs.num_samples
    seen = np.zeros(size, dtype=np.bool_)
    before = epochs.num_before_last if epochs.separate_last_epoch else size
    for begin, end in ((0, before), (before, size)):
        for at in range(begin, end, _CHUNK):
            chunk = index[at : min(at + _CHUNK, end)].astype(np.int64)
            outside = np.flatnonzero((chunk < begin) | (chunk >= end))
            if len(outside):
                message = f"sample {int(chunk[outside[0]]):,}, those from {begin:,} to {end - 1:,} are due here"
                yield IndexFault("shuffle_index", f"entry {at + int(outside[0]):,}", message)
                return
            seen[chunk] = True
    missing = np.flatnonzero(~seen)
    if len(missing):
        yield IndexFault("shuffle_index", "", f"sample {int(missing[0]):,} is missing, and another comes twice")


def _ranks(chosen: IntArray, drawn: IntArray) -> IntArray:
    """(n,) int64: how often each of ``chosen`` came before, ``drawn`` times before all of them."""
    order = np.argsort(chosen, kind="stable")
    in_order = chosen[order]
    ranks = np.empty_like(chosen)
    ranks[order] = np.arange(len(chosen)) - np.searchsorted(in_order, in_order) + drawn[in_order]
    return ranks
