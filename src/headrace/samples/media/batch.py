"""Samples put together: arrays padded with zeros and stacked, all else in lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from headrace.errors import ConfigError
from headrace.samples.media.pinning import pinned
from headrace.samples.media.rows import rows_here
from headrace.samples.media.sample import BASE_FIELDS, Sample, SourceInfo, _extended, sample_type


def pad_stack(arrays: Sequence[Any]) -> Any:
    """Torch tensors or NumPy arrays of one rank and dtype as one: (n, largest size of each axis ...), zeros behind.

    Arrays (2, 3) and (4, 1) become (2, 4, 3). A copy, but for images that a loader had decoded beside each other.

    Raises:
        ConfigError: they differ in rank, in dtype, or in kind.
    """
    rows = rows_here()
    if rows is not None:
        whole = rows.stacked(arrays)
        if whole is not None:
            return whole
    ranks = {array.ndim for array in arrays}
    dtypes = {str(array.dtype) for array in arrays}
    if len(ranks) != 1 or len(dtypes) != 1:
        found = sorted(f"{array.dtype!s}{tuple(array.shape)}" for array in arrays)
        raise ConfigError(
            f"arrays of one batch differ in rank or dtype: {', '.join(dict.fromkeys(found))}; only sizes may differ; "
            "give all samples arrays of one rank and dtype"
        )
    first = arrays[0]
    shape = (len(arrays), *(max(array.shape[axis] for array in arrays) for axis in range(first.ndim)))
    same = all(array.shape == shape[1:] for array in arrays)
    if isinstance(first, np.ndarray):
        stacked: Any = np.empty(shape, first.dtype) if same else np.zeros(shape, first.dtype)
    else:
        stacked = first.new_empty(shape) if same else first.new_zeros(shape)
    for row, array in enumerate(arrays):
        stacked[(row, *(slice(0, size) for size in array.shape))] = array
    return stacked


def generic_batch(values: Sequence[Any]) -> Any:
    """Values of one field of a batch: arrays are padded and stacked, dicts, dataclasses and named tuples are entered.

    What is neither is a list. Samples of a type that has ``from_samples`` go there.

    Raises:
        ConfigError: arrays that cannot be stacked; dicts with other keys.
    """
    first = values[0] if values else None
    if _are_arrays(values):
        return pad_stack(values)
    if isinstance(first, dict):
        for value in values:
            if not isinstance(value, dict) or value.keys() != first.keys():
                raise ConfigError(f"samples of one batch have other keys: {sorted(map(str, first))} and {value!r:.80}")
        return {key: generic_batch([value[key] for value in values]) for key in first}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        if hasattr(first, "from_samples"):
            return first.from_samples(values)
        names = [field.name for field in dataclasses.fields(first)]
        return type(first)(**{name: generic_batch([getattr(value, name) for value in values]) for name in names})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(generic_batch(list(column)) for column in zip(*values, strict=True)))
    return list(values)


@sample_type
class Batch:
    """Base of batch types; a type of one's own names fields of the samples, under ``@sample_type``.

    Attributes:
        __key__: the key of each sample.
        __restore_key__: the restore key of each sample.
        __subflavors__: the subflavors of each sample, None where a sample has none; None where no sample has any.
        __sources__: the sources of all samples, one after another, or None.
    """

    __key__: list[str]
    __restore_key__: Any
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], **fields: Any) -> Self:
        """A batch out of samples, in their order: tensors and arrays padded and stacked, all else in lists.

        Args:
            samples: at least one; each has the fields of this batch type that are not given.
            fields: fields of the batch that are made already.

        Raises:
            ConfigError: a sample lacks a field of the batch; arrays that cannot be stacked; no samples.
        """
        if not samples:
            raise ConfigError(f"{cls.__name__}.from_samples was given no samples")
        made: dict[str, Any] = dict(fields)
        for field in dataclasses.fields(cls):
            name = field.name
            if name in made or not field.init:
                continue
            if name == "__sources__":
                if any(sample.__sources__ is not None for sample in samples):
                    made[name] = tuple(source for sample in samples for source in sample.__sources__ or ())
            elif name == "__subflavors__":
                if any(sample.__subflavors__ is not None for sample in samples):
                    made[name] = [sample.__subflavors__ for sample in samples]
            elif name in BASE_FIELDS:
                made[name] = [getattr(sample, name) for sample in samples]
            else:
                values = [_field(sample, name, cls) for sample in samples]
                made[name] = pad_stack(values) if _are_arrays(values) else values
        return cls(**made)

    @classmethod
    def derive_from(cls, base_batch: Batch, **fields: Any) -> Self:
        """A new batch with these fields, and with keys, restore keys, subflavors and sources of another."""
        base = {name: getattr(base_batch, name) for name in BASE_FIELDS if name not in fields}
        return cls(**base, **fields)

    @classmethod
    def extend(cls, src: Any, **fields: Any) -> Self:
        """A batch of this type out of one of a type it derives from, with the fields that type lacks."""
        return _extended(cls, src, fields)

    def pin_memory(self) -> Self:
        """The same batch with all tensors in page-locked memory."""
        return pinned(self)


def _field(sample: Any, name: str, cls: type[Batch]) -> Any:
    try:
        return getattr(sample, name)
    except AttributeError:
        raise ConfigError(
            f"{cls.__name__} has the field {name!r}, which {type(sample).__name__} lacks; give it to from_samples as "
            f"{name}=..., or name a field of the samples"
        ) from None


def _are_arrays(values: Sequence[Any]) -> bool:
    """Whether all are torch tensors, or all are NumPy arrays."""
    if all(isinstance(value, np.ndarray) for value in values):
        return bool(values)
    # A tensor is known by its face: torch may not be installed.
    return all(callable(getattr(value, "new_zeros", None)) for value in values)
