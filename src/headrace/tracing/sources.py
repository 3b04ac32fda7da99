"""Opens the sources of a saved run again, as far as a trace needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from headrace.datasets import Run
from headrace.datasets.block_uses import PlacedSamples
from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.framed_run import read_journals
from headrace.datasets.encoded.measured import MeasuredUnits
from headrace.datasets.excluded import masks_of
from headrace.datasets.mapped import MapDataset
from headrace.datasets.media import MediaDataset
from headrace.datasets.origins import Origins, record_origins, record_sample
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.datasets.records import RecordKey
from headrace.datasets.windows import WindowDataset
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.plan import IntArray, KeyArray
from headrace.plan.packing import Packing
from headrace.stores import SampleStore, Store
from headrace.stores.store import Extents
from headrace.tracing.answers import Face
from headrace.tracing.framed import FramedHistory
from headrace.tracing.history import Chapter, History
from headrace.tracing.rebuilding import Rebuilder, opened, place_of
from headrace.tracing.run_file import RunFile
from headrace.tracing.saved_mix import RecordedDataset, SavedSource, SavedStore
from headrace.tracing.trace import Trace

_MEDIA = ("MediaDataset",)
_RECORDS = ("SFTDataset", "PreferenceDataset", "GroupDataset", "PromptDataset")


class Sources:
    """Opens the sources of a saved run. A store that is missing or has changed is noted and left out.

    Args:
        file: the file of the run.
        read_data: whether stores are opened.
        may_open: asked for the path of each store before it is opened; those that may not be are noted and left out.
    """

    def __init__(self, file: RunFile, *, read_data: bool = True, may_open: Callable[[str], bool] | None = None) -> None:
        self.notes: list[str] = []
        self._file = file
        self._read_data = read_data
        self._may_open = may_open
        self._faces: dict[tuple[SavedStore | None, bytes], Face | None] = {}

    def history(self, state: dict[str, Any] | None = None) -> History:
        """Return the runs of the file as a history."""
        return History([self._chapter(number) for number in range(len(self._file.runs))], state)

    def placed(self, run: Run) -> list[PlacedSamples]:
        """Return for each dataset of a run of the file, over recorded datasets, where its samples lie.

        Raises:
            StoreError: a store is missing, holds other data, or it is not known where samples lie in it.
        """
        found: list[PlacedSamples] = []
        for path, dataset in zip(run.paths, run.datasets, strict=True):
            if not isinstance(dataset, RecordedDataset):
                raise StoreError(f"{path or '.'}: is not known by its recipe")
            face = self._opened(dataset.source)
            if not isinstance(face, Dataset | MeasuredUnits | _Records):
                raise StoreError(f"{path or '.'}: it is not known where its samples lie")
            found.append(face)
        return found

    def framed(self, number: int, journals: Iterable[str], state: dict[str, Any] | None = None) -> FramedHistory:
        """Return a framed run of the file as a history.

        Raises:
            ConfigError: the run is not framed.
            StateError: a journal cannot be read or is of another run, or the state is of another run.
        """
        run = self._file.runs[number]
        lanes = run.lanes
        if lanes is None:
            raise ConfigError(f"run {number} of the file is not framed, and has no journals")
        return FramedHistory(
            History([replace(self._chapter(number), first_step=0, position=0)]),
            lanes,
            run.schedule,
            read_journals(journals, run.hashes, lanes),
            shift=run.first_step - run.schedule.step_of(run.position),
            state=state,
            hashes=run.hashes,
        )

    def _chapter(self, number: int) -> Chapter:
        saved = self._file.runs[number]
        sources = list(saved.sources)
        if saved.edits:
            run = saved.run()
            sources = [dataset.source for dataset in run.datasets if isinstance(dataset, RecordedDataset)]
            window_steps = None if run.bucketing is None else run.bucketing.window_steps
            trace = Trace(run.plan, run.schedule, run.length, draw=run.draw, window_steps=window_steps)
        else:
            trace = saved.trace()
            by_path = {source.path: source for source in sources}
            sources = [by_path[leaf.path] for leaf in trace.plan.leaves]
        return Chapter(
            trace=trace,
            hashes=saved.edited or saved.hashes,
            recipes=[source.recipe for source in sources],
            face=lambda leaf: self._face(sources[leaf]),
            past=None if saved.lanes is not None else lambda position: saved.run().past(position).hashes(),
            first_step=saved.first_step,
            position=saved.position,
        )

    def _face(self, source: SavedSource) -> Face | None:
        if not self._read_data:
            return None
        place = source.store, msgspec.json.encode(source.recipe)
        if place not in self._faces:
            try:
                self._faces[place] = self._opened(source)
            except HeadraceError as error:
                self._faces[place] = None
                note = f"{source.path or '.'}: {error}"
                self.notes += [note] if note not in self.notes else []
        return self._faces[place]

    def run(self, number: int) -> Run | None:
        """Return a run of the file over its data; None, with a note, if it cannot be made again. Imports no code."""
        saved = self._file.runs[number]
        try:
            for source in (*saved.sources, *saved.added):
                if source.store is not None:
                    self._check_may_open(source.store)
            if self._read_data:
                return saved.run(Rebuilder(self._file.folder, trust_code=False).datasets(saved))
        except HeadraceError as error:
            self.notes += [str(error)] if str(error) not in self.notes else []
        return None

    def _check_may_open(self, store: SavedStore) -> None:
        path = place_of(store, self._file.folder)
        if self._may_open is not None and not self._may_open(path):
            raise StoreError(f"the store {path} is not below the paths that were named, and is not opened: name it too")

    def _opened(self, source: SavedSource) -> Face:
        if source.store is None:
            raise StoreError("it has no single store, so that its samples are named by number alone")
        self._check_may_open(source.store)
        masks = masks_of(source.recipe)
        recipe, seeded = source.recipe if masks is None else masks.recipe, False
        while recipe.get("kind") in ("mapped", "encoded", "framed"):
            seeded = seeded or bool(recipe.get("seeded"))
            recipe = recipe["dataset"]
        kind = recipe["kind"]
        if kind not in (*_MEDIA, *_RECORDS, "measured", "windows", "packed_sequences"):
            raise StoreError(f"samples of the kind {kind} are named by number alone")
        store = opened(source.store, self._file.folder, as_samples=kind in (*_MEDIA, "measured"))
        if isinstance(store, SampleStore):
            return MeasuredUnits.saved(store, recipe) if kind == "measured" else MediaDataset(store)
        face = _of_tokens(store, kind, recipe)
        # A seeded MapDataset passes on fewer bits of the epoch's key, which decide what varies from epoch to epoch.
        return MapDataset(face, dict, seeded=True) if seeded and isinstance(face, Dataset) else face


class _Records:
    """Records as they are stored: sample i is record i, whatever a dataset makes of it, read from some keys."""

    def __init__(self, store: Store, keys: Iterable[str]) -> None:
        self._store = store
        self._keys = tuple(keys)

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the numbers of records."""
        return indices

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the record of each sample."""
        return record_origins(self._store, addresses)

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of each key that is read."""
        return [RecordKey(self._store, key).extents(addresses) for key in self._keys]

    def holders(self, document: int) -> IntArray:
        """Return the sample of a record: its own number."""
        return record_sample(self._store, document)

    def find_keys(self, key: str) -> list[int]:
        """Raise ConfigError: records have no keys."""
        raise ConfigError(f"{self._store.path}: records have no keys; ask by number, found {key!r}")


def _of_tokens(store: Store, kind: str, recipe: dict[str, Any]) -> Face:
    if kind == "windows":
        options = {name: recipe[name] for name in ("stride", "phase", "document_ids", "position_ids")}
        mask = recipe.get("loss_mask_key")
        return WindowDataset(store, seq_len=recipe["window_tokens"], loss_mask_key=mask, **options)
    if kind == "packed_sequences":
        packing = msgspec.convert(recipe["packing"], Packing)
        return PackedSequenceDataset(store, packing, loss_mask_key=recipe["loss_mask_key"])
    return _Records(store, recipe["keys"].values())
