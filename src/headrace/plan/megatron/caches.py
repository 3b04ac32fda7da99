"""Megatron's index caches: their names, and whether the arrays in them belong to the data.

The name of a cache consists of the md5 of a text that describes the dataset, the class, the part and the array:

    description.txt                       files
    {                                     <md5 of the text>-GPTDataset-train-description.txt
        "class": "GPTDataset",                                             -document_index.npy
        "dataset_path": "data/web",                                        -sample_index.npy
        "num_samples": 1000, ...          <md5>-BlendedDataset-train-dataset_index.npy, ...

The text names the data only by their path. It holds neither their content nor the options of the extra token and of the
partial sample. So if the data at a path change, they keep the old name and with it the old cache.

`check_indices` therefore compares the arrays themselves with the data: every sequence of the part must come once for
each epoch, every sample must begin where the sizes put it, and every sample must come once. It takes about 30 ns for
each entry of the document index and a few ns for each sample; its memory is 4.5 bytes a sequence and one byte a sample.
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

from headrace.config import check_choice
from headrace.errors import ConfigError, StoreError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.indices import Integers, SequenceStream, checked_sizes
from headrace.plan.megatron.sampling import SPLITS, Epochs, GPTSampling, count_epochs, parse_split

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

_NAME = re.compile(rf"([0-9a-f]{{32}})-(\w+?)(-(?:{'|'.join(SPLITS)}))?-{re.escape(DESCRIPTION)}")


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
        return _md5(self.text)

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


class BlendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the description of a blend says; if ``size`` is None, the weights are the lengths of the datasets."""

    datasets: list[dict[str, Any]]
    weights: list[int | float]
    size: int | None


Facts = TypeVar("Facts", GPTFacts, BlendFacts)


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


def parse_description(text: str, path: str) -> CacheDescription:
    """Return the description in the ``text`` of a ``description.txt`` at ``path``.

    Raises:
        StoreError: the name or the text is not that of a description, or the name does not hash the text.
    """
    named = _NAME.fullmatch(path.rpartition("/")[2])
    if named is None:
        raise StoreError(
            f"{path}: this is not the description of a cache, which is named <md5>-<class>-<part>-{DESCRIPTION}"
        )
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
    era: CacheEra = "core" if named[3] else "core_v0.4" if '"path_prefix":' in text else "core_v0.5"
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
    return _converted(identifiers, GPTFacts, path)


def blend_facts(description: CacheDescription, path: str) -> BlendFacts:
    """Return the facts in the description of a blend; ``path`` is for messages.

    Raises:
        StoreError: a fact is missing or has another type, or there is not one weight for each dataset.
    """
    facts = _converted(description.identifiers, BlendFacts, path)
    if not facts.datasets or len(facts.datasets) != len(facts.weights):
        raise StoreError(
            f"{path}: there are {len(facts.datasets)} datasets but {len(facts.weights)} weights; remove the cache"
        )
    return facts


def _converted(identifiers: dict[str, Any], kind: type[Facts], path: str) -> Facts:
    try:
        return msgspec.convert(identifiers, kind)
    except msgspec.ValidationError as error:
        what = f"not the description of a {identifiers['class']} of Megatron: {error}"
        raise StoreError(f"{path}: {what}; only GPTDataset, similar classes, and blends can be read") from error


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


CHUNK = 1 << 20


class CachedIndices(NamedTuple):
    """The three arrays in the cache of a `GPTDataset`."""

    document_index: NDArray[Any]
    sample_index: NDArray[Any]
    shuffle_index: NDArray[Any]


class IndexFault(NamedTuple):
    """A fault of an array: its name, the place in it (``"row 17"``, or empty), and what was found and expected."""

    array: str
    place: str
    message: str


_FORMS: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("document_index", (), ("int32",)),
    ("sample_index", (2,), ("int32", "int64")),
    ("shuffle_index", (), ("uint32", "int64")),
)
"""The name of each array, the shape of a row, and the allowed dtypes."""


