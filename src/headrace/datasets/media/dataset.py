"""`MediaDataset`: a store of samples, each read, decoded and cooked as arguments or a ``dataset.yaml`` say.

Code that a ``dataset.yaml`` names runs only if it is trusted.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.datasets.dataset import SampleWatch, Traits
from headrace.datasets.media.face import PolicedSamples, SampleDataset
from headrace.datasets.media.file_stores import (
    CachePool,
    DecodeFileStore,
    FileStore,
    NoCachePool,
    PrimaryFileStore,
    contents_of,
    file_store,
)
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError, FieldAccessError, HeadraceError, SampleError
from headrace.io import AnyPath, path_at, read_small, reader_at
from headrace.plan import IntArray
from headrace.plan.recipe import recorded_name
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
from headrace.samples.media.batch import Room
from headrace.samples.media.mapper import Loader
from headrace.samples.media.sample import BASE_FIELDS
from headrace.stores import EnergonStore, PartPlace, RawSample, Reader, SampleStore, open as open_store
from headrace.stores.energon import DatasetConfig, Reference
from headrace.stores.energon.splits import config_path
from headrace.stores.opening import sample_layout
from headrace.stores.store import Extents

_OF_THE_RUN: Final = ("max_samples_per_sequence", "parallel_shard_iters", "shuffle_over_epochs", "training")
"""Keys of Energon's file that concern the order, which the run decides here."""

if TYPE_CHECKING:
    from headrace.datasets.recipes import Maker
    from headrace.io import ReadCache, Storage


class DatasetFunction:
    """A function of a Python file in ``.nv-meta``, which the user trusts. It is pickled as the place of that file."""

    def __init__(self, root: AnyPath, reference: str, default: str, *, trust_code: bool) -> None:
        self.reference = reference
        self._root = root
        self._default = default
        self._function = load_function(reference, default, self._read, trust_code=trust_code)

    def __call__(self, value: Any) -> Any:
        """Return the function's result for a value."""
        return self._function(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(DatasetFunction, trust_code=True), (self._root, self.reference, self._default)

    def _read(self, name: str) -> str:
        path = config_path(self._root, name)
        try:
            return read_small(path).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}; the dataset.yaml names this file") from error


