"""Writes the golden files of the keyed format with AstrAI's own ``save_bin``.

    python tests/golden/make_keyed.py CHECKOUT tests/golden/keyed

CHECKOUT is a checkout of AstrAI; only its file ``astrai/serialization/dataset.py`` is run. Needs torch.
The README beside says what is in each file.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch


def make(checkout: Path, folder: Path) -> None:
    save_bin = runpy.run_path(str(checkout / "astrai" / "serialization" / "dataset.py"))["save_bin"]

    def ids(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    sequence = [ids(1, 2), ids(258)]
    mask = [ids(1, 0, dtype=torch.bool), ids(1, dtype=torch.bool)]
    # Offsets for one key only, for none, and for all, with an empty document.
    some = {"sequence": sequence, "loss_mask": mask, "f": [torch.tensor([1.5])]}
    save_bin(str(folder / "some"), some, record_keys=["sequence"])
    save_bin(str(folder / "none"), {"sequence": sequence, "loss_mask": mask})
    every = {"sequence": [ids(1, 2), ids(), ids(258)], "loss mask": [ids(dtype=torch.bool), *mask]}
    save_bin(str(folder / "all"), every, record_keys=list(every))
    for name in ("uint8", "int8", "int16", "int64", "float16", "float32", "float64"):
        dtype = getattr(torch, name)
        save_bin(str(folder / name), {"k": [ids(1, 2, dtype=dtype), ids(3, dtype=dtype)]}, record_keys=["k"])


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
