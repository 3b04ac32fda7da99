"""Energon's factories: classes that say how the samples at a path are read, and that prepare a folder of tars.

    BaseCoreDatasetFactory                     what `get_dataset_from_config` returns: `build`, `paths`, `subflavors`
      BaseWebdatasetFactory                    ... prepare_dataset(path, tars, split_parts_ratio=...)
        DefaultGenericWebdatasetFactory        ... by a field map or a sample loader
          DefaultDecoderWebdatasetFactory      ... with a decoder: the base of a user's class that a dataset.yaml names

The samples are opened when they are first needed, since a class of the user's may set its decoder after the constructor
of its base has returned. `described` makes the dataset of a ``dataset.yaml`` that names such a class.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, TypeVar

from headrace.compat.energon.epath import EPath
from headrace.compat.energon.workers import WorkerConfig
from headrace.datasets.dataset import Dataset
from headrace.datasets.lengths import Subset
from headrace.datasets.media import FileStore, MediaDataset
from headrace.datasets.media.dataset import DEFAULT_DECODER, DatasetFunction
from headrace.datasets.media.file_stores import file_store
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError
from headrace.io.paths import expand_braces
from headrace.preparing.energon import prepare_energon
from headrace.preparing.energon.options import DatasetChoice, EnergonOptions, MediaFilter, SplitChoice
from headrace.samples.media import Cooker, CrudeSample, SampleDecoder
from headrace.stores.energon import DatasetConfig, EnergonStore
from headrace.stores.energon.dataset_yaml import Reference, read_dataset

T_co = TypeVar("T_co", covariant=True)

META_FOLDER = ".nv-meta"


class BaseCoreDatasetFactory(Generic[T_co]):
    """Samples that are not open yet, and what Energon says about them.

    Args:
        path: where they lie.
        training: whether `build` shuffles.
        worker_config: rank and workers, for `build`.
        subflavors: set on every sample.
        subset: a range of the samples.
        shuffle_over_epochs, parallel_shard_iters, max_samples_per_sequence: see `get_train_dataset`.

    Attributes:
        paths: the paths of the samples.
    """

    __sample_type__: ClassVar[Any] = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        subflavors: Mapping[str, Any] | None = None,
        subset: Any = None,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
    ) -> None:
        self.path = EPath(path)
        self.paths = [self.path]
        self.training = training
        self.worker_config = worker_config
        self.subset = subset
        self.given_subflavors = None if subflavors is None else dict(subflavors)
        self.order = {
            "shuffle_over_epochs_multiplier": shuffle_over_epochs,
            "parallel_shard_iters": parallel_shard_iters,
            "max_samples_per_sequence": max_samples_per_sequence,
        }

    def media(self) -> MediaDataset:
        """Open the samples."""
        return MediaDataset.open(self.path, None, subflavors=self.given_subflavors)

    @cached_property
    def opened(self) -> MediaDataset:
        """The samples, opened once."""
        return self.media()

    @property
    def dataset(self) -> Dataset | Mix:
        """The samples, or the range of them."""
        return self.opened if self.subset is None else Subset(self.opened, self.subset)

    @property
    def subflavors(self) -> dict[str, Any]:
        """What is set on every sample."""
        return dict(self.opened.subflavors or {})

    def build(self, worker_rotation_offset: int = 0) -> Any:
        """The samples one by one, for wrappers and `get_loader`; ``worker_rotation_offset`` has no meaning here."""
        if self.worker_config is None:
            raise ConfigError(f"{type(self).__name__}.build needs the worker_config that the constructor was not given")
        return resolve_name("headrace.compat.energon.getting:built")(self)

    def as_file_store(self) -> FileStore:
        """The files of the dataset by name."""
        return file_store(self.opened.store)

    def __len__(self) -> int:
        return len(self.opened)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"


MediaFilterConfig = MediaFilter


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T_co]):
    """Samples in tars.

    Args:
        path: a folder that was prepared.
        split_part, split_config: the part of the samples, and the split file.
        part_filter: the parts of a sample that are read.
        options: those of `BaseCoreDatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        split_config: str | None = None,
        part_filter: Collection[str] | Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self.split_part = split_part
        self.split_config = split_config
        self.part_filter = part_filter

    def store(self) -> EnergonStore:
        """Open the tars."""
        return EnergonStore(self.path, split_part=self.split_part, split_config=self.split_config)

    def media(self) -> MediaDataset:
        """Open the samples."""
        return MediaDataset(self.store(), part_filter=self.part_filter, subflavors=self.given_subflavors)

    @classmethod
    def prepare_dataset(
        cls,
        parent_path: str | os.PathLike[str],
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = "split.yaml",
        shuffle_seed: int | None = 42,
        progress_fn: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
        workers: int = 32,
        tar_index_only: bool = False,
        media_filter: MediaFilter | None = None,
        fix_duplicates: bool = False,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> tuple[set[str], list[tuple[str, int]]]:
        """Prepare a folder of tars as `headrace.preparing.prepare_energon` does; ``dataset.yaml`` is left to you.

        Args:
            parent_path: the folder.
            paths: the tars in it, with braces; other tars are left out.
            split_parts_ratio: the shares of train, val and test.
            split_parts_patterns: or patterns of the tars of each part.
            split_config: only ``split.yaml``.
            shuffle_seed: 42 shuffles the tars as Energon does before the shares are taken; None keeps their order.
            progress_fn, index_sqlite_tmp_path: Energon's; not used.
            workers: at most so many processes; never more than there are processors.
            tar_index_only: write only what finds samples by number.
            media_filter: the media whose metadata are gathered.
            fix_duplicates: keep samples whose key an earlier sample has; no tar is rewritten.

        Returns:
            The names of the parts, at most 50; and an empty list, since a malformed tar is an error.

        Raises:
            ConfigError: another split file, seed or part; a tar that is not there; and what `prepare_energon` raises.
        """
        if split_config != "split.yaml" or shuffle_seed not in (42, None):
            raise ConfigError(
                f"split_config is {split_config!r} and shuffle_seed is {shuffle_seed}: only 'split.yaml', and 42 or"
                " None, are known here; copy split.yaml under another name afterwards"
            )
        root = Path(parent_path)
        wanted = {name for path in paths for name in expand_braces(path)}
        found = {str(path.relative_to(root)) for path in root.glob("**/*.tar")}
        if missing := sorted(wanted - found):
            raise ConfigError(
                f"{root}: there is no {missing[0]}" + (f" (and {len(missing) - 1} more)" * (len(missing) > 1))
            )
        others = "|".join(map(re.escape, sorted(found - wanted)))
        split = SplitChoice(
            ratio=_ratio(split_parts_ratio),
            parts=tuple(split_parts_patterns or ()),
            shuffle=shuffle_seed is not None and bool(split_parts_ratio),
        )
        report = prepare_energon(
            root,
            options=EnergonOptions(
                split=split,
                dataset=DatasetChoice(skip=True),
                exclude=f"^(?:{others})$" if others else None,
                media=_media_filter(media_filter),
                index_only=tar_index_only,
                duplicates="keep" if fix_duplicates else "error",
                workers=min(workers, len(os.sched_getaffinity(0)), max(1, len(wanted))),
                overwrite=True,
            ),
        )
        return set(report.parts), []


def prepare_filesystem_dataset(
    root_path: str | os.PathLike[str],
    media_filter: MediaFilter,
    *,
    progress: bool = True,
    workers: int = 16,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> int:
    """Gather the metadata of the media in a folder of plain files, as `prepare_energon` does.

    Args:
        root_path: the folder.
        media_filter: which files are media.
        progress, index_sqlite_tmp_path: Energon's; not used.
        workers: at most so many processes.

    Returns:
        The number of media whose metadata were gathered.
    """
    options = EnergonOptions(
        media=_media_filter(media_filter),
        media_only=True,
        workers=min(workers, len(os.sched_getaffinity(0))),
        overwrite=True,
    )
    return prepare_energon(Path(root_path), options=options).media or 0


def _media_filter(given: MediaFilter | None) -> MediaFilter | None:
    """Return a filter whose strategy may be one of Energon's, with its patterns in a list."""
    if given is None:
        return None
    strategy: Any = str(given.strategy)
    return MediaFilter(strategy=strategy, patterns=tuple(given.patterns))


def _ratio(shares: Sequence[tuple[str, float]] | None) -> tuple[float, ...]:
    named = dict(shares or ())
    if unknown := [name for name in named if name not in ("train", "val", "test")]:
        raise ConfigError(
            f"split_parts_ratio: {unknown[0]!r} is not one of train, val and test; use split_parts_patterns"
        )
    if not named:
        return ()
    ratio = [float(named.get(name, 0)) for name in ("train", "val", "test")]
    while len(ratio) > 1 and not ratio[-1] and ("train", "val", "test")[len(ratio) - 1] not in named:
        ratio.pop()
    return tuple(ratio)


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_co]):
    """Samples of ``__sample_type__``, made by a field map or by a function of the decoded parts.

    A class of the user's sets ``__sample_type__``, and may override ``load_sample``, which makes a sample of a dict of
    parts.

    Args:
        path: a folder that was prepared.
        field_map: the part of each field.
        sample_loader: or a function from parts to fields, or ``"file.py:name"`` in ``.nv-meta``.
        part_filter: with a ``sample_loader``, the parts that are read.
        options: those of `BaseWebdatasetFactory`.
    """

    _decoder: Any = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        field_map: Mapping[str, str] | None = None,
        sample_loader: str | Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        part_filter: str | Collection[str] | Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        self._field_map = field_map
        self._sample_loader = _function(path, sample_loader, "sample_loader")
        super().__init__(path, part_filter=_function(path, part_filter, "part_filter"), **options)

    def load_sample(self, sample: dict[str, Any]) -> Any:
        """Make a sample of decoded parts; override it to make samples in your own way."""
        raise ConfigError(f"{type(self).__name__} does not override load_sample")

    @property
    def decoder(self) -> SampleDecoder | None:
        """What decodes the parts: ``_decoder``, which may be any function of a dict of parts."""
        found = self._decoder
        return found if found is None or isinstance(found, SampleDecoder) else CalledDecoder(found)

    def media(self) -> MediaDataset:
        """Open the samples."""
        common: dict[str, Any] = {"decoder": self.decoder, "subflavors": self.given_subflavors}
        if type(self).load_sample is not DefaultGenericWebdatasetFactory.load_sample:
            common["cookers"] = (Cooker(self.load_sample),)
            return MediaDataset(self.store(), part_filter=self.part_filter, **common)
        return MediaDataset(
            self.store(),
            self.__sample_type__,
            self._field_map,
            sample_loader=self._sample_loader,
            part_filter=self.part_filter,
            **common,
        )


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_co]):
    """A `DefaultGenericWebdatasetFactory` that decodes the parts.

    A class of the user's may set ``self._decoder`` to any function of a dict of parts, such as a ``Decoder`` of
    webdataset.

    Args:
        path: a folder that was prepared.
        decoder: decodes the parts; None leaves bytes.
        auto_decode, image_decode, av_decode, video_decode_audio, guess_content: or the options of a decoder.
        ignore_decoder_errors: Energon's; not used.
        options: those of `DefaultGenericWebdatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        auto_decode: bool = True,
        image_decode: str = "torchrgb",
        av_decode: Any = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        ignore_decoder_errors: bool = False,
        **options: Any,
    ) -> None:
        self.image_decode = image_decode
        made = SampleDecoder(
            image_decode=image_decode,
            av_decode=av_decode,
            video_decode_audio=video_decode_audio,
            guess_content=guess_content,
        )
        self._decoder = None if not auto_decode else made if decoder is DEFAULT_DECODER else decoder
        super().__init__(path, **options)


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_co]):
    """A `DefaultDecoderWebdatasetFactory` of the type that is passed."""

    def __init__(self, path: str | os.PathLike[str], *, sample_type: type[Any], **options: Any) -> None:
        self.__sample_type__ = sample_type  # type: ignore[misc]
        super().__init__(path, **options)


