"""The ``meta.json`` of the keyed format: one JSON object that describes the ``.bin`` of each key.

    {"sequence": {"shape": [3], "dtype": "int32", "offsets": [0, 2, 3]}, "loss_mask": {"shape": [3], "dtype": "bool"}}

    shape      [N], the number of values in <key>.bin, which holds nothing else
    dtype      the NumPy name of their dtype, little-endian
    offsets    0, then the number of values up to the end of each document; the last is N; may be absent

Source: AstrAI 1.3.13, ``astrai/dataset/storage.py``. The page ``docs/formats/keyed.md`` lists what is refused, and why.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError, StoreError
from headrace.stores.arguments import IntArray, as_dtype
from headrace.stores.written import META_NAME

DTYPE_NAMES: Final = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)
_PIECE_BYTES: Final = 1 << 20
"""Bytes of JSON numbers that are parsed at a time: each number takes 36 bytes while it is a Python integer."""

_NO_OFFSETS: Final = msgspec.Raw(b"")

__all__ = [
    "DTYPE_NAMES",
    "META_NAME",
    "KeyLayout",
    "check_key",
    "key_dtype",
    "meta_entry",
    "parse_bounds",
    "parse_meta",
]


class KeyLayout(msgspec.Struct, frozen=True):
    """What ``meta.json`` says about one key. ``num_documents`` is None if the key has no offsets."""

    key: str
    dtype: np.dtype[Any]
    num_tokens: int
    num_documents: int | None

    @property
    def num_bytes(self) -> int:
        """Number of bytes that the ``.bin`` must have."""
        return self.num_tokens * self.dtype.itemsize


class _Entry(msgspec.Struct):
    shape: list[int]
    dtype: str
    offsets: msgspec.Raw = _NO_OFFSETS

    @property
    def numbers(self) -> memoryview | None:
        """The JSON text within the brackets of the offsets; None if there are no offsets."""
        text = memoryview(self.offsets)
        return None if text.nbytes == 0 or bytes(text[:4]) == b"null" else text[1:-1]


def parse_meta(path: str, data: bytes) -> dict[str, KeyLayout]:
    """Parse the layout of each key, in the order of the file. Offsets are only counted; `parse_bounds` reads them.

    Raises:
        StoreError: the data are not a ``meta.json`` of this format; the message says what was found and what is
            allowed.
    """
    entries = _entries(path, data)
    if not entries:
        raise StoreError(f"{path}: names no key; a keyed store needs at least one")
    layouts = {key: _layout(path, key, entry) for key, entry in entries.items()}
    counts = {key: layout.num_documents for key, layout in layouts.items() if layout.num_documents is not None}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{key!r} has {count}" for key, count in counts.items())
        raise StoreError(f"{path}: the keys have different numbers of documents: {found}")
    return layouts


def parse_bounds(path: str, data: bytes, key: str) -> IntArray:
    """Parse the offsets of a key that has them: (num_documents + 1,) int64. About 50 ns each.

    Raises:
        StoreError: the offsets are not whole numbers, or they decrease.
    """
    entry = _entries(path, data)[key]
    text = bytes(entry.numbers or b"")
    bounds = np.empty(text.count(b",") + 1, np.int64)
    at = filled = 0
    try:
        while at <= len(text):
            end = text.find(b",", at + _PIECE_BYTES)
            end = len(text) if end < 0 else end
            piece = msgspec.json.decode(b"[%b]" % text[at:end], type=list[int])
            bounds[filled : filled + len(piece)] = piece
            at, filled = end + 1, filled + len(piece)
    except (msgspec.DecodeError, OverflowError, ValueError) as error:
        raise StoreError(f"{path}: key {key!r}: the offsets are not a list of whole numbers: {error}") from error
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        document = int(falls[0])
        raise StoreError(
            f"{path}: key {key!r}: document {document} goes from {bounds[document]} to {bounds[document + 1]}; offsets"
            " may not decrease"
        )
    return bounds


def _entries(path: str, data: bytes) -> dict[str, _Entry]:
    try:
        return msgspec.json.decode(data, type=dict[str, _Entry])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{path}: not the {META_NAME} of a keyed store, which has shape and dtype of each key: {error}"
        ) from error


def _layout(path: str, key: str, entry: _Entry) -> KeyLayout:
    try:
        check_key(key)
    except ConfigError as error:
        raise StoreError(f"{path}: {error}") from error
    if entry.dtype not in DTYPE_NAMES:
        raise StoreError(f"{path}: key {key!r}: dtype {entry.dtype!r} is unknown; allowed are {', '.join(DTYPE_NAMES)}")
    if len(entry.shape) != 1 or entry.shape[0] < 0:
        raise StoreError(
            f"{path}: key {key!r}: shape {entry.shape} is not the shape of a stream of tokens, which is [N]; arrays of"
            " more dimensions are not supported"
        )
    (count,) = entry.shape
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    if entry.numbers is None:
        return KeyLayout(key, dtype, count, None)
    offsets = bytes(entry.offsets)
    first, last = (text.strip(b"[] \t\r\n") for text in (offsets.split(b",", 1)[0], offsets.rsplit(b",", 1)[-1]))
    if not offsets.startswith(b"[") or first != b"0" or last != str(count).encode():
        found = f"{first[:20].decode(errors='replace')} to {last[:20].decode(errors='replace')}"
        raise StoreError(
            f"{path}: key {key!r}: the offsets must be a list from 0 to {count}, the number of values; found {found}"
        )
    return KeyLayout(key, dtype, count, offsets.count(b","))


def check_key(key: str) -> None:
    """Check that a key can be the name of a file, and not of a hidden one.

    Raises:
        ConfigError: it cannot.
    """
    if not key or key.startswith(".") or any(mark in key for mark in "/\\\0"):
        raise ConfigError(
            f"{key!r} cannot be a key: it names the file <key>.bin, so it may not be empty, begin with a"
            " dot, or contain a slash, a backslash or a NUL"
        )


def key_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the little-endian dtype with which a key is written.

    Raises:
        ConfigError: the format does not have this dtype.
    """
    wanted = as_dtype(dtype)
    if wanted.name not in DTYPE_NAMES:
        raise ConfigError(f"dtype {wanted.name} is not known to the keyed format; known are {', '.join(DTYPE_NAMES)}")
    return wanted.newbyteorder("<")


def meta_entry(layout: KeyLayout) -> bytes:
    """Return the text of one key up to its offsets, exactly as ``json.dump`` writes it."""
    return f'{json.dumps(layout.key)}: {{"shape": [{layout.num_tokens}], "dtype": "{layout.dtype.name}"'.encode()
