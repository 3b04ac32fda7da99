"""Batches of samples: arrays are padded with zeros and stacked, all other values become lists.

`batched` makes them for any type of samples, and `made` converts samples and batches from one type to another, field by
field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.samples.media.sample import BASE_FIELDS, Derived, Sample, SourceInfo, sample_type

Allocate = Callable[[int], NDArray[np.uint8]]
"""Returns at least as many bytes as asked for, contiguous, uninitialised, and used by nobody else."""


Place = Callable[[tuple[int, ...], type[np.generic]], NDArray[Any]]
"""Returns an array of a shape and a dtype, contiguous and uninitialised, for a picture to be decoded into."""


class Room:
    """Memory in which the pictures of some samples are decoded next to each other, so that none is copied to its batch.

    For samples that nothing but their batch refers to.

    Args:
        allocate: allocates memory.
        num_samples: how many samples there are.
        most_bytes: pictures of a part that would need more lie in memory of their own; None is no bound.
    """

    def __init__(self, allocate: Allocate, num_samples: int, most_bytes: int | None = None) -> None:
        self._allocate = allocate
        self._num_samples = num_samples
        self._most_bytes = most_bytes
        self._blocks: dict[str, tuple[NDArray[Any], Iterator[NDArray[Any]]]] = {}

    def place(self, part: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """Return memory for a picture of a part: behind that of the one before, if they have one shape."""
        if part not in self._blocks:
            num_bytes = self._num_samples * prod(shape) * np.dtype(dtype).itemsize
            if self._most_bytes is not None and num_bytes > self._most_bytes:
                return np.empty(shape, dtype)
            block = self._allocate(num_bytes)[:num_bytes].view(dtype).reshape(self._num_samples, *shape)
            self._blocks[part] = block, iter(block)
        block, rows = self._blocks[part]
        row = next(rows, None) if block.shape[1:] == shape and block.dtype == dtype else None
        return np.empty(shape, dtype) if row is None else row

    def taken(self, samples: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
        """Return the fields of each sample, and those fields whose values are all pictures of a part, as one array.

        These are None in each sample. Of two fields with the same pictures, one is taken.
        """
        rows, stacks = list(map(fields_of, samples)), {}
        for block, _ in self._blocks.values():
            places = list(range(_address(block), _address(block) + block.nbytes, block[0].nbytes))
            for name, first in rows[0].items():
                if _address(first) == places[0] and places == [_address(row.get(name)) for row in rows]:
                    stacks[name] = block
                    break
        return [{**row, **dict.fromkeys(stacks)} for row in rows] if stacks else rows, stacks


def _address(value: Any) -> int:
    """Return where the memory of an array or a tensor begins; -1 for other values."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    return int(value.data_ptr()) if callable(getattr(value, "new_zeros", None)) else -1


def pad_stack(arrays: Sequence[Any], allocate: Allocate | None = None) -> Any:
    """Stack torch tensors or NumPy arrays of one rank and dtype, padded with zeros.

    The result is (n, largest size of each axis ...): arrays (2, 3) and (4, 1) become (2, 4, 3). It is a copy, in memory
    of its own or that of ``allocate``.

    Raises:
        ConfigError: If the arrays differ in rank, in dtype, or in kind.
    """
    ranks = {array.ndim for array in arrays}
    dtypes = {array.dtype for array in arrays}
    if len(ranks) != 1 or len(dtypes) != 1:
        found = sorted(f"{array.dtype!s}{tuple(array.shape)}" for array in arrays)
        raise ConfigError(
            f"arrays of one batch differ in rank or dtype: {', '.join(dict.fromkeys(found))}; only sizes may differ, "
            "so give all samples arrays of one rank and dtype"
        )
    first = arrays[0]
    shape = (len(arrays), *(max(array.shape[axis] for array in arrays) for axis in range(first.ndim)))
    rows = arrays if isinstance(first, np.ndarray) else _views(arrays)
    if rows is None:
        stacked: Any = first.new_zeros(shape)
    else:
        num_bytes, dtype = prod(shape) * rows[0].itemsize, rows[0].dtype
        room = np.empty(shape, dtype) if allocate is None else allocate(num_bytes)[:num_bytes].view(dtype)
        stacked = room.reshape(shape)
        for place, row in zip(stacked, rows, strict=True) if len({row.shape for row in rows}) > 1 else ():
            for axis, size in enumerate(row.shape):
                place[(*map(slice, row.shape[:axis]), slice(size, None))] = 0
    for number, row in enumerate(rows or arrays):
        stacked[(number, *map(slice, row.shape))] = row
    if rows is None or rows is arrays:
        return stacked
    import torch

    return torch.from_numpy(stacked)


