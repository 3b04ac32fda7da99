"""Datasets for task encoders: small, of text and arrays, some samples broken."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from energon_prepared import prepared
from headrace import MediaDataset

Make = Callable[..., Path]


def array(number: int) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(2 + number % 4, dtype=np.float32) + number)
    return stream.getvalue()


def members(numbers: range, broken: Iterable[int]) -> list[tuple[str, bytes]]:
    """Of each sample an array of 2 to 5 numbers and an object."""
    found = []
    for number in numbers:
        text = b"{" if number in broken else json.dumps({"text": f"text {number}", "number": number}).encode()
        found += [(f"s/{number:03d}.npy", array(number)), (f"s/{number:03d}.json", text)]
    return found


@pytest.fixture(scope="session")
def make_crude() -> Make:
    """Writes crude samples in shards of six."""

    def make(root: Path, count: int = 24, broken: Iterable[int] = ()) -> Path:
        bad = set(broken)
        starts = range(0, count, 6)
        prepared(root, {f"{first:03d}.tar": members(range(first, min(first + 6, count)), bad) for first in starts})
        config = "{__module__: megatron.energon, __class__: CrudeWebdataset, subflavors: {kind: numbers}}\n"
        (root / ".nv-meta" / "dataset.yaml").write_text(config)
        return root

    return make


@pytest.fixture(scope="session")
def crude(make_crude: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples, all whole."""
    return make_crude(tmp_path_factory.mktemp("crude") / "ds")


@pytest.fixture(scope="session")
def flawed(make_crude: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples, of which 3, 4 and 17 are broken."""
    return make_crude(tmp_path_factory.mktemp("flawed") / "ds", broken=(3, 4, 17))


@pytest.fixture
def crude_samples(crude: Path) -> MediaDataset:
    """The same, not cooked."""
    return MediaDataset.open(crude)
