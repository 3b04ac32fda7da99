"""Page-locked memory for everything in a sample or batch that is a tensor."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

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
