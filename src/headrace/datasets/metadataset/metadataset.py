"""`Metadataset`: its splits become datasets and mixes of them, or a list of their sources; its joins are prepared.

`resolve` makes its tree: nested files and paths are followed, and outer entries change inner ones. Paths are relative
to the file of the metadataset, absolute, or have a protocol.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from headrace.config import nearest_or_known, nearest_path
from headrace.datasets.blend import Blend, ScheduledBlend, Stage
from headrace.datasets.dataset import Dataset
from headrace.datasets.lengths import Concat, Limit, Subset
from headrace.datasets.media.file_stores import FILESYSTEM
from headrace.datasets.metadataset.opening import Opener, SourceOptions, join_columns, join_folder, opener_of
from headrace.datasets.metadataset.reading import (
    JoinedSource,
    Mixed,
    NamedSource,
    ScheduleEntry,
    SourceColumn,
    Splits,
    Tree,
    named_place,
    read_splits,
    sources,
)
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError, StoreError
from headrace.io import SCHEMES, AnyPath, Reader, check_readable, path_at, reader_at, reader_of, remove_file
from headrace.plan import BatchSchedule, SubsetRange
from headrace.stores.energon import Join, cache_folder, write_join
from headrace.stores.energon.config_file import read_config
from headrace.stores.reading_ahead import SmallReads, read_together

if TYPE_CHECKING:
    from headrace.io import Storage

_PROTOCOL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def place(text: str, base: AnyPath, where: str) -> str:
    """Return the path of a dataset; relative paths begin at the folder ``base``.

    Raises:
        ConfigError: the path has a protocol that cannot be read here.
    """
    found = _PROTOCOL.fullmatch(text)
    if found is None:
        if text.startswith("/"):
            return os.path.normpath(text)
        return os.path.normpath(base / text) if isinstance(base, Path) else str(base / text)
    protocol, rest = found[1].lower(), found[2]
    if f"{protocol}://" in SCHEMES:
        return text
    if protocol == "file":
        return os.path.normpath(rest.removeprefix("localhost"))
    if protocol == "filesystem":
        raise ConfigError(f"{where}: {text} is a folder of files, which only aux can name; give the path of a dataset")
    raise ConfigError(
        f"{where}: {text} cannot be read: the protocols known here are file:// and {', '.join(SCHEMES)}; copy or mount"
        " it, and give its path"
    )


def aux_place(text: str, base: AnyPath, where: str) -> str:
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
        file: its file; None if it was given as a dict that stands for none.
        is_read: it was read from its file, and was not given as a dict that stands for it.
        within: the files that led to it.
        reader: reads it, if it is an object.
    """

    where: str
    base: AnyPath
    file: AnyPath | None = None
    is_read: bool = False
    within: tuple[AnyPath, ...] = ()
    reader: str | Reader = "mmap"


class _Handed(msgspec.Struct, frozen=True, kw_only=True):
    """What outer entries say to the entries below."""

    split_part: str
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs: int | None = 1
    subset: SubsetRange | None = None

    def within(self, entry: Tree) -> _Handed:
        """Return what an entry passes on: outer subflavors win over its own, ranges apply to what its range leaves."""
        with named_place(f"{entry.where}: subset"):
            subset = self.subset if entry.subset is None else entry.subset.inside(self.subset)
        return _Handed(
            split_part=entry.split_part or self.split_part,
            subflavors=_joined(self.subflavors, entry.subflavors),
            shuffle_over_epochs=_multiplied(self.shuffle_over_epochs, entry.shuffle_over_epochs),
            subset=subset,
        )


def read_file(path: AnyPath) -> Splits:
    """Return the splits of a metadataset on disk.

    Raises:
        StoreError: there is no such file, or it is not YAML.
        ConfigError: the file says something unknown or impossible.
    """
    try:
        return read_splits(read_config(path), str(path))
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file{nearest_path(str(path))}") from None


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


