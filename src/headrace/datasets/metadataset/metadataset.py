"""Metadatasets opened: their splits as datasets, their leaves as a list, their joins prepared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.datasets.dataset import Dataset
from headrace.datasets.metadataset.building import build
from headrace.datasets.metadataset.description import Splits
from headrace.datasets.metadataset.opening import SourceOptions, join_columns
from headrace.datasets.metadataset.reading import read_splits
from headrace.datasets.metadataset.resolving import SUFFIX, Origin, read_file, resolve
from headrace.datasets.metadataset.tree import JoinedSource, Source, Tree, sources
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import check_local
from headrace.plan import BatchSchedule
from headrace.stores.energon import Join, write_join


class TraversedDatasetReference(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that a split of a metadataset reaches.

    Attributes:
        path: of the dataset.
        split_part: of it.
        aux: name -> path.
        subflavors: those that the metadatasets on the way set.
        join: of a dataset in a join, the place of the join; one reference for each of its datasets. Energon lists none.
    """

    path: str
    split_part: str
    aux: dict[str, str] = {}
    subflavors: dict[str, Any] = {}
    join: str | None = None


class Metadataset:
    """A metadataset, or a single dataset in the place of one. Made by `load_dataset`.

    Attributes:
        path: as the user gave it.
        splits: their names; of a single dataset none, since it may have any.
    """

    def __init__(self, path: str, splits: Splits | None, origin: Origin) -> None:
        self.path = path
        self.splits = () if splits is None else tuple(splits)
        self._splits = splits
        self._origin = origin

    def tree(self, split_part: str = "train") -> Tree:
        """A split with what nested files say in their places. No dataset is opened.

        Raises:
            ConfigError: there is no such split, or a nested file says something impossible.
            StoreError: a nested file is missing or malformed.
        """
        if self._splits is None:
            return Source(where=self.path, path=self.path, split_part=split_part)
        return resolve(self._splits, split_part, self._origin)

    def train(
        self,
        split_part: str = "train",
        *,
        options: SourceOptions | None = None,
        global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None = None,
    ) -> Dataset | Mix:
        """The data of a split to train on, for `Run`: mixed as the metadataset says.

        Args:
            split_part: the split.
            options: how datasets are opened.
            global_batch_size: that of the run, for schedules that count in steps.

        Raises:
            ConfigError: as `tree`; what cannot be mixed, or does not go with what lies at a path; names the place.
            StoreError: as `tree`; a dataset is missing or malformed.
        """
        schedule = None if global_batch_size is None else BatchSchedule.of(global_batch_size)
        opener = (options or SourceOptions()).dataset
        return build(self.tree(split_part), opener, training=True, schedule=schedule)

    def validation(self, split_part: str = "val", *, options: SourceOptions | None = None) -> Dataset | Mix:
        """The data of a split to validate with, for `Run.validation`: all datasets one after another, in their order.

        Weights, repetitions and schedules have no meaning there; subsets and limits have. Raises as `train`.
        """
        opener = (options or SourceOptions()).dataset
        return build(self.tree(split_part), opener, training=False, schedule=None)

    def traverse(self, split_part: str) -> list[TraversedDatasetReference]:
        """The datasets that a split reaches, depth first; raises as `tree`."""
        found = []
        for source in sources(self.tree(split_part)):
            if isinstance(source, Source):
                found.append(_reference(source, aux=dict(source.aux)))
            else:
                found += [_reference(column, join=source.where) for column in source.columns]
        return found

    def prepare(self) -> list[Join]:
        """Write the index of every join of every split, those of nested files beside them.

        A split that cannot be resolved is an error, and so is a dataset without ``index.sqlite``. Indices that no join
        has any more are left where they are.

        Raises:
            ConfigError, StoreError: as `tree`; a dataset cannot be joined.
            InputError: a sample has no partner, and must have one.
            OutputError: the system refuses.
        """
        done: dict[tuple[Any, ...], Join] = {}
        for split_part in self.splits:
            for source in sources(self.tree(split_part)):
                if isinstance(source, JoinedSource):
                    key = (source.folder, msgspec.json.encode([_facts(one) for one in source.columns]))
                    if key not in done:
                        done[key] = _prepared(source)
        return list(done.values())

    def __repr__(self) -> str:
        return f"<Metadataset {self.path!r}: {', '.join(self.splits) or 'a single dataset'}>"


def load_dataset(
    metadataset: str | os.PathLike[str] | Mapping[str, Any], *, path: str | os.PathLike[str] | None = None
) -> Metadataset:
    """Open a metadataset: a ``.yaml``, what one holds as a dict, or a single dataset.

    Args:
        metadataset: a path or a dict.
        path: of a dict the file that it stands for: paths are relative to its folder, join indices lie beside it.
            Without it they are relative to the working folder.

    Raises:
        StoreError: the file is missing, or no YAML.
        ConfigError: it has unknown keys, or values that make no sense; names the place.
    """
    check_local(metadataset, path)
    if isinstance(metadataset, Mapping):
        where = "metadataset" if path is None else os.fspath(path)
        file = None if path is None else Path(path)
        origin = Origin(where=where, base=Path() if file is None else file.parent, file=file)
        return Metadataset(where, read_splits(dict(metadataset), where), origin)
    if path is not None:
        raise ConfigError("path goes with a metadataset that is given as a dict")
    name = os.fspath(metadataset)
    file = Path(name)
    if name.endswith(SUFFIX):
        return Metadataset(name, read_file(file), Origin(where=name, base=file.parent, file=file))
    return Metadataset(name, None, Origin(where=name, base=file.parent))


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str) -> list[TraversedDatasetReference]:
    """The datasets that a split of a metadataset reaches; see `Metadataset.traverse`."""
    check_local(path)
    return load_dataset(path).traverse(split_part)


def prepare_metadataset(path: str | os.PathLike[str]) -> list[Join]:
    """Write the join indices of a metadataset; see `Metadataset.prepare`."""
    check_local(path)
    return load_dataset(path).prepare()


def _reference(source: Any, **more: Any) -> TraversedDatasetReference:
    return TraversedDatasetReference(
        path=source.path, split_part=source.split_part, subflavors=dict(source.subflavors or {}), **more
    )


def _facts(column: Any) -> list[Any]:
    return [column.name, column.path, column.split_part, column.split_config, column.nonmatch]


def _prepared(source: JoinedSource) -> Join:
    if source.folder is None:
        raise ConfigError(
            f"{source.where}: a join has an index beside the file of its metadataset, and this one was given as a "
            "dict: give load_dataset the path that it stands for"
        )
    columns = []
    try:
        columns = join_columns(source)
        return write_join(source.folder, columns)
    except (ConfigError, StoreError, InputError) as error:
        kind = next(kind for kind in (ConfigError, StoreError, InputError) if isinstance(error, kind))
        raise kind(f"{source.where}: {error}") from error
    finally:
        for column in columns:
            column.store.close()
