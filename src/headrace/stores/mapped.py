"""Tokens of one file as arrays: views of its mapping where there is one, else read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.io import Reader
from headrace.stores.arguments import read_only
from headrace.stores.store import TokenArray


def tokens_at(reader: Reader, path: str, dtype: np.dtype[Any], offset: int, num_bytes: int) -> TokenArray:
    """The tokens of a byte range that lies in the file, read-only."""
    if num_bytes == 0:
        return read_only(np.empty(0, dtype))
    mapped = reader.view(path)
    if mapped is not None:
        return np.frombuffer(mapped, dtype, num_bytes // dtype.itemsize, offset)
    return read_only(reader.read_ranges(path, np.array([offset]), np.array([num_bytes])).view(dtype))


def windows(data: NDArray[np.uint8], dtype: np.dtype[Any], num_tokens: int, length: int) -> TokenArray:
    """(num_tokens - length + 1, length): every window of a mapped stream, as overlapping rows, without a copy."""
    num_windows = max(0, num_tokens - length + 1)
    if num_windows == 0 or length == 0:
        return np.empty((num_windows, length), dtype)
    return np.ndarray((num_windows, length), dtype, data, strides=(dtype.itemsize, dtype.itemsize))