def _resolve(entry: Tree, outer: _Handed, origin: MetadatasetPlace) -> Tree:
    handed = outer.within(entry)
    tree: Tree
    if isinstance(entry, NamedSource):
        tree = _resolve_path(entry, handed, origin)
    elif isinstance(entry, JoinedSource):
        tree = _resolve_join(entry, handed, origin)
    else:
        _read_ahead_of_nested(entry, origin)
        children = [_resolve(child, handed, origin) for child in entry.children]
        named = zip(entry.names, children, strict=True)
        tree = replace(entry, children=tuple(replace(child, name=name) for name, child in named))
    limits = tree.limits if entry.limit is None else (*tree.limits, entry.limit)
    return replace(tree, weight=entry.weight, repetitions=entry.repetitions, limits=limits)


def _read_ahead_of_nested(entry: Mixed, origin: MetadatasetPlace) -> None:
    """Fetch the metadatasets that a mix names at the same time, if they are objects."""
    if isinstance(origin.reader, Reader):
        named = [one for one in entry.children if isinstance(one, NamedSource) and one.path.endswith(SUFFIX)]
        with contextlib.suppress(ConfigError):  # of a path that cannot be read, which is told in its turn
            paths = [place(one.path, origin.base, f"{one.where}: path") for one in named]
            read_together([SmallReads(origin.reader, kept=paths)])


def _resolve_path(entry: NamedSource, handed: _Handed, origin: MetadatasetPlace) -> Tree:
    path = place(entry.path, origin.base, f"{entry.where}: path")
    if path.endswith(SUFFIX):
        return _resolve_nested(entry, path_at(path, origin.reader), handed, origin)
    aux = {name: aux_place(text, origin.base, f"{entry.where}: aux.{name}") for name, text in (entry.aux or {}).items()}
    return replace(entry, path=path, aux=aux, **msgspec.structs.asdict(handed))


def _resolve_nested(entry: NamedSource, path: AnyPath, handed: _Handed, origin: MetadatasetPlace) -> Tree:
    for key in ("aux", "dataset_config", "split_config", "windows", "packs"):
        if getattr(entry, key) is not None:
            raise ConfigError(
                f"{entry.where}: {key} goes with a dataset, and {entry.path} is a metadataset: set it there"
            )
    if entry.subset is not None and entry.subset.absolute is not None:
        raise ConfigError(
            f"{entry.where}: subset: a range in samples is only allowed for a leaf dataset, and {entry.path} is a"
            " metadataset: use percentages"
        )
    file = path.resolve()
    chain = (*origin.within, *(() if origin.file is None else (origin.file.resolve(),)))
    if file in chain:
        raise ConfigError(f"{entry.where}: {entry.path} contains itself: {' -> '.join(map(str, (*chain, file)))}")
    if not path.exists():
        raise StoreError(f"{entry.where}: path: nothing is at {path}")
    inner = MetadatasetPlace(where=str(path), base=path.parent, file=path, within=chain, reader=origin.reader)
    splits = read_file(path)
    if handed.split_part not in splits:
        missing = _no_split(splits, handed.split_part, inner)
        raise ConfigError(f"{entry.where}: {missing}; choose another with split_part")
    return _resolve_split(splits, handed, inner)


def _resolve_join(entry: JoinedSource, handed: _Handed, origin: MetadatasetPlace) -> JoinedSource:
    def column(one: SourceColumn) -> SourceColumn:
        path = place(one.path, origin.base, f"{one.where}: path")
        if path.endswith(SUFFIX):
            raise ConfigError(f"{one.where}: path: {one.path} is a metadataset, and only datasets can be joined")
        return replace(
            one,
            path=path,
            split_part=one.split_part or handed.split_part,
            subflavors=_joined(handed.subflavors, one.subflavors),
        )

    columns = tuple(map(column, entry.columns))
    folder = None if origin.file is None else cache_folder(origin.file)
    return replace(entry, columns=columns, folder=folder, **msgspec.structs.asdict(handed))


