"""`MeasuredFacts`: the folder of facts, memory-mapped arrays and a summary."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import Dataset
from headrace.datasets.excluded import rising_numbers
from headrace.datasets.measuring.chunk import FACTS_VERSION, key_of
from headrace.encoders import Fault
from headrace.errors import ConfigError, StoreError
from headrace.io import check_local
from headrace.plan import IntArray
from headrace.plan.measured import Facts, Grouping
from headrace.plan.measured.grouping import Remainder
from headrace.plan.recipe import contents_hash, differing_parts
from headrace.stores import check_arrays, find_arrays


class FaultCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of samples that failed in a hook with one kind of error."""

    hook: str
    kind: str
    count: int


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of outputs: its key as JSON, the size of its batches if the hook returns one, and its outputs."""

    key: str
    size: int | None
    outputs: int


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of the facts in addition to the arrays.

    Attributes:
        kind: identifies this kind of file.
        version: version of the format.
        dataset: fingerprint of the dataset that was measured.
        encoder: name, version and hooks of the task encoder.
        settings: whatever else was given as deciding the facts.
        samples: number of samples in the dataset.
        bad_samples: samples that could not be made; they have no outputs.
        skipped_samples: good samples that have no outputs: filtered out.
        outputs: number of outputs of all good samples.
        tokens: the sum of their lengths; None if these were not measured.
        groups: by their numbers, in the order in which they first occur; empty if they were not measured.
        faults: those of the bad samples, most frequent first.
        xxh3_128: hash of the bytes of all arrays.
        contents: hash of the contents of the dataset's files, see `headrace.plan.recipe.contents_hash`.
    """

    kind: Literal["headrace.facts"] = "headrace.facts"
    version: int = FACTS_VERSION
    dataset: str
    encoder: dict[str, Any]
    settings: dict[str, Any]
    samples: int
    bad_samples: int
    skipped_samples: int
    outputs: int
    tokens: int | None
    groups: tuple[GroupFacts, ...]
    faults: tuple[FaultCount, ...]
    xxh3_128: str
    contents: dict[str, str] = {}


