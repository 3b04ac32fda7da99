"""Batches as the task encoder made them: of the user's own type, a dict, a tensor, a list.

A loader moves columns, name -> tensor or list. `columns_with_form` makes them of a batch of any type and records its
form under `FORM`; `as_made` makes the batch again, in the process that trains:

    worker     TextBatch(text=..., tokens=...)  -->  {"text": ..., "tokens": ..., FORM: BatchForm(TextBatch, ...)}
    training   {... , "sample_positions": ...}  -->  TextBatch(text=..., tokens=...)
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from types import CodeType
from typing import Any, Final, cast

import numpy as np

from headrace.datasets.encoded import EncodedDataset, Framed
from headrace.datasets.encoded.samples import Encoder, columns_of
from headrace.encoders import AugmentTaskEncoder, DefaultTaskEncoder, TaskEncoder, stateless
from headrace.errors import ConfigError, SkipSample
from headrace.loader.spans import Batch as Columns
from headrace.samples.media.batch import made

FORM: Final = "__batch_form__"
"""The column that holds the form of a batch. Only this module writes and reads it."""

VALUE: Final = "__batch_value__"
"""The only column of a batch that is no mapping, dataclass or named tuple."""

ADDED: Final = ("sample_positions", "unit_numbers", "sample_mask")
"""The columns that a loader adds to those of a batch."""


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """What a batch was before it became columns.

    Attributes:
        kind: its type; None for a value without fields.
        arrays: the fields that were NumPy arrays, which the loader moves as tensors.
        extra: attributes of a dataclass instance that are no fields.
    """

    kind: type[Any] | None
    arrays: frozenset[str] = frozenset()
    extra: Mapping[str, Any] | None = None


def columns_with_form(batch: Any, encoder: Any) -> dict[str, Any]:
    """Return any batch in columns, with its form.

    Arrays in a dataclass that the user's own ``encoder`` makes stay arrays; all others become tensors.
    """
    is_dataclass = dataclasses.is_dataclass(batch) and not isinstance(batch, type)
    if not (isinstance(batch, Mapping) or is_dataclass or (isinstance(batch, tuple) and hasattr(batch, "_fields"))):
        return {VALUE: batch, FORM: BatchForm(None)}
    columns = columns_of(batch, type(encoder).__name__)
    is_own = is_dataclass and type(encoder) is not DefaultTaskEncoder
    fields = {name: getattr(batch, name) for name in columns} if is_own else {}
    arrays = frozenset(name for name, value in fields.items() if isinstance(value, np.ndarray))
    extra = {name: value for name, value in getattr(batch, "__dict__", {}).items() if name not in columns}
    return {**columns, FORM: BatchForm(type(batch), arrays, extra if is_dataclass and extra else None)}


def as_made(columns: Columns) -> Any:
    """Return the batch that columns were made of; columns without a form are returned as they are."""
    form = columns.get(FORM)
    if form is None:
        return columns
    fields = {name: value for name, value in columns.items() if name != FORM and name not in ADDED}
    if form.kind is None:
        return fields[VALUE]
    if issubclass(form.kind, Mapping):
        return fields if form.kind is dict else form.kind(fields)
    if not dataclasses.is_dataclass(form.kind):
        return form.kind(**fields)
    # The constructor may check or change fields, and it did so once already.
    batch = object.__new__(cast("type[Any]", form.kind))
    for name, value in {**fields, **(form.extra or {})}.items():
        object.__setattr__(batch, name, value.numpy() if name in form.arrays else value)
    return batch


def without_form(columns: Columns) -> Columns:
    """Return columns without the form, as a loader of Headrace gives them."""
    return {name: value for name, value in columns.items() if name != FORM}


def typed(columns: Columns, kind: type[Any]) -> Any:
    """Return the columns of plain samples of a type as a batch of that type."""
    return made(kind, {name: value for name, value in columns.items() if name not in ADDED}, "batch")


LEFT_OUT_BY: Final = "pass framed=True, which leaves it out, as Energon does"


def where_skipped(encoder: Encoder) -> str | None:
    """The name of a hook or cooker that speaks of `SkipSample`, or of one that calls such code; None if none does.

    The code is read and not run. Methods of the encoder are followed, and functions of the same module as their caller.
    """
    hooks = ("cook_crude_sample", "preencode_sample", "encode_sample", "postencode_sample")
    waiting: list[Any] = [getattr(encoder, name) for name in hooks]
    waiting += [cooker.cook for cooker in encoder.cookers]
    seen: set[CodeType] = set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None or code in seen or str(function.__module__).startswith("headrace."):
            continue
        seen.add(code)
        names = _names_in(code)
        found = [function.__globals__.get(name) for name in names]
        if "SkipSample" in names or SkipSample in found:
            return str(function.__qualname__)
        waiting += [one for one in found if inspect.isfunction(one) and one.__module__ == function.__module__]
        waiting += [one for name in names if inspect.isroutine(one := getattr(type(encoder), name, None))]
    return where_skipped(encoder._task_encoder) if isinstance(encoder, AugmentTaskEncoder) else None


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


class MadeDataset(EncodedDataset):
    """An `EncodedDataset` whose batches keep their form."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.outputs.left_out_by = LEFT_OUT_BY

    def columns_of(self, batch: Any) -> dict[str, Any]:
        """Return a batch in columns, with its form."""
        return columns_with_form(batch, self.encoder)


class MadeFramed(Framed):
    """A `Framed` whose batches keep their form."""

    def columns_of(self, batch: Any) -> dict[str, Any]:
        """Return a batch in columns, with its form."""
        return columns_with_form(batch, self.encoder)


class Unpacked(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder without its packing hooks, for Energon's own order without ``packing_buffer_size``."""

    select_samples_to_pack = TaskEncoder.select_samples_to_pack
    pack_selected_samples = TaskEncoder.pack_selected_samples


class Unbatched(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder whose batches are single samples, for ``batch_size=None``: as in Energon, nothing batches them."""

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """Return the only sample."""
        if len(samples) != 1:
            raise ConfigError(f"batch_size is None, so a batch is one sample; found {len(samples)}")
        return samples[0]

    @stateless(restore_seeds=())
    def encode_batch(self, batch: Any) -> Any:
        """Return the sample as it is."""
        return batch
