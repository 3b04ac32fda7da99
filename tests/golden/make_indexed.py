"""Writes the golden files of the indexed format with Megatron's own builder.

    python tests/golden/make_indexed.py tests/golden/indexed

Needs the extra ``interop``. The README beside says what is in each file.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

OTHER_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def make(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    folder.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(str(folder / "uint16.bin"), dtype=np.uint16)
    builder.add_document([1, 2, 3], [3])
    builder.add_document([4, 5, 6, 7], [2, 2])
    builder.add_document([], [0])
    builder.end_document()
    builder.add_document([8, 9], [2])
    builder.finalize(str(folder / "uint16.idx"))

    for name in OTHER_DTYPES:
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=getattr(np, name))
        builder.add_document([1, 2, 3], [3])
        builder.end_document()
        builder.add_document([4, 5], [2])
        builder.finalize(str(folder / f"{name}.idx"))

    IndexedDatasetBuilder(str(folder / "empty.bin"), dtype=np.uint16).finalize(str(folder / "empty.idx"))

    builder = IndexedDatasetBuilder(str(folder / "multimodal.bin"), dtype=np.int32, multimodal=True)
    builder.add_item(torch.tensor([1, 2]), 0)
    builder.add_item(torch.tensor([3, 4, 5]), 1)
    builder.end_document()
    builder.finalize(str(folder / "multimodal.idx"))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
