"""Folders of files, JSON lines, and which store `headrace.open` takes for what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace
from counts import cases
from energon_made import write_tar
from energon_prepared import prepared
from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import reader
from headrace.stores import (
    EnergonStore,
    FilesystemStore,
    JsonlSamplesStore,
    JsonlStore,
    TarStore,
    kept_arrays,
    open_tokens,
)
from headrace.stores.energon import MediaRow, jsonl, update_media, write_lines
from headrace.stores.energon.jsonl import scan_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    for name in ("d/2.jpg", "d/10.jpg", "d/10.txt", "README", "a.b.c", ".hidden.txt", ".git/x.txt", "__m__/x.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (tmp_path / "secret.txt").write_text("secret")
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    (root / "in.txt").symlink_to(root / "README")
    (root / "away").symlink_to(tmp_path)
    return root


def test_files(folder: Path) -> None:
    store = FilesystemStore(folder)
    assert [(sample.key, sample.parts) for sample in store] == [
        ("a", {"b.c": b"a.b.c"}),
        ("d/2", {"jpg": b"d/2.jpg"}),
        ("d/10", {"jpg": b"d/10.jpg", "txt": b"d/10.txt"}),
        ("in", {"txt": b"README"}),
    ]
    assert store.part("README") == b"README"
    with pytest.raises(KeyError, match="'none'"):
        store.part("none")


LINKS = ["out.txt", "away/secret.txt"]


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd", "d/../../secret.txt", "", "a\\b", "a\0b", *LINKS])
def test_names_and_links_that_leave_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(StoreError, match="folder"):
        FilesystemStore(folder).part(name)


def test_media_of_files(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        FilesystemStore(folder).media_metadata("d/2.jpg")
    update_media(folder, [MediaRow("d/2.jpg", "image", '{"width":3}'), MediaRow("gone.jpg", "image", "{}")], [])
    store = headrace.open(folder)
    assert isinstance(store, FilesystemStore)
    assert store.media_metadata("d/2.jpg") == {"type": "image", "width": 3}
    (problem,) = store.check()
    assert problem.place == "gone.jpg"
    with pytest.raises(StoreError, match="folder"):
        FilesystemStore(folder / "README")


def plainly(data: bytes) -> list[int]:
    """The rule of Energon, line by line."""
    begins, at = [], 0
    for line in data.splitlines(keepends=True) if b"\r" not in data else data.replace(b"\r", b" ").splitlines(True):
        if line.strip():
            begins.append(at)
        at += len(line)
    return [0, *begins[1:], len(data)]


@given(
    st.lists(st.sampled_from([b'{"a": 1}', b"{}", b"", b"  ", b"\r", b' {"b": 2} ', b"{ }\r"]), min_size=1, max_size=9),
    st.booleans(),
    st.integers(1, 30),
)
@settings(max_examples=cases(15, 150), deadline=None)
def test_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ended: bool, chunk: int) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    data = b"\n".join(lines) + b"\n" * ended
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.stores.foreign._CHUNK_BYTES", chunk)
        if any(line.strip() for line in lines):
            assert scan_lines(str(path), reader("pread")).tolist() == plainly(data)
        else:
            with pytest.raises(InputError, match="record"):
                scan_lines(str(path), reader("pread"))


@pytest.mark.parametrize("line", [b"[1]", b"{", b"x{}", b"{} x", b"}", b'"{}"'])
def test_lines_that_are_no_objects(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=r"x\.jsonl.*3.*10"):
        write_lines(path)
    assert not path.with_suffix(".jsonl.idx").exists()
    path.write_text('{"a": 1}\n{"a": }\n')
    assert [problem.place for problem in JsonlSamplesStore(path).check()] == ["record 1, byte 9"]


def test_an_index_of_another_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    write_lines(path)
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    with pytest.raises(StoreError, match=r"x\.jsonl\.idx.*0.*18"):
        JsonlSamplesStore(path)
    path.with_suffix(".jsonl.idx").write_bytes(b"123")
    with pytest.raises(StoreError, match=r"3.*8.*sample"):
        JsonlSamplesStore(path)
    np.array([0, 20, 9, 27]).tofile(path.with_suffix(".jsonl.idx"))
    with pytest.raises(InputError, match=r"sample.*1.*20"):
        JsonlSamplesStore(path)[1]
    (problem,) = JsonlSamplesStore(path).check()
    assert "its index belongs to another file" in problem.message
    np.array([0, 2**63 - 1, -(2**62), 27]).tofile(path.with_suffix(".jsonl.idx"))
    for number, begin in ((1, 2**63 - 1), (2, -(2**62))):
        with pytest.raises(InputError, match=rf"{number}.*{begin}"):
            JsonlSamplesStore(path)[number]


def test_a_large_file_is_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "_KEPT_BYTES", 10)
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert len(JsonlSamplesStore(path)) == 2
    monkeypatch.setattr(jsonl, "scan_lines", lambda *_: pytest.fail("it was there"))
    assert JsonlSamplesStore(path)[1].parts == {"json": b'{"text": "two"}'}
    assert JsonlSamplesStore(path).find("1") == 1
    for key in ("2", "01", "-1", "x", "٣"):
        with pytest.raises(KeyError):
            JsonlSamplesStore(path).find(key)


RECORDS = {
    '{"text": "one"}': JsonlSamplesStore,
    '{"ids": [1, 2], "text": "x"}': JsonlSamplesStore,
    '{"i": 1}': JsonlSamplesStore,
    '{"ids": [1, 2], "mask": [true, false]}': JsonlStore,
    '{"ids": []}': JsonlStore,
}


@pytest.mark.parametrize("record", RECORDS)
def test_what_a_jsonl_holds(tmp_path: Path, record: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"\n{record}\n")
    assert type(headrace.open(path)) is RECORDS[record]
    write_lines(path)
    assert type(headrace.open(path)) is JsonlSamplesStore
    if RECORDS[record] is JsonlStore:
        assert open_tokens(path).num_documents == 1
    else:
        with pytest.raises(StoreError, match="headrace"):
            open_tokens(path)


def test_what_a_folder_or_name_holds(tmp_path: Path) -> None:
    root = prepared(tmp_path / "set", {"a.tar": [("k.txt", b"1")], "b.tar": [("l.txt", b"2")]}, {"val": ["b.tar"]})
    store = headrace.open(root, split_part="val")
    assert isinstance(store, EnergonStore)
    assert store[0].key == "l"
    assert len(headrace.open(root)) == 2
    write_tar(tmp_path / "plain/deep/x-0.tar", [("k.txt", b"1")])
    write_tar(tmp_path / "plain/deep/x-1.tar", [("m.txt", b"1")])
    for place in (
        tmp_path / "plain",
        f"{tmp_path}/plain/deep/x-{{0..1}}.tar",
        [tmp_path / "plain/deep/x-0.tar", tmp_path / "plain/deep/x-1.tar"],
    ):
        store = headrace.open(place)
        assert isinstance(store, TarStore)
        assert [sample.key for sample in store] == ["k", "m"]
    for place in (root, tmp_path / "plain", tmp_path / "plain/deep/x-0.tar"):
        with pytest.raises(StoreError, match="samples"):
            open_tokens(place)
        with pytest.raises(ConfigError, match="dialect"):
            headrace.open(place, key="ids", dialect="megatron")
    with pytest.raises(ConfigError, match="split_part='train'"):
        headrace.open(tmp_path / "plain", split_part="train")
    (tmp_path / "t.jsonl").write_text('{"ids": [1]}')
    with pytest.raises(ConfigError, match="split_part='train'"):
        headrace.open(tmp_path / "t.jsonl", split_part="train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="without"):
        headrace.open(tmp_path / "empty")