def configured(config: DatasetConfig, *, trust_code: bool) -> dict[str, Any]:
    """Return a file's ``sample_type``, ``field_map``, ``sample_loader``, ``part_filter``, maybe a ``decoder``."""
    found: dict[str, Any] = dict.fromkeys(("sample_type", "field_map", "sample_loader", "part_filter"))
    if config.kind == "other":
        raise ConfigError(
            f"{config.path}: the class {config.class_ref} does not describe samples but reads them in its own way; use"
            " MediaDataset(store, sample_type, field_map) instead"
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
        if name not in (*_OF_THE_RUN, "decoder", "split_config"):
            raise ConfigError(
                f"{config.path}: {name} says which samples are read; remove it, and set it where you open the dataset"
            )


def _function(named: Reference | str | tuple[str, ...] | None, root: AnyPath, default: str, trust_code: bool) -> Any:
    if named is None or isinstance(named, tuple):
        return named
    if isinstance(named, str):
        return DatasetFunction(root, named, default, trust_code=trust_code)
    return imported(named, default, trust_code=trust_code)


def imported(named: Reference, what: str, *, trust_code: bool) -> Any:
    """Return what a file names of a module.

    Raises:
        ConfigError: the code is not to be trusted, or cannot be imported.
    """
    if not trust_code:
        raise ConfigError(
            f"the {what} {named} lies in a module that is not imported, because importing runs its code; pass"
            " trust_code=True if you trust the author of the dataset"
        )
    try:
        return getattr(importlib.import_module(named.module), named.name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {what} {named} cannot be imported: {error}") from error


def _decoder(config: DatasetConfig) -> SampleDecoder:
    value = config.options["decoder"]
    options = dict(value) if isinstance(value, dict) else {}
    names = (options.pop("__module__", None), options.pop("__class__", None))
    if names[1] != "SampleDecoder":
        raise ConfigError(f"{config.path}: decoder: only SampleDecoder is known, found {value!r:.200}")
    try:
        return SampleDecoder(**options)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{config.path}: decoder: {error}") from error


Places = Callable[[], Mapping[str, PartPlace]]


def placed(error: SampleError, raw: RawSample, path: str, places: Places) -> SampleError:
    """Return the error with file and key and, if its part exists, the byte where the content of the part begins.

    Args:
        error: the error; it may name a part.
        raw: the sample.
        path: path of the dataset.
        places: finds where the parts of the sample lie.
    """
    try:
        found = places()
    except HeadraceError:  # the first error is the one to report
        found = {}
    place = None if error.part is None else found.get(error.part)
    file = place or next(iter(found.values()), None)
    shard = file.file if file is not None else str(path_at(path) / raw.shard)
    return error.at(shard=shard, key=raw.key, offset=None if place is None else place.offset)


DEFAULT_DECODER: Final = SampleDecoder()
_BOUNDS: Final = ("jpeg", "max_bytes", "max_pixels")
"""Options of a decoder that do not change the values of samples."""

Aux = Mapping[str, "FileStore | SampleStore | str | os.PathLike[str]"]


class OfCrude(tuple[Cooker, ...]):
    """Cookers that an encoder or a metadataset has for its crude datasets; datasets that are not crude ignore them."""

    __slots__ = ()


class MediaDataset(SampleDataset):
    """Sample i is sample i of the store, made into ``sample_type``, or crude and then cooked, or crude.

    Only the parts that are needed are read, for a whole batch at once. A sample's ``__key__`` is its name in the store,
    ``__restore_key__`` is ``("Webdataset", i)``, and ``__sources__`` name dataset, number, shard and members. Safe to
    use in threads; can be pickled if its functions can.

    Args:
        store: an open store of samples. A ``dataset.yaml`` in it is not used: see `of` and `open`.
        sample_type: type of the samples; ``CrudeSample`` keeps the decoded parts in a dict.
        field_map: for a sample type, field -> part: ``{"image": "jpg", "caption": "txt,json[text]"}``.
        sample_loader: a function, decoded parts -> fields, instead of ``field_map``.
        part_filter: for crude samples or with a loader: names of the parts to read, or a function that decides for each
            name.
        decoder: makes values of parts; None returns bytes.
        cookers: for crude samples; the first one that matches ``subflavors`` is used for all. For other samples cookers
            are an error.
        subflavors: set on every sample.
        aux: for cookers, name -> files beside the dataset: a path, ``filesystem://FOLDER``, or a store.
        cache_pool: for cookers that want a cache.
        errors: what happens when samples cannot be made: whether they are raised or replaced by others.

    Raises:
        ConfigError: not a store of samples, or a store without samples; what `SampleMapper` and `choose_cooker` refuse;
            ``aux`` without a cooker.

    Example:
        >>> store = headrace.open("shards")
        >>> dataset = headrace.MediaDataset(store, field_map={"image": "jpg", "caption": "txt"},
        ...                                 sample_type=headrace.samples.media.CaptioningSample)
        >>> dataset[0].caption
        'a picture of word0'
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
        cache_pool: CachePool | None = None,
        errors: ErrorPolicy | None = None,
    ) -> None:
        self.store = _with_samples(store)
        self.errors = errors
        self.subflavors = None if subflavors is None else dict(subflavors)
        self.mapper = SampleMapper(
            sample_type, field_map, decoder=decoder, sample_loader=sample_loader, part_filter=part_filter
        )
        used = self._cookers_for_crude(cookers)
        self.cooker = choose_cooker(used, self.subflavors, store.path) if used else None
        self.aux = self._opened(aux or {})
        kept = NoCachePool() if cache_pool is None else cache_pool
        self._cook = None if self.cooker is None else self.cooker.bound(cache=kept, aux=self.aux)
        self._primary = self._decoded(file_store(store)) if self.cooker and self.cooker.need_primary else None
        self._field_map = None if field_map is None else dict(field_map)
        self._functions = {"sample_loader": sample_loader, "part_filter": part_filter}
        self._options: dict[str, Any] = {
            **self._functions,
            "decoder": decoder,
            "cookers": used,
            "subflavors": self.subflavors,
            "aux": aux,
            "cache_pool": cache_pool,
            "errors": errors,
        }
        self._policed = PolicedSamples(self, errors)
        self.faults = self._policed.faults

    def _cookers_for_crude(self, cookers: Sequence[Cooker]) -> tuple[Cooker, ...]:
        """Return the cookers that are used. Raises ConfigError if the samples are not crude, unless that is meant."""
        if self.mapper.is_crude:
            return tuple(cookers)
        if cookers and not isinstance(cookers, OfCrude):
            names = ", ".join(getattr(one.cook, "__qualname__", repr(one.cook)) for one in cookers)
            raise ConfigError(
                f"{self.store.path}: its samples are made into {self.mapper.sample_type.__name__}, and the cookers"
                f" {names} are for crude samples and would not be called: leave out the cookers or the sample_type, or"
                " change the samples with MapDataset"
            )
        return ()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        split_part: str | None = "train",
        *,
        split_config: str | None = None,
        dataset_config: str | None = None,
        reader: str | Reader = "mmap",
        storage: Storage | None = None,
        cache: ReadCache | None = None,
        **options: Any,
    ) -> MediaDataset:
        """Open what lies at a path, and make samples as its ``dataset.yaml`` says.

        Args:
            path: what `headrace.open` accepts: an Energon dataset, tar shards, a ``.jsonl``.
            split_part: part of an Energon dataset, None for all shards; other formats have one part, ``"train"``.
            split_config: name of another split file in ``.nv-meta``.
            dataset_config: name of another ``dataset.yaml`` there.
            reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
            storage: for a URL, how the object store is reached; None goes by the environment.
            cache: a `headrace.Cache` on a local disk, through which the data are read; see `headrace.open`.
            options: those of `of`.

        Raises:
            StoreError: nothing is there, or it is malformed.
            ConfigError: as `of`; there is no such part; the path holds tokens.
        """
        reader = reader_at(path, reader, storage, cache)
        store = opened_samples(path, split_part, split_config, dataset_config, reader)
        # As in Energon, what the dataset.yaml says about the split wins.
        config = store.dataset if isinstance(store, EnergonStore) else None
        if config is not None and (said := config.options.get("split_config")) is not None:
            store = opened_samples(path, split_part, str(said), dataset_config, reader)
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
        """Make samples of a store as its ``dataset.yaml`` says, if it has one.

        As with Energon, that file decides what samples are: sample type, field map, sample loader and part filter must
        not be passed too, nor a decoder if the file names one.

        Args:
            store: an open store of samples.
            subflavors: set on every sample, over those of the file.
            trust_code: import modules and run files that the ``dataset.yaml`` names, and read pickles.
            options: those of the class.

        Raises:
            ConfigError: an argument that the file also sets; code that is not trusted; a class or an option of
                Energon's that has no meaning here.
        """
        config = store.dataset if isinstance(store, EnergonStore) else None
        defaults = {"decoder": DEFAULT_DECODER}
        found = {} if config is None else configured(config, trust_code=trust_code)
        double = [name for name in found if options.get(name, defaults.get(name)) is not defaults.get(name)]
        if trust_code:
            decoder = found.get("decoder", options.get("decoder", DEFAULT_DECODER))
            found["decoder"] = None if decoder is None else decoder.trusting()
        if config is None:
            return cls(store, subflavors=subflavors, **{**options, **found})
        if double:
            raise ConfigError(
                f"{config.path}: sets {', '.join(double)} too, and as with Energon the file decides; leave the argument"
                " out, or name another file by dataset_config, or use MediaDataset(store, ...), which does not read"
                " the file"
            )
        return cls(store, subflavors={**config.subflavors, **(subflavors or {})}, **{**options, **found})

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of the sample type; for cooked and crude samples only those that all samples have."""
        kind = self.mapper.sample_type
        return BASE_FIELDS if self.mapper.is_crude else tuple(field.name for field in dataclasses.fields(kind))

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        is_plain = self.cooker is None and self._functions["sample_loader"] is None
        is_plain &= not hasattr(self.mapper.sample_type, "__post_init__")
        return msgspec.structs.replace(super().traits, is_plain=is_plain)

    def cooked_by(self, cookers: Sequence[Cooker]) -> MediaDataset:
        """Return the same dataset with these cookers if it is crude. Raises ConfigError if none matches."""
        options = {**self._options, "cookers": tuple(cookers)}
        return type(self)(self.store, self.mapper.sample_type, self._field_map, **options)

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The cooker."""
        return () if self.cooker is None else (self.cooker.cook,)

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return samples, or their substitutes; see `SampleDataset.samples`."""
        watch = watch or SampleWatch()
        return watch.make(addresses, self._policed.makers(addresses, watch))

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read samples; see `SampleDataset.makers`. No sample is replaced; other errors get a note that names it."""
        raws = self.store.read(addresses, self.mapper.parts)
        return [
            partial(self.made, raw, index, partial(self.store.places, index), None if watch is None else watch.room)
            for raw, index in zip(raws, addresses.tolist(), strict=True)
        ]

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return one range for each sample, with all of its parts, also those that are not read."""
        return [self.store.extents(addresses)]

    def address_of(self, restore_key: Any) -> int | None:
        """Return the number of the sample with a restore key, see `SampleDataset.address_of`."""
        match restore_key:
            case ("Webdataset", int(index)) if 0 <= index < len(self):
                return index
        return None

    def made(self, raw: RawSample, index: int, places: Places, room: Room | None = None) -> Any:
        """Return the sample made from parts that were read.

        Args:
            raw: the parts.
            index: number of the sample in its dataset.
            places: finds where the parts lie, if that is needed.
            room: where its pictures are decoded; None is memory of their own.

        Raises:
            SampleError: the sample cannot be made; names file, key, part and byte.
        """
        key = raw.key
        wanted = raw.parts if self.mapper.takes_all else filter(self.mapper.wants, raw.parts)
        names = tuple([f"{key}.{part}" for part in wanted])
        source = SourceInfo(dataset_path=self.store.path, index=index, shard_name=raw.shard, file_names=names)
        make = partial(
            self.mapper.make,
            key=raw.key,
            restore_key=("Webdataset", index),
            subflavors=None if self.subflavors is None else dict(self.subflavors),
            sources=(source,),
            shard=raw.shard,
            room=room,
        )
        try:
            try:
                sample = make(raw.parts)
            except FieldAccessError:
                # Only the parts of the field map were read. The message names all that the sample has.
                sample = make({**dict.fromkeys(places(), b""), **raw.parts})
            return sample if self._cook is None else self._cooked(self._cook, sample, raw.key)
        except SampleError as error:
            raise placed(error, raw, self.store.path, places) from error.__cause__
        except Exception as error:
            error.add_note(f"while making sample {index:,} of {self.store.path}: shard {raw.shard}, key {raw.key!r}")
            raise

    def _cooked(self, cook: Callable[..., Any], crude: CrudeSample, key: str) -> Any:
        cooked = cook(crude) if self._primary is None else cook(crude, primary=PrimaryFileStore(self._primary, key))
        if cooked is None and self.cooker is not None:
            raise SampleError(None, f"the cooker {_name(self.cooker.cook)} returned None, and not a sample")
        return cooked

    def _opened(self, aux: Aux) -> dict[str, FileStore]:
        if aux and self.cooker is None:
            raise ConfigError(f"{self.store.path}: aux is for cookers of crude samples, and there is no cooker")
        # Files beside a dataset in a store are reached as the dataset is.
        remote = next((one for one in self.store.readers if one.reads_urls), None)
        return {name: self._decoded(file_store(place, remote)) for name, place in aux.items()}

    def _decoded(self, files: FileStore) -> FileStore:
        decoder = self.mapper.decoder
        return (
            files if decoder is None or isinstance(files, DecodeFileStore) else DecodeFileStore(files, decoder=decoder)
        )

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; functions and folders of plain files are recorded by name, not read."""
        decoder = self.mapper.decoder
        options = None if decoder is None else {k: v for k, v in decoder.config().items() if k not in _BOUNDS}
        if options is not None and type(decoder) is not SampleDecoder:
            options["class"] = _name(type(decoder))
        part_filter = self._functions["part_filter"]
        return {
            "kind": type(self).__name__,
            "version": 1,
            "store": self.store.layout_fingerprint,
            "sample_type": _name(self.mapper.sample_type),
            "field_map": self._field_map,
            "sample_loader": _name(self._functions["sample_loader"]),
            "part_filter": _name(part_filter) if callable(part_filter) else self.mapper.parts,
            "decoder": options,
            "cooker": None if self.cooker is None else _name(self.cooker.cook),
            "subflavors": self.subflavors,
            "aux": {name: files.layout_fingerprint for name, files in sorted(self.aux.items())},
            **contents_of(self.store, [files for _, files in sorted(self.aux.items())]),
            **({} if self._policed.errors.on_error == "raise" else {"on_error": self._policed.errors.on_error}),
        }

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker) -> MediaDataset:
        """Return the dataset of a recipe; what it names beside our own types is imported."""
        if recipe["cooker"] is not None or recipe["aux"]:
            raise ConfigError("its samples are cooked, and the file holds only the name of the cooker")
        options: dict[str, Any] = {"decoder": None, "subflavors": recipe["subflavors"]}
        if recipe["decoder"] is not None:
            decoder = dict(recipe["decoder"])
            if decoder.get("trust_code") and not maker.trust_code:
                raise ConfigError("its decoder reads pickles, which may run any code: pass trust_code=True")
            if decoder.get("image_size") is not None:
                decoder["image_size"] = tuple(decoder["image_size"])
            if (kind := decoder.pop("class", None)) is not None:
                raise ConfigError(f"its decoder is {kind}, a class of the user's, and the file holds only its name")
            made = SampleDecoder(**decoder)
            options["decoder"] = made.trusting() if maker.trust_code else made
        if recipe["sample_loader"] is not None:
            options["sample_loader"] = maker.named(recipe["sample_loader"], "sample loader")
        if isinstance(recipe["part_filter"], str):
            options["part_filter"] = maker.named(recipe["part_filter"], "part filter")
        elif recipe["field_map"] is None:
            options["part_filter"] = recipe["part_filter"]
        of_ours, _, name = recipe["sample_type"].partition(":")
        module, _, name = (of_ours, "", name) if name else of_ours.rpartition(".")
        sample_type = resolve_sample_type(module, name, trust_code=maker.trust_code)
        return cls(maker.store(as_samples=True), sample_type, recipe["field_map"], **options)

    def describe(self) -> str:
        """Describe sample type, store and cooker in one line."""
        made = "crude" if self.mapper.is_crude else self.mapper.sample_type.__name__
        cooked = "" if self.cooker is None else f", cooked by {_name(self.cooker.cook)}"
        return f"{made} samples of {self.store.path}{cooked}"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self.store, self.mapper.sample_type, self._field_map)


def opened_samples(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split_part: str | None,
    split_config: str | None,
    dataset_config: str | None = None,
    reader: str | Reader = "mmap",
) -> SampleStore:
    """Open the samples at a path; see `MediaDataset.open`."""
    if sample_layout(path, reader) == "energon" and isinstance(path, str | os.PathLike):
        return EnergonStore(
            path, split_part=split_part, split_config=split_config, dataset_config=dataset_config, using=reader
        )
    if split_part not in (None, "train") or split_config is not None or dataset_config is not None:
        raise ConfigError(
            f"{path}: has no split file and no dataset.yaml, since it has no .nv-meta; it can only be opened whole:"
            " leave out split_part, split_config and dataset_config"
        )
    store = open_store(path, reader=reader)
    if not isinstance(store, SampleStore):
        raise ConfigError(f"{path}: holds tokens ({store.format}); use headrace.open and a dataset of tokens")
    return store


def _with_samples(store: SampleStore) -> SampleStore:
    """Return an open store that has samples. Raises ConfigError for anything else."""
    if not isinstance(store, SampleStore):
        raise ConfigError(
            f"store is {store!r}; expected an open store of samples, such as headrace.open(path), or use"
            " MediaDataset.open(path)"
        )
    if not len(store):
        raise ConfigError(f"{store.path} has no samples")
    return store


def _name(function: Any) -> str | None:
    """Return the recorded name of a function; for a function that a file names, what the file says."""
    if function is None:
        return None
    return function.reference if isinstance(function, DatasetFunction) else recorded_name(function)
