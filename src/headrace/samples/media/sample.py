"""What all media samples share: key, subflavors, sources, and how one sample is made from another.

Page-locked memory for everything in a sample or batch that is a tensor.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, TypeVar, dataclass_transform

from headrace.errors import ConfigError

T = TypeVar("T")


def pinned(value: T) -> T:
    """The same structure (dicts, dataclasses, named tuples, lists, tuples) with each tensor pinned, the rest as is."""
    return _pinned(value)  # type: ignore[no-any-return]


def _pinned(value: Any) -> Any:
    if callable(getattr(value, "new_zeros", None)):
        return value.pin_memory()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return type(value)(**{name: _pinned(getattr(value, name)) for name in names})
    if isinstance(value, dict):
        return {key: _pinned(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_pinned, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_pinned, value))
    return value


BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that tell of a sample rather than belong to it."""


@dataclass_transform(kw_only_default=True)
def sample_type(cls: type[T]) -> type[T]:
    """``@dataclass(slots=True, kw_only=True)``, which every sample type and batch type is."""
    return dataclasses.dataclass(slots=True, kw_only=True)(cls)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """Where a sample, or a part of it, was read.

    Attributes:
        dataset_path: the dataset, as the user wrote it.
        index: the number of the sample in the dataset, or its key.
        shard_name: the shard that holds it, relative to the dataset.
        file_names: the members it was made of, by their full names in the shard.
    """

    dataset_path: str
    index: str | int
    shard_name: str
    file_names: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # Each sample has one: what a dataclass with slots does by itself takes five times as long.
        return _source_info, (self.dataset_path, self.index, self.shard_name, self.file_names)


def _source_info(path: str, index: str | int, shard: str, names: tuple[str, ...]) -> SourceInfo:
    made = _new(SourceInfo)
    _set_path(made, path)
    _set_index(made, index)
    _set_shard(made, shard)
    _set_names(made, names)
    return made


_new = object.__new__
# What is frozen is set by its slots: as the constructor does, in half the time.
_set_path, _set_index, _set_shard, _set_names = (
    getattr(SourceInfo, field.name).__set__ for field in dataclasses.fields(SourceInfo)
)


@sample_type
class Sample:
    """Base of all sample types; a type of one's own derives from it under ``@sample_type``.

    Attributes:
        __key__: the name of the sample in its dataset.
        __restore_key__: a (nested) tuple of strings and integers by which the sample is found again.
        __subflavors__: what the configuration says of the dataset that the sample comes from, or None.
        __sources__: where its bytes were read, or None.
    """

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_sample: Sample, **fields: Any) -> Self:
        """A new sample with these fields, and with key, restore key, subflavors and sources of another."""
        base = {name: getattr(base_sample, name) for name in BASE_FIELDS if name not in fields}
        return cls(**base, **fields)

    @classmethod
    def from_joined(cls, *samples: Sample | None, **named: Sample | None) -> Self:
        """One sample out of the rows of a join; override it where fields need more than a merge.

        Key, restore key and subflavors are those of the first, the primary sample. Of all other fields, that of the
        last sample that has it is taken. The sources of all are put together. None (no match) is passed over.

        Raises:
            ConfigError: samples by keyword, which only a method of your own can give a meaning; no primary sample.
        """
        if named:
            raise ConfigError(
                f"{cls.__name__}.from_joined was given samples by name ({', '.join(named)}); fields of joined samples "
                "are merged in order, so list the datasets of the join, or write a from_joined that takes these names"
            )
        if not samples or samples[0] is None:
            raise ConfigError(f"{cls.__name__}.from_joined needs the primary sample as its first argument")
        merged = {name: getattr(samples[0], name) for name in BASE_FIELDS}
        there = [sample for sample in samples if sample is not None]
        for sample in there:
            for field in dataclasses.fields(sample):
                if field.name not in BASE_FIELDS:
                    merged[field.name] = getattr(sample, field.name)
        merged["__sources__"] = tuple(source for sample in there for source in sample.__sources__ or ())
        return cls(**merged)

    @classmethod
    def extend(cls, src: Any, **fields: Any) -> Self:
        """A sample of this type out of one of a type it derives from, with the fields that type lacks.

        Raises:
            ConfigError: ``src`` is not of a base class of this type.
        """
        return _extended(cls, src, fields)

    def pin_memory(self) -> Self:
        """The same sample with all tensors in page-locked memory, which ``torch``'s own loader calls."""
        return pinned(self)


class CrudeSample(dict[str, Any]):
    """A sample before it is cooked: its parts by name, and the fields of ``Sample`` and ``__shard__`` by theirs."""


def add_sources(sample: Any, *sources: SourceInfo) -> None:
    """Add to the sources of a sample or of a crude sample, in place."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), *sources)
    else:
        sample.__sources__ = (*(sample.__sources__ or ()), *sources)


def _extended(cls: type[T], src: Any, fields: dict[str, Any]) -> T:
    if not issubclass(cls, type(src)):
        raise ConfigError(f"{cls.__name__}.extend was given a {type(src).__name__}, from which it does not derive")
    given = {field.name: getattr(src, field.name) for field in dataclasses.fields(src) if field.init}
    return cls(**{**given, **fields})
