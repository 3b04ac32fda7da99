"""What was made before its turn, kept while there is room: what is dropped can be made again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")

_SMALL = 64
"""What any object is counted as."""

_NUMBER = 32
"""What a number in a list is counted as."""

_FEW = 32
"""Of a list of more, the first one tells what all are."""

_DEPTH = 6
"""How deep fields are looked into."""

_PLAIN = frozenset({int, float, bool, complex, type(None)})


class Held(Generic[T]):
    """Values by key, up to ``limit_bytes`` of them after each ``trim``; None for no limit.

    What came last is dropped first: of samples that are read ahead it is what is due last.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.most_bytes = 0
        self.num_dropped = 0
        self._values: dict[Hashable, tuple[T, int]] = {}

    def put(self, key: Hashable, value: T, sample: Any) -> None:
        """Keep one, until it is taken or dropped; what takes room in it is the sample."""
        self.take(key)
        size = size_of(sample)
        self._values[key] = value, size
        self.num_bytes += size
        self.most_bytes = max(self.most_bytes, self.num_bytes)

    def get(self, key: Hashable) -> T | None:
        """One that is kept, or None."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def take(self, key: Hashable) -> T | None:
        """The same; from then on it is not kept."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self.num_bytes -= found[1]
        return found[0]

    def drop(self, is_wanted_no_more: Callable[[Any], bool]) -> None:
        """Drop those with such keys, which nobody will take."""
        for key in [key for key in self._values if is_wanted_no_more(key)]:
            self.take(key)

    def trim(self) -> None:
        """Drop what is over the limit."""
        while self.limit_bytes is not None and self.num_bytes > self.limit_bytes:
            _, (_, size) = self._values.popitem()
            self.num_bytes -= size
            self.num_dropped += 1

    def __len__(self) -> int:
        return len(self._values)


def size_of(value: Any, depth: int = _DEPTH) -> int:
    """About how many bytes a value takes: of arrays, tensors, images, bytes and text in its fields, and of the rest.

    Fields with names as ``__key__`` are keys and sources, which are small: they are not looked into.
    """
    kind: Any = type(value)
    if kind in _PLAIN or not depth:
        return _SMALL
    if kind is np.ndarray:
        return _SMALL + int(value.nbytes)
    if kind is str or kind is bytes:
        return _SMALL + len(value)
    if (names := _fields(kind)) is not None:
        return _SMALL * (2 + len(names)) + _sum([getattr(value, name) for name in names], depth)
    if isinstance(size := getattr(value, "nbytes", None), int):
        return _SMALL + size
    if isinstance(value, Mapping):
        inner = [one for name, one in value.items() if not (type(name) is str and name.startswith("__"))]
        return _SMALL * (1 + len(value) - len(inner)) + _sum(inner, depth)
    if isinstance(value, list | tuple | set):
        if len(value) > _FEW and type(next(iter(value))) in _PLAIN:
            # Tokens and the like, each as large as the others.
            return _SMALL + len(value) * _NUMBER
        return _SMALL + _sum(value, depth)
    if callable(bands := getattr(value, "getbands", None)):
        # An image of Pillow, a byte for each band of a pixel.
        return _SMALL + int(value.width) * int(value.height) * len(bands())
    if isinstance(value, bytearray | str):
        return _SMALL + len(value)
    return _SMALL + _sum(getattr(value, "__dict__", {}).values(), depth)


@cache
def _fields(kind: Hashable) -> tuple[str, ...] | None:
    """The fields of a dataclass that are looked into, None of any other type."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if not field.name.startswith("__"))


def _sum(values: Iterable[Any], depth: int) -> int:
    total = 0
    for one in values:
        # The plain ones are most, and a call for each would be what it all costs.
        total += _SMALL if type(one) in _PLAIN else size_of(one, depth - 1)
    return total
