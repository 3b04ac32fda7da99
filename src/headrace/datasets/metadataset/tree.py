"""A split of a metadataset with everything that it refers to: what nested files say is put in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.datasets.metadataset.description import Piece
from headrace.plan import Subset
from headrace.stores.energon import Nonmatch, Reference


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of the tree has.

    Attributes:
        where: the file and the place in it that say this.
        limits: samples of a pass, the innermost first.
    """

    where: str
    limits: tuple[int, ...] = ()


class Source(_Place, frozen=True, kw_only=True):
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
    subset: Subset | None = None
    dataset_config: str | None = None
    split_config: str | None = None
    aux: dict[str, str] = {}
    windows: dict[str, Any] | None = None
    packs: dict[str, Any] | None = None


class SourceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of Energon's in a join; attributes as of `Source`."""

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
    subset: Subset | None = None


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
    schedule: tuple[Piece, ...] = ()
    block_samples: int = 1


Tree = Source | JoinedSource | Mixed


def sources(tree: Tree) -> Iterator[Source | JoinedSource]:
    """The datasets, depth first."""
    if isinstance(tree, Mixed):
        for child in tree.children:
            yield from sources(child)
    else:
        yield tree
