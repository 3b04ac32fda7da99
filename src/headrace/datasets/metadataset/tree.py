"""What a metadataset says, as typed values.

`Entry` and its kinds are the tree as it is written, before any other file is opened. `Tree` is the tree with everything
that nested files say in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from headrace.plan import SubsetRange
from headrace.stores.energon import Nonmatch, Reference

LengthUnit = Literal["steps", "samples"]

_MOST = 1 << 62
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Weight = Annotated[int, msgspec.Meta(ge=0, le=_MOST)] | Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
_Number = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)] | Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of the tree can say.

    Attributes:
        where: file and place in its tree, for messages: ``mix.yaml: splits.train.blend[2]``.
        name: its part of the paths of the sources below it.
        weight: its weight in a ``blend``.
        repetitions: its passes in a ``blend_epochized``.
        split_part: split part of the datasets below, unless they set another.
        subflavors: set on the samples below; those of an outer node win.
        shuffle_over_epochs_multiplier: number of epochs that are shuffled together in the sources below.
        subset: range of every source below.
        limit: number of samples in a pass.
    """

    where: str
    name: _Text | None = None
    weight: _Weight = 1.0
    repetitions: _Number = 1
    split_part: _Text | None = None
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    subset: SubsetRange | None = None
    limit: _Count | None = None


class PathEntry(Entry, frozen=True, kw_only=True):
    """A dataset, or another metadataset.

    Attributes:
        path: the path as it is written.
        dataset_config: another ``dataset.yaml`` of an Energon dataset.
        split_config: another split file of an Energon dataset.
        aux: name -> path of files for cookers.
        windows: for a store of tokens, the options of `WindowDataset`.
        packs: for a store of tokens, the options of `Packing`.
    """

    path: _Text
    dataset_config: _Text | None = None
    split_config: _Text | None = None
    aux: dict[str, _Text] | None = None
    windows: dict[str, Any] | None = None
    packs: dict[str, Any] | None = None


class SourceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One of the datasets of a join: its name in the join, what a missing match means, and as in `PathEntry`.

    In a `Tree` the path is absolute, or relative to the working folder, and the split part is known.
    """

    where: str
    name: str | None
    path: _Text
    nonmatch: Nonmatch = "error"
    split_part: _Text | None = None
    subflavors: dict[str, Any] | None = None
    dataset_config: _Text | None = None
    split_config: _Text | None = None


class JoinEntry(Entry, frozen=True, kw_only=True):
    """Several Energon datasets side by side, and what makes one sample of a row."""

    columns: tuple[SourceColumn, ...]
    joiner: Reference


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Weights up to a step or sample: one entry of a ``schedule``.

    Attributes:
        where: its place.
        weights: one for each entry of the blend, in the same order.
        until: a number and its unit; None for the last entry.
        ramp: the weights move from those of the entry before to these.
    """

    where: str
    weights: tuple[_Weight, ...]
    until: tuple[Annotated[int, msgspec.Meta(le=_MOST)], LengthUnit] | None = None
    ramp: bool = False


class MixEntry(Entry, frozen=True, kw_only=True):
    """Several nodes mixed by weights or repetitions, or one after another.

    Attributes:
        kind: ``"blend"`` is by weights, ``"blend_epochized"`` by repetitions, ``"concat"`` one after another.
        children: at least one; in a ``blend`` all have a weight above 0, unless there is a schedule.
        schedule: for a ``blend``, weights that change; else empty.
        block_samples: for a ``blend``, number of consecutive samples that a child is chosen for.
    """

    kind: Literal["blend", "blend_epochized", "concat"]
    children: tuple[Entry, ...]
    schedule: tuple[ScheduleEntry, ...] = ()
    block_samples: _Count = 1


Splits = dict[str, Entry]
"""Name of a split -> its tree, as it is written."""


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of the tree has.

    Attributes:
        where: file and place in it that say this.
        limits: numbers of samples in a pass, the innermost first.
    """

    where: str
    limits: tuple[int, ...] = ()


class NamedSource(_Place, frozen=True, kw_only=True):
    """A dataset on disk.

    Attributes:
        path: absolute, or relative to the working folder.
        split_part: part of an Energon dataset.
        subflavors: set on its samples, over those of its ``dataset.yaml``; None if nothing sets any.
        shuffle_over_epochs: product of all multipliers.
        subset: the part of it that is used.
        dataset_config: another ``dataset.yaml``.
        split_config: another split file.
        aux: name -> path of files for cookers.
        windows: for tokens, the options of `WindowDataset`.
        packs: for tokens, the options of `Packing`.
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


class JoinedSource(_Place, frozen=True, kw_only=True):
    """Datasets side by side.

    Attributes:
        columns: the first is the primary one.
        joiner: makes one sample of a row.
        folder: folder of the index; None for a metadataset that is not in a file.
        shuffle_over_epochs: product of all multipliers.
        subset: the part of the rows that is used.
    """

    columns: tuple[SourceColumn, ...]
    joiner: Reference
    folder: Path | None
    shuffle_over_epochs: int | None = 1
    subset: SubsetRange | None = None


class Mixed(_Place, frozen=True, kw_only=True):
    """Several nodes mixed by weights or repetitions, or one after another.

    Attributes:
        kind: as in `MixEntry`.
        names: names of the children.
        children: the nodes that are mixed.
        numbers: weights, or repetitions.
        schedule: weights that change; else empty.
        block_samples: number of consecutive samples that a child is chosen for.
    """

    kind: Literal["blend", "blend_epochized", "concat"]
    names: tuple[str, ...]
    children: tuple[Tree, ...]
    numbers: tuple[float, ...]
    schedule: tuple[ScheduleEntry, ...] = ()
    block_samples: int = 1


Tree = NamedSource | JoinedSource | Mixed


def sources(tree: Tree) -> Iterator[NamedSource | JoinedSource]:
    """Yield the datasets of a tree, depth first."""
    if isinstance(tree, Mixed):
        for child in tree.children:
            yield from sources(child)
    else:
        yield tree
