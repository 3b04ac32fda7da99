"""Resolves a metadataset into its tree: nested files and paths are followed, and outer entries change inner ones.

Paths are relative to the file of the metadataset, absolute, or have a protocol.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.config import nearest_or_known
from headrace.datasets.media.file_stores import FILESYSTEM
from headrace.datasets.metadataset.reading import names_of, read_splits
from headrace.datasets.metadataset.tree import (
    Entry,
    JoinedSource,
    JoinEntry,
    Mixed,
    MixEntry,
    NamedSource,
    PathEntry,
    SourceColumn,
    Splits,
    Tree,
)
from headrace.errors import ConfigError, StoreError
from headrace.plan import SubsetRange
from headrace.stores.energon import cache_folder
from headrace.stores.energon.config_file import read_config

_PROTOCOL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def place(text: str, base: Path, where: str) -> str:
    """Return the path of a dataset; relative paths begin at the folder ``base``.

    Raises:
        ConfigError: the path has a protocol that cannot be read here.
    """
    found = _PROTOCOL.fullmatch(text)
    if found is None:
        return os.path.normpath(base / text)
    protocol, rest = found[1].lower(), found[2]
    if protocol == "file":
        return os.path.normpath(rest.removeprefix("localhost"))
    if protocol == "filesystem":
        raise ConfigError(f"{where}: {text} is a folder of files, which only aux can name; give the path of a dataset")
    raise ConfigError(
        f"{where}: {text} cannot be read: only file:// is known here; copy or mount it, and give its path"
    )


def aux_place(text: str, base: Path, where: str) -> str:
    """Return the path of auxiliary files; ``filesystem://FOLDER`` keeps its prefix, with an absolute folder.

    Raises:
        ConfigError: as `place`.
    """
    if text.lower().startswith(FILESYSTEM):
        return FILESYSTEM + place(text[len(FILESYSTEM) :], base, where)
    return place(text, base, where)


SUFFIX = ".yaml"


class MetadatasetPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a metadataset comes from.

    Attributes:
        where: its name in messages.
        base: the folder that its relative paths begin at.
        file: its file; None if it was given as a dict.
        within: the files that led to it.
    """

    where: str
    base: Path
    file: Path | None = None
    within: tuple[Path, ...] = ()


class _Handed(msgspec.Struct, frozen=True, kw_only=True):
    """What outer entries say to the entries below."""

    split_part: str
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs: int | None = 1
    subset: SubsetRange | None = None

    def within(self, entry: Entry) -> _Handed:
        """Return what an entry passes on: outer subflavors win over its own, ranges apply to what its range leaves."""
        try:
            subset = self.subset if entry.subset is None else entry.subset.inside(self.subset)
        except ConfigError as error:
            raise ConfigError(f"{entry.where}: subset: {error}") from error
        return _Handed(
            split_part=entry.split_part or self.split_part,
            subflavors=_joined(self.subflavors, entry.subflavors),
            shuffle_over_epochs=_multiplied(self.shuffle_over_epochs, entry.shuffle_over_epochs_multiplier),
            subset=subset,
        )


def read_file(path: Path) -> Splits:
    """Return the splits of a metadataset on disk.

    Raises:
        StoreError: there is no such file, or it is not YAML.
        ConfigError: the file says something unknown or impossible.
    """
    try:
        return read_splits(read_config(path), str(path))
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file") from None


def resolve(splits: Splits, split_part: str, origin: MetadatasetPlace) -> Tree:
    """Return the tree of a split.

    Raises:
        ConfigError: there is no such split, a path cannot be read here, files contain each other, or keys do not fit
            what lies at a path.
        StoreError: a nested file is missing or malformed, or nothing is at a path.
    """
    return _resolve_split(splits, _Handed(split_part=split_part), origin)


def _resolve_split(splits: Splits, handed: _Handed, origin: MetadatasetPlace) -> Tree:
    entry = splits.get(handed.split_part)
    if entry is None:
        raise ConfigError(_no_split(splits, handed.split_part, origin))
    return _resolve(entry, handed, origin)


def _no_split(splits: Splits, split_part: str, origin: MetadatasetPlace) -> str:
    return f"{origin.where}: has no split {split_part!r}{nearest_or_known(split_part, splits)}"


