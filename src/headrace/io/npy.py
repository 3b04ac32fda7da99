"""Maps files of `numpy.save` that may be damaged, or that somebody else has written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from headrace.io.paths import check_kind

_MAX_HEADER: Final = 4096


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map the array in an ``.npy`` file, read-only.

    The array must hold integers, floats or bools in C order, and the file must be exactly as long as its header says.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file; the message says what was found and what was expected.
    """
    size = check_kind(path).st_size
    try:
        array = open_memmap(Path(path), mode="r", max_header_size=_MAX_HEADER)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"its header makes no sense: {error}") from error
    if array.dtype.kind not in "biuf" or not array.flags.c_contiguous:
        raise ValueError(f"it holds {array.dtype} of shape {array.shape}; expected numbers in C order")
    if size != array.offset + array.nbytes:
        raise ValueError(
            f"the file has {size:,} bytes, but {array.dtype} of shape {array.shape} takes"
            f" {array.offset + array.nbytes:,}, including the header"
        )
    return array.view(np.ndarray)
