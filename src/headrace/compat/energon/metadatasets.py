"""Metadatasets under Energon's names: ``load_dataset(path).get_datasets(...)`` and ``traverse_metadataset``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from headrace.compat.energon.epath import EPath, load_metadataset
from headrace.compat.energon.factories import BaseCoreDatasetFactory, get_dataset_from_config
from headrace.compat.energon.workers import WorkerConfig
from headrace.datasets.media.file_stores import FILESYSTEM, FileStore, file_store
from headrace.datasets.metadataset import NamedSource
from headrace.datasets.metadataset.metadataset import Metadataset
from headrace.datasets.metadataset.reading import Mixed, Tree
from headrace.errors import ConfigError
from headrace.io import remove_file

__all__ = [
    "DatasetBlendMode",
    "DatasetLoader",
    "LeafReference",
    "LoadedDataset",
    "LoadedDatasetList",
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


def load_dataset(path: str | os.PathLike[str], **options: Any) -> DatasetLoader:
    """Load a metadataset, or a dataset in the place of one.

    Args:
        path: a ``.yaml``, a prepared folder, or a ``.jsonl``.
        options: ``split_config`` and ``dataset_config``, for a single dataset.
    """
    return DatasetLoader(load_metadataset(path), options)


def prepare_metadataset(path: str | os.PathLike[str]) -> None:
    """Make the indices of all joins of a metadataset."""
    load_dataset(path).prepare()


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str) -> list[LeafReference]:
    """Return the datasets that a split uses, depth first. Paths of plain folders have no ``filesystem://`` here."""
    return load_dataset(path).traverse(split_part=split_part)
