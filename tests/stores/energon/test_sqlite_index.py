"""``index.sqlite``: the schemas of all versions, read and written."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from energon_made import write_shards
from energon_prepared import prepare, prepared
from headrace.errors import InputError, OutputError, StoreError
from headrace.stores import EnergonStore
from headrace.stores.energon import MediaRow, PartRow, SampleRow, SqliteIndex, SqliteWriter, update_media
from headrace.stores.tar.scan import scan_shard

SHARDS = {
    "a.tar": [("k1.jpg", b"one"), ("k1.txt", b"1"), ("k2.txt", b"2")],
    "b.tar": [("k3.txt", b"3"), ("k3.txt", b"33"), ("odd'; --.txt", b"4")],
}
SAMPLES = [(0, "k1", 0, 0, 2048), (0, "k2", 1, 2048, 1024), (1, "k3", 0, 0, 2048), (1, "odd'; --", 1, 2048, 1024)]
PARTS = """CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER)"""
OLDER = {
    "5.3": (
        """CREATE TABLE samples (id INTEGER PRIMARY KEY AUTOINCREMENT, tar_file_id INTEGER, sample_key TEXT,
            sample_index INTEGER, byte_offset INTEGER, byte_size INTEGER)""",
    ),
    "7.0": (
        """CREATE TABLE samples (tar_file_id INTEGER, sample_key TEXT, sample_index INTEGER, byte_offset INTEGER,
            byte_size INTEGER)""",
        PARTS,
    ),
    "7.3": (
        """CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
            sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)""",
        PARTS,
        "CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, metadata_json TEXT)",
    ),
}
"""Their tables, without the indexes, which change no answer."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return prepared(tmp_path, SHARDS)


def index(root: Path) -> SqliteIndex:
    return SqliteIndex(root / ".nv-meta/index.sqlite")


def test_rows(root: Path) -> None:
    found = index(root)
    assert list(found.samples()) == [SampleRow(*row) for row in SAMPLES]
    assert list(found.samples(1)) == [SampleRow(*row) for row in SAMPLES[2:]]
    assert found.sample("odd'; --") == SampleRow(*SAMPLES[3])
    assert found.sample("x") is None
    assert found.part("k1", "txt") == PartRow(0, 0, "txt", 1536, 1)
    assert found.part("k3", "txt") == PartRow(1, 0, "txt", 1536, 2)  # of two the last, as in reading
    assert found.part("k1", "no") is None
    assert [row.part for row in found.parts(0)] == ["jpg", "txt", "txt"]
    assert (found.has_samples, found.has_parts, found.has_media) == (True, True, False)
    assert found.media_filters() == []
    with pytest.raises(StoreError, match=r"media_metadata.*sample_parts"):
        found.media_metadata("k1.jpg")


@pytest.mark.parametrize("version", OLDER)
def test_indices_of_older_versions(root: Path, version: str) -> None:
    """With an ``.info.yaml``, as those before 7.0 had it."""
    path = root / ".nv-meta/index.sqlite"
    parts = [tuple(row) for shard in range(2) for row in index(root).parts(shard)]
    path.unlink()
    with closing(sqlite3.connect(path)) as base:
        for statement in OLDER[version]:
            base.execute(statement)
        names = "tar_file_id, sample_key, sample_index, byte_offset, byte_size"
        base.executemany(f"INSERT INTO samples ({names}) VALUES (?, ?, ?, ?, ?)", SAMPLES[::-1])
        if version != "5.3":
            base.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
        base.commit()
    if version == "5.3":
        (root / ".nv-meta/.info.json").unlink()
        (root / ".nv-meta/.info.yaml").write_text("shard_counts:\n  a.tar: 2\n  b.tar: 2\n")
    found = index(root)
    assert list(found.samples()) == [SampleRow(*row) for row in SAMPLES]
    assert found.has_parts == (version != "5.3")
    assert found.has_media == (version == "7.3")
    store = EnergonStore(root, split_part="train")
    assert [store.find(row[1]) for row in SAMPLES] == [0, 1, 2, 3]
    assert store.part("k1.txt") == b"1"
    assert store.part("k3.txt") == b"33"
    assert ["occurs more than once" in problem.message for problem in store.check()] == [True]
    assert not list((root / ".nv-meta").glob("index.sqlite-*"))


