"""The names of Megatron's index caches: a text that describes the dataset, its md5, and what follows it.

    description.txt                       files
    {                                     <md5 of the text>-GPTDataset-train-description.txt
        "class": "GPTDataset",                                             -document_index.npy
        "dataset_path": "data/web",                                        -sample_index.npy
        "num_samples": 1000, ...          <md5>-BlendedDataset-train-dataset_index.npy, ...

Of the data the text holds the path alone; neither their content nor the extra token is in it, nor whether a partial
sample is dropped. Data that changed under their path have the old name, and the old cache.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.plan.megatron.splits import SPLITS, parse_split

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
        raise StoreError(f"{path}: torn or changed: its name hashes another text, of md5 {named[1]}; remove the cache")
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
