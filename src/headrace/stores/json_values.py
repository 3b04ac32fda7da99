"""Lists of numbers in JSON, and the dtype that holds all lists of a key."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.stores.arguments import read_only
from headrace.stores.store import TokenArray

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Numbers = list[_Int | float | bool]

_INTEGERS: Final = msgspec.json.Decoder(dict[str, list[_Int]])
_RECORD: Final = msgspec.json.Decoder(dict[str, Numbers])
_KINDS: Final = {"bool": np.dtype(np.bool_), "int": np.dtype(np.int64), "float": np.dtype(np.float64)}


def decode_record(data: bytes | memoryview) -> tuple[dict[str, Any], bool]:
    """The lists of one record, by key; and whether all of them hold integers only.

    Raises:
        msgspec.DecodeError: no JSON object of lists of numbers, or an integer beyond 64 bits.
    """
    try:
        return _INTEGERS.decode(data), True
    except msgspec.ValidationError:
        return _RECORD.decode(data), False


class Kinds:
    """The kinds of number seen so far, for each key: ``bool``, ``int``, ``float``; nothing where all were empty."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def add(self, key: str, values: list[Any], where: str, *, integers: bool = False) -> None:
        """Look at a list, or only at whether it holds anything where it is known to hold integers.

        Raises:
            StoreError: truth values and numbers in one key.
        """
        for kind in {type(value).__name__ for value in (values[:1] if integers else values)}:
            before = self._seen.setdefault(key, kind)
            if before == kind:
                continue
            if "bool" in (before, kind):
                raise StoreError(f"{where}: key {key!r} holds both true or false and numbers; a key holds one of them")
            self._seen[key] = "float"

    def dtype(self, key: str) -> np.dtype[Any]:
        """bool; int64; float64 where a fraction was seen; int64 where nothing was."""
        return _KINDS[self._seen.get(key, "int")]


def as_array(values: list[Any], dtype: np.dtype[Any]) -> TokenArray:
    """The list as a read-only array."""
    return read_only(np.array(values, dtype))


def json_can_be(has: np.dtype[Any], count: int, dtype: np.dtype[Any]) -> bool:
    """Whether ``count`` JSON numbers may as well be of another dtype: integers of float64, and none at all of any."""
    return has == dtype or not count or (has == np.int64 and dtype == np.float64)
