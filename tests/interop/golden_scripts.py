"""The scripts that make the golden files, which tests of this room run again."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

import programs

GOLDEN = Path(__file__).parents[1] / "golden"


def script(name: str) -> ModuleType:
    """The module of ``golden/NAME.py``."""
    return programs.load(GOLDEN / f"{name}.py")


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their names."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_made_again(name: str, folder: Path) -> None:
    """``make_NAME.py``, let loose on an empty folder, writes what is in ``golden/NAME``, byte for byte."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script(f"make_{name}").make(folder)
    assert files(folder) == files(GOLDEN / name)
