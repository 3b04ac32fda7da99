"""Maps ``.npy`` files that are not trusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.io.paths import check_kind

_MAX_HEADER: Final = 4096


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map the array of an ``.npy`` file and return it as a plain read-only array. O(1).

    The array must hold integers, floats or bools in C order and in the byte order of this machine, and the file must be
    exactly as long as the header says.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file; the message says what was found and what was expected.
    """
    size = check_kind(path).st_size
    try:
        array = np.lib.format.open_memmap(Path(path), mode="r", max_header_size=_MAX_HEADER)
    except OSError:
        raise
    except Exception as error:  # NumPy passes on whatever the parser of the header raises
        raise ValueError(f"it does not hold numbers as numpy.save writes them: {error}") from error
    if array.dtype.kind not in "biuf" or not array.dtype.isnative or not array.flags.c_contiguous:
        raise ValueError(f"it holds {array.dtype.str} of shape {array.shape}; expected numbers in C order")
    if size != array.offset + array.nbytes:
        raise ValueError(f"it has {size:,} bytes, but its array takes {array.offset + array.nbytes:,}, with the header")
    return array.view(np.ndarray)