def _views(tensors: Sequence[Any]) -> list[NDArray[Any]] | None:
    """Return tensors as arrays, in which they are stacked without torch's threads; None if they cannot be arrays."""
    try:
        return [tensor.numpy() for tensor in tensors]
    except (TypeError, RuntimeError):  # of another device, with gradients, or of a dtype that NumPy does not have
        return None


def generic_batch(values: Sequence[Any]) -> Any:
    """Collate the values of one field of a batch.

    Arrays are padded and stacked. Dicts, dataclasses and named tuples are collated field by field, and types with
    ``from_samples`` by that method. All other values become a list.

    Raises:
        ConfigError: If arrays cannot be stacked, or dicts have different keys.
    """
    first: Any = values[0] if values else None
    if _are_arrays(values):
        return pad_stack(values)
    if dataclasses.is_dataclass(first) and hasattr(first, "from_samples"):
        return first.from_samples(values)
    if not _has_fields(first):
        return list(values)
    rows = rows_of(values)
    columns = {name: generic_batch([row[name] for row in rows]) for name in rows[0]}
    return columns if isinstance(first, Mapping) else type(first)(**columns)


@sample_type
class Batch(Derived):
    """The base of batch types; derive your own with ``@sample_type`` and name fields of the samples.

    Attributes:
        __key__: The key of each sample.
        __restore_key__: The restore key of each sample.
        __subflavors__: The subflavors of each sample, None for a sample without any; None if no sample has any.
        __sources__: The sources of all samples, one after another, or None.

    Example:
        >>> from headrace.samples.media import Batch, TextSample, sample_type
        >>> @sample_type
        ... class TextBatch(Batch):
        ...     text: list[str]
        >>> samples = [TextSample(__key__=name, __restore_key__=(), text=name * 2) for name in "ab"]
        >>> batch = TextBatch.from_samples(samples)
        >>> batch.__key__, batch.text
        (['a', 'b'], ['aa', 'bb'])
    """

    __key__: list[str]
    __restore_key__: Any
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], **fields: Any) -> Self:
        """Make a batch from samples, in their order.

        Tensors and arrays are padded and stacked; all other values become lists.

        Args:
            samples: At least one; each has the fields of this batch type that are not passed.
            fields: Fields of the batch that are already made.

        Raises:
            ConfigError: If there are no samples, a sample lacks a field of the batch, or arrays cannot be stacked.
        """
        if not samples:
            raise ConfigError(f"{cls.__name__}.from_samples got no samples; pass at least one")
        made: dict[str, Any] = dict(fields)
        for field in dataclasses.fields(cls):
            name = field.name
            if name in made or not field.init:
                continue
            values = [_field(sample, name, cls) for sample in samples]
            if name in BASE_FIELDS:
                made[name] = _base_values(name, values)
            else:
                made[name] = pad_stack(values) if _are_arrays(values) else values
        return cls(**made)


def _base_values(name: str, values: list[Any]) -> Any:
    if name in ("__sources__", "__subflavors__") and all(value is None for value in values):
        return None
    return tuple(source for value in values for source in value or ()) if name == "__sources__" else values


def _field(sample: Any, name: str, cls: type[Batch]) -> Any:
    try:
        return getattr(sample, name)
    except AttributeError:
        raise ConfigError(
            f"{cls.__name__} has the field {name!r}, which {type(sample).__name__} lacks; pass {name}=... to "
            "from_samples, or use the name of a field of the samples"
        ) from None


def _are_arrays(values: Sequence[Any]) -> bool:
    """Return whether all values are torch tensors, or all are NumPy arrays."""
    if all(isinstance(value, np.ndarray) for value in values):
        return bool(values)
    # Tensors are recognised by a method, since torch may not be installed.
    return all(callable(getattr(value, "new_zeros", None)) for value in values)


