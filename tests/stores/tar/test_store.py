"""The contract over plain tars, and what only they have: where indexes are kept, and what is no tar."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import ConfigError, HeadraceError, InputError, StoreError
from headrace.stores.kept_arrays import write_offsets
from headrace.stores.store import SampleStore
from headrace.stores.tar.index import index_path
from headrace.stores.tar.scan import scan_shard
from headrace.stores.tar.store import TarStore
from headrace.testing.samples import Samples, SampleStoreContract, numbered_samples
from tars_made import member, members_of, tar_bytes, write_tar


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder


class TestMapped(SampleStoreContract):
    format = tarfile.USTAR_FORMAT

    def write(self, folder: Path, samples: Samples) -> Path:
        for number, begin in enumerate(range(0, len(samples), 9), start=9):
            write_tar(folder / f"{number}.tar", members_of(samples[begin : begin + 9]), self.format)
        return folder

    def open(self, path: Path) -> SampleStore:
        return TarStore(path)


class TestRead(TestMapped):
    def open(self, path: Path) -> SampleStore:
        return TarStore(path, using="pread", index="cache")


class TestPax(TestMapped):
    """With keys that do not fit a header."""

    format = tarfile.PAX_FORMAT

    def samples(self) -> Samples:
        return numbered_samples(14, prefix="a long folder/" * 12)

    def open(self, path: Path) -> SampleStore:
        return TarStore(path, index="memory")


class TestGnuAsOneFile(TestPax):
    format = tarfile.GNU_FORMAT

    def write(self, folder: Path, samples: Samples) -> Path:
        return write_tar(folder / "x.tar", members_of(samples), self.format)


def two_tars(folder: Path) -> tuple[Path, Path]:
    return (
        write_tar(folder / "b" / "x-9.tar", [("k0.txt", b"0"), ("k1.txt", b"1")]),
        write_tar(folder / "x-10.tar", [("k2.txt", b"2")]),
    )


def keys(store: SampleStore) -> list[str]:
    return [sample.key for sample in store.read(np.arange(len(store)))]


def test_what_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two_tars(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "z.tar").write_bytes(b"no tar")
    monkeypatch.chdir(tmp_path)
    ways: list[Any] = [
        tmp_path,
        [first, second],
        f"{tmp_path}/{{b/x-9,x-10}}.tar",
        "{b/x-9,x-10}.tar",
        [f"{tmp_path}/b/*.tar", "x-{10..10}.tar"],
        f"{tmp_path}/**/x*.tar",
    ]
    prints = set()
    for way in ways:
        store = TarStore(way)
        assert store.shards == ("b/x-9.tar", "x-10.tar"), way
        assert keys(store) == ["k0", "k1", "k2"]
        prints.add(store.fingerprint)
    assert len(prints) == 1
    assert keys(TarStore([second, first, second])) == ["k2", "k0", "k1", "k2"]
    assert TarStore(first).shards == ("x-9.tar",)
    assert repr(TarStore(str(first))) == f"<tar store {str(first)!r}: 2 samples in 1 shards>"
    strange = write_tar(tmp_path / "odd" / "[1]{a,b}.tar", [("k.txt", b"")])
    assert keys(TarStore(strange)) == ["k"]


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("none.tar", StoreError, r"none\.tar"),
        ("none-*.tar", StoreError, "pattern"),
        ("x-{1..3.tar", ConfigError, "match"),
        ("empty", StoreError, "without"),
        ([], StoreError, "empty"),
        (["x-10.tar", "none.tar"], StoreError, r"none\.tar"),
    ],
)
def test_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, error: type[Exception], match: str
) -> None:
    two_tars(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match):
        TarStore(path)


def test_unknown_options(tmp_path: Path) -> None:
    for options in ({"index": "here"}, {"faulty": "ignore"}):
        with pytest.raises(ConfigError, match="allowed"):
            TarStore(tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "pack", "program"),
    [
        ("x.tar.gz", gzip.compress, "gzip"),
        ("x.tgz", gzip.compress, "gzip"),
        ("x.tar.bz2", bz2.compress, "bzip2"),
        ("x.tar.xz", lzma.compress, "xz"),
        ("x.tar", gzip.compress, "gzip"),
        ("x.tar", lzma.compress, "xz"),
        ("x.tar.zst", bytes, "zstd"),
    ],
)
def test_compressed_tars_are_refused(tmp_path: Path, name: str, pack: Any, program: str) -> None:
    path = tmp_path / name
    path.write_bytes(pack(tar_bytes([("k.txt", np.random.default_rng(0).bytes(2000))])))
    for opened in (path, tmp_path, str(path)):
        with pytest.raises(InputError, match=f"{program}.*-dc"):
            TarStore(opened)


@pytest.mark.parametrize(("name", "message"), [("sub/B.TAR", r"'sub/B\.TAR'"), ("b.tgz", r"b\.tgz.*gzip")])
def test_no_tar_beside_others_is_left_out(tmp_path: Path, name: str, message: str) -> None:
    write_tar(tmp_path / "a.tar", [("k.txt", b"1")])
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(gzip.compress(b""))
    for opened in (TarStore, headrace.open):
        with pytest.raises(HeadraceError, match=message):
            opened(tmp_path)
    assert len(TarStore(tmp_path / "*.tar")) == 1


def test_an_index_is_kept_beside_and_used(tmp_path: Path) -> None:
    first, second = two_tars(tmp_path)
    store = TarStore(tmp_path)
    assert index_path(first).read_bytes() == np.array([0, 1024, 2048], "<u8").tobytes()
    assert store.files == (first, index_path(first), second, index_path(second))
    # Now it is taken for granted: one of another tar that ends at a block of zeros is not noticed by opening it.
    write_offsets(index_path(first), [0, 2048])
    assert len(TarStore(first)) == 1
    assert [re.findall(r"\d+", problem.message) for problem in TarStore(first).check()] == [
        ["1", "2"],
        ["2048", "1024"],
    ]
    with pytest.raises(InputError, match=r"x-9.tar.*0.*'k0'"):
        TarStore(first)[0]


@pytest.mark.parametrize("fault", ["old", "odd", "far", "early", "empty"])
def test_an_index_that_is_not_of_the_tar_is_not_used_and_not_replaced(tmp_path: Path, cache: Path, fault: str) -> None:
    first, _ = two_tars(tmp_path)
    index = index_path(first)
    offsets = {"far": [0, 1024, 4096 * 512], "early": [0, 512, 1024]}.get(fault, [0, 1024, 2048])
    data = np.array(offsets, "<i8").tobytes()
    data = data[:-1] if fault == "odd" else data
    index.write_bytes(b"" if fault == "empty" else data)
    if fault == "old":
        os.utime(index, ns=(0, 0))
    before = index.read_bytes()
    for _ in range(2):
        store = TarStore(first)
        assert keys(store) == ["k0", "k1"]
        assert index.read_bytes() == before
        assert [file.parent for file in store.files] == [first.parent, cache / "tar"]
        assert len(list((cache / "tar").iterdir())) == 1


def test_where_indexes_are_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two_tars(tmp_path)
    assert TarStore(tmp_path, index="memory").files == (first, second)
    assert not cache.joinpath("tar").exists()
    kept = TarStore(tmp_path, index="cache").files
    assert [path.parent for path in kept] == [first.parent, cache / "tar", second.parent, cache / "tar"]
    assert not index_path(first).exists()

    # What is found there is not made again, whatever is asked for.
    with monkeypatch.context() as patched:
        patched.setattr("headrace.stores.tar.index.scan_shard", None)
        assert TarStore(tmp_path).files == kept
        with pytest.raises(TypeError):
            TarStore(tmp_path, index="memory")
    os.utime(first, ns=(1, 1))
    assert TarStore(first, index="cache").files != kept[:2]


def test_a_kept_index_is_compared_before_it_is_used(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first tar has two samples of 1024 bytes each."""
    first, _ = two_tars(tmp_path)
    TarStore(first, index="cache")
    [kept] = (cache / "tar").iterdir()
    whole = kept.read_bytes()
    for damaged in (np.array([0, 0, 2048], "<i8").tobytes(), whole[:16], b""):
        kept.write_bytes(damaged)
        caplog.clear()
        assert keys(TarStore(first, index="cache")) == ["k0", "k1"]
        assert kept.read_bytes() == whole
        assert f"{kept}: is damaged" in caplog.text


