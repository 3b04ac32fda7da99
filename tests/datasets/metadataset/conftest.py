"""Small datasets with a metadataset around them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_prepared import prepared

Write = Callable[..., Path]

TYPED = """sample_type: {{__module__: megatron.energon, __class__: TextSample}}
field_map: {{text: txt}}
subflavors: {{own: {name}, k: ds}}
"""


def _make(root: Path, name: str, count: int, shard_samples: int = 5) -> None:
    """A dataset of texts ``a0``, ``a1``, ..., the last shard of which is ``val``."""
    shards = {
        f"{first:02d}.tar": [
            (f"{name}{number:03d}.txt", f"{name}{number}".encode())
            for number in range(first, min(first + shard_samples, count))
        ]
        for first in range(0, count, shard_samples)
    }
    names = list(shards)
    (root / name).mkdir(parents=True)
    prepared(root / name, shards, {"train": names[:-1], "val": names[-1:]})
    (root / name / ".nv-meta" / "dataset.yaml").write_text(TYPED.format(name=name))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a, b, c of 20, 40 and 10 samples to train on and 5 of ``val`` each."""
    root = tmp_path_factory.mktemp("datasets")
    for name, count in {"a": 25, "b": 45, "c": 15}.items():
        _make(root, name, count)
    return root


@pytest.fixture
def write(tmp_path: Path, data: Path) -> Write:
    """Writes a metadataset beside links to the datasets: its split ``train``, and others; JSON is YAML."""
    for name in "abc":
        (tmp_path / name).symlink_to(data / name)

    def write(train: Any = None, name: str = "mix.yaml", **splits: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"splits": splits | ({} if train is None else {"train": train})}))
        return path

    return write


@pytest.fixture
def nested_mix(write: Write) -> Path:
    """A blend of parts of a, b and c, of which the first two are a blend in a file of their own."""
    a = {"weight": 3, "path": "./a", "subflavors": {"k": "inner", "i": 1}}
    b = {"weight": 1, "path": "b", "subset": {"range": [10, "end"]}}
    write({"blend": [a, b], "subset": {"range": ["0%", "50%"]}}, "inner.yaml")
    inner = {"weight": 2, "path": "inner.yaml", "subflavors": {"k": "outer"}}
    c = {"path": "c", "subset": {"range": ["20%", "100%"]}, "shuffle_over_epochs_multiplier": 2}
    return write({"blend": [inner, c], "subset": {"range": ["0%", "80%"]}})
