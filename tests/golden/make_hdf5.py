"""Writes the golden files of the HDF5 format with AstrAI's own ``save_h5``.

    python tests/golden/make_hdf5.py CHECKOUT tests/golden/hdf5

CHECKOUT is a checkout of AstrAI at 7348bac (1.3.7); of it only the functions of ``astrai/dataset/storage.py`` that
write and read are run. Needs torch and h5py. What ``load_h5`` gives back is written beside, in its own order.
"""

from __future__ import annotations

import ast
import json
import sys
import typing
from pathlib import Path
from typing import Any

import h5py
import torch


def functions(file: Path) -> dict[str, Any]:
    """``save_h5`` and ``load_h5``, without the imports of the rest of the file."""
    names: dict[str, Any] = {"h5py": h5py, "torch": torch, "Tensor": torch.Tensor, "os": __import__("os")}
    names |= {"Path": Path, **{name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional", "Union")}}
    wanted = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name in ("save_h5", "load_h5")
    ]
    exec(compile(ast.Module(wanted, []), str(file), "exec"), names)
    return names


def make(checkout: Path, folder: Path) -> None:
    astrai = functions(checkout / "astrai" / "dataset" / "storage.py")
    tensors = {
        "sequence": [torch.arange(number, number + number % 4, dtype=torch.int32) for number in range(12)],
        "loss_mask": [torch.arange(number % 4) % 2 == 0 for number in range(12)],
        "rewards": [torch.tensor([0.5, 1.5]), torch.tensor([-2.0])],
        "none": [torch.zeros(0, dtype=torch.float16)],
    }
    tensors |= {
        name: [torch.tensor([0, 1], dtype=getattr(torch, name))]
        for name in ("uint8", "int8", "int16", "int64", "float16", "float64")
    }
    astrai["save_h5"](str(folder), "astrai", tensors)
    found = astrai["load_h5"](str(folder), share_memory=False)
    listed = {key: [[part.tolist(), str(part.dtype)[6:]] for part in parts] for key, parts in found.items()}
    (folder / "loaded.json").write_text(json.dumps(listed) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