def _has_fields(value: Any) -> bool:
    is_named = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return isinstance(value, Mapping) or is_named or (isinstance(value, tuple) and hasattr(value, "_fields"))


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dict, a dataclass or a named tuple, by name. Raises ConfigError for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _names_of(type(value))}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    raise ConfigError(
        f"{type(value).__name__} has no fields; a sample or batch must be a dataclass, a named tuple or a dict, found"
        f" {value!r:.80}"
    )


@cache
def _names_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def made(kind: type[Any], fields: Mapping[str, Any], hook: str) -> Any:
    """Make a value of a type from fields by name, without those that the type does not have.

    Raises:
        ConfigError: the type needs fields that are missing, or is neither a dataclass, a named tuple nor a dict.
    """
    if issubclass(kind, Mapping):  # also a ``UserDict``, such as Hugging Face's BatchFeature
        return kind(fields)  # type: ignore[call-arg]
    is_needed = arguments_of(kind)
    if is_needed is None:
        raise ConfigError(f"{hook}: {kind.__name__} is neither a dataclass, a named tuple nor a dict")
    if missing := [name for name, needed in is_needed.items() if needed and name not in fields]:
        raise ConfigError(
            f"{hook}: {kind.__name__} needs {', '.join(missing)}; there are {', '.join(map(str, fields))}: give the"
            f" fields the same names, or override {hook}"
        )
    return kind(**{name: fields[name] for name in is_needed if name in fields})


def arguments_of(kind: type[Any]) -> dict[str, bool] | None:
    """Return the fields that make a dataclass or a named tuple, and whether each is needed; None for other types."""
    if dataclasses.is_dataclass(kind):
        free = dataclasses.MISSING
        own = [field for field in dataclasses.fields(kind) if field.init]
        return {field.name: field.default is field.default_factory is free for field in own}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        defaults = getattr(kind, "_field_defaults", {})
        return {name: name not in defaults for name in kind._fields}
    return None


def batched(samples: Sequence[Any], kind: type[Any]) -> Any:
    """Batch samples into one value of a type: arrays of a field are padded and stacked, all else is put into lists.

    Fields such as ``__key__``, which name the sample, are lists too. Samples without fields are batched as they are:
    arrays are stacked, all else is put into a list.

    Raises:
        ConfigError: samples have different fields; arrays cannot be stacked; or the type does not fit, as in `made`.
    """
    if issubclass(kind, Batch):
        return kind.from_samples(samples)
    if not _has_fields(samples[0]):
        return generic_batch(samples)
    rows = rows_of(samples)
    columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
    return made(kind, columns, "batch")


def rows_of(samples: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the fields of each sample of a batch. Raises ConfigError if they differ, or a sample has none."""
    rows = list(map(fields_of, samples))
    for row in rows[1:]:
        if row.keys() != rows[0].keys():
            differ = ", ".join(sorted(map(str, row.keys() ^ rows[0].keys())))
            raise ConfigError(
                f"samples {key_of(rows[0])} and {key_of(row)} of one batch differ in {differ}: samples of one batch"
                " need the same fields; give the datasets one sample type, or cookers that make samples of one type"
            )
    return rows


def batch_stack(values: Sequence[Any]) -> Any:
    """Stack arrays or tensors of one shape to (n, ...).

    Raises:
        ConfigError: the shapes differ; ``batch_pad_stack`` pads them.
    """
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) != 1:
        raise ConfigError(
            f"arrays of the shapes {', '.join(map(str, sorted(shapes)))} cannot be stacked; use batch_pad_stack"
        )
    return pad_stack(values)


def batch_list(values: Sequence[Any]) -> list[Any]:
    """Return the values in a list, as they are."""
    return list(values)


def _column(name: str, values: list[Any]) -> Any:
    if name in BASE_FIELDS:
        return values
    try:
        return generic_batch(values)
    except ConfigError as error:
        raise ConfigError(f"field {name!r}: {error}") from None


def key_of(row: Mapping[str, Any]) -> str:
    """Return the key of a sample, for messages."""
    return repr(row.get("__key__", "without a key"))
