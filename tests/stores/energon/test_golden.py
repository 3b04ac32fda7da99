"""What Energon itself wrote for the shards of `energon_made`: written by us it is the same."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_made import LINES, PNG, PRIMARY, SECONDARY, write_shards
from energon_prepared import prepare
from headrace.stores import EnergonStore, JoinedStore, JsonlSamplesStore
from headrace.stores.energon import (
    JoinColumn,
    MediaRow,
    SqliteIndex,
    read_splits,
    update_media,
    write_join,
    write_lines,
)

GOLDEN = Path(__file__).parents[2] / "golden/energon"
SHARDS = {"primary": PRIMARY, "secondary": SECONDARY}
MEDIA = [MediaRow("a000.icon.png", "image", '{"width":2,"height":1,"format":"PNG","mode":"RGB"}')]


@pytest.fixture(params=["primary", "secondary"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(root: Path, name: str) -> Path:
    """The dataset as Energon made it, prepared by us: with its uuid, which is random there."""
    write_shards(root / name, SHARDS[name])
    prepare(root / name, SHARDS[name], read_splits(GOLDEN / name).parts)
    (root / name / ".nv-meta/index.uuid").write_bytes((GOLDEN / name / ".nv-meta/index.uuid").read_bytes())
    return root / name


def dump(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as base:
        schema = base.execute("select name, sql from sqlite_master where sql is not null order by name").fetchall()
        schema = [[name, " ".join(sql.split())] for name, sql in schema if name != "sqlite_sequence"]
        tables = [name for name, sql in schema if sql.startswith("CREATE TABLE")]
        rows = {name: base.execute(f"select * from {name} order by rowid").fetchall() for name in tables}
        rows["media_filters"] = [row[:3] for row in rows.get("media_filters", [])]
        names = ("page_size", "journal_mode", "user_version")
        pragmas = {name: base.execute(f"pragma {name}").fetchone()[0] for name in names}
    found: dict[str, Any] = json.loads(json.dumps({"pragmas": pragmas, "schema": schema, "rows": rows}))
    return found


def test_every_file_is_the_same(tmp_path: Path, name: str) -> None:
    root = made(tmp_path, name)
    files = [path.relative_to(GOLDEN / name) for path in (GOLDEN / name).rglob("*") if path.is_file()]
    same = [file for file in files if file.name not in ("index.json", "dataset.yaml")]
    assert len(same) == 3 + len(SHARDS[name])
    for file in same:
        assert (root / file).read_bytes() == (GOLDEN / name / file).read_bytes(), file


def test_every_row_is_the_same(tmp_path: Path, name: str) -> None:
    root = made(tmp_path, name)
    if name == "primary":
        update_media(root, MEDIA, [("EXTENSION", "")])
    assert dump(root / ".nv-meta/index.sqlite") == json.loads((GOLDEN / name / ".nv-meta/index.json").read_text())


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINES)
    assert write_lines(path) == 3
    assert path.with_suffix(".jsonl.idx").read_bytes() == (GOLDEN / "lines.jsonl.idx").read_bytes()
    store = JsonlSamplesStore(path)
    assert [sample.parts["json"] for sample in store] == [b'{"i": 0, "text": "one"}', b'{"i": 1}', b'{"i": 2}']


def test_join(tmp_path: Path) -> None:
    columns = [
        JoinColumn(store=EnergonStore(made(tmp_path, name), split_part=part))
        for name, part in (("primary", "joined"), ("secondary", "train"))
    ]
    join = write_join(tmp_path / "cache", columns)
    (golden,) = (GOLDEN / "join.yaml.cache").iterdir()
    assert join.path.name == golden.name
    assert join.path.read_bytes() == golden.read_bytes()
    assert (join.rows, join.skipped, join.missing) == (10, 0, (0, 0))
    store = JoinedStore(columns, golden.parent)
    for first, second in store.read_joined(np.arange(len(store))):
        assert first is not None
        assert second is not None
        assert first.key == second.key
        assert second.parts == dict([dict_of(SECONDARY)[first.key]])


def test_the_strange_names(tmp_path: Path) -> None:
    store = EnergonStore(made(tmp_path, "primary"))
    assert [(sample.key, list(sample.parts)) for sample in store.read(np.arange(9))] == [
        ("a000", ["jpg", "detail.json", "TXT", "icon.png"]),
        ("adir/a001", ["img1.jpg", "txt"]),
        ("./a002", ["txt"]),
        ("av1.2/a003", ["txt"]),
        ("adir/", ["hid"]),
        ("a005", [""]),
        ("adir/__sub__/a004", ["txt"]),
        ("äö", ["txt"]),
        ("d/" + "n" * 150, ["txt"]),
    ]
    assert store.part("a000.icon.png") == PNG
    assert store.part("a005.") == b"empty part name"
    assert store.part("adir/.hid") == b"hid"
    for number in range(len(store)):
        assert store.find(store.key(number)) == number
    assert EnergonStore(store.path, split_part="joined").part("a000.TXT") == b"hello"


def test_media(tmp_path: Path) -> None:
    root = made(tmp_path, "primary")
    update_media(root, MEDIA, [("EXTENSION", ""), ("GLOB", "*.png")])
    before = (root / ".nv-meta/index.uuid").read_bytes()
    update_media(root, [MediaRow("b.mp4", "av", '{"video_fps":25.0}'), MEDIA[0]], [("EXTENSION", "")])
    index = SqliteIndex(root / ".nv-meta/index.sqlite")
    assert index.media_filters() == [("EXTENSION", ""), ("GLOB", "*.png")]
    assert index.media_metadata("b.mp4") == {"type": "av", "video_fps": 25.0}
    assert EnergonStore(root).media_metadata("a000.icon.png") == {"type": "image", **json.loads(MEDIA[0][2])}
    assert index.media_metadata("no") is None
    assert (root / ".nv-meta/index.uuid").read_bytes() == before
    assert not list((root / ".nv-meta").glob("*.tmp"))


def dict_of(shards: dict[str, list[tuple[str, bytes]]]) -> dict[str, tuple[str, bytes]]:
    members = [member for shard in shards.values() for member in shard]
    return {name.partition(".")[0]: (name.partition(".")[2], data) for name, data in members}
