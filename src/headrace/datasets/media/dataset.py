"""One store of samples as a dataset: each sample read, decoded and cooked, as arguments or a `dataset.yaml` say.

What a ``dataset.yaml`` says of samples, as arguments of `MediaDataset`. Its code runs only where it is trusted.

Where the part lies that a sample could not be made of.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from headrace.datasets.media.face import SampleDataset
from headrace.datasets.media.file_stores import (
    CachePool,
    DecodeFileStore,
    FileStore,
    NoCachePool,
    PrimaryFileStore,
    file_store,
)
from headrace.errors import ConfigError, HeadraceError, SampleError
from headrace.plan import IntArray
from headrace.plan.recorded_names import recorded_name
from headrace.samples.media import (
    Cooker,
    CrudeSample,
    SampleDecoder,
    SampleMapper,
    SourceInfo,
    choose_cooker,
    load_function,
    resolve_sample_type,
)
from headrace.samples.media.mapper import Loader
from headrace.samples.media.sample import BASE_FIELDS
from headrace.stores import EnergonStore, PartPlace, RawSample, Reader, SampleStore
from headrace.stores import open as open_store
from headrace.stores.energon import DatasetConfig, Reference
from headrace.stores.energon.splits import config_path
from headrace.stores.sample_layouts import sample_layout

_OF_THE_RUN: Final = ("max_samples_per_sequence", "parallel_shard_iters", "shuffle_over_epochs", "training")
"""What Energon's file may say of the order, which here is that of the run."""


class DatasetFunction:
    """A function of a Python file in ``.nv-meta``, which the user trusts. Pickles as where it lies."""

    def __init__(self, root: Path, reference: str, default: str, *, trust_code: bool) -> None:
        self.reference = reference
        self._root = root
        self._default = default
        self._function = load_function(reference, default, self._read, trust_code=trust_code)

    def __call__(self, given: Any) -> Any:
        """What the function makes of it."""
        return self._function(given)

    def __str__(self) -> str:
        return self.reference

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_again, (self._root, self.reference, self._default)

    def _read(self, name: str) -> str:
        path = config_path(self._root, name)
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}; the dataset.yaml names it") from error


def configured(config: DatasetConfig, *, trust_code: bool) -> dict[str, Any]:
    """``sample_type``, ``field_map``, ``sample_loader`` and ``part_filter`` of a file, and a ``decoder`` if it has one.

    Raises:
        ConfigError: code that is not trusted; a class or an option that has no meaning here.
    """
    found: dict[str, Any] = dict.fromkeys(("sample_type", "field_map", "sample_loader", "part_filter"))
    if config.kind == "other":
        raise ConfigError(
            f"{config.path}: the class {config.class_ref} is Energon's or your own way to read, and not one of samples;"
            " make MediaDataset(store, sample_type, field_map) yourself"
        )
    _check_options(config)
    root = config.path.parent.parent
    found["part_filter"] = _function(config.part_filter, root, "part_filter", trust_code)
    if config.kind == "crude" or config.sample_type is None:
        found["sample_type"] = CrudeSample
    else:
        named = config.sample_type
        found["sample_type"] = resolve_sample_type(named.module, named.name, trust_code=trust_code)
        found["field_map"] = config.field_map
        found["sample_loader"] = _function(config.sample_loader, root, "sample_loader", trust_code)
    if config.options.get("decoder") is not None:
        found["decoder"] = _decoder(config)
    return found


def _check_options(config: DatasetConfig) -> None:
    for name in config.options:
        if name not in (*_OF_THE_RUN, "decoder"):
            raise ConfigError(
                f"{config.path}: {name} says which samples are read; take it out and say it where the dataset is opened"
            )


