"""`Sources` opens the data of a saved run again: whole, as `load_run` needs them, or as far as a trace does.

    run.json -- read_run_file --> SavedRun, its sources -- Maker, by their recipes --> datasets -- SavedRun.run --> Run
                                                       \\-- as they are stored -----> Face -- Chapter --> History

What was made is compared with the recipe, so that nothing else comes in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from headrace.datasets import Run
from headrace.datasets.block_uses import PlacedSamples
from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.framed_run import read_journals
from headrace.datasets.encoded.measured import MeasuredUnits
from headrace.datasets.exclusions import masks_of
from headrace.datasets.mapped import MapDataset
from headrace.datasets.media import MediaDataset
from headrace.datasets.recipes import DATASETS, Maker
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import as_read_back
from headrace.plan.recipe import without_contents
from headrace.stores import SampleStore, Store
from headrace.tracing.framed import FramedHistory
from headrace.tracing.history import Chapter, Face, History
from headrace.tracing.recorded import RecordedDataset, SavedSource, StorePlace
from headrace.tracing.run_file import RunFile, SavedRun, read_run_file


def load_run(path: str | os.PathLike[str], *, at_step: int | None, trust_code: bool) -> Run:
    """Return the run in a file; see `headrace.Run.load`."""
    file = read_run_file(path)
    number = len(file.runs) - 1
    if at_step is not None:
        number = max((i for i, run in enumerate(file.runs) if run.first_step <= at_step), default=-1)
        if number < 0:
            raise ConfigError(f"{path}: there is no step {at_step:,}: the steps begin at {file.runs[0].first_step:,}")
    saved = file.runs[number]
    run = saved.run(Sources(file, trust_code=trust_code).datasets(saved))
    run.generation = file.generation
    return run


def filed_run(path: str | os.PathLike[str], *, read_data: bool = True) -> Run:
    """Return the only run in a file, over its data or over no more than their recipes.

    Raises:
        ConfigError: the file holds several runs; or as `Run.load`.
        StateError, StoreError: as `Run.load`.
    """
    runs = read_run_file(path).runs
    if len(runs) > 1:
        raise ConfigError(f"{path}: holds {len(runs)} runs, and an account is of one run")
    return load_run(path, at_step=None, trust_code=False) if read_data else runs[0].run()


class Sources:
    """Opens the sources of a saved run. For a trace, a store that is missing or has changed is noted and left out.

    Args:
        file: the file of the run.
        read_data: whether stores are opened.
        may_open: asked for the path of each store before it is opened; those that may not be are noted and left out.
        trust_code: import the functions and encoders that the file names.
    """

    def __init__(
        self,
        file: RunFile,
        *,
        read_data: bool = True,
        may_open: Callable[[str], bool] | None = None,
        trust_code: bool = False,
    ) -> None:
        self.notes: list[str] = []
        self._file = file
        self._read_data = read_data
        self._may_open = may_open
        self._trust_code = trust_code
        self._stores: dict[tuple[StorePlace, bool], Store | SampleStore] = {}
        self._faces: dict[tuple[StorePlace | None, bytes], Face | None] = {}

    def history(self, state: dict[str, Any] | None = None) -> History:
        """Return the runs of the file as a history."""
        chapters = [
            self._chapter(saved, first_step=saved.first_step, position=saved.position) for saved in self._file.runs
        ]
        return History(chapters, state)

    def placed(self, run: Run) -> list[PlacedSamples]:
        """Return for each dataset of a run of the file, over recorded datasets, where its samples lie.

        Raises:
            StoreError: a store is missing, holds other data, or it is not known where samples lie in it.
        """
        return [self._stored(dataset.source) for dataset in run.datasets if isinstance(dataset, RecordedDataset)]

    def framed(self, number: int, journals: Iterable[str], state: dict[str, Any] | None = None) -> FramedHistory:
        """Return a framed run of the file as a history.

        Raises:
            ConfigError: the run is not framed.
            StateError: a journal cannot be read or is of another run, or the state is of another run.
        """
        saved = self._file.runs[number]
        lanes = saved.lanes
        if lanes is None:
            raise ConfigError(f"run {number} of the file is not framed, and has no journals")
        return FramedHistory(
            History([self._chapter(saved)]),
            lanes,
            saved.schedule,
            read_journals(journals, saved.hashes, lanes),
            shift=saved.shift,
            state=state,
            hashes=saved.hashes,
        )

    def run(self, number: int) -> Run | None:
        """Return a run of the file over its data; None, with a note, if it cannot be made again."""
        saved = self._file.runs[number]
        try:
            if self._read_data:
                return saved.run(self.datasets(saved))
        except HeadraceError as error:
            self._note(str(error))
        return None

    def datasets(self, saved: SavedRun) -> list[Dataset]:
        """Return the dataset of each source of a run, those that come with edits included.

        Raises:
            StoreError: a store is missing, or does not hold the data of the run, or may not be opened.
            ConfigError: a dataset cannot be made again.
        """
        saved.check_plain()
        for source in saved.sources:
            if source.store is not None:
                self._check_may_open(source.store)
        return [self._made(source) for source in saved.sources]

    def _made(self, source: SavedSource) -> Dataset:
        """Return the dataset of a source, as it was."""
        where = f"source {source.path!r}" if source.path else "the dataset"
        try:
            found: Dataset = self._maker(source, trust_code=self._trust_code).dataset(source.recipe)
            # The contents of files were compared when the store was opened.
            if without_contents(as_read_back(found.recipe)) != without_contents(source.recipe):
                raise ConfigError(
                    f"its recipe does not tell all of it, and what was made is {found.describe()}, with the recipe "
                    f"{found.recipe}"
                )
        except StoreError as error:
            raise type(error)(f"{where}: {error}") from error
        except HeadraceError as error:
            raise ConfigError(
                f"{where} cannot be made again from the file: {error}. Build the run in Python and pass it to save_run"
            ) from error
        return found

    def _chapter(self, saved: SavedRun, *, first_step: int = 0, position: int = 0) -> Chapter:
        run = saved.stream()
        return Chapter(run, partial(self._face, run.datasets), False, first_step, position)

    def _face(self, datasets: Sequence[Any], leaf: int) -> Face | None:
        source: SavedSource = datasets[leaf].source
        if not self._read_data:
            return None
        place = source.store, msgspec.json.encode(source.recipe)
        if place not in self._faces:
            try:
                self._faces[place] = self._stored(source)
            except HeadraceError as error:
                self._faces[place] = None
                self._note(f"{source.path or '.'}: {error}")
        return self._faces[place]

    def _stored(self, source: SavedSource) -> Face:
        """Return the samples of a source as they are stored: without code of the user, and without masks."""
        if source.store is None:
            raise StoreError("it has no single store, so that its samples are named by number alone")
        self._check_may_open(source.store)
        masks = masks_of(source.recipe)
        recipe, seeded = source.recipe if masks is None else masks.recipe, False
        while recipe.get("kind") in ("mapped", "encoded"):
            seeded = seeded or bool(recipe.get("seeded"))
            recipe = recipe["dataset"]
        kind = recipe["kind"]
        maker = self._maker(source, trust_code=False)
        if kind == "measured":
            return MeasuredUnits.saved(maker.store(as_samples=True), recipe)
        if kind == "MediaDataset":
            return MediaDataset(maker.store(as_samples=True))
        if kind not in DATASETS:
            raise StoreError(f"samples of the kind {kind} are named by number alone")
        if "collation" in recipe:  # without a longest length, no lengths are read
            recipe = {**recipe, "collation": {}}
        face: Dataset = maker.dataset(recipe)
        # A seeded MapDataset passes on fewer bits of the epoch's key, which decide what varies from epoch to epoch.
        return MapDataset(face, dict, seeded=True) if seeded else face

    def _maker(self, source: SavedSource, *, trust_code: bool) -> Maker:
        return Maker(lambda as_samples: self._open(source.store, as_samples=as_samples), trust_code=trust_code)

    def _open(self, place: StorePlace | None, *, as_samples: bool) -> Store | SampleStore:
        if place is None:
            raise ConfigError("it has no single store")
        key = place, as_samples
        if key not in self._stores:
            self._stores[key] = place.open(self._file.folder, as_samples=as_samples)
        return self._stores[key]

    def _check_may_open(self, place: StorePlace) -> None:
        path = place.path_from(self._file.folder)
        if self._may_open is not None and not self._may_open(path):
            raise StoreError(f"the store {path} is not below the paths that were named, and is not opened: name it too")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
