"""The base of all media samples: key, subflavors and sources, and how one sample is made from another.

Facts about media files, with attributes and as a mapping: ``facts.width`` and ``facts["width"]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from copy import copy
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

from headrace.errors import ConfigError


class MediaFacts(Mapping[str, Any]):
    """The base of facts: a dataclass that is also a mapping of the facts that are known, and of their ``type``."""

    type: ClassVar[str]

    def _known(self) -> dict[str, Any]:
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"type": self.type, **{name: value for name, value in named.items() if value is not None}}

    def __getitem__(self, name: str) -> Any:
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


@dataclasses.dataclass(kw_only=True, eq=False)
class ImageMetadata(MediaFacts):
    """Facts about an image.

    Attributes:
        width: In pixels.
        height: In pixels.
        format: Pillow's name of the format, such as ``JPEG``.
        mode: Pillow's name of the pixels, such as ``RGB``.
    """

    type: ClassVar[str] = "image"

    width: int | None = None
    height: int | None = None
    format: str | None = None
    mode: str | None = None


@dataclasses.dataclass(kw_only=True, eq=False)
class AVMetadata(MediaFacts):
    """Facts about a video or a sound; None for those that do not exist or were not requested.

    Attributes:
        video_duration: In seconds.
        video_num_frames: The number of frames.
        video_fps: The average number of frames per second.
        video_width: In pixels.
        video_height: In pixels.
        audio_duration: In seconds.
        audio_channels: The number of channels.
        audio_sample_rate: Samples per second.
        audio_num_samples: The number of samples of one channel.
    """

    type: ClassVar[str] = "av"

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


def media_facts(found: Mapping[str, Any]) -> MediaFacts:
    """Return facts as an index holds them, ``{"type": "image", "width": 640}``, as an object.

    Raises:
        ConfigError: facts of another type, or unknown ones.
    """
    kinds: dict[str, type[ImageMetadata | AVMetadata]] = {"image": ImageMetadata, "av": AVMetadata}
    facts = {name: value for name, value in found.items() if name != "type"}
    try:
        return kinds[found["type"]](**facts)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"media metadata {dict(found)!r:.200} are not those of an image, a video or a sound"
        ) from error


T = TypeVar("T")


def pinned(value: T) -> T:
    """Return the same structure with each tensor in page-locked memory.

    Mappings, dataclasses, named tuples, lists and tuples are rebuilt, and what has a ``pin_memory`` of its own does it
    itself; all other values stay as they are.
    """
    return _pinned(value, is_within=False)  # type: ignore[no-any-return]


def _pinned(value: Any, *, is_within: bool = True) -> Any:
    if callable(getattr(value, "new_zeros", None)):
        return value.pin_memory()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return type(value)(**{name: _pinned(getattr(value, name)) for name in names})
    if isinstance(value, MutableMapping):
        made = copy(value)
        made.update({key: _pinned(item) for key, item in value.items()})
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_pinned, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_pinned, value))
    # What is pinned as a whole may have come here from its own method.
    pin = getattr(value, "pin_memory", None) if is_within else None
    return pin() if callable(pin) and not isinstance(value, type) else value


BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that describe a sample, as opposed to its content."""


@dataclass_transform(kw_only_default=True)
def sample_type(cls: type[T]) -> type[T]:
    """Make a class a sample type or batch type: ``@dataclass(slots=True, kw_only=True)``."""
    return dataclasses.dataclass(slots=True, kw_only=True)(cls)


class SourceInfo(NamedTuple):
    """Where a sample, or a part of it, was read.

    A named tuple, since trainers that move a batch rebuild all that is in it, and refuse frozen dataclasses.

    Attributes:
        dataset_path: The dataset, as the user wrote it.
        index: The number of the sample in the dataset, or its key.
        shard_name: The shard that holds the sample, relative to the dataset.
        file_names: The members from which the sample was made, by their full names in the shard.
    """

    dataset_path: str
    index: str | int  # type: ignore[assignment]  # the name that users of Energon know hides a method of tuples
    shard_name: str
    file_names: tuple[str, ...]


class Derived:
    """What samples and batches have in common: one is made from another, and pinned."""

    __slots__ = ()

    @classmethod
    def derive_from(cls, base: Any, **fields: Any) -> Self:
        """Return a sample with these fields, and with key, restore key, subflavors and sources of another sample."""
        return cls(**{name: getattr(base, name) for name in BASE_FIELDS if name not in fields}, **fields)

    @classmethod
    def extend(cls, src: Any, **fields: Any) -> Self:
        """Return a sample of this type from one of a base type, with the fields that the base type lacks.

        Raises:
            ConfigError: If ``src`` is not of a base class of this type.
        """
        if not issubclass(cls, type(src)):
            raise ConfigError(
                f"{cls.__name__}.extend got a {type(src).__name__}, which is not a base class of {cls.__name__}"
            )
        inherited = {field.name: getattr(src, field.name) for field in dataclasses.fields(src) if field.init}
        return cls(**{**inherited, **fields})

    def pin_memory(self) -> Self:
        """Return the same sample with all tensors in page-locked memory; torch's DataLoader calls this."""
        return pinned(self)


@sample_type
class Sample(Derived):
    """The base of all sample types; derive your own types from it with ``@sample_type``.

    Attributes:
        __key__: The name of the sample in its dataset.
        __restore_key__: A (nested) tuple of strings and integers by which the sample is found again.
        __subflavors__: What the configuration says about the dataset of the sample, or None.
        __sources__: Where its bytes were read, or None.

    Example:
        >>> from headrace.samples.media import Sample, sample_type
        >>> @sample_type
        ... class Rated(Sample):
        ...     text: str
        ...     rating: int
        >>> Rated(__key__="reviews/17", __restore_key__=(), text="Good.", rating=5).rating
        5
    """

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def from_joined(cls, *samples: Sample | None, **named: Sample | None) -> Self:
        """Merge the samples of one row of a join; override this if fields need more than a merge.

        Key, restore key and subflavors are those of the first, the primary sample. If several samples have another
        field, the last one's value is used. The sources of all are concatenated. None (no match) is skipped.

        Raises:
            ConfigError: If there is no primary sample, or samples are passed by keyword, to which only a method of your
                own can give a meaning.
        """
        if named:
            raise ConfigError(
                f"{cls.__name__}.from_joined got samples by name ({', '.join(named)}), but fields of joined samples "
                "are merged in order: list the datasets of the join, or write a from_joined that accepts these names"
            )
        if not samples or samples[0] is None:
            raise ConfigError(f"{cls.__name__}.from_joined needs the primary sample as its first argument")
        merged = {name: getattr(samples[0], name) for name in BASE_FIELDS}
        matched = [sample for sample in samples if sample is not None]
        for sample in matched:
            for field in dataclasses.fields(sample):
                if field.name not in BASE_FIELDS:
                    merged[field.name] = getattr(sample, field.name)
        merged["__sources__"] = tuple(source for sample in matched for source in sample.__sources__ or ())
        return cls(**merged)


class CrudeSample(dict[str, Any]):
    """A sample before it is cooked: a dict of its parts, the base fields of `Sample`, and ``__shard__``."""


def add_sources(sample: Any, *sources: SourceInfo) -> None:
    """Append sources to a sample or a crude sample, in place."""
    if isinstance(sample, MutableMapping):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), *sources)
    else:
        sample.__sources__ = (*(sample.__sources__ or ()), *sources)