def test_nowhere_to_keep_an_index(tmp_path: Path, cache: Path) -> None:
    first, second = two_tars(tmp_path)
    (cache / "tar").write_bytes(b"a file in the place of the folder")
    for tar in (first, second):
        index_path(tar).mkdir()
    store = TarStore(tmp_path)
    assert store.files == (first, second)
    assert keys(store) == ["k0", "k1", "k2"]


def test_hidden_members(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.txt", b"a"), ("d/.hid", b"h"), ("b.txt", b"b")])
    samples = [("a", {"txt": b"a"}), ("d/", {"hid": b"h"}), ("b", {"txt": b"b"})]
    assert [(sample.key, sample.parts) for sample in TarStore(path)] == samples
    store = TarStore(path, hidden=False)
    assert [(sample.key, sample.parts) for sample in store] == samples[::2]
    assert list(store.check()) == []
    assert list(store.places(0)) == ["txt"]


def test_repeated_keys(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a.txt", b"0"), ("b.txt", b"1"), ("a.txt", b"2"), ("c.txt", b"3")])
    write_tar(tmp_path / "1.tar", [("c.txt", b"4"), ("a.txt", b"5"), ("d.txt", b"6")])
    store = TarStore(tmp_path)
    assert [store.find(key) for key in "abcd"] == [0, 1, 3, 6]
    found = {problem.place: problem.message.partition(";")[0] for problem in store.check()}
    assert found == {
        "sample 0": "key 'a' occurs 3 times: 0.tar sample 0, 0.tar sample 2, 1.tar sample 1",
        "sample 3": "key 'c' occurs 2 times: 0.tar sample 3, 1.tar sample 0",
    }


def test_parts_that_lie_apart(tmp_path: Path) -> None:
    """Packed file by file, all images and then all texts: these would be twice as many samples, each of them half."""
    path = write_tar(tmp_path / "0.tar", [("a.jpg", b"0"), ("b.jpg", b"1"), ("a.txt", b"2"), ("b.txt", b"3")])
    with pytest.raises(InputError, match=r"0\.tar.*sample.*2.*2048.*'a'.*txt.*0.*jpg.*--sort=name"):
        TarStore(path)
    assert list(tmp_path.glob("*.idx")) == []


def test_keys_with_the_same_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.tar.index._hash", lambda key: len(key))
    path = write_tar(tmp_path / "0.tar", [(f"{key}.txt", b"") for key in ("a", "b", "cc", "a", "dd")])
    store = TarStore(path)
    assert [store.find(key) for key in ("a", "b", "cc", "dd")] == [0, 1, 2, 4]
    with pytest.raises(KeyError):
        store.find("e")
    assert [problem.message.partition(":")[0] for problem in store.check()] == ["key 'a' occurs 2 times"]


def test_what_check_tells_of_names(tmp_path: Path) -> None:
    members = [("../up.txt", b"1"), ("/etc/x.txt", b"2"), ("a.txt", b"3"), ("a.txt", b"4"), ("c..d/x.txt", b"5")]
    store = TarStore(write_tar(tmp_path / "0.tar", members))
    assert keys(store) == ["../up", "/etc/x", "a", "c..d/x"]
    assert store[2].parts == {"txt": b"4"}  # the last, as for Energon
    assert [(problem.place, problem.message.split("'")[1]) for problem in store.check()] == [
        ("sample 2", "a"),
        ("sample 0", "../up"),
        ("sample 1", "/etc/x"),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"0.tar", "0.tar.idx"}


def test_skipping_what_cannot_be_read(tmp_path: Path) -> None:
    samples = numbered_samples(6)
    good = write_tar(tmp_path / "0.tar", members_of(samples[:3]))
    bad = write_tar(tmp_path / "1.tar", members_of(samples[3:]))
    content = bytearray(bad.read_bytes())
    second_part = int(scan_shard(bad).part_offsets[4]) - 512
    content[second_part + 3] ^= 1
    bad.write_bytes(content)
    with pytest.raises(InputError, match=rf"1\.tar.*1.*{second_part}"):
        TarStore(tmp_path)
    for _ in range(2):  # never kept: it is told each time
        store = TarStore(tmp_path, faulty="skip")
        assert keys(store) == [key for key, _ in samples[:4]]
        (fault,) = store.faults["1.tar"]
        assert (fault.byte, fault.sample, fault.ends) == (second_part, 1, True)
        assert list(store.faults) == ["1.tar"]
        assert index_path(good).exists()
        assert not index_path(bad).exists()
    assert any("checksum" in problem.message for problem in store.check())


def test_no_samples(tmp_path: Path) -> None:
    store = TarStore(write_tar(tmp_path / "0.tar", [("README", b"nothing"), ("__meta__/x.txt", b"")]))
    assert len(store) == 0
    assert store.read(np.zeros(0, np.int64)) == []
    assert list(store.check()) == []
    with pytest.raises(KeyError):
        store.find("x")
    with pytest.raises(IndexError):
        store[0]


NO_FILES = [
    (tarfile.LNKTYPE, "hard link.*--hard-dereference"),
    (tarfile.SYMTYPE, "symbolic link.*--dereference"),
    (tarfile.FIFOTYPE, "pipe"),
    (tarfile.CHRTYPE, "device"),
    (tarfile.BLKTYPE, "device"),
    (b"M", "rest.*-M"),
    (b"Z", "b'Z'"),
]


@pytest.mark.parametrize(("kind", "message"), NO_FILES)
def test_links_and_devices_that_would_be_parts_are_refused(tmp_path: Path, kind: bytes, message: str) -> None:
    """GNU tar stores the second of two equal files as a hard link; Energon and webdataset lose its sample silently."""
    link, _ = member("b.txt", type=kind, linkname="a.txt")
    path = tmp_path / "0.tar"
    path.write_bytes(tar_bytes([("a.txt", b"one"), (link, b""), ("c.txt", b"two")]))
    with pytest.raises(InputError, match=rf"0\.tar.*1.*1024.*{message}"):
        TarStore(path)
    store = TarStore(path, faulty="skip")
    assert [sample.parts for sample in store] == [{"txt": b"one"}, {"txt": b"two"}]
    assert [problem.place for problem in store.check()] == ["byte 1024"]


@pytest.mark.parametrize("name", ["a.jpg", "a.txt"])
def test_a_sample_with_a_link_is_not_read_in_part(tmp_path: Path, name: str) -> None:
    """An index by Energon leaves links out."""
    link, _ = member(name, type=tarfile.LNKTYPE, linkname="z.jpg")
    path = tmp_path / "0.tar"
    path.write_bytes(tar_bytes([("a.json", b"{}"), (link, b""), ("c.txt", b"two")]))
    write_offsets(index_path(path), scan_shard(path, on_fault="keep").offsets)
    store = TarStore(path)
    assert store[1].parts == {"txt": b"two"}
    with pytest.raises(InputError, match=r"0.*'a'.*1024"):
        store[0]


def test_folders_and_labels_are_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    others = [member(name, type=kind)[0] for name, kind in (("v1.2", tarfile.DIRTYPE), ("d.x", b"D"), ("l.x", b"V"))]
    path.write_bytes(tar_bytes([*((info, b"") for info in others), ("a.txt", b"one")]))
    assert [sample.key for sample in TarStore(path)] == ["a"]


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    info, content = member("a.txt", b"x" * 10)
    info.type = tarfile.GNUTYPE_SPARSE
    path = tmp_path / "0.tar"
    path.write_bytes(tar_bytes([("b.txt", b"1"), (info, content), ("c.txt", b"2")]))
    with pytest.raises(InputError, match=r"0\.tar.*1.*1024"):
        TarStore(path)
    store = TarStore(path, faulty="skip")
    assert [store.key(0), store.key(2)] == ["b", "c"]
    with pytest.raises(InputError, match=r"1.*'a'.*1024"):
        store[1]