def _joined(outer: dict[str, Any] | None, inner: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the subflavors of both; those of the outer entry win."""
    return outer if inner is None else {**inner, **(outer or {})}


def _multiplied(outer: int | None, inner: int | None) -> int | None:
    """Multiply two numbers of epochs; None wins over every other value, then -1."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


Data = Dataset | Mix

_log = logging.getLogger("headrace")


def build(tree: Tree, opener: Opener, *, training: bool, schedule: BatchSchedule | None) -> Data:
    """Return the datasets of a tree, mixed as it says; for validation one after another, each sample once.

    Args:
        tree: the tree of a split.
        opener: opens a dataset.
        training: mix the datasets; else weights, repetitions and schedules are ignored.
        schedule: the global batches, if the tree counts in steps.

    Raises:
        ConfigError: the datasets cannot be mixed as the tree says; names the place in the metadataset.
        StoreError: as the opener.
    """
    if training:
        _warn_shuffling(tree)
    return _build(tree, opener, schedule, training=training)


def _build(tree: Tree, opener: Opener, schedule: BatchSchedule | None, *, training: bool) -> Data:
    if not isinstance(tree, Mixed):
        return _source(tree, opener)
    if training and tree.kind == "blend_epochized":
        return _limited(tree, _epochized(tree, Fraction(1), opener))
    children = {
        name: _build(child, opener, None, training=training)
        for name, child in zip(tree.names, tree.children, strict=True)
    }
    with named_place(tree.where):
        if tree.kind == "concat" or not training:
            mix: Mix = Concat(children)
        elif tree.schedule:
            stages = [_stage(piece, tree, schedule) for piece in tree.schedule]
            mix = ScheduledBlend(children, stages, block_samples=tree.block_samples)
        else:
            weights = dict(zip(tree.names, tree.numbers, strict=True))
            mix = Blend(children, weights=weights, block_samples=tree.block_samples)
    return _limited(tree, mix)


def _epochized(tree: Mixed, factor: Fraction, opener: Opener) -> Blend:
    """Mix each child for as many passes as all levels around it ask for; counts are rounded once, at the datasets."""
    children: dict[str, Data] = {}
    repeats: dict[str, float | Fraction] = {}
    for name, child, number in zip(tree.names, tree.children, tree.numbers, strict=True):
        passes = factor * Fraction(number)
        if isinstance(child, Mixed) and child.kind == "blend_epochized" and not child.limits:
            children[name], repeats[name] = _epochized(child, passes, opener), 1
            continue
        if isinstance(child, Mixed) and child.kind == "blend" and not child.limits:
            raise ConfigError(
                f"{child.where}: a blend has no end, so that its repetitions in a blend_epochized are not defined; "
                "make it a blend_epochized too, or give it a limit, the number of samples in a pass"
            )
        children[name], repeats[name] = _build(child, opener, None, training=True), passes
    with named_place(tree.where):
        return Blend(children, repeats=repeats)


def _source(tree: NamedSource | JoinedSource, opener: Opener) -> Data:
    dataset = opener(tree)
    if tree.subset is None:
        return _limited(tree, dataset)
    with named_place(tree.where):
        subset = Subset(dataset, tree.subset)
    return _limited(tree, subset)


def _limited(tree: Tree, data: Data) -> Data:
    with named_place(tree.where):
        for limit in tree.limits:
            data = Limit(data, limit)
    return data


def _stage(piece: ScheduleEntry, tree: Mixed, schedule: BatchSchedule | None) -> Stage:
    until = None
    if piece.until is not None:
        number, unit = piece.until
        if unit == "steps" and schedule is None:
            raise ConfigError(
                f"{piece.where}: until counts steps, which is possible only in the mix of the whole run and needs "
                "global_batch_size; pass it, or count samples"
            )
        until = number if unit == "samples" or schedule is None else schedule.begin(number)
    return Stage(until=until, weights=dict(zip(tree.names, piece.weights, strict=True)), ramp=piece.ramp)


def _warn_shuffling(tree: Tree) -> None:
    """Warn where Energon shuffles in another way. Over k epochs each sample comes k times, as it does here."""
    if isinstance(tree, Mixed):
        for child in tree.children:
            _warn_shuffling(child)
    elif tree.shuffle_over_epochs == -1:
        _log.warning(
            "%s: shuffle_over_epochs -1 draws with replacement in Energon; here each epoch has every sample", tree.where
        )
    elif tree.shuffle_over_epochs is None:
        _log.warning(
            "%s: shuffle_over_epochs null means no shuffling; here the run decides that: pass Order(kind='none')",
            tree.where,
        )


class TraversedDatasetReference(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that a split of a metadataset uses.

    Attributes:
        path: path of the dataset.
        split_part: its split part.
        aux: name -> path of files for cookers.
        subflavors: those that the metadatasets on the way set.
        join: for a dataset in a join, the place of the join; there is one reference for each of its datasets. Energon
            lists none.
    """

    path: str
    split_part: str
    aux: dict[str, str] = {}
    subflavors: dict[str, Any] = {}
    join: str | None = None


class Metadataset:
    """A metadataset, or a single dataset in the place of one. Made by `load_dataset`.

    Attributes:
        path: the path that the user gave.
        splits: names of the splits; empty for a single dataset, which may have any.
    """

    def __init__(self, path: str, splits: Splits | None, origin: MetadatasetPlace) -> None:
        self.path = path
        self.splits = () if splits is None else tuple(splits)
        self._splits = splits
        self._origin = origin

    def tree(self, split_part: str = "train") -> Tree:
        """Return the tree of a split, with the content of nested files in their places. No dataset is opened.

        Raises:
            ConfigError: there is no such split, or a nested file says something impossible.
            StoreError: a nested file is missing or malformed.
        """
        if self._splits is None:
            return NamedSource(where=self.path, path=self.path, split_part=split_part)
        return resolve(self._splits, split_part, self._origin)

    def train(
        self,
        split_part: str = "train",
        *,
        options: SourceOptions | None = None,
        global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None = None,
    ) -> Dataset | Mix:
        """Return the data of a split to train on, for `Run`: mixed as the metadataset says.

        Args:
            split_part: name of the split.
            options: how datasets are opened.
            global_batch_size: that of the run, for schedules that count in steps.

        Raises:
            ConfigError: as `tree`; the data cannot be mixed, or keys do not fit what lies at a path; names the place.
            StoreError: as `tree`; a dataset is missing or malformed.
        """
        schedule = None if global_batch_size is None else BatchSchedule.of(global_batch_size)
        tree = self.tree(split_part)
        return build(tree, self._opener(options, tree), training=True, schedule=schedule)

    def validation(self, split_part: str = "val", *, options: SourceOptions | None = None) -> Dataset | Mix:
        """Return the data of a split to validate with, for `Run.validation`: all datasets one after another, in order.

        Weights, repetitions and schedules are ignored; subsets and limits apply. Raises as `train`.
        """
        tree = self.tree(split_part)
        return build(tree, self._opener(options, tree), training=False, schedule=None)

    def _opener(self, options: SourceOptions | None, tree: Tree) -> Opener:
        options = options or SourceOptions()
        if isinstance(options.reader, str) and not isinstance(self._origin.reader, str):
            options = replace(options, reader=self._origin.reader)
        return opener_of(options, sources(tree))

    def traverse(self, split_part: str) -> list[TraversedDatasetReference]:
        """Return the datasets that a split uses, depth first; raises as `tree`."""
        found = []
        for source in sources(self.tree(split_part)):
            if isinstance(source, NamedSource):
                found.append(_reference(source, aux=dict(source.aux or {})))
            else:
                found += [_reference(column, join=source.where) for column in source.columns]
        return found

    def prepare(self) -> dict[str, Join]:
        """Write the index of every join of every split; joins of nested files get theirs beside those files.

        Files and datasets may be at URLs; see `headrace.stores.energon.write_join`.
        A split that cannot be resolved is an error, and so is a dataset without ``index.sqlite``. When all indices are
        written, those beside the file that none of its joins uses any more are removed. Those beside nested files stay,
        since other splits may use them, and those beside a file that a dict stands for, since other dicts may.

        Returns:
            The joins by their places, as ``mix.yaml: splits.train.blend[0]``.

        Raises:
            ConfigError, StoreError: as `tree`; a dataset cannot be joined.
            InputError: a sample has no partner, and must have one.
            OutputError: an index cannot be written or removed.
        """
        found = [source for split_part in self.splits for source in sources(self.tree(split_part))]
        done: dict[tuple[Any, ...], Join] = {}
        joins: dict[str, Join] = {}
        for source in found:
            if isinstance(source, JoinedSource):
                key = (source.folder, msgspec.json.encode([_facts(one) for one in source.columns]))
                if key not in done:
                    done[key] = _prepared(source, self._origin.reader)
                joins[source.where] = done[key]
        if self._origin.file is not None and self._origin.is_read:
            _remove_others(cache_folder(self._origin.file), {join.path for join in done.values()})
        return joins

    def __repr__(self) -> str:
        return f"<Metadataset {self.path!r}: {', '.join(self.splits) or 'a single dataset'}>"


def load_dataset(
    metadataset: str | os.PathLike[str] | Mapping[str, Any],
    *,
    path: str | os.PathLike[str] | None = None,
    storage: Storage | None = None,
) -> Metadataset:
    """Open a metadataset: a ``.yaml``, the content of one as a dict, or a single dataset.

    Args:
        metadataset: a path or a dict.
        path: for a dict, the file that it stands for: paths are relative to its folder, and join indices lie beside it.
            Without it, paths are relative to the working folder.
        storage: how the object stores are reached in which the file or its datasets are; None goes by the environment.

    Raises:
        StoreError: the file is missing, or is not YAML.
        ConfigError: it has unknown keys, or values that make no sense; names the place.
    """
    check_readable(metadataset, path)
    name = path if isinstance(metadataset, Mapping) else metadataset
    reader = reader_of(storage) if name is None else reader_at(name, reader_of(storage))
    if isinstance(metadataset, Mapping):
        where = "metadataset" if path is None else os.fspath(path)
        file = None if path is None else path_at(path, reader)
        base = Path() if file is None else file.parent
        origin = MetadatasetPlace(where=where, base=base, file=file, reader=reader)
        return Metadataset(where, read_splits(dict(metadataset), where), origin)
    if path is not None:
        raise ConfigError("path is only for a metadataset that is given as a dict")
    name = os.fspath(metadataset)
    file = path_at(name, reader)
    if name.endswith(SUFFIX):
        origin = MetadatasetPlace(where=name, base=file.parent, file=file, is_read=True, reader=reader)
        return Metadataset(name, read_file(file), origin)
    return Metadataset(name, None, MetadatasetPlace(where=name, base=file.parent, reader=reader))


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str) -> list[TraversedDatasetReference]:
    """Return the datasets that a split of a metadataset uses; see `Metadataset.traverse`."""
    return load_dataset(path).traverse(split_part)


def _reference(source: Any, **more: Any) -> TraversedDatasetReference:
    return TraversedDatasetReference(
        path=source.path, split_part=source.split_part, subflavors=dict(source.subflavors or {}), **more
    )


def _facts(column: Any) -> list[Any]:
    return [column.name, column.path, column.split_part, column.split_config, column.nonmatch]


def _prepared(source: JoinedSource, using: str | Reader) -> Join:
    columns = []
    try:
        with named_place(source.where):
            folder = join_folder(source)
            columns = join_columns(source, using)
            return write_join(folder, columns)
    finally:
        for column in columns:
            column.store.close()


def _remove_others(folder: AnyPath, used: set[AnyPath]) -> None:
    if folder.is_dir():
        for path in folder.glob("join_index_*.bin"):
            if path not in used:
                remove_file(path)