def _resolve(entry: Entry, outer: _Handed, origin: MetadatasetPlace) -> Tree:
    handed = outer.within(entry)
    if isinstance(entry, PathEntry):
        tree = _resolve_path(entry, handed, origin)
    elif isinstance(entry, JoinEntry):
        tree = _resolve_join(entry, handed, origin)
    elif isinstance(entry, MixEntry):
        tree = Mixed(
            where=entry.where,
            kind=entry.kind,
            names=names_of(entry.children),
            children=tuple(_resolve(child, handed, origin) for child in entry.children),
            numbers=tuple(
                child.repetitions if entry.kind == "blend_epochized" else child.weight for child in entry.children
            ),
            schedule=entry.schedule,
            block_samples=entry.block_samples,
        )
    else:
        raise TypeError(f"{entry.where}: unknown entry {type(entry).__name__}")
    return tree if entry.limit is None else msgspec.structs.replace(tree, limits=(*tree.limits, entry.limit))


def _resolve_path(entry: PathEntry, handed: _Handed, origin: MetadatasetPlace) -> Tree:
    path = place(entry.path, origin.base, f"{entry.where}: path")
    if path.endswith(SUFFIX):
        return _resolve_nested(entry, Path(path), handed, origin)
    aux = {name: aux_place(text, origin.base, f"{entry.where}: aux.{name}") for name, text in (entry.aux or {}).items()}
    return NamedSource(
        where=entry.where,
        path=path,
        **msgspec.structs.asdict(handed),
        dataset_config=entry.dataset_config,
        split_config=entry.split_config,
        aux=aux,
        windows=entry.windows,
        packs=entry.packs,
    )


def _resolve_nested(entry: PathEntry, path: Path, handed: _Handed, origin: MetadatasetPlace) -> Tree:
    for key in ("aux", "dataset_config", "split_config", "windows", "packs"):
        if getattr(entry, key) is not None:
            raise ConfigError(
                f"{entry.where}: {key} goes with a dataset, and {entry.path} is a metadataset: set it there"
            )
    if entry.subset is not None and entry.subset.absolute is not None:
        raise ConfigError(
            f"{entry.where}: subset: a range in samples goes with a dataset, and {entry.path} is a metadataset: use"
            " percentages"
        )
    file = path.resolve()
    chain = (*origin.within, *(() if origin.file is None else (origin.file.resolve(),)))
    if file in chain:
        raise ConfigError(f"{entry.where}: {entry.path} contains itself: {' -> '.join(map(str, (*chain, file)))}")
    if not path.exists():
        raise StoreError(f"{entry.where}: path: nothing is at {path}")
    inner = MetadatasetPlace(where=str(path), base=path.parent, file=path, within=chain)
    splits = read_file(path)
    if handed.split_part not in splits:
        missing = _no_split(splits, handed.split_part, inner)
        raise ConfigError(f"{entry.where}: {missing}; choose another with split_part")
    return _resolve_split(splits, handed, inner)


def _resolve_join(entry: JoinEntry, handed: _Handed, origin: MetadatasetPlace) -> JoinedSource:
    def column(one: SourceColumn) -> SourceColumn:
        path = place(one.path, origin.base, f"{one.where}: path")
        if path.endswith(SUFFIX):
            raise ConfigError(f"{one.where}: path: {one.path} is a metadataset, and only datasets can be joined")
        return msgspec.structs.replace(
            one,
            path=path,
            split_part=one.split_part or handed.split_part,
            subflavors=_joined(handed.subflavors, one.subflavors),
        )

    return JoinedSource(
        where=entry.where,
        columns=tuple(map(column, entry.columns)),
        joiner=entry.joiner,
        folder=None if origin.file is None else cache_folder(origin.file),
        shuffle_over_epochs=handed.shuffle_over_epochs,
        subset=handed.subset,
    )


def _joined(outer: dict[str, Any] | None, inner: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the subflavors of both; those of the outer entry win."""
    return outer if inner is None else {**inner, **(outer or {})}


def _multiplied(outer: int | None, inner: int | None) -> int | None:
    """Multiply two numbers of epochs; None wins over every other value, then -1."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner
