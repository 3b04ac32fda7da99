"""Make the indices with which the joins of a metadataset find their samples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.config import describe
from headrace.errors import ConfigError, StoreError
from headrace.io import AnyPath, Reader, Storage, check_readable, path_at, path_in, reader_at, reader_of, remove_file
from headrace.stores.energon.config_file import as_map, read_config
from headrace.stores.energon.join_writer import Join, write_join
from headrace.stores.energon.joined import JoinColumn, cache_folder
from headrace.stores.energon.store import EnergonStore

_BLENDS = ("blend", "blend_epochized", "concat")


def prepare_joins(path: str | os.PathLike[str], storage: Storage | None = None) -> dict[str, Join]:
    """Make the join indices of a metadataset, and of the metadatasets that it names.

    Indices of joins that the metadataset no longer holds are removed. Each index lies beside the file that holds its
    join, which may be at a URL, and so may the datasets.

    Args:
        path: the ``.yaml``.
        storage: how the stores of URLs are reached; None goes by the environment.

    Returns:
        The joins by their place in the file.

    Raises:
        StoreError: the metadataset is malformed, or a dataset cannot be opened or joined.
        InputError: a sample that must have a partner has none.
        OutputError: an index cannot be written or removed.
    """
    joins: dict[str, Join] = {}
    using = reader_of(storage)
    _prepare(path_at(path, using), joins, (), None, using)
    return joins


def _prepare(
    path: AnyPath, joins: dict[str, Join], above: tuple[AnyPath, ...], only: str | None, using: str | Reader
) -> None:
    if path.resolve() in above:
        raise StoreError(f"{path}: the metadataset contains itself")
    try:
        found = as_map(read_config(path), str(path))
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such metadataset") from None
    splits = as_map(found.get("splits"), f"{path}: splits")
    made: list[AnyPath] = []
    for split, node in splits.items():
        if only is not None and split != only:
            continue
        for place, inner, split_part in _leaves(node, f"{path}: splits: {split}", str(split)):
            if "join" in inner:
                try:
                    columns = _columns(inner["join"], path, split_part, f"{place}: join", using)
                    join = write_join(cache_folder(path), columns)
                except ConfigError as error:
                    raise StoreError(f"{place}: join: {error}") from error
                joins[f"{place}: join"] = join
                made.append(join.path)
            elif str(inner.get("path", "")).endswith(".yaml"):
                nested = _place(path, str(inner["path"]), using)
                _prepare(nested, joins, (*above, path.resolve()), split_part, using)
    if only is None:
        _remove_others(cache_folder(path), made)


def _leaves(node: Any, where: str, split_part: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the datasets and joins of a split, at any depth of blends, each with its place and its part of the split.

    The part is that of the dataset or join itself, or else of the nearest blend around it that names one. Version 1 of
    metadatasets (``datasets``) is read too.
    """
    found = as_map(node, where)
    part = str(found.get("split_part") or split_part)
    lists = [name for name in (*_BLENDS, "datasets") if name in found]
    if not lists:
        yield where, found, part
    for name in lists:
        if not isinstance(found[name], list):
            raise StoreError(f"{where}: {name}: expected a list of datasets, found {describe(found[name])}")
        for number, inner in enumerate(found[name]):
            yield from _leaves(inner, f"{where}: {name}: {number}", part)


def _place(path: AnyPath, named: str, using: str | Reader) -> AnyPath:
    """Resolve a path that the metadataset ``path`` names; it may be a URL, or begin with ``file://``."""
    protocol, separator, rest = named.partition("://")
    if separator and protocol.lower() == "file":
        return Path(rest.removeprefix("localhost"))
    check_readable(named)
    return path_in(path.parent, named, using)


def _columns(value: Any, path: AnyPath, split: str, where: str, using: str | Reader) -> list[JoinColumn]:
    if isinstance(value, list):
        named: list[tuple[str | None, Any]] = [(None, inner) for inner in value]
    else:
        named = list(as_map(value, where).items())
    columns = []
    for name, inner in named:
        found = as_map(inner, where)
        if not isinstance(found.get("path"), str):
            raise StoreError(f"{where}: each dataset of a join needs a path; found {describe(found.get('path'))}")
        if "split" in found:
            raise StoreError(f"{where}: unknown key 'split'; did you mean 'split_part'?")
        root = _place(path, found["path"], using)
        store = EnergonStore(
            root,
            split_part=found.get("split_part") or split,
            split_config=found.get("split_config"),
            using=reader_at(root, using),
        )
        columns.append(JoinColumn(store=store, nonmatch=found.get("nonmatch", "error"), name=name))
    return columns


def _remove_others(folder: AnyPath, made: list[AnyPath]) -> None:
    """Remove indices that were made for joins which this file no longer holds."""
    if not folder.is_dir():
        return
    kept = {path.name for path in made}
    for path in folder.glob("join_index_*.bin"):
        if path.name not in kept:
            remove_file(path)
