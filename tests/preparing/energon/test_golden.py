"""What Energon itself wrote for the shards of `energon_made`: `prepare_energon` writes the same."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_made import LINES, PRIMARY, SECONDARY, write_shards
from headrace.preparing import prepare_energon
from headrace.preparing.energon import EnergonOptions, MediaFilter, SplitChoice
from headrace.stores.energon import read_splits

GOLDEN = Path(__file__).parents[2] / "golden/energon"
SHARDS = {"primary": PRIMARY, "secondary": SECONDARY}


def rows(root: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as base:
        names = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
        found = {name: base.execute(f"select * from {name}").fetchall() for name in names if "sequence" not in name}
        found["media_filters"] = [row[:3] for row in found.get("media_filters", [])]
        assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["primary", "secondary"])
def test_every_file_is_the_same(tmp_path: Path, name: str) -> None:
    root = write_shards(tmp_path, SHARDS[name])
    wanted = json.loads((GOLDEN / name / ".nv-meta/index.json").read_bytes())
    media = MediaFilter(strategy="EXTENSION") if "media_metadata" in wanted["rows"] else None
    parts = tuple(
        (part, "(" + "|".join(shards) + ")$") for part, shards in read_splits(GOLDEN / name).parts.items() if shards
    )
    report = prepare_energon(root, options=EnergonOptions(split=SplitChoice(parts=parts), media=media, workers=1))
    for path in (GOLDEN / name).rglob("*.tar.idx"):
        assert (root / path.relative_to(GOLDEN / name)).read_bytes() == path.read_bytes()
    assert (root / ".nv-meta/.info.json").read_bytes() == (GOLDEN / name / ".nv-meta/.info.json").read_bytes()
    found = rows(root)
    assert {table: sorted(found[table]) for table in wanted["rows"]} == {
        table: sorted(value) for table, value in wanted["rows"].items()
    }
    assert report.samples == len(wanted["rows"]["samples"])


def test_the_fixture_of_the_format(tmp_path: Path) -> None:
    members = [
        ("__meta__/info.txt", 4),
        ("a000.jpg", 600),
        ("a000.detail.json", 7),
        ("a000.TXT", 5),
        ("noext", 1),
        ("adir/a001.img1.jpg", 3),
        ("adir/a001.txt", 3),
        ("./a002.txt", 3),
        ("av1.2/a003.txt", 3),
    ]
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, size in members:
            entry = tarfile.TarInfo(name)
            entry.size = size
            tar.addfile(entry, io.BytesIO(bytes(size)))
    prepare_energon(tmp_path, options=EnergonOptions(split=SplitChoice(ratio=(1,))))
    offsets = np.fromfile(tmp_path / "s.tar.idx", "<u8").tolist()
    # The first sample begins behind the ignored member, and ends where the next one begins, behind another.
    assert offsets == [1024, 5632, 7680, 8704, 9728]
    found = rows(tmp_path)
    assert found["samples"][0] == [0, "a000", 0, 1024, 4608]
    assert found["sample_parts"][:3] == [
        [0, 0, "jpg", 1536, 600],
        [0, 0, "detail.json", 3072, 7],
        [0, 0, "TXT", 4096, 5],
    ]


def test_lines(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_bytes(LINES)
    report = prepare_energon(tmp_path / "lines.jsonl")
    assert (report.kind, report.samples) == ("jsonl", 3)
    assert (tmp_path / "lines.jsonl.idx").read_bytes() == (GOLDEN / "lines.jsonl.idx").read_bytes()


def test_join(tmp_path: Path) -> None:
    for name, shards in SHARDS.items():
        root = write_shards(tmp_path / name, shards)
        shutil.copytree(GOLDEN / name / ".nv-meta", root / ".nv-meta", dirs_exist_ok=True)
        prepare_energon(root, options=EnergonOptions())
        shutil.copy(GOLDEN / name / ".nv-meta/index.uuid", root / ".nv-meta/index.uuid")
    shutil.copy(GOLDEN / "join.yaml", tmp_path)
    cache = tmp_path / "join.yaml.cache"
    cache.mkdir()
    (cache / "join_index_0.bin").write_bytes(b"of a join that is no more")
    notices: list[str] = []
    report = prepare_energon(tmp_path / "join.yaml", on_notice=notices.append)
    wanted = {path.name: path.read_bytes() for path in (GOLDEN / "join.yaml.cache").iterdir()}
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == wanted
    assert (report.kind, len(report.written), len(notices)) == ("metadataset", 1, 1)
    assert f"{report.samples:,} joined samples" in notices[0]
