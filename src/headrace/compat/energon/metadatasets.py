"""Metadatasets under Energon's names: ``load_dataset(path).get_datasets(...)`` and ``traverse_metadataset``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from headrace.compat.energon.epath import EPath, load_metadataset
from headrace.compat.energon.factories import (
    BaseCoreDatasetFactory,
    StandardWebdatasetFactory,
    get_dataset_from_config,
    imported,
)
from headrace.compat.energon.workers import WorkerConfig
from headrace.datasets.media.file_stores import FILESYSTEM, FileStore, file_store
from headrace.datasets.metadataset import NamedSource
from headrace.datasets.metadataset.metadataset import Metadataset
from headrace.datasets.metadataset.reading import Mixed, Tree
from headrace.errors import ConfigError
from headrace.io import path_at, remove_file
from headrace.stores.energon.config_file import as_map, read_config
from headrace.stores.energon.dataset_yaml import CRUDE, FLAVOURS, reference

__all__ = [
    "DatasetBlendMode",
    "DatasetLoader",
    "LeafReference",
    "LoadedDataset",
    "LoadedDatasetList",
    "load_config",
    "load_dataset",
    "prepare_metadataset",
    "traverse_metadataset",
]


class DatasetBlendMode(Enum):
    """How datasets are blended: not at all, by weights, or by repetitions."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


class LoadedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset of a metadataset, with its share of the blend: a weight or repetitions."""

    dataset: BaseCoreDatasetFactory[Any]
    weight: float | None = None
    repetitions: float | None = None
    aux: dict[str, FileStore] | None = None


class LoadedDatasetList(msgspec.Struct, frozen=True, kw_only=True):
    """The datasets of a split, depth first."""

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE


class LeafReference(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that a split of a metadataset uses, with paths as `EPath`."""

    path: EPath
    split_part: str
    aux: dict[str, EPath]
    subflavors: dict[str, Any]


class DatasetLoader:
    """A metadataset, or a dataset in the place of one.

    Attributes:
        metadataset: Headrace's own.
    """

    def __init__(self, metadataset: Metadataset, options: Mapping[str, Any]) -> None:
        self.metadataset = metadataset
        self._options = dict(options)

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        **options: Any,
    ) -> LoadedDatasetList:
        """Open all datasets of a split, with their weights or repetitions.

        Args:
            training: whether a dataset's ``build`` shuffles.
            split_part: the split.
            worker_config: rank and workers.
            subflavors: set on every sample, under those of the metadataset.
            shuffle_over_epochs_multiplier: see `get_train_dataset`.
            options: those of `get_dataset_from_config`.

        Raises:
            ConfigError: the split has a join, whose columns `get_train_dataset` reads together; and as `load_dataset`.
        """
        tree = self.metadataset.tree(split_part)
        found = []
        for source, number in _leaves(tree, 1.0, is_repeated=_mode(tree) is DatasetBlendMode.SAMPLE_REPETITIONS):
            dataset = get_dataset_from_config(
                source.path,
                dataset_config=source.dataset_config or self._options.get("dataset_config"),
                split_config=source.split_config or self._options.get("split_config"),
                split_part=source.split_part,
                training=training,
                subflavors={**(subflavors or {}), **(source.subflavors or {})},
                subset=source.subset,
                shuffle_over_epochs=shuffle_over_epochs_multiplier,
                worker_config=worker_config,
                **options,
            )
            aux = {name: file_store(place) for name, place in source.aux.items()}
            share = {"repetitions" if _mode(tree) is DatasetBlendMode.SAMPLE_REPETITIONS else "weight": number}
            found.append(LoadedDataset(dataset=dataset, aux=aux or None, **share))
        return LoadedDatasetList(datasets=found, blend_mode=_mode(tree))

    def traverse(self, *, split_part: str) -> list[LeafReference]:
        """The datasets of a split, depth first, without opening them."""
        found = []
        for one in self.metadataset.traverse(split_part):
            aux = {name: EPath(place.removeprefix(FILESYSTEM)) for name, place in one.aux.items()}
            leaf = LeafReference(
                path=EPath(one.path), split_part=one.split_part, aux=aux, subflavors=dict(one.subflavors)
            )
            found.append(leaf)
        return found

    def prepare(self, split_part: str | None = None) -> list[Any]:
        """Make the indices of all joins, and return their paths. Indices of joins that are gone are removed."""
        made = [join.path for join in self.metadataset.prepare()]
        for folder in {path.parent for path in made}:
            for old in folder.glob("join_index_*"):
                if old not in made:
                    remove_file(old)
        return made


