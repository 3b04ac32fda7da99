"""Joins, where Energon 7.4.1 fails; the numbers are those of the table in README.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.energon_live import dataset, members

pytestmark = pytest.mark.interop

META = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join: [{path: ./first}, {path: ./second, nonmatch: error}]
    joiner: {__module__: megatron.energon, __class__: TextSample}
"""
PREPARE_AND_NAME = """
import sys, pathlib
from headrace.datasets.metadataset import load_dataset
load_dataset(sys.argv[1]).prepare()
print(*sorted(path.name for path in pathlib.Path(sys.argv[1] + ".cache").iterdir()))
"""


def test_9_4_the_name_of_a_join_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        root = dataset(tmp_path / name, {"0.tar": members(*"abcdefgh")})
        split = root / ".nv-meta/split.yaml"
        split.write_text(split.read_text().replace("exclude: []", "exclude: [0.tar/a, 0.tar/c, 0.tar/d, 0.tar/g]"))
    (tmp_path / "meta.yaml").write_text(META)
    names = {
        subprocess.run(
            [sys.executable, "-c", PREPARE_AND_NAME, str(tmp_path / "meta.yaml")],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(names) == 1
    assert names != {"\n"}