def fitting_sampling(found: CachedIndices, sizes: Integers, sampling: GPTSampling) -> GPTSampling:
    """Return ``sampling`` with the rounding that the cache was built with: ``float32_ceil`` or exact."""
    if sampling.drop_last_partial or found.shuffle_index.ndim != 1:
        return sampling
    rounded = msgspec.structs.replace(sampling, float32_ceil=True)
    tokens = int(sizes.sum(dtype=np.int64))
    exact, in_float32 = (count_epochs(tokens, each).num_samples for each in (sampling, rounded))
    return rounded if exact != len(found.shuffle_index) == in_float32 else sampling


def check_indices(
    found: CachedIndices, sizes: Integers, sampling: GPTSampling, *, first_sequence: int = 0
) -> Iterator[IndexFault]:
    """Yield the first fault of each array of a cache, or nothing if the arrays are an order of these data.

    Args:
        found: the arrays of the cache.
        sizes: (num_sequences,) integers, the tokens of each sequence of the part.
        sampling: the options for which the cache should have been built, with the dialect ``core``.
        first_sequence: the number of the first sequence of the part.
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
        rows = f"{len(found.sample_index):,} rows; expected {num_samples + 1:,}: one for each sample, and the end"
        yield IndexFault("sample_index", "", rows)
    elif fault is None:
        entries = found.document_index - first_sequence if first_sequence else found.document_index
        yield from _sample_fault(found.sample_index, SequenceStream(entries, sizes), num_samples, sampling)
    if len(found.shuffle_index) != num_samples:
        yield IndexFault("shuffle_index", "", f"{len(found.shuffle_index):,} entries; expected {num_samples:,}")
    else:
        yield from _shuffle_fault(found.shuffle_index, epochs)


def built_otherwise(
    found: CachedIndices, sizes: Integers, sampling: GPTSampling, *, first_sequence: int = 0
) -> GPTSampling | None:
    """Return options with which the arrays are an order of these data, or None if there are none.

    Only the options that the name of a cache does not hash are tried: the extra token and the partial sample.
    """
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
    """Yield the first fault in the arrays of a blend of datasets with these lengths, or nothing.

    The samples of every dataset must come in its own order, from the first one on, and not beyond the last.
    """
    for name, array, dtype in (
        ("dataset_index", dataset_index, "int16"),
        ("dataset_sample_index", dataset_sample_index, "int64"),
    ):
        if array.dtype != dtype or array.shape != (size,):
            yield IndexFault(name, "", f"{array.dtype} of shape {array.shape}; expected {dtype} of shape {(size,)}")
            return
    drawn = np.zeros(len(lengths), dtype=np.int64)
    for first in range(0, size, CHUNK):
        chosen = dataset_index[first : first + CHUNK].astype(np.int64)
        bad = np.flatnonzero((chosen < 0) | (chosen >= len(lengths)))
        if len(bad):
            message = f"dataset {chosen[bad[0]]}; there are {len(lengths):,} datasets"
            yield IndexFault("dataset_index", f"entry {first + int(bad[0]):,}", message)
            return
        ranks = _ranks(chosen, drawn)
        bad = np.flatnonzero(ranks != dataset_sample_index[first : first + CHUNK])
        if len(bad):
            at = first + int(bad[0])
            actual = f"sample {dataset_sample_index[at]:,} of dataset {chosen[bad[0]]}"
            yield IndexFault("dataset_sample_index", f"entry {at:,}", f"{actual}; expected sample {ranks[bad[0]]:,}")
            return
        drawn += np.bincount(chosen, minlength=len(lengths))
    for number, (draws, length) in enumerate(zip(drawn.tolist(), lengths, strict=True)):
        if draws > length:
            message = f"{draws:,} samples are drawn from dataset {number}, which has {length:,}"
            yield IndexFault("dataset_index", "", message)
            return


def _forms(found: CachedIndices) -> Iterator[IndexFault]:
    for (name, row, dtypes), array in zip(_FORMS, found, strict=True):
        if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype not in dtypes:
            expected = " or ".join(dtypes) + (f" with {row[0]} columns" if row else " with one dimension")
            yield IndexFault(name, "", f"{array.dtype} of shape {array.shape}; expected {expected}")


def _document_fault(index: NDArray[Any], count: int, epochs: Epochs, first: int) -> IndexFault | None:
    """The first fault unless each of ``count`` sequences from ``first`` on comes once for each epoch.

    If the last epoch is separate, its entries are checked separately.
    """
    name, wanted, size = "document_index", epochs.num_epochs, len(index)
    if size != wanted * count:
        expected = f"{wanted:,} {'epoch' if wanted == 1 else 'epochs'} of {count:,} sequences"
        return IndexFault(name, "", f"{size:,} entries; expected {expected}")
    separate = [(0, size - count, wanted - 1), (size - count, size, 1)]
    for begin, end, times in separate if epochs.separate_last_epoch else [(0, size, wanted)]:
        counts = np.zeros(count, dtype=np.int32)
        for at in range(begin, end, CHUNK):
            chunk = index[at : min(at + CHUNK, end)].astype(np.int64) - first
            outside = np.flatnonzero((chunk < 0) | (chunk >= count))
            if len(outside):
                message = (
                    f"sequence {int(chunk[outside[0]]) + first:,}; the part has {first:,} to {first + count - 1:,}"
                )
                return IndexFault(name, f"entry {at + int(outside[0]):,}", message)
            np.add.at(counts, chunk, np.int32(1))
        wrong = np.flatnonzero(counts != times)
        if len(wrong):
            actual = f"sequence {first + int(wrong[0]):,} comes {int(counts[wrong[0]]):,} times; expected {times:,}"
            return IndexFault(name, f"entries {begin:,} to {end - 1:,}", actual)
    return None


def _sample_fault(
    index: NDArray[Any], stream: SequenceStream, num_samples: int, sampling: GPTSampling
) -> Iterator[IndexFault]:
    """The first row in which a sample does not begin where the sizes put it."""
    extra = int(sampling.add_extra_token)
    for begin, entries, offsets in stream.sample_rows(sampling.sequence_length, num_samples, extra):
        rows = index[begin : begin + len(entries)]
        wrong = np.flatnonzero((rows[:, 0] != entries) | (rows[:, 1] != offsets))
        if len(wrong):
            row = int(wrong[0])
            actual = f"entry {rows[row, 0]:,} at token {rows[row, 1]:,}"
            expected = f"entry {entries[row]:,} at token {offsets[row]:,}"
            yield IndexFault("sample_index", f"row {begin + row:,}", f"{actual}; expected {expected}")
            return


def _shuffle_fault(index: NDArray[Any], epochs: Epochs) -> Iterator[IndexFault]:
    """The first fault unless this is a permutation; the samples before a separate last epoch must come first."""
    size = epochs.num_samples
    seen = np.zeros(size, dtype=np.bool_)
    before = epochs.num_before_last if epochs.separate_last_epoch else size
    for begin, end in ((0, before), (before, size)):
        for at in range(begin, end, CHUNK):
            chunk = index[at : min(at + CHUNK, end)].astype(np.int64)
            outside = np.flatnonzero((chunk < begin) | (chunk >= end))
            if len(outside):
                message = f"sample {int(chunk[outside[0]]):,}; expected one from {begin:,} to {end - 1:,} here"
                yield IndexFault("shuffle_index", f"entry {at + int(outside[0]):,}", message)
                return
            seen[chunk] = True
    missing = np.flatnonzero(~seen)
    if len(missing):
        yield IndexFault("shuffle_index", "", f"sample {int(missing[0]):,} is missing, and another comes twice")


def _ranks(chosen: IntArray, drawn: IntArray) -> IntArray:
    """(n,) int64: how often each of ``chosen`` came before it; ``drawn`` counts those before this chunk."""
    order = np.argsort(chosen, kind="stable")
    in_order = chosen[order]
    ranks = np.empty_like(chosen)
    ranks[order] = np.arange(len(chosen)) - np.searchsorted(in_order, in_order) + drawn[in_order]
    return ranks
