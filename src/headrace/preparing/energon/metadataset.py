"""Make the indices with which the joins of a metadataset find their samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.config import describe
from headrace.errors import ConfigError, StoreError
from headrace.io import check_local, local_path, output_errors
from headrace.stores.energon.config_file import as_map, read_config
from headrace.stores.energon.join_writer import Join, write_join
from headrace.stores.energon.joined import JoinColumn, cache_folder
from headrace.stores.energon.store import EnergonStore

_BLENDS = ("blend", "blend_epochized", "concat")


def prepare_joins(path: Path) -> dict[str, Join]:
    """Make the join indices of a metadataset, and of the metadatasets that it names.

    Indices of joins that the metadataset no longer holds are removed.

    Returns:
        The joins by their place in the file.

    Raises:
        StoreError: the metadataset is malformed, or a dataset cannot be opened or joined.
        InputError: a sample that must have a partner has none.
        OutputError: an index cannot be written or removed.
    """
    joins: dict[str, Join] = {}
    _prepare(path, joins, (), None)
    return joins


def _prepare(path: Path, joins: dict[str, Join], above: tuple[Path, ...], only: str | None) -> None:
    if path.resolve() in above:
        raise StoreError(f"{path}: the metadataset contains itself")
    try:
        found = as_map(read_config(path), str(path))
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such metadataset") from None
    splits = as_map(found.get("splits"), f"{path}: splits")
    made: list[Path] = []
    for split, node in splits.items():
        if only is not None and split != only:
            continue
        for place, inner, split_part in _leaves(node, f"{path}: splits: {split}", str(split)):
            if "join" in inner:
                try:
                    join = write_join(
                        local_path(cache_folder(path)), _columns(inner["join"], path, split_part, f"{place}: join")
                    )
                except ConfigError as error:
                    raise StoreError(f"{place}: join: {error}") from error
                joins[f"{place}: join"] = join
                made.append(join.path)
            elif str(inner.get("path", "")).endswith(".yaml"):
                _prepare(_place(path, str(inner["path"])), joins, (*above, path.resolve()), split_part)
    if only is None:
        _remove_others(local_path(cache_folder(path)), made)


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


def _place(path: Path, named: str) -> Path:
    """Resolve a path that the metadataset ``path`` names; it may begin with ``file://``."""
    protocol, separator, rest = named.partition("://")
    if protocol.lower() != "file":
        check_local(named)
    return path.parent / (rest.removeprefix("localhost") if separator and protocol.lower() == "file" else named)


def _columns(value: Any, path: Path, split: str, where: str) -> list[JoinColumn]:
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
        store = EnergonStore(
            _place(path, found["path"]),
            split_part=found.get("split_part") or split,
            split_config=found.get("split_config"),
        )
        columns.append(JoinColumn(store=store, nonmatch=found.get("nonmatch", "error"), name=name))
    return columns


def _remove_others(folder: Path, made: list[Path]) -> None:
    """Remove indices that were made for joins which this file no longer holds."""
    if not folder.is_dir():
        return
    kept = {path.name for path in made}
    for path in folder.glob("join_index_*.bin"):
        if path.name not in kept:
            with output_errors(path, "remove"):
                path.unlink(missing_ok=True)
