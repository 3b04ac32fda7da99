"""torchtune's packing, imported without the rest of torchtune."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import warnings
from types import ModuleType
from typing import Any, NamedTuple

import pytest

PACKAGES = ("torchtune", "torchtune.data", "torchtune.datasets", "torchtune.modules", "torchtune.utils")


class Torchtune(NamedTuple):
    """The real code of torchtune's packing."""

    PackedDataset: Any
    padded_collate_packed: Any
    create_block_causal_mask: Any
    concat: Any
    """The module of ``ConcatDataset``."""


def torchtune() -> Torchtune:
    """Import the modules of the packing alone; skips the test where torchtune is not installed.

    Importing the package needs torchao and torchvision, whose builds must fit that of torch. None of its packing does,
    so bare packages stand in for the five above while the files themselves are imported, and are taken away again.
    """
    spec = importlib.util.find_spec("torchtune")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torchtune is not installed")
    root = spec.submodule_search_locations[0]
    before = {name: module for name, module in sys.modules.items() if _is_torchtune(name)}
    for name in before:
        del sys.modules[name]
    try:
        for name in PACKAGES:
            package = ModuleType(name)
            package.__path__ = [root + name.removeprefix("torchtune").replace(".", "/")]
            sys.modules[name] = package
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            packed = importlib.import_module("torchtune.datasets._packed")
            collate = importlib.import_module("torchtune.data._collate")
            attention = importlib.import_module("torchtune.modules.attention_utils")
            sys.modules["torchtune"].utils = sys.modules["torchtune.utils"]  # type: ignore[attr-defined]
            sys.modules["torchtune.utils"].get_logger = logging.getLogger  # type: ignore[attr-defined]
            concat = importlib.import_module("torchtune.datasets._concat")
    finally:
        for name in [name for name in sys.modules if _is_torchtune(name)]:
            del sys.modules[name]
        sys.modules.update(before)
    return Torchtune(packed.PackedDataset, collate.padded_collate_packed, attention.create_block_causal_mask, concat)


def torchtune_packed_dataset() -> Any:
    """The class ``PackedDataset`` of torchtune."""
    return torchtune().PackedDataset


def _is_torchtune(name: str) -> bool:
    return name == "torchtune" or name.startswith("torchtune.")
