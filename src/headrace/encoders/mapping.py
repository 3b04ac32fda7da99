"""Conversion of samples and batches from one type to another, field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.samples.media import Batch, generic_batch, pad_stack
from headrace.samples.media.sample import BASE_FIELDS


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dict, a dataclass or a named tuple, by name. Raises ConfigError for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    raise ConfigError(
        f"{type(value).__name__} has no fields; a sample or batch must be a dataclass, a named tuple or a dict, found"
        f" {value!r:.80}"
    )


def made(kind: type[Any], fields: Mapping[str, Any], hook: str) -> Any:
    """Make a value of a type from fields by name, without those that the type does not have.

    Raises:
        ConfigError: the type needs fields that are missing, or is neither a dataclass, a named tuple nor a dict.
    """
    if issubclass(kind, dict):
        return kind(fields)
    is_needed = _arguments_of(kind)
    if is_needed is None:
        raise ConfigError(f"{hook}: {kind.__name__} is neither a dataclass, a named tuple nor a dict")
    if missing := [name for name, needed in is_needed.items() if needed and name not in fields]:
        raise ConfigError(
            f"{hook}: {kind.__name__} needs {', '.join(missing)}; there are {', '.join(map(str, fields))}: give the"
            f" fields the same names, or override {hook}"
        )
    return kind(**{name: fields[name] for name in is_needed if name in fields})


def _arguments_of(kind: type[Any]) -> dict[str, bool] | None:
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
    first = samples[0]
    is_tuple = isinstance(first, tuple) and hasattr(first, "_fields")
    if not (is_tuple or isinstance(first, Mapping) or dataclasses.is_dataclass(first)):
        return generic_batch(samples)
    rows = [fields_of(sample) for sample in samples]
    for row in rows[1:]:
        if row.keys() != rows[0].keys():
            raise ConfigError(
                f"samples {_key(rows[0])} and {_key(row)} of one batch differ in the fields"
                f" {', '.join(sorted(map(str, row.keys() ^ rows[0].keys())))}; give all samples the same fields"
            )
    columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
    return made(kind, columns, "batch")


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


def _key(row: Mapping[str, Any]) -> str:
    return repr(row.get("__key__", "without a key"))