class MeasuredFacts:
    """The result of `measure`, memory-mapped from its folder.

    Arrays by name: ``is_good`` (samples,) bool, ``num_outputs`` (samples,) unsigned; for each output, if measured,
    ``lengths`` and ``groups`` (outputs,) unsigned; ``faults`` (bytes,) uint8, JSON lines.
    """

    def __init__(self, path: Path, summary: Summary, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.path = path
        self.summary = summary
        self.arrays = dict(arrays)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MeasuredFacts:
        """Open the facts in a folder. All bytes are hashed, 0.15 s a gigabyte: about 0.05 s for 10^8 samples.

        Raises:
            StoreError: there are none, or they are damaged.
        """
        check_local(path)
        found = cls.find(Path(path))
        if found is None:
            raise StoreError(f"{path}: there are no facts; `headrace measure` prints the folder that it writes")
        return found

    def is_of(self, dataset: Dataset) -> bool:
        """Return whether a dataset was measured, with the same contents of files if both know them."""
        summary = self.summary
        return summary.dataset == dataset.fingerprint and not differing_parts(
            summary.contents, contents_hash(dataset.recipe)
        )

    @classmethod
    def find(cls, path: Path) -> MeasuredFacts | None:
        """Open the facts in a folder, or return None if there are none. Raises StoreError if they are damaged."""
        kept = find_arrays(path.parent, path.name)
        if kept is None:
            return None
        arrays, meta = kept
        try:
            summary = msgspec.json.decode(meta, type=Summary)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"{path}: these are not facts, or facts of another version: {error}") from error
        if summary.version != FACTS_VERSION:
            raise StoreError(
                f"{path}: facts of version {summary.version}, and this Headrace has {FACTS_VERSION}: measure again"
            )
        rows = {"is_good": summary.samples, "num_outputs": summary.samples}
        rows |= dict.fromkeys(("lengths", "groups"), summary.outputs)
        for name in ("is_good", "num_outputs", "faults", *(["groups"] if summary.groups else [])):
            if name not in arrays:
                raise StoreError(f"{path}: the array {name!r} is missing; remove {path}, and measure again")
        for name, array in arrays.items():
            if array.ndim != 1 or array.dtype.kind not in "bu" or len(array) != rows.get(name, len(array)):
                raise StoreError(
                    f"{path / name}.npy: {array.dtype} of shape {array.shape}, and the summary expects"
                    f" {rows.get(name, len(array)):,} values; remove {path}, and measure again"
                )
        return cls(path, summary, arrays)

    def check(self) -> list[str]:
        """Read all bytes and return how they differ from what was written; empty if they do not."""
        return list(map(str, check_arrays(self.path.parent, self.path.name)))

    def __len__(self) -> int:
        return self.summary.samples

    @property
    def name(self) -> str:
        """Name of the folder: 128 bits over what was measured."""
        return self.path.name

    @property
    def keys(self) -> list[Any]:
        """Keys of the groups, by their numbers."""
        return [key_of(group.key) for group in self.summary.groups]

    def faults(self) -> Iterator[Fault]:
        """Yield the fault of each bad sample, in order: which sample it is, and why it failed."""
        for line in self.arrays["faults"].tobytes().splitlines():
            yield msgspec.json.decode(line, type=Fault)

    def facts(self, exclude: Sequence[int] | IntArray = ()) -> Facts:
        """Return the facts for the plan, with some samples left out.

        Raises:
            ConfigError: there is no such sample, or no sample is left.
        """
        counts = self.arrays["num_outputs"]
        return Facts(
            len(self),
            is_good=self._kept(rising_numbers("exclude", exclude)),
            num_outputs=counts if bool((counts != 1).any()) else None,
            lengths=self.arrays.get("lengths"),
            groups=self.arrays.get("groups"),
        )

    def _kept(self, exclude: IntArray) -> NDArray[np.bool_] | None:
        if not len(exclude):
            return None  # bad samples have no outputs, and so need no mask
        if exclude[-1] >= len(self):
            raise ConfigError(
                f"exclude names samples {exclude[0]:,} to {exclude[-1]:,}; there are {len(self):,}, counted from 0"
            )
        kept = np.ones(len(self), dtype=bool)
        kept[exclude] = False
        return kept

    def grouping(
        self, *, batch_size: int | None = None, remainder: Remainder = "short", regroup: bool = False
    ) -> Grouping:
        """Return units of one group each, with the sizes that ``batch_group_criterion`` returned.

        Args:
            batch_size: size for all groups, if the hook returned None.
            remainder, regroup: see `Grouping`.

        Raises:
            ConfigError: groups were not measured; a size is given twice, or not at all.
        """
        groups = self.summary.groups
        if not groups:
            raise ConfigError(f"{self.path}: groups were not measured: the encoder has no batch_group_criterion")
        sizes = {number: group.size for number, group in enumerate(groups) if group.size is not None}
        if bool(sizes) if batch_size is not None else len(sizes) < len(groups):
            raise ConfigError(
                f"{len(sizes):,} of {len(groups):,} groups have a size from batch_group_criterion, and batch_size is"
                f" {batch_size}; exactly one of the two must set the sizes"
            )
        common = batch_size or Counter(sizes.values()).most_common(1)[0][0]
        others = {number: size for number, size in sizes.items() if size != common}
        return Grouping(size=common, sizes=others, remainder=remainder, regroup=regroup)

    def __repr__(self) -> str:
        summary = self.summary
        return (
            f"<MeasuredFacts: {summary.outputs:,} outputs of {summary.samples:,} samples, {summary.bad_samples:,} bad,"
            f" {self.path}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MeasuredFacts.open, (self.path,)
