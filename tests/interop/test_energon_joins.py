"""Joins, where Energon 7.4.1 fails, beside ours; the numbers are those of the table in README.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from energon_made import write_shards
from headrace.errors import InputError, StoreError
from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice, prepare_energon
from headrace.stores import EnergonStore, JoinedStore
from headrace.stores.energon import JoinColumn, Nonmatch, cache_folder
from interop import energon_peer

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", autouse=True)
def _peer() -> None:
    energon_peer.energon()


Shards = dict[str, list[tuple[str, bytes]]]


def texts(*keys: str, size: int = 1) -> list[tuple[str, bytes]]:
    return [(f"{key}.txt", f"{key} ".encode() * size) for key in keys]


def dataset(root: Path, shards: Shards, splits: dict[str, str] | None = None) -> Path:
    """Samples of text, prepared by ours."""
    parts = tuple((splits or {"train": ".*"}).items())
    choice = DatasetChoice(sample_type="TextSample", field_map={"text": "txt"})
    prepare_energon(write_shards(root, shards), options=EnergonOptions(split=SplitChoice(parts=parts), dataset=choice))
    return root


def metadataset(root: Path, nonmatch: Nonmatch = "error", second: str = "") -> Path:
    """A join of ``first`` and ``second``, for train and val."""
    part = f"{{path: ./second, nonmatch: {nonmatch}{second}}}"
    joins = "".join(
        f"  {split}:\n    join:\n      - path: ./first\n      - {part}\n"
        "    joiner: {__module__: megatron.energon, __class__: TextSample}\n"
        for split in ("train", "val")
    )
    path = root / "meta.yaml"
    path.write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n{joins}")
    return path


def joined(path: Path, part: str, nonmatch: Nonmatch = "error") -> list[tuple[str | None, ...]]:
    """The keys that ours joins, row by row."""
    columns = [
        JoinColumn(store=EnergonStore(path.parent / "first", split_part=part)),
        JoinColumn(store=EnergonStore(path.parent / "second", split_part=part), nonmatch=nonmatch),
    ]
    store = JoinedStore(columns, cache_folder(path))
    rows = store.read_joined(np.arange(len(store)))
    return [tuple(None if one is None else one.key for one in row) for row in rows]


def test_9_1_splits_of_the_same_datasets_have_a_join_each(tmp_path: Path) -> None:
    splits = {"train": "0", "val": "1"}
    for name, size in (("first", 1), ("second", 400)):
        dataset(tmp_path / name, {"0.tar": texts("a", "b", size=size), "1.tar": texts("c", "d", "e", size=900)}, splits)
    path = metadataset(tmp_path)
    assert energon_peer.run("prepare", path).exit_code == 0
    assert energon_peer.keys(path, "train") == ["a", "b"]
    assert energon_peer.outcome(path, "val") != ["c", "d", "e"]
    prepare_energon(path)
    assert joined(path, "train") == [("a", "a"), ("b", "b")]
    assert joined(path, "val") == [("c", "c"), ("d", "d"), ("e", "e")]


def test_9_2_a_partner_outside_the_split_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    dataset(tmp_path / "first", {"0.tar": texts("a", "b")}, {"train": "0", "val": "0"})
    dataset(tmp_path / "second", {"0.tar": texts("a"), "1.tar": texts("b")}, {"train": "0", "val": "."})
    path = metadataset(tmp_path)
    assert isinstance(energon_peer.run("prepare", path).exception, KeyError)
    again = energon_peer.run("prepare", path)
    assert "up-to-date" in again.output  # and the rest of the join is lost
    for left in cache_folder(path).iterdir():
        left.unlink()
    with pytest.raises(InputError, match=r"'b' has no partner in .*second"):
        prepare_energon(path)
    assert list(cache_folder(path).iterdir()) == []


def test_9_3_samples_without_a_partner(tmp_path: Path) -> None:
    dataset(tmp_path / "first", {"0.tar": texts("a", "b", "c")}, {"train": ".", "val": "."})
    dataset(tmp_path / "second", {"0.tar": texts("b")}, {"train": ".", "val": "."})
    path = metadataset(tmp_path, "none")
    assert energon_peer.run("prepare", path).exit_code == 0
    assert energon_peer.outcome(path, "train") == "ValueError"
    prepare_energon(path)
    assert joined(path, "train", "none") == [("a", None), ("b", "b"), ("c", None)]


_PREPARE_AND_NAME = """
import sys, pathlib
from headrace.preparing.energon import prepare_energon
prepare_energon(sys.argv[1])
print(*sorted(path.name for path in pathlib.Path(sys.argv[1] + ".cache").iterdir()))
"""


def test_9_4_the_name_of_a_join_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        root = dataset(tmp_path / name, {"0.tar": texts(*"abcdefgh")}, {"train": ".", "val": "."})
        split = root / ".nv-meta/split.yaml"
        split.write_text(split.read_text().replace("exclude: []", "exclude: [0.tar/a, 0.tar/c, 0.tar/d, 0.tar/g]"))
    path = metadataset(tmp_path)
    names = {
        subprocess.run(
            [sys.executable, "-c", _PREPARE_AND_NAME, str(path)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(names) == 1
    assert joined(path, "train") == [(key, key) for key in "befh"]


def test_9_12_a_wrong_key_is_named(tmp_path: Path) -> None:
    for name in ("first", "second"):
        dataset(tmp_path / name, {"0.tar": texts("a")}, {"train": ".", "val": "."})
    path = metadataset(tmp_path, second=", split: train")
    done = energon_peer.run("prepare", path)
    assert done.exit_code != 0
    assert "split_part" not in str(done.exception).split("MetadatasetJoin:join")[0]
    with pytest.raises(StoreError, match=r"unknown key 'split'; did you mean 'split_part'"):
        prepare_energon(path)