def test_threads_and_forks(root: Path) -> None:
    found = index(root)
    assert found.sample("k1")
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(found.sample("k3") is not None)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
    child = os.fork()
    if child == 0:
        os._exit(7 if found.sample("k2") == SampleRow(*SAMPLES[1]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    found.close()
    assert found.sample("k2") == SampleRow(*SAMPLES[1])


def test_rows_that_are_dropped_half_way_ask_no_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator may be closed by any thread; that of the client of object stores would wait for itself."""
    asked: list[Path] = []
    failed: list[BaseException] = []
    with closing(index(root)) as found:
        rows = found._rows("SELECT * FROM samples")
        next(rows)
        monkeypatch.setattr(type(found.path), "is_file", lambda self: bool(asked.append(self)))

        def close() -> None:
            try:
                rows.close()  # type: ignore[attr-defined]
            except StoreError as error:
                failed.append(error)

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
    assert (asked, failed) == ([], [])


def test_an_index_that_cannot_be_read(tmp_path: Path) -> None:
    found = SqliteIndex(tmp_path / "odd ?#% name.sqlite")
    with pytest.raises(StoreError, match="missing"):
        found.sample("k")
    found.path.write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="database"):
        found.sample("k")
    found.path.unlink()
    with closing(sqlite3.connect(found.path)) as base:
        base.execute("CREATE TABLE other (a)")
    with pytest.raises(StoreError, match="samples"):
        SqliteIndex(found.path).sample("k")


def test_the_uuid_is_of_the_content(tmp_path: Path) -> None:
    uuids = []
    for name, shards in (("one", SHARDS), ("two", SHARDS), ("three", {**SHARDS, "b.tar": SHARDS["b.tar"][:2]})):
        root = prepared(tmp_path / name, shards)
        uuids.append((root / ".nv-meta/index.uuid").read_text())
        first = (root / ".nv-meta/index.sqlite").read_bytes()
        prepare(root, shards, {})
        assert (root / ".nv-meta/index.sqlite").read_bytes() == first
    assert uuids[0] == uuids[1] != uuids[2]
    assert all(len(uuid) == 36 for uuid in uuids)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ({"a.tar": SHARDS["a.tar"], "b.tar": [("x.t", b""), ("k2.t", b"")]}, "'k2'.*1.*0"),
        ({"a.tar": [("x.t", b""), ("y.t", b""), ("x.u", b"")]}, "'x'.*0.*0.*2"),
    ],
)
def test_a_key_twice(tmp_path: Path, shards: dict[str, list[tuple[str, bytes]]], message: str) -> None:
    write_shards(tmp_path, shards)
    with pytest.raises(InputError, match=message):
        prepare(tmp_path, shards, {})
    assert list((tmp_path / ".nv-meta").iterdir()) == []


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    shards = {"a.tar": [("k\udcff.txt", b"1")]}
    write_shards(tmp_path, shards)
    with pytest.raises(InputError, match=r"0.*udcff'.*UTF-8"):
        prepare(tmp_path, shards, {})
    root = prepared(tmp_path / "other", SHARDS)
    with pytest.raises(KeyError):
        EnergonStore(root).find("k\udcff")


def test_rows_of_nonsense(root: Path) -> None:
    with closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as base:
        base.execute("UPDATE samples SET sample_index = 'x' WHERE sample_key = 'k1'")
        base.execute("UPDATE samples SET sample_index = -1 WHERE sample_key = 'k2'")
        base.execute("UPDATE samples SET tar_file_id = 99 WHERE sample_key = 'k3'")
        base.execute("UPDATE sample_parts SET content_byte_offset = 1 << 60 WHERE part_name = 'txt'")
        base.commit()
    store = EnergonStore(root)
    with pytest.raises(StoreError, match="'k1'"):
        store.find("k1")
    with pytest.raises(StoreError, match=r"sample.*-1"):
        store.find("k2")
    with pytest.raises(KeyError):
        store.find("k3")
    with pytest.raises(StoreError, match=r"wanted.*1.*0"):
        store.part("odd'; --.txt")
    assert list(store.check())


def test_what_was_there_stays_when_a_writer_fails(root: Path) -> None:
    before = {path.name: path.read_bytes() for path in (root / ".nv-meta").iterdir()}
    (root / "b.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(InputError):
        prepare(root, SHARDS, {})
    writer = SqliteWriter(root)
    writer.add_shard(0, scan_shard(root / "a.tar"))
    writer.discard()
    with pytest.raises(OutputError, match="written"):
        writer.add_shard(0, scan_shard(root / "a.tar"))
    assert {path.name: path.read_bytes() for path in (root / ".nv-meta").iterdir()} == before
    with pytest.raises(OutputError, match="cannot"):
        SqliteWriter(root / "none")


def test_media_with_the_samples(tmp_path: Path) -> None:
    (tmp_path / ".nv-meta").mkdir()
    write_shards(tmp_path, dict(SHARDS))
    with SqliteWriter(tmp_path) as writer:
        writer.add_shard(0, scan_shard(tmp_path / "a.tar"))
        writer.add_media([MediaRow("k1.jpg", "image", '{"width":1}')], [("HEADER", "")])
        writer.add_media([MediaRow("k1.jpg", "image", '{"width":2}')], [("HEADER", "")])
    assert index(tmp_path).media_metadata("k1.jpg") == {"type": "image", "width": 2}
    assert index(tmp_path).media_filters() == [("HEADER", "")]


def test_media_of_a_folder(tmp_path: Path) -> None:
    update_media(tmp_path, [MediaRow("d/x.png", "image", "{")], [])
    assert index(tmp_path).has_media
    assert not index(tmp_path).has_samples
    with pytest.raises(StoreError, match=r"media_metadata.*'d/x\.png'"):
        index(tmp_path).media_metadata("d/x.png")


def test_a_schema_whose_name_is_not_utf_8(root: Path) -> None:
    """SQLite tells its name in an error that Python cannot decode."""
    with closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET name = CAST(X'AF6B' AS TEXT), sql = 'CREATE TABLE ('")
        connection.commit()
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        list(index(root).samples())
