"""The two factories of Energon that programs use: one prepares a folder of tars, one is the base of a user's class.

    BaseWebdatasetFactory                ... prepare_dataset(path, tars, split_parts_ratio=...)
      DefaultDecoderWebdatasetFactory    the base of a user's class that a dataset.yaml names

The samples are opened after the constructor of the user's class, which may set its decoder after that of its base has
returned. `described` makes the dataset of a ``dataset.yaml`` that names such a class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from headrace.datasets.media import MediaDataset
from headrace.datasets.media.dataset import DEFAULT_DECODER, DatasetFunction, imported
from headrace.datasets.metadataset import load_dataset
from headrace.datasets.metadataset.reading import named_place
from headrace.errors import ConfigError
from headrace.io import expand_braces
from headrace.preparing.energon import DatasetChoice, EnergonOptions, MediaFilter, SplitChoice, prepare_energon
from headrace.samples.media import Cooker, CrudeSample, SampleDecoder
from headrace.stores.energon import DatasetConfig, EnergonStore, read_dataset

T_co = TypeVar("T_co", covariant=True)

MAIN_FOLDER_NAME: Final = ".nv-meta"

EPath = Path
"""Energon's name of a path: a local one."""


class BaseWebdatasetFactory(Generic[T_co]):
    """Samples in tars."""

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
    ) -> tuple[set[str], list[tuple[str, int]]]:
        """Prepare a folder of tars as `headrace.preparing.prepare_energon` does; ``dataset.yaml`` is left to you.

        Args:
            parent_path: the folder.
            paths: the tars in it, with braces; other tars are left out.
            split_parts_ratio: the shares of train, val and test.
            split_parts_patterns: or patterns of the tars of each part.
            split_config: only ``split.yaml``.
            shuffle_seed: 42 shuffles the tars as Energon does before the shares are taken; None keeps their order.
            progress_fn: Energon's; not used.
            workers: at most so many processes; never more than there are processors.
            tar_index_only: write only what finds samples by number.
            media_filter: the media whose metadata are gathered.

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
                media=media_filter,
                index_only=tar_index_only,
                workers=min(workers, len(os.sched_getaffinity(0)), max(1, len(wanted))),
                overwrite=True,
            ),
        )
        return set(report.parts), []


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


class DefaultDecoderWebdatasetFactory(BaseWebdatasetFactory[T_co]):
    """Samples of ``__sample_type__``, made of decoded parts by a field map or by a function.

    A class of the user's sets ``__sample_type__``, may override ``load_sample``, which makes a sample of a dict of
    parts, and may set ``self._decoder`` to any function of a dict of parts, such as a ``Decoder`` of webdataset.

    Args:
        path: a folder that was prepared.
        split_part, split_config: the part of the samples, and the split file.
        subflavors: set on every sample.
        field_map: the part of each field.
        sample_loader: or a function from parts to fields, or ``"file.py:name"`` in ``.nv-meta``.
        part_filter: with a ``sample_loader``, the parts that are read.
        decoder: decodes the parts; None leaves bytes.
        auto_decode, image_decode, av_decode, video_decode_audio, guess_content: or the options of a decoder.
        ignore_decoder_errors: Energon's; not used.
    """

    __sample_type__: ClassVar[Any] = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        split_config: str | None = None,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: str | Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        part_filter: str | Collection[str] | Callable[[str], bool] | None = None,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        auto_decode: bool = True,
        image_decode: str = "torchrgb",
        av_decode: Any = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        ignore_decoder_errors: bool = False,
    ) -> None:
        self.path = Path(path)
        self.split_part = split_part
        self.split_config = split_config
        self.subflavors = dict(subflavors or {})
        self.image_decode = image_decode
        self._field_map = field_map
        self._sample_loader = _function(path, sample_loader, "sample_loader")
        self._part_filter = _function(path, part_filter, "part_filter")
        made = SampleDecoder(
            image_decode=image_decode,
            av_decode=av_decode,
            video_decode_audio=video_decode_audio,
            guess_content=guess_content,
        )
        self._decoder: Any = None if not auto_decode else made if decoder is DEFAULT_DECODER else decoder

    def load_sample(self, sample: dict[str, Any]) -> Any:
        """Make a sample of decoded parts; override it to make samples in your own way."""
        raise ConfigError(f"{type(self).__name__} does not override load_sample")

    def media(self) -> MediaDataset:
        """Open the samples."""
        decoder = self._decoder
        if decoder is not None and not isinstance(decoder, SampleDecoder):
            decoder = CalledDecoder(decoder)
        store = EnergonStore(self.path, split_part=self.split_part, split_config=self.split_config)
        common: dict[str, Any] = {
            "part_filter": self._part_filter,
            "decoder": decoder,
            "subflavors": self.subflavors,
        }
        if type(self).load_sample is not DefaultDecoderWebdatasetFactory.load_sample:
            return MediaDataset(store, cookers=(Cooker(self.load_sample),), **common)
        return MediaDataset(store, self.__sample_type__, self._field_map, sample_loader=self._sample_loader, **common)


class CalledDecoder(SampleDecoder):
    """A decoder that is any function of a dict of parts."""

    def __init__(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__()
        self._function = function

    def __call__(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the function makes of the parts."""
        return dict(self._function(dict(parts)))


def described(
    path: str | os.PathLike[str],
    split_part: str | None,
    *,
    split_config: str | None = None,
    dataset_config: str | None = None,
    trust_code: bool = False,
    subflavors: Mapping[str, Any] | None = None,
    decoder: SampleDecoder | None = DEFAULT_DECODER,
) -> MediaDataset | None:
    """Open the samples of a ``dataset.yaml`` that names a class of the user's; None for any other path.

    Raises:
        ConfigError: the class is not trusted, cannot be imported, or is not a `DefaultDecoderWebdatasetFactory`.
    """
    if not Path(path, MAIN_FOLDER_NAME).is_dir():
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
    return kind(Path(path), **options).media()


def _class_of(config: DatasetConfig, trust_code: bool) -> type[DefaultDecoderWebdatasetFactory[Any]]:
    """Return the class that a file names. Energon's names are those of this package."""
    named = config.class_ref
    ours = f"{named.module}.".startswith("megatron.energon.")
    place = msgspec.structs.replace(named, module="headrace.compat.energon") if ours else named
    with named_place(str(config.path)):
        found = imported(place, "class", trust_code=trust_code or ours)
    if not (isinstance(found, type) and issubclass(found, DefaultDecoderWebdatasetFactory)):
        raise ConfigError(
            f"{config.path}: {named} is not a class of datasets here; it must derive from"
            f" headrace.compat.energon.DefaultDecoderWebdatasetFactory (found {found!r:.80}); change its import line"
        )
    return found


def prepare_metadataset(path: str | os.PathLike[str]) -> None:
    """Make the indices of all joins of a metadataset, and remove those of joins that are gone."""
    load_dataset(path).prepare()


def _function(path: str | os.PathLike[str], named: Any, default: str) -> Any:
    """Return a function that a file in ``.nv-meta`` holds, if it is given by name."""
    return DatasetFunction(Path(path), named, default, trust_code=True) if isinstance(named, str) else named
