"""Opens the sources of a saved run again, as far as a trace needs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.framed_run import read_journals
from headrace.datasets.encoded.measured import MeasuredUnits
from headrace.datasets.mapped import MapDataset
from headrace.datasets.media import MediaDataset
from headrace.datasets.origins import Origins, record_origins, record_sample
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.datasets.windows import WindowDataset
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.plan import IntArray, KeyArray
from headrace.plan.packing import Packing
from headrace.stores import EnergonStore, SampleStore, Store, open_tokens
from headrace.stores import open as open_store
from headrace.tracing.answers import Face
from headrace.tracing.framed import FramedHistory
from headrace.tracing.history import Chapter, History
from headrace.tracing.run_file import RunFile, SavedSource

_MEDIA = ("MediaDataset",)
_RECORDS = ("SFTDataset", "PreferenceDataset", "GroupDataset", "PromptDataset")


class Sources:
    """Opens the sources of a saved run. A store that is missing or has changed is noted and left out."""

    def __init__(self, file: RunFile, *, read_data: bool = True) -> None:
        self.notes: list[str] = []
        self._file = file
        self._read_data = read_data
        self._faces: dict[tuple[int, int], Face | None] = {}

    def history(self, state: dict[str, Any] | None = None) -> History:
        """Return the runs of the file as a history."""
        return History([self._chapter(number) for number in range(len(self._file.runs))], state)

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
        run = self._file.runs[number]
        by_path = {source.path: place for place, source in enumerate(run.sources)}
        trace = run.trace()
        order = [by_path[leaf.path] for leaf in trace.plan.leaves]
        return Chapter(
            trace=trace,
            hashes=run.hashes,
            recipes={source.path: source.recipe for source in run.sources},
            face=lambda leaf: self._face(number, order[leaf]),
            first_step=run.first_step,
            position=run.position,
            keyed=run.order.kind != "none",
        )

    def _face(self, run: int, number: int) -> Face | None:
        if not self._read_data:
            return None
        place = run, number
        if place not in self._faces:
            source = self._file.runs[run].sources[number]
            try:
                self._faces[place] = self._opened(source)
            except HeadraceError as error:
                self._faces[place] = None
                note = f"{source.path or '.'}: {error}"
                self.notes += [note] if note not in self.notes else []
        return self._faces[place]

    def _opened(self, source: SavedSource) -> Face:
        if source.store is None:
            raise StoreError("it has no single store, so that its samples are named by number alone")
        recipe, seeded = source.recipe, False
        while recipe.get("kind") in ("mapped", "encoded", "framed"):
            seeded = seeded or bool(recipe.get("seeded"))
            recipe = recipe["dataset"]
        kind = recipe["kind"]
        if kind not in (*_MEDIA, *_RECORDS, "measured", "windows", "packed_sequences"):
            raise StoreError(f"samples of the kind {kind} are named by number alone")
        path = Path(self._file.folder, source.store.path)
        name = str(path if path.exists() or path.parent.is_dir() else source.store.path)
        store: Store | SampleStore
        if source.store.format == EnergonStore.format:
            store = EnergonStore(name, split_part=source.store.split_part)
        else:
            store = open_store(name) if kind in (*_MEDIA, "measured") else open_tokens(name)
        if store.fingerprint != source.store.fingerprint:
            raise StoreError(f"{name}: does not hold the data that the run was fed from")
        if isinstance(store, SampleStore):
            return MeasuredUnits.saved(store, recipe) if kind == "measured" else MediaDataset(store)
        face = _of_tokens(store, kind, recipe)
        # A seeded MapDataset passes on fewer bits of the epoch's key, which decide what varies from epoch to epoch.
        return MapDataset(face, dict, seeded=True) if seeded and isinstance(face, Dataset) else face


class _Records:
    """Records as they are stored: sample i is record i, whatever a dataset makes of it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the numbers of records."""
        return indices

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the record of each sample."""
        return record_origins(self._store, addresses)

    def holders(self, document: int) -> IntArray:
        """Return the sample of a record: its own number."""
        return record_sample(self._store, document)

    def find_keys(self, key: str) -> list[int]:
        """Raise ConfigError: records have no keys."""
        raise ConfigError(f"{self._store.path}: records have no keys; ask by number, found {key!r}")


def _of_tokens(store: Store, kind: str, recipe: dict[str, Any]) -> Face:
    if kind == "windows":
        options = {name: recipe[name] for name in ("stride", "phase", "document_ids", "position_ids")}
        return WindowDataset(store, seq_len=recipe["window_tokens"], loss_mask_key=None, **options)
    if kind == "packed_sequences":
        return PackedSequenceDataset(store, msgspec.convert(recipe["packing"], Packing), loss_mask_key=None)
    return _Records(store)
