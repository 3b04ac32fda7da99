"""`load_run` makes a run again from its file: its datasets by their recipes, over the stores that the file names.

    run.json -- read_run_file --> SavedRun, its sources -- Rebuilder --> datasets -- SavedRun.run --> Run

What a recipe does not tell whole cannot be made again, and is refused with the reason. What was made is compared with
the recipe, so that nothing else comes in its place.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import msgspec
from msgspec import UNSET

from headrace.datasets import (
    Collation,
    Dataset,
    GroupDataset,
    MapDataset,
    MediaDataset,
    PackedSequenceDataset,
    PreferenceDataset,
    PromptDataset,
    Run,
    SFTDataset,
    WindowDataset,
)
from headrace.datasets.encoded import EncodedDataset
from headrace.datasets.excluded import masks_of
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError, HeadraceError, StoreAwayError, StoreError
from headrace.io import as_read_back, folder_of
from headrace.plan.packing import Packing
from headrace.plan.recipe import OURS, without_contents
from headrace.samples.media import SampleDecoder, resolve_sample_type
from headrace.stores import EnergonStore, SampleStore, Store, open_tokens
from headrace.stores import open as open_store
from headrace.tracing.run_file import SavedRun, read_run_file
from headrace.tracing.saved_mix import SavedSource, SavedStore

_FACES: Final = ("headrace", "headrace.encoders", "headrace.samples.media")
"""The packages that export the classes and functions of ours which a recipe may name."""


def load_run(path: str | os.PathLike[str], *, at_step: int | None, trust_code: bool) -> Run:
    """Return the run in a file; see `headrace.Run.load`."""
    file = read_run_file(path)
    number = len(file.runs) - 1
    if at_step is not None:
        number = max((i for i, run in enumerate(file.runs) if run.first_step <= at_step), default=-1)
        if number < 0:
            raise ConfigError(f"{path}: there is no step {at_step:,}: the steps begin at {file.runs[0].first_step:,}")
    saved = file.runs[number]
    if saved.lanes is not None:
        raise ConfigError(
            f"{path}: the run is framed, and task encoders of framed runs are not made again from a file: build the "
            "run in Python and pass it to save_run"
        )
    run = saved.run(Rebuilder(file.folder, trust_code=trust_code).datasets(saved))
    run.generation = file.generation
    return run


def filed_run(path: str | os.PathLike[str], *, read_data: bool = True) -> Run:
    """Return the only run in a file, over its data or over no more than their recipes.

    Raises:
        ConfigError: the file holds several runs or a framed one; or as `Run.load`.
        StateError, StoreError: as `Run.load`.
    """
    runs = read_run_file(path).runs
    if len(runs) > 1 or runs[0].lanes is not None:
        raise ConfigError(f"{path}: holds {len(runs)} runs or a framed one; an account is of one run without lanes")
    return load_run(path, at_step=None, trust_code=False) if read_data else runs[0].run()


def place_of(saved: SavedStore, folder: str) -> str:
    """Return the path of a saved store; ``folder`` is that of the training, to which paths are relative."""
    if not folder_of(saved.path):
        return saved.path
    path = Path(folder, saved.path)
    # In the folder of the training the name stays as it was, since samples of media tell it.
    return str(path) if (path.exists() or path.parent.is_dir()) and Path.cwd() != Path(folder) else saved.path


def opened(saved: SavedStore, folder: str, *, as_samples: bool) -> Store | SampleStore:
    """Open the store of a saved source.

    Args:
        saved: the store.
        folder: the folder of the training, to which paths are relative.
        as_samples: whether its samples are needed, and not tokens.

    Raises:
        StoreError: it is missing, or does not hold the data of the run.
    """
    name = place_of(saved, folder)
    if saved.format == EnergonStore.format:
        found: Store | SampleStore = EnergonStore(name, split_part=saved.split_part)
    else:
        found = open_store(name) if as_samples else _tokens(name, saved)
    layout, contents = found.layout_fingerprint, found.contents_fingerprint
    # Some stores at URLs do not know their contents.
    is_same = saved.contents is UNSET or contents in (layout, saved.contents)
    if layout != saved.fingerprint or not is_same:
        raise StoreError(f"{name}: does not hold the data that the run was fed from")
    return found


def _tokens(name: str, saved: SavedStore) -> Store:
    key = None if saved.key is UNSET else saved.key
    options = {} if saved.options is UNSET else dict(saved.options)
    found = open_tokens(name, **options)
    if key is not None and found.keys[0] != key:
        found = open_tokens(name, key=key, **options)
    if found.fingerprint != saved.fingerprint and saved.format == found.format == "indexed":
        return open_tokens(name, key=key, documents="sequences")
    return found


class Rebuilder:
    """Makes the datasets of a saved run again.

    Args:
        folder: the folder of the training, to which paths are relative.
        trust_code: import functions and encoders by their names.
    """

    def __init__(self, folder: str, *, trust_code: bool) -> None:
        self._folder = folder
        self._trust_code = trust_code
        self._stores: dict[tuple[SavedStore, bool], Store | SampleStore] = {}
        self._datasets: dict[tuple[SavedStore | None, bytes], Dataset] = {}

    def datasets(self, saved: SavedRun) -> list[Dataset]:
        """Return the dataset of each source of a run, those that come with edits included.

        Raises:
            StoreError: a store is missing, or does not hold the data of the run.
            ConfigError: a dataset cannot be made again.
        """
        return [self.dataset(source) for source in (*saved.sources, *saved.added)]

    def dataset(self, source: SavedSource) -> Dataset:
        """Return the dataset of a source; sources with the same one share it."""
        key = source.store, msgspec.json.encode(source.recipe, order="sorted")
        if key not in self._datasets:
            where = f"source {source.path!r}" if source.path else "the dataset"
            try:
                found = self._made(source, source.recipe)
            except StoreAwayError as error:
                raise StoreAwayError(f"{where}: {error}") from error
            except StoreError as error:
                raise StoreError(f"{where}: {error}") from error
            except HeadraceError as error:
                raise ConfigError(
                    f"{where} cannot be made again from the file: {error}. Build the run in Python and pass it to "
                    "save_run"
                ) from error
            # The contents of files were compared when the store was opened.
            if without_contents(as_read_back(found.recipe)) != without_contents(source.recipe):
                raise ConfigError(
                    f"{where} cannot be made again from the file: its recipe does not tell all of it, and what was "
                    f"made is {found.describe()}, with the recipe {found.recipe}. Build the run in Python and pass "
                    "it to save_run"
                )
            self._datasets[key] = found
        return self._datasets[key]

    def _made(self, source: SavedSource, recipe: Mapping[str, Any]) -> Dataset:
        kind = recipe.get("kind")
        if (masks := masks_of(recipe)) is not None:
            return self._made(source, masks.recipe).without(masks.documents, masks.pad_id)
        if kind == "mapped":
            return self._mapped(source, recipe)
        if kind == "encoded":
            return self._encoded(source, recipe)
        if kind == "MediaDataset":
            return self._media(source, recipe)
        make = _OVER_STORES.get(str(kind))
        if make is None:
            raise ConfigError(f"a recipe of the kind {kind!r} is not enough to make the dataset")
        return make(self._store(source, as_samples=False), recipe)

    def _store(self, source: SavedSource, *, as_samples: bool) -> Any:
        if source.store is None:
            raise ConfigError("it has no single store")
        key = source.store, as_samples
        if key not in self._stores:
            self._stores[key] = opened(source.store, self._folder, as_samples=as_samples)
        return self._stores[key]

    def _named(self, name: str, what: str) -> Any:
        if not self._trust_code:
            raise ConfigError(
                f"the {what} {name} is code that is not imported, because importing runs it: pass trust_code=True if "
                "you trust the file"
            )
        return named_thing(name)

    def _mapped(self, source: SavedSource, recipe: Mapping[str, Any]) -> Dataset:
        function = self._named(recipe["function"], "function")
        inner = self._made(source, recipe["dataset"])
        fields = _fields(recipe["fields"])
        return MapDataset(inner, function, fields=fields, seeded=bool(recipe.get("seeded")))

    def _encoded(self, source: SavedSource, recipe: Mapping[str, Any]) -> Dataset:
        name = recipe["encoder"]
        encoder = named_thing(name) if name.startswith(OURS) else self._named(name, "task encoder")
        inner = self._made(source, recipe["dataset"])
        try:
            made = encoder()
        except TypeError as error:
            raise ConfigError(
                f"the task encoder {name} needs arguments, which the file does not hold: {error}"
            ) from error
        errors = ErrorPolicy(on_error=recipe["on_error"])
        return EncodedDataset(inner, made, seed=recipe["seed"], errors=errors)  # type: ignore[arg-type]

    def _media(self, source: SavedSource, recipe: Mapping[str, Any]) -> Dataset:
        if recipe["cooker"] is not None or recipe["aux"]:
            raise ConfigError("its samples are cooked, and the file holds only the name of the cooker")
        options: dict[str, Any] = {"decoder": None, "subflavors": recipe["subflavors"]}
        if recipe["decoder"] is not None:
            decoder = dict(recipe["decoder"])
            if decoder.get("trust_code") and not self._trust_code:
                raise ConfigError("its decoder reads pickles, which may run any code: pass trust_code=True")
            if decoder.get("image_size") is not None:
                decoder["image_size"] = tuple(decoder["image_size"])
            if (kind := decoder.pop("class", None)) is not None:
                raise ConfigError(f"its decoder is {kind}, a class of the user's, and the file holds only its name")
            made = SampleDecoder(**decoder)
            options["decoder"] = made.trusting() if self._trust_code else made
        if recipe["sample_loader"] is not None:
            options["sample_loader"] = self._named(recipe["sample_loader"], "sample loader")
        if isinstance(recipe["part_filter"], str):
            options["part_filter"] = self._named(recipe["part_filter"], "part filter")
        elif recipe["field_map"] is None:
            options["part_filter"] = recipe["part_filter"]
        of_ours, _, name = recipe["sample_type"].partition(":")
        module, _, name = (of_ours, "", name) if name else of_ours.rpartition(".")
        kind = resolve_sample_type(module, name, trust_code=self._trust_code)
        return MediaDataset(self._store(source, as_samples=True), kind, recipe["field_map"], **options)


def named_thing(name: str) -> Any:
    """Import the class or function that was recorded under a name; undoes `recorded_name`. Runs its module's code.

    Raises:
        ConfigError: it is defined within a function, or in the program that was run; or it cannot be imported.
    """
    if "<" in name or name.startswith("__main__."):
        raise ConfigError(f"{name} cannot be imported by its name: define it at the top of a module")
    try:
        if name.startswith(OURS):
            first = name.removeprefix(OURS).partition(".")[0]
            face = next((one for one in _FACES if first in resolve_name(one).__all__), "headrace")
            return resolve_name(name.replace(OURS, f"{face}:"))
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be imported: {error}") from error


def _fields(text: str) -> dict[str, Any] | None:
    """Return the fields of a mapped dataset from the text in its recipe."""
    try:
        found: dict[str, Any] | None = ast.literal_eval(re.sub(r"dtype\(('[^']*')\)", r"\1", text))
    except (ValueError, SyntaxError) as error:
        raise ConfigError(f"its fields are {text}, which cannot be made again") from error
    return found


def _windows(store: Store, recipe: Mapping[str, Any]) -> Dataset:
    options = {name: recipe[name] for name in ("stride", "phase", "document_ids", "position_ids")}
    return WindowDataset(
        store,
        seq_len=recipe["window_tokens"],
        labels=recipe.get("labels", "next"),
        loss_mask_key=recipe.get("loss_mask_key"),
        **options,
    )


def _packs(store: Store, recipe: Mapping[str, Any]) -> Dataset:
    options = {name: recipe[name] for name in ("padding_idx", "loss_mask_key", "border_labels")}
    packing = msgspec.convert(recipe["packing"], Packing)
    return PackedSequenceDataset(store, packing, labels=recipe.get("labels", "next"), **options)


def _collation(recipe: Mapping[str, Any]) -> Collation:
    return msgspec.convert(recipe["collation"], Collation)


def _supervised(store: Store, recipe: Mapping[str, Any]) -> Dataset:
    keys = recipe["keys"]
    options = {"tokens_key": keys["tokens"], "loss_mask_key": keys.get("loss_mask")}
    return SFTDataset(store, _collation(recipe), labels=recipe["labels"], **options)


def _preferences(store: Store, recipe: Mapping[str, Any]) -> Dataset:
    return PreferenceDataset(store, _collation(recipe), labels=recipe["labels"], layout=recipe["layout"])


def _groups(store: Store, recipe: Mapping[str, Any]) -> Dataset:
    return GroupDataset(store, _collation(recipe), max_response_length=recipe["max_response_length"])


def _prompts(store: Store, recipe: Mapping[str, Any]) -> Dataset:
    return PromptDataset(store, _collation(recipe))


_OVER_STORES: Final[dict[str, Callable[[Store, Mapping[str, Any]], Dataset]]] = {
    "windows": _windows,
    "packed_sequences": _packs,
    "SFTDataset": _supervised,
    "PreferenceDataset": _preferences,
    "GroupDataset": _groups,
    "PromptDataset": _prompts,
}
