"""Multi-modal samples put together for a loader: a dict of columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import ConfigError
from headrace.samples.media import pad_stack
from headrace.samples.media.batch import Allocate, Rows, reading_rows

__all__ = ["Allocate", "Rows", "collated", "reading_rows", "without_rows"]

STACKED = frozenset("?bBhHiIlLqQefdFD")
"""Codes of the dtypes of which tensors can be made."""


def collated(samples: Sequence[Any]) -> dict[str, Any]:
    """Samples, or dicts, as a dict of columns, row i of each from sample i.

    Where every sample has an array of numbers or a tensor, the column is one, (n, largest size of each axis ...),
    padded with zeros; all else is a list of n values. `Batch.from_samples` does it for a batch type of one's own.

    Raises:
        ConfigError: the samples have different fields, or arrays of a field that differ in rank or dtype.
    """
    rows = [_row(sample) for sample in samples]
    names = list(rows[0]) if rows else []
    for row in rows[1:]:
        if row.keys() != rows[0].keys():
            differ = ", ".join(sorted(row.keys() ^ rows[0].keys()))
            raise ConfigError(
                f"samples {_key(rows[0])} and {_key(row)} of one batch differ in {differ}: samples of one batch need"
                " the same fields; give the datasets one sample type, or cookers that make samples of one type"
            )
    return {name: _column(name, [row[name] for row in rows], rows) for name in names}


def without_rows(batch: Mapping[str, Any], num_rows: int = 1) -> dict[str, Any]:
    """The fields of a batch of ``num_rows`` samples, with no rows: arrays (num_rows, ...) become (0, ...), lists empty.

    What has another first axis, and what is neither, stays as it is.
    """

    def cut(value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) == num_rows:
            return []
        shape: tuple[int, ...] = getattr(value, "shape", ())
        return value[:0] if len(shape) and shape[0] == num_rows else value

    return {name: cut(value) for name, value in batch.items()}


def _row(sample: Any) -> Mapping[str, Any]:
    if isinstance(sample, Mapping):
        return sample
    return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}


def _column(name: str, values: list[Any], rows: Sequence[Mapping[str, Any]]) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        if any(value.dtype.char not in STACKED for value in values):
            return values
        if not all(value.dtype.isnative for value in values):
            # Tensors have the byte order of the machine.
            values = [value.astype(value.dtype.newbyteorder("="), copy=False) for value in values]
    # A tensor is known by its face: torch may not be installed.
    elif not all(callable(getattr(value, "new_zeros", None)) for value in values):
        return values
    try:
        return pad_stack(values)
    except ConfigError as error:
        raise ConfigError(f"field {name!r} of samples {_key(rows[0])} to {_key(rows[-1])}: {error}") from None


def _key(row: Mapping[str, Any]) -> str:
    return repr(row.get("__key__", "without a key"))
