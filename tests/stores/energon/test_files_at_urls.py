"""Folders of files in an object store: the same samples as on a disk, by one LIST, and a GET for each file."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from obstore import delete

import headrace
from energon_made import PNG, write_files
from headrace.cli import main
from headrace.errors import StoreError
from headrace.io import ObjectReader, Reader
from headrace.io.objects.lookups import BLOCK_BYTES, Objects
from headrace.stores import FilesystemStore
from headrace.stores.energon import MediaRow, update_media
from memory_stores import MemoryBucket

FILES = {
    **{
        f"cats/{number}.{part}": f"{part} {number}".encode() * number for number in range(12) for part in ("txt", "jpg")
    },
    "cats/7.detail.json": b"{}",
    "README": b"read me",
    ".hidden.txt": b"?",
    ".git/x.txt": b"?",
    "dogs/.hidden/x.txt": b"?",
    "__m__/x.txt": b"?",
    "big.bin": np.random.default_rng(0).bytes(BLOCK_BYTES + 77),
    "z.png": PNG,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    update_media(write_files(tmp_path / "files", FILES), [MediaRow("z.png", "image", '{"width":2}')], [])
    return tmp_path / "files"


def opened(url: str, reader: Reader | None = None) -> FilesystemStore:
    store = headrace.open(url, reader=reader or "mmap")
    assert isinstance(store, FilesystemStore)
    return store


def test_the_samples_of_the_local_folder(bucket: MemoryBucket, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    local, reader = opened(str(folder)), ObjectReader()
    ours = opened(bucket.upload(folder, "files"), reader)
    every = np.arange(len(local))
    with caplog.at_level(logging.INFO):
        assert ours.read(every) == local.read(every)
    assert not caplog.messages
    assert len(ours) == 14
    assert ours.fingerprint == local.fingerprint
    assert ours.media_metadata("z.png") == local.media_metadata("z.png") == {"type": "image", "width": 2}
    assert [place.size for place in ours.places(3).values()] == [place.size for place in local.places(3).values()]
    assert ours.part("README") == b"read me"
    assert list(ours.check()) == []
    with pytest.raises(KeyError, match=r"'cats/none.jpg'"):
        ours.part("cats/none.jpg")


def test_what_it_asks_of_the_store(bucket: MemoryBucket, folder: Path) -> None:
    reader = ObjectReader()
    store = opened(bucket.upload(folder, "files"), reader)
    before = (reader.stats.lists, reader.stats.heads)
    every = np.arange(len(store))
    store.read(every)
    assert store.fingerprint
    assert store.data_sizes().sum() == sum(len(data) for name, data in FILES.items() if name in names(store, folder))
    # One LIST; a GET for each file that is not empty, and another one for the second block of the big one.
    assert (reader.stats.lists, reader.stats.heads) == (before[0] + 1, before[1])
    assert reader.stats.gets == sum(1 for size in store.data_sizes() if size) + 1
    gets = reader.stats.gets
    store.read(every, ["jpg"])
    assert reader.stats.gets == gets + 11


def test_the_ranges_of_samples(bucket: MemoryBucket, folder: Path) -> None:
    for store in (opened(str(folder)), opened(bucket.upload(folder, "files"))):
        wanted = np.array([13, 0, 4, 0, 8])
        found = store.extents(wanted)
        data: dict[int, list[bytes]] = {}
        for row, file, begin, end in zip(found.rows, found.files, found.begins, found.ends, strict=True):
            reader, path = store.data_file(int(file))
            data.setdefault(int(row), []).append(reader.read(path, int(begin), int(end - begin)).tobytes())
        assert [data[row] for row in range(5)] == [list(sample.parts.values()) for sample in store.read(wanted)]
        assert store.data_sizes().tolist() == [Path(folder, name).stat().st_size for name in names(store, folder)]


def names(store: FilesystemStore, folder: Path) -> list[str]:
    return [path.removeprefix(f"{store.root}/") for path in store.data_files]


def test_objects_that_go_or_change_are_named(bucket: MemoryBucket, folder: Path) -> None:
    url = bucket.upload(folder, "files")
    store = opened(url)
    number = store.find("cats/5")
    bucket.put("files/cats/5.jpg", b"another")
    delete(bucket.store, ["files/cats/6.txt"])
    with pytest.raises(StoreError, match=rf"{url}/cats/5.jpg"):
        store[number]
    with pytest.raises(StoreError, match=rf"{url}/cats/6.txt"):
        store.read(np.arange(len(store)), ["txt"])
    assert {problem.path for problem in store.check()} == {f"{url}/cats/5.jpg", f"{url}/cats/6.txt"}
    delete(bucket.store, ["files/z.png"])
    assert [problem.place for problem in opened(url).check()] == ["z.png"]
    for place in (f"{bucket.url}/none", f"{url}/README"):
        with pytest.raises(StoreError, match=rf"{place}"):
            FilesystemStore(place)


@pytest.fixture
def web(bucket: MemoryBucket) -> Iterator[MemoryBucket]:
    """The bucket as a web server, which answers for the names that it is asked for."""
    with pytest.MonkeyPatch.context() as patch:  # `monkeypatch` begins before the bucket, and would restore it
        patch.setattr("headrace.io.objects.client.connect", lambda *given, **how: bucket.store)
        yield MemoryBucket(bucket.url.replace("s3://", "http://"), bucket.store)


def test_a_web_server_has_the_files_that_the_metadata_name(
    web: MemoryBucket, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{web.upload(folder, 'files')}/"
    store = opened(url)
    assert store.part("cats/3.txt") == b"txt 3" * 3
    assert not caplog.messages
    assert [(sample.key, sample.parts) for sample in store] == [("z", {"png": PNG})]
    assert "the samples consist of the 1 files with media metadata, without others beside them" in caplog.text
    assert store.fingerprint != opened(str(folder)).fingerprint
    named = [MediaRow(name, "image", "{}") for name in FILES if name not in (".hidden.txt", "README")]
    update_media(folder, named, [])
    web.upload(folder, "all")
    everything = opened(f"{web.url}/all/")
    assert everything.fingerprint == opened(str(folder)).fingerprint
    assert list(everything.check()) == []
    delete(web.store, ["all/cats/4.jpg"])
    again = opened(f"{web.url}/all/")
    assert {problem.path for problem in again.check()} == {
        f"{web.url}/all/cats/4.jpg",
        f"{web.url}/all/.nv-meta/index.sqlite",
    }
    with pytest.raises(StoreError, match=r"all/cats/4.jpg"):
        again.places(again.find("cats/4"))


def test_what_a_web_server_cannot_do(web: MemoryBucket, tmp_path: Path) -> None:
    web.upload(write_files(tmp_path / "plain", FILES), "plain")
    with pytest.raises(StoreError, match="URL"):
        FilesystemStore(f"{web.url}/plain")
    store = FilesystemStore(f"{web.url}/plain/")
    assert store.part("z.png") == PNG
    with pytest.raises(StoreError, match=r"plain/.*index.sqlite"):
        len(store)
    update_media(tmp_path / "plain", [MediaRow("../secret.png", "image", "{}")], [])
    web.upload(tmp_path / "plain", "plain")
    with pytest.raises(StoreError, match="folder"):
        len(FilesystemStore(f"{web.url}/plain/"))


def test_many_files_are_looked_up_at_once(web: MemoryBucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update_media(folder, [MediaRow(name, "image", "{}") for name in FILES], [])
    asked: list[int] = []
    whole = Objects.look_up

    def look_up(self: Any, urls: list[str], folders: list[str]) -> None:
        asked.append(len(urls))
        whole(self, urls, folders)

    store = opened(f"{web.upload(folder, 'files')}/")
    monkeypatch.setattr(Objects, "look_up", look_up)
    assert store.fingerprint
    assert asked == [len(store.data_files)]
    heads = store._reader.stats.heads  # type: ignore[attr-defined]
    assert sum(place.size for number in range(len(store)) for place in store.places(number).values())
    assert store._reader.stats.heads == heads  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "words",
    [
        ("info", "{}", "--json"),
        ("ls", "{}", "-l"),
        ("cat", "{}", "cats/5.txt"),
        ("cat", "{}", "z", "--json"),
        ("check", "{}"),
        ("preview", "{}"),
    ],
    ids=lambda words: words[0],
)
def test_commands(bucket: MemoryBucket, folder: Path, words: tuple[str, ...]) -> None:
    url = bucket.upload(folder, "files")

    def said(place: str) -> str:
        done = CliRunner().invoke(main, [word.format(place) for word in words])
        assert done.exit_code == 0, done.output
        return re.sub(r"\d\.\d s|0x\w+", "", done.output)  # times, and addresses in the words of Pillow

    assert said(url).replace(url, str(folder)) == said(str(folder))