def _function(named: Reference | str | tuple[str, ...] | None, root: Path, default: str, trust_code: bool) -> Any:
    if named is None or isinstance(named, tuple):
        return named
    if isinstance(named, str):
        return DatasetFunction(root, named, default, trust_code=trust_code)
    if not trust_code:
        raise ConfigError(
            f"the {default} {named} lies in a module that is not imported, because importing runs its code; say"
            " trust_code=True if you trust whoever wrote the dataset"
        )
    try:
        return getattr(importlib.import_module(named.module), named.name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {default} {named} cannot be imported: {error}") from error


def _decoder(config: DatasetConfig) -> SampleDecoder:
    given = config.options["decoder"]
    options = dict(given) if isinstance(given, dict) else {}
    names = (options.pop("__module__", None), options.pop("__class__", None))
    if names[1] != "SampleDecoder":
        raise ConfigError(f"{config.path}: decoder: only a SampleDecoder is known, found {given!r:.200}")
    try:
        return SampleDecoder(**options)
    except TypeError as error:
        raise ConfigError(f"{config.path}: decoder: {error}") from error


def _function_again(root: Path, reference: str, default: str) -> DatasetFunction:
    return DatasetFunction(root, reference, default, trust_code=True)


Places = Callable[[], Mapping[str, PartPlace]]


def placed(error: SampleError, raw: RawSample, path: str, places: Places) -> SampleError:
    """The error with file, key and, of a part that is there, the byte where its content begins.

    Args:
        error: names the part, if it is one.
        raw: the sample.
        path: of the dataset.
        places: looks where its parts lie.
    """
    try:
        there = places()
    except HeadraceError:  # the error that is told is the one that was met first
        there = {}
    place = None if error.part is None else there.get(error.part)
    file = place or next(iter(there.values()), None)
    shard = str(Path(path, raw.shard)) if file is None else file.file
    return error.at(shard=shard, key=raw.key, offset=None if place is None else place.offset)


DEFAULT_DECODER: Final = SampleDecoder()
_BOUNDS: Final = ("jpeg", "max_bytes", "max_pixels")
"""Options of a decoder that decide no value."""

Aux = Mapping[str, "FileStore | SampleStore | str | os.PathLike[str]"]


class OfCrude(tuple[Cooker, ...]):
    """Cookers for datasets that are crude, as an encoder or a metadataset has them: others leave them alone."""

    __slots__ = ()


class MediaDataset(SampleDataset):
    """Sample i is sample i of the store: of ``sample_type``, or crude and then cooked, or crude.

    Only the parts that are needed are read, for a whole batch at once. A sample's ``__key__`` is its name in the store,
    ``__restore_key__`` is ``("Webdataset", i)`` and ``__sources__`` tell dataset, number, shard and members.
    Safe in threads; pickles, where its functions do.

    Args:
        store: the samples, as of ``headrace.open``. A ``dataset.yaml`` in it is not looked at: see `of` and `open`.
        sample_type: what samples are; ``CrudeSample`` keeps the decoded parts in a dict.
        field_map: of a sample type, field -> part, ``{"image": "jpg", "caption": "txt,json[text]"}``; or
        sample_loader: a function, decoded parts -> fields.
        part_filter: of crude samples or with a loader: names of the parts to read, or a function that says it of each.
        decoder: how parts become values; None hands out bytes.
        cookers: of crude samples; the first that matches ``subflavors`` is used for all. For others they are an error.
        subflavors: set on every sample.
        aux: for cookers, name -> files beside the dataset: a path, ``filesystem://FOLDER``, or a store.
        cache: for cookers that want one.

    Raises:
        ConfigError: not a store of samples, or without any; what `SampleMapper` and `choose_cooker` refuse; ``aux``
            without a cooker.
    """

    def __init__(
        self,
        store: SampleStore,
        sample_type: type[Any] = CrudeSample,
        field_map: Mapping[str, str] | None = None,
        *,
        sample_loader: Loader | None = None,
        part_filter: Collection[str] | Callable[[str], bool] | None = None,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        cookers: Sequence[Cooker] = (),
        subflavors: Mapping[str, Any] | None = None,
        aux: Aux | None = None,
        cache: CachePool | None = None,
    ) -> None:
        if not isinstance(store, SampleStore):
            raise ConfigError(
                f"store is {store!r}; expected an open store of samples, as headrace.open(path); or MediaDataset.open"
            )
        if not len(store):
            raise ConfigError(f"{store.path} has no samples")
        self.store = store
        self.subflavors = None if subflavors is None else dict(subflavors)
        self.mapper = SampleMapper(
            sample_type, field_map, decoder=decoder, sample_loader=sample_loader, part_filter=part_filter
        )
        if cookers and not self.mapper.is_crude and not isinstance(cookers, OfCrude):
            names = ", ".join(getattr(one.cook, "__qualname__", repr(one.cook)) for one in cookers)
            raise ConfigError(
                f"{store.path}: its samples are made into {self.mapper.sample_type.__name__}, and the cookers {names}"
                " are for crude samples and would not be called: leave them out, or the sample_type, or change the"
                " samples by MapDataset"
            )
        self.cooker = choose_cooker(cookers, self.subflavors, store.path) if self.mapper.is_crude and cookers else None
        self.aux = self._opened(aux or {})
        self._cache = NoCachePool() if cache is None else cache
        self._primary = self._decoded(file_store(store)) if self.cooker and self.cooker.need_primary else None
        self._field_map = None if field_map is None else dict(field_map)
        self._functions = {"sample_loader": sample_loader, "part_filter": part_filter}
        self._options: dict[str, Any] = {
            **self._functions,
            "decoder": decoder,
            "cookers": tuple(cookers) if self.mapper.is_crude else (),
            "subflavors": self.subflavors,
            "aux": aux,
            "cache": cache,
        }

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        split_part: str | None = "train",
        *,
        split_config: str | None = None,
        dataset_config: str | None = None,
        reader: str | Reader = "mmap",
        **options: Any,
    ) -> MediaDataset:
        """What lies at a path, made into samples as its ``dataset.yaml`` says.

        Args:
            path: what `headrace.open` takes: a dataset of Energon's, tar shards, a ``.jsonl``.
            split_part: of a dataset of Energon's the part, None for all shards; others have one part, ``"train"``.
            split_config: name of another split file in ``.nv-meta``.
            dataset_config: name of another ``dataset.yaml`` there.
            reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
            options: those of `of`.

        Raises:
            StoreError: nothing is there, or what is there is malformed.
            ConfigError: as `of`; there is no such part; the path holds tokens.
        """
        if sample_layout(path, reader) == "energon" and isinstance(path, str | os.PathLike):
            energon = EnergonStore(
                path, split_part=split_part, split_config=split_config, dataset_config=dataset_config, using=reader
            )
            return cls.of(energon, **options)
        if split_part not in (None, "train") or split_config is not None or dataset_config is not None:
            raise ConfigError(
                f"{path}: has no split file and no dataset.yaml, as it has no .nv-meta; it is opened whole"
            )
        store = open_store(path, reader=reader)
        if not isinstance(store, SampleStore):
            raise ConfigError(f"{path}: holds tokens ({store.format}); use headrace.open and a dataset of tokens")
        return cls.of(store, **options)

    @classmethod
    def of(
        cls,
        store: SampleStore,
        *,
        subflavors: Mapping[str, Any] | None = None,
        trust_code: bool = False,
        **options: Any,
    ) -> MediaDataset:
        """A store made into samples as its ``dataset.yaml`` says, if it has one.

        As with Energon, that file decides what samples are: sample type, field map, sample loader and part filter are
        not given beside it, nor a decoder beside one that it names.

        Args:
            store: the samples.
            subflavors: set on every sample, over those of the file.
            trust_code: import modules and run files that the ``dataset.yaml`` names.
            options: those of the class.

        Raises:
            ConfigError: an argument beside the file that says the same thing; code that is not trusted; a class or an
                option of Energon's that has no meaning here.
        """
        config = store.dataset if isinstance(store, EnergonStore) else None
        if config is None:
            return cls(store, subflavors=subflavors, **options)
        found = configured(config, trust_code=trust_code)
        unsaid = {"decoder": DEFAULT_DECODER}
        double = [name for name in found if options.get(name, unsaid.get(name)) is not unsaid.get(name)]
        if double:
            raise ConfigError(
                f"{config.path}: says what samples are, {', '.join(double)} too, and as with Energon it holds; leave"
                " the argument out, or name another file by dataset_config; MediaDataset(store, ...) asks its arguments"
                " alone"
            )
        return cls(store, subflavors={**config.subflavors, **(subflavors or {})}, **{**options, **found})

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of the sample type; of what a cooker makes, and of crude samples, only those that all have."""
        kind = self.mapper.sample_type
        return BASE_FIELDS if self.mapper.is_crude else tuple(field.name for field in dataclasses.fields(kind))

    @property
    def is_plain(self) -> bool:
        """Whether nobody sees a sample before its batch: there is no cooker, and no loader of samples."""
        return self.cooker is None and self._functions["sample_loader"] is None

    def cooked_by(self, cookers: Sequence[Cooker]) -> MediaDataset:
        """The same samples, cooked by these where they are crude. Raises ConfigError: none of them matches."""
        options = {**self._options, "cookers": tuple(cookers)}
        return type(self)(self.store, self.mapper.sample_type, self._field_map, **options)

    def makers(self, addresses: IntArray) -> list[Callable[[], Any]]:
        """See `SampleDataset.makers`; what a cooker raises goes through, with a note that names the sample."""
        raws = self.store.read(addresses, self.mapper.parts)
        return [
            partial(self.made, raw, index, partial(self.store.places, index))
            for raw, index in zip(raws, addresses.tolist(), strict=True)
        ]

    def made(self, raw: RawSample, index: int, places: Places) -> Any:
        """The sample of some parts that were read.

        Args:
            raw: the parts.
            index: the number of the sample in its dataset.
            places: tells where parts lie, if it comes to that.

        Raises:
            SampleError: it cannot be made; names file, key, part and byte.
        """
        key = raw.key
        wanted = raw.parts if self.mapper.takes_all else filter(self.mapper.wants, raw.parts)
        names = tuple([f"{key}.{part}" for part in wanted])
        source = SourceInfo(dataset_path=self.store.path, index=index, shard_name=raw.shard, file_names=names)
        try:
            sample = self.mapper.make(
                raw.parts,
                raw.key,
                restore_key=("Webdataset", index),
                subflavors=None if self.subflavors is None else dict(self.subflavors),
                sources=(source,),
                shard=raw.shard,
            )
            return sample if self.cooker is None else self._cooked(sample, raw, index)
        except SampleError as error:
            raise placed(error, raw, self.store.path, places) from error.__cause__

    def _cooked(self, crude: CrudeSample, raw: RawSample, index: int) -> Any:
        assert self.cooker is not None
        primary = None if self._primary is None else PrimaryFileStore(self._primary, raw.key)
        try:
            return self.cooker(crude, primary=primary, cache=self._cache, aux=self.aux)
        except SampleError:
            raise
        except Exception as error:
            error.add_note(f"while cooking sample {index:,} of {self.store.path}: shard {raw.shard}, key {raw.key!r}")
            raise

    def _opened(self, aux: Aux) -> dict[str, FileStore]:
        if aux and self.cooker is None:
            raise ConfigError(f"{self.store.path}: aux is for cookers of crude samples, and there is none")
        for name in ("primary", "cache"):
            if name in aux:
                raise ConfigError(f"an auxiliary store is named {name!r}, which cookers use otherwise; rename it")
        return {name: self._decoded(file_store(place)) for name, place in aux.items()}

    def _decoded(self, files: FileStore) -> FileStore:
        decoder = self.mapper.decoder
        return (
            files if decoder is None or isinstance(files, DecodeFileStore) else DecodeFileStore(files, decoder=decoder)
        )

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples: functions are named, and auxiliary folders of plain files, not read."""
        decoder = self.mapper.decoder
        options = None if decoder is None else {k: v for k, v in decoder.config().items() if k not in _BOUNDS}
        part_filter = self._functions["part_filter"]
        return {
            "kind": type(self).__name__,
            "version": 1,
            "store": self.store.fingerprint,
            "sample_type": _name(self.mapper.sample_type),
            "field_map": self._field_map,
            "sample_loader": _name(self._functions["sample_loader"]),
            "part_filter": _name(part_filter) if callable(part_filter) else self.mapper.parts,
            "decoder": options,
            "cooker": None if self.cooker is None else _name(self.cooker.cook),
            "subflavors": self.subflavors,
            "aux": {name: files.fingerprint for name, files in sorted(self.aux.items())},
        }

    def describe(self) -> str:
        """One line."""
        made = "crude" if self.mapper.is_crude else self.mapper.sample_type.__name__
        cooked = "" if self.cooker is None else f", cooked by {_name(self.cooker.cook)}"
        return f"{made} samples of {self.store.path}{cooked}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.store, self.mapper.sample_type, self._field_map, self._options)


def _name(function: Any) -> str | None:
    """Of a function that a file names, what the file says."""
    if function is None:
        return None
    return str(function) if hasattr(function, "reference") else recorded_name(function)


def _again(
    kind: type[MediaDataset],
    store: SampleStore,
    sample_type: type[Any],
    field_map: dict[str, str] | None,
    options: dict[str, Any],
) -> MediaDataset:
    return kind(store, sample_type, field_map, **options)
