"""Maps ``.npy`` files that are not trusted.

NumPy's own reader evaluates the header as a Python literal, whatever its size; this one accepts only the form that
`numpy.save` writes.
"""

from __future__ import annotations

import mmap
import os
import re
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.io.paths import check_kind

_MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER: Final = 4096
_HEADER: Final = re.compile(
    rb"\{'descr': '([<|][bifu][1248])', 'fortran_order': False, 'shape': \(((?:\d{1,19}, ?)*\d{0,19},?)\), \} *\n"
)


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map the array of an ``.npy`` file and return it as a plain read-only array. O(1).

    The array must hold integers, floats or bools in C order, the header must be as `numpy.save` writes it, and the file
    must be exactly as long as the header says.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file; the message says what was found and what was expected.
    """
    check_kind(path)
    with Path(path).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(12 + _MAX_HEADER)
        dtype, shape, begin = _parsed(head)
        count = prod(shape)
        if size != begin + count * dtype.itemsize:
            raise ValueError(
                f"the file has {size:,} bytes, but {dtype} of shape {shape} takes {begin + count * dtype.itemsize:,},"
                " including the header"
            )
        if not count:
            empty = np.empty(shape, dtype)
            empty.flags.writeable = False
            return empty
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, count, begin).reshape(shape)


def _parsed(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype and shape from the first bytes of a file, and the byte where its values begin."""
    if head[:6] != _MAGIC or len(head) < 12:
        raise ValueError(f"the file begins with {head[:6]!r}; an .npy file begins with {_MAGIC!r}")
    if head[6:8] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"version {head[6]}.{head[7]} of .npy is unknown; known versions are 1.0, 2.0 and 3.0")
    begin = 10 if head[6] == 1 else 12
    length = int.from_bytes(head[8:begin], "little")
    text = head[begin : begin + length]
    if length > _MAX_HEADER or len(text) < length:
        raise ValueError(
            f"the header has {length:,} bytes, of which {len(text):,} are there; at most {_MAX_HEADER:,} are allowed"
        )
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError(f"the header {text[:80]!r} does not describe numbers in C order as numpy.save writes it")
    try:
        dtype = np.dtype(found[1].decode())
    except TypeError:
        raise ValueError(f"the dtype {found[1].decode()!r} is unknown") from None
    return dtype, tuple(int(each) for each in found[2].split(b",") if each.strip()), begin + length
