"""Runs the checks of a metadataset for ``headrace check``: what it says, its joins, and every dataset below once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.cli.checking import Verdict, check_store
from headrace.cli.media.checking import SampleCheck, SampleVerdict, check_samples
from headrace.cli.media.opening import SampleOptions
from headrace.cli.media.sources import closed, options_of, plain_dataset
from headrace.datasets.dataset import Dataset
from headrace.datasets.media import JoinedMediaDataset
from headrace.datasets.media.file_stores import FILESYSTEM
from headrace.datasets.metadataset import JoinedSource, Metadataset, Source, SourceOptions, load_dataset, sources
from headrace.datasets.metadataset.metadataset import build
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.stores import Problem
from headrace.stores.sample_layouts import sample_layout


class MixVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a metadataset found.

    Attributes:
        path: of the metadataset.
        ok: whether it and all its datasets are whole.
        problems: of the metadataset itself and of its joins; those of datasets are with them.
        splits: that were checked.
        joins: indices that were read.
        datasets: each that it reaches, once, in whatever places.
    """

    path: str
    ok: bool
    problems: tuple[Problem, ...]
    splits: tuple[str, ...]
    joins: int
    datasets: tuple[SampleVerdict | Verdict, ...]


def check_mix(
    path: str,
    check: SampleCheck,
    *,
    on_read: Callable[[str, int], None],
    on_decoded: Callable[[int, int], None],
) -> MixVerdict:
    """Check a metadataset and collect what is wrong.

    Args:
        path: of the ``.yaml``.
        check: what else to check of samples; of its options the split part is that of the metadataset, None for all.
        on_read: as of `check_samples`.
        on_decoded: as of `check_samples`.

    Raises:
        StoreError: there is no such file, or it is no YAML.
        ConfigError: it has keys or values that it cannot have, or no such split.
        WorkerError: a process that decodes ended.
    """
    metadataset = load_dataset(path)
    wanted = check.dataset.split_part
    if wanted is not None and wanted not in metadataset.splits:
        raise ConfigError(f"{path}: has no split {wanted!r}; its splits are {', '.join(metadataset.splits)}")
    splits = metadataset.splits if wanted is None else (wanted,)
    mix = _Mix(metadataset)
    for split in splits:
        mix.look(split)
    verdicts = []
    for place, options in mix.places:
        try:
            verdicts.append(_checked(place, msgspec.structs.replace(check, dataset=options), on_read, on_decoded))
        except (ConfigError, StoreError) as error:
            # There is nothing to judge, which opening it has told as well.
            if place not in mix.unopened:
                mix.add(Problem(path=place, place="", message=_without(str(error), place)))
    problems = tuple(mix.problems)
    return MixVerdict(
        path=path,
        ok=not problems and all(verdict.ok for verdict in verdicts),
        problems=problems,
        splits=splits,
        joins=mix.joins,
        datasets=tuple(verdicts),
    )


class _Mix:
    """Goes through the splits of a metadataset, and notes what is wrong and which datasets there are.

    Attributes:
        problems: found so far, each once.
        places: path of a dataset and how it is to be opened, each once.
        unopened: paths of datasets that cannot be opened as the metadataset says.
        joins: that were read.
    """

    def __init__(self, metadataset: Metadataset) -> None:
        self._metadataset = metadataset
        self._opened: dict[str, Dataset] = {}
        self.problems: list[Problem] = []
        self.places: list[tuple[str, SampleOptions]] = []
        self.unopened: set[str] = set()
        self.joins = 0

    def look(self, split: str) -> None:
        """Note what a split reaches, and whether it can be opened and put together."""
        before = len(self.problems)
        try:
            tree = self._metadataset.tree(split)
            for source in sources(tree):
                self._look_at(source)
            if len(self.problems) == before:
                build(tree, self._dataset, training=False, schedule=None)
        except HeadraceError as error:
            self._say(str(error))
        finally:
            for dataset in self._opened.values():
                closed(dataset)
            self._opened.clear()

    def add(self, problem: Problem) -> None:
        """Note a problem, once however many splits have it."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _say(self, message: str) -> None:
        # Errors of metadatasets begin with file and place.
        self.add(Problem(path=self._metadataset.path, place="", message=_without(message, self._metadataset.path)))

    def _look_at(self, source: Source | JoinedSource) -> None:
        found = list(_places(source))
        self.places += [place for place in found if place not in self.places]
        if isinstance(source, Source):
            for name, aux in source.aux.items():
                if not Path(folder := aux.removeprefix(FILESYSTEM)).exists():
                    self._say(f"{source.where}: aux.{name}: nothing is at {folder}")
        try:
            # Opens it, and looks whether its range and its limits are of as many samples.
            build(source, self._dataset, training=False, schedule=None)
        except HeadraceError as error:
            self._say(str(error))
            self.unopened.update(path for path, _ in found)

    def _dataset(self, source: Source | JoinedSource) -> Dataset:
        if source.where not in self._opened:
            dataset = SourceOptions(open=plain_dataset).dataset(source)
            self._opened[source.where] = dataset
            if isinstance(dataset, JoinedMediaDataset):
                self.joins += 1
                for problem in dataset.store.check():
                    self.add(problem)
        return self._opened[source.where]


def _places(source: Source | JoinedSource) -> Iterator[tuple[str, SampleOptions]]:
    """The datasets of a source, whole: of all parts, whichever of them the metadataset takes."""
    if isinstance(source, JoinedSource):
        for column in source.columns:
            yield column.path, options_of(column)
        return
    yield source.path, options_of(source)
    for aux in source.aux.values():
        if not aux.startswith(FILESYSTEM) and sample_layout(aux) not in (None, "files"):
            yield aux, SampleOptions()


def _checked(
    path: str,
    check: SampleCheck,
    on_read: Callable[[str, int], None],
    on_decoded: Callable[[int, int], None],
) -> SampleVerdict | Verdict:
    def on_shard(number: int, num_shards: int, shard: str, num_bytes: int) -> None:
        on_read(shard, num_bytes)

    found = check_samples(path, check, on_read=on_read, on_decoded=on_decoded)
    return check_store(path, tokenizer=None, on_shard=on_shard) if found is None else found


def _without(message: str, path: str) -> str:
    return message.removeprefix(f"{path}: ")
