"""Merges golden files with Megatron's own builder, as its ``tools/merge_datasets.py`` calls it.

    python tests/golden/make_merge.py tests/golden/merge

Needs the extra ``interop``. The README beside says what is in each file.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

INDEXED = Path(__file__).parent / "indexed"
MERGED = {"uint16": np.uint16, "multimodal": np.int32}


def make(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    folder.mkdir(parents=True, exist_ok=True)
    for name, dtype in MERGED.items():
        is_multimodal = name == "multimodal"
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype, multimodal=is_multimodal)
        for _ in range(2):
            builder.add_index(str(INDEXED / name))
        builder.finalize(str(folder / f"{name}.idx"))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