class CalledDecoder(SampleDecoder):
    """A decoder that is any function of a dict of parts."""

    def __init__(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__()
        self._function = function

    def __call__(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the function makes of the parts."""
        return dict(self._function(dict(parts)))


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[T_co]):
    """The records of a ``.jsonl`` as crude samples."""

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str]) -> int:
        """Write the ``.jsonl.idx`` of a file, and return how many samples it has."""
        return prepare_energon(Path(path)).samples

    def media(self) -> MediaDataset:
        """Open the samples."""
        return MediaDataset.open(self.path, subflavors=self.given_subflavors)


class ConfiguredDataset(BaseCoreDatasetFactory[Any]):
    """The samples at a path, as its ``dataset.yaml`` says."""

    def __init__(self, path: str | os.PathLike[str], opened: MediaDataset, **options: Any) -> None:
        super().__init__(path, **options)
        self._opened = opened
        self.__sample_type__ = opened.mapper.sample_type  # type: ignore[misc]

    def media(self) -> MediaDataset:
        """The samples."""
        return self._opened


_OF_OPENING = ("decoder", "cookers", "cache_pool", "aux", "reader", "cache")


def get_dataset_from_config(
    path: str | os.PathLike[str],
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig,
    sample_type: type[Any] | None = None,
    trust_code: bool = False,
    **options: Any,
) -> BaseCoreDatasetFactory[Any]:
    """Open the samples at a path as its ``dataset.yaml`` says, for wrappers.

    Args:
        path: a prepared folder, or a ``.jsonl``.
        dataset_config, split_config, split_part: other files in ``.nv-meta``, and the part.
        training: whether `BaseCoreDatasetFactory.build` shuffles.
        subflavors: set on every sample, over those of the file.
        worker_config: rank and workers.
        sample_type: what the samples are expected to be.
        trust_code: run code that the file names, and read pickles.
        options: those of `BaseCoreDatasetFactory`, and ``decoder``.

    Raises:
        ConfigError: the samples are of another type; as `MediaDataset.open`.
        StoreError: nothing is there, or the data are malformed.
    """
    opening = {name: options.pop(name) for name in _OF_OPENING if name in options}
    is_energon = Path(path, META_FOLDER).is_dir()
    part = (split_part or "train") if is_energon else None
    opened = described(
        path,
        part,
        split_config,
        dataset_config,
        subflavors=subflavors,
        trust_code=trust_code,
        training=training,
        **opening,
    )
    if opened is None:
        files: dict[str, Any] = {}
        if is_energon:
            files = {"split_config": split_config, "dataset_config": dataset_config}
        opened = MediaDataset.open(path, part, subflavors=subflavors, trust_code=trust_code, **files, **opening)
    found = ConfiguredDataset(path, opened, training=training, worker_config=worker_config, **options)
    if sample_type is not None and not issubclass(opened.mapper.sample_type, sample_type):
        raise ConfigError(
            f"{path}: its samples are {opened.mapper.sample_type.__name__}, expected {sample_type.__name__}"
        )
    return found


def described(
    path: str | os.PathLike[str],
    split_part: str | None,
    split_config: str | None,
    dataset_config: str | None,
    *,
    trust_code: bool,
    subflavors: Mapping[str, Any] | None = None,
    decoder: SampleDecoder | None = DEFAULT_DECODER,
    training: bool = True,
    **opening: Any,
) -> MediaDataset | None:
    """Open the samples of a ``dataset.yaml`` that names a class of the user's; None for any other path.

    Raises:
        ConfigError: the class is not trusted, cannot be imported, or is not a `BaseWebdatasetFactory`.
    """
    if not Path(path, META_FOLDER).is_dir():
        return None
    config = read_dataset(Path(path), dataset_config)
    if config is None or config.kind != "other" or config.class_ref.is_function:
        return None
    kind = _class_of(config, trust_code)
    options = dict(config.options)
    options.setdefault("split_part", split_part)
    if split_config is not None:
        options.setdefault("split_config", split_config)
    options["subflavors"] = {**(options.get("subflavors") or {}), **(subflavors or {})}
    if decoder is not DEFAULT_DECODER:
        options.setdefault("decoder", decoder)
    made = kind(EPath(path), training=training, **options)
    return made.opened


def imported(named: Reference, where: object, trust_code: bool) -> Any:
    """The class or function that a file names. Energon's names are those of this package.

    Raises:
        ConfigError: it lies in another module and is not trusted, or cannot be imported.
    """
    ours = f"{named.module}.".startswith("megatron.energon.")
    if not trust_code and not ours:
        raise ConfigError(
            f"{where}: the {'function' if named.is_function else 'class'} {named} lies in a module that is not"
            " imported, because importing runs its code; pass trust_code=True if you trust the author of the dataset"
        )
    try:
        return getattr(importlib.import_module("headrace.compat.energon" if ours else named.module), named.name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: {named} cannot be imported: {error}") from error


def _class_of(config: DatasetConfig, trust_code: bool) -> type[BaseWebdatasetFactory[Any]]:
    named = config.class_ref
    found = imported(named, config.path, trust_code)
    if not (isinstance(found, type) and issubclass(found, BaseWebdatasetFactory)):
        raise ConfigError(
            f"{config.path}: {named} is not a class of datasets here; it must derive from"
            f" headrace.compat.energon.DefaultDecoderWebdatasetFactory (found {found!r:.80}); change its import line"
        )
    return found


def _function(path: str | os.PathLike[str], named: Any, default: str) -> Any:
    """Return a function that a file in ``.nv-meta`` holds, if it is given by name."""
    return DatasetFunction(Path(path), named, default, trust_code=True) if isinstance(named, str) else named