def _mode(tree: Tree) -> DatasetBlendMode:
    if not isinstance(tree, Mixed):
        return DatasetBlendMode.NONE
    return {
        "blend": DatasetBlendMode.DATASET_WEIGHT,
        "blend_epochized": DatasetBlendMode.SAMPLE_REPETITIONS,
        "concat": DatasetBlendMode.NONE,
    }[tree.kind]


def _leaves(tree: Tree, number: float, *, is_repeated: bool) -> Iterator[tuple[NamedSource, float]]:
    """Yield the datasets of a tree with their share: the product of the weights, as fractions, or of repetitions."""
    if isinstance(tree, NamedSource):
        yield tree, number
        return
    if not isinstance(tree, Mixed):
        raise ConfigError(
            f"{tree.where}: is a join, whose datasets are read together: use get_train_dataset, or the datasets that"
            " traverse_metadataset lists"
        )
    total = 1 if is_repeated or tree.kind == "concat" else sum(tree.numbers)
    for child, own in zip(tree.children, tree.numbers, strict=True):
        share = 1.0 if tree.kind == "concat" else own / total
        yield from _leaves(child, number * share, is_repeated=is_repeated)


def load_dataset(path: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> DatasetLoader:
    """Load a metadataset, or a dataset in the place of one.

    Args:
        path: a ``.yaml``, or the content of one as a dict; a prepared folder; or a ``.jsonl``.
        options: ``split_config`` and ``dataset_config``, for a single dataset.
    """
    return DatasetLoader(load_metadataset(path), options)


def load_config(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    default_type: Callable[..., Any],
    default_kwargs: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> Any:
    """Make what a configuration says: an object of the class that it names, whose arguments are its other keys.

    Args:
        path: a YAML file, or its content.
        default_type: the class, if the configuration names none. A metadataset is loaded as by `load_dataset`.
        default_kwargs: arguments that the configuration does not have.
        trust_code: import modules other than Energon's, and run files such as ``sample_loader.py``.

    Raises:
        ConfigError: it names code, and is not trusted; or the class refuses its arguments.
        StoreError: the file is malformed.
    """
    where = "the configuration" if isinstance(path, Mapping) else os.fspath(path)
    said = dict(path) if isinstance(path, Mapping) else as_map(read_config(path_at(where)), where)
    named: dict[str, Any] = {key: said.pop(key) for key in ("__module__", "__class__", "__function__") if key in said}
    sample_type = {**FLAVOURS, CRUDE: "CrudeSample"}.get(named.get("__class__", ""))
    if sample_type is not None:
        named, said["sample_type"], default_type = {}, {**named, "__class__": sample_type}, StandardWebdatasetFactory
    kind = imported(reference(named, where), where, trust_code) if named else default_type
    if kind is Metadataset:
        return load_dataset(path)
    for key, value in said.items():
        if isinstance(value, Mapping) and "__module__" in value:
            said[key] = imported(reference(dict(value), f"{where}: {key}"), f"{where}: {key}", trust_code)
        elif key in ("sample_loader", "part_filter") and isinstance(value, str) and not trust_code:
            raise ConfigError(f"{where}: {key} is {value!r}, which runs code; pass trust_code=True if you trust it")
    return kind(**{**(default_kwargs or {}), **said})


def prepare_metadataset(path: str | os.PathLike[str]) -> None:
    """Make the indices of all joins of a metadataset."""
    load_dataset(path).prepare()


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str) -> list[LeafReference]:
    """Return the datasets that a split uses, depth first. Paths of plain folders have no ``filesystem://`` here."""
    return load_dataset(path).traverse(split_part=split_part)
