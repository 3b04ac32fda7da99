"""What a metadataset says, as typed values: the tree as it is written, and with all that nested files say.

What a metadataset says, as typed values: the tree as it is written, before any other file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.plan import SubsetRange
from headrace.stores.energon import Nonmatch, Reference

LengthUnit = Literal["steps", "samples"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of the tree can say.

    Attributes:
        where: file and place in its tree, for messages: ``mix.yaml: splits.train.blend[2]``.
        name: its part of the paths of the sources below it.
        weight: in a ``blend``.
        repetitions: in a ``blend_epochized``.
        split_part: of the datasets below, unless they say another.
        subflavors: of the samples below; those of an outer node hold.
        shuffle_over_epochs_multiplier: over how many epochs together the sources below are shuffled.
        subset: of every source below.
        limit: samples of a pass.
    """

    where: str
    name: str | None = None
    weight: float = 1.0
    repetitions: float = 1
    split_part: str | None = None
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    subset: SubsetRange | None = None
    limit: int | None = None


class PathEntry(Entry, frozen=True, kw_only=True):
    """A dataset, or another metadataset.

    Attributes:
        path: as it is written.
        dataset_config: another ``dataset.yaml`` of an Energon dataset.
        split_config: another split file of it.
        aux: name -> path of files for cookers.
        windows: of a store of tokens, the options of `WindowDataset`.
        packs: of a store of tokens, the options of `Packing`.
    """

    path: str
    dataset_config: str | None = None
    split_config: str | None = None
    aux: dict[str, str] | None = None
    windows: dict[str, Any] | None = None
    packs: dict[str, Any] | None = None


class JoinMember(msgspec.Struct, frozen=True, kw_only=True):
    """One of the datasets of a join."""

    where: str
    name: str | None
    path: str
    nonmatch: Nonmatch = "error"
    split_part: str | None = None
    subflavors: dict[str, Any] | None = None
    dataset_config: str | None = None
    split_config: str | None = None


class JoinEntry(Entry, frozen=True, kw_only=True):
    """Several Energon datasets side by side, and what makes one sample of theirs."""

    columns: tuple[JoinMember, ...]
    joiner: Reference


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Weights up to some step or sample: one entry of a ``schedule``.

    Attributes:
        where: its place.
        weights: one for each entry of the blend, in its order.
        until: a number and its unit; None for the last piece.
        ramp: the weights move to these from those before.
    """

    where: str
    weights: tuple[float, ...]
    until: tuple[int, LengthUnit] | None = None
    ramp: bool = False


class MixEntry(Entry, frozen=True, kw_only=True):
    """Several nodes together: by weights, by repetitions, or one after another.

    Attributes:
        kind: which.
        children: at least one; in a ``blend`` all with a weight above 0, unless there is a schedule.
        schedule: of a ``blend``, weights that change; else empty.
        block_samples: of a ``blend``, for how many consecutive samples a child is chosen.
    """

    kind: Literal["blend", "blend_epochized", "concat"]
    children: tuple[Entry, ...]
    schedule: tuple[ScheduleEntry, ...] = ()
    block_samples: int = 1


Splits = dict[str, Entry]
"""Name of a split -> its tree."""


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of the tree has.

    Attributes:
        where: the file and the place in it that say this.
        limits: samples of a pass, the innermost first.
    """

    where: str
    limits: tuple[int, ...] = ()


class NamedSource(_Place, frozen=True, kw_only=True):
    """A dataset on disk.

    Attributes:
        path: absolute, or from where the process is.
        split_part: of a dataset of Energon's.
        subflavors: of its samples, over those of its ``dataset.yaml``; None where nothing was said.
        shuffle_over_epochs: all multipliers together.
        subset: a part of it.
        dataset_config: another ``dataset.yaml``.
        split_config: another split file.
        aux: name -> path.
        windows: of tokens.
        packs: of tokens.
    """

    path: str
    split_part: str
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs: int | None = 1
    subset: SubsetRange | None = None
    dataset_config: str | None = None
    split_config: str | None = None
    aux: dict[str, str] = {}
    windows: dict[str, Any] | None = None
    packs: dict[str, Any] | None = None


class SourceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of Energon's in a join; attributes as of `NamedSource`."""

    where: str
    name: str | None
    path: str
    split_part: str
    nonmatch: Nonmatch
    subflavors: dict[str, Any] | None = None
    dataset_config: str | None = None
    split_config: str | None = None


class JoinedSource(_Place, frozen=True, kw_only=True):
    """Datasets side by side.

    Attributes:
        columns: the first is the primary one.
        joiner: what makes one sample of theirs.
        folder: where the index lies; None of a metadataset that is in no file.
        shuffle_over_epochs: all multipliers together.
        subset: a part of the rows.
    """

    columns: tuple[SourceColumn, ...]
    joiner: Reference
    folder: Path | None
    shuffle_over_epochs: int | None = 1
    subset: SubsetRange | None = None


class Mixed(_Place, frozen=True, kw_only=True):
    """Several nodes together.

    Attributes:
        kind: by weights, by repetitions, or one after another.
        names: of the children.
        children: what is mixed.
        numbers: weights, or repetitions.
        schedule: weights that change; else empty.
        block_samples: for how many consecutive samples a child is chosen.
    """

    kind: Literal["blend", "blend_epochized", "concat"]
    names: tuple[str, ...]
    children: tuple[Tree, ...]
    numbers: tuple[float, ...]
    schedule: tuple[ScheduleEntry, ...] = ()
    block_samples: int = 1


Tree = NamedSource | JoinedSource | Mixed


def sources(tree: Tree) -> Iterator[NamedSource | JoinedSource]:
    """The datasets, depth first."""
    if isinstance(tree, Mixed):
        for child in tree.children:
            yield from sources(child)
    else:
        yield tree
