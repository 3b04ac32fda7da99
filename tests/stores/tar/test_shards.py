"""Shards read by their indexes, malformed and damaged; and `TarWriter`: the bytes of `tarfile`, whole or none."""

from __future__ import annotations

import io
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreError
from headrace.stores.kept_arrays import write_offsets
from headrace.stores.store import RawSample
from headrace.stores.tar import scan as runs, store as shards
from headrace.stores.tar.index import index_path, read_index
from headrace.stores.tar.scan import scan_shard
from headrace.stores.tar.store import TarShards, TarStore
from headrace.stores.tar.writer import MAX_PLAIN_BYTES, TarWriter, member_bytes, member_header
from headrace.testing.samples import Samples, numbered_samples
from tars_made import member, members_of, tar_bytes, write_tar

USING = ("mmap", "pread")


def one(path: Path, count: int, *, using: str = "mmap", hidden: bool = True) -> TarShards:
    return TarShards(path.parent, [path.name], np.array([count]), using=using, hidden=hidden)


def numbers(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def indexed(path: Path, members: list[tuple[str, bytes]]) -> Path:
    write_tar(path, members)
    write_offsets(index_path(path), scan_shard(path).offsets)
    return path


@pytest.mark.parametrize("sizes", [(1, 0, 0), (1 << 20, 0, 1 << 30), (10_000, 1 << 20, 2000), (1 << 30, 600, 70_000)])
def test_whatever_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(runs, "_CALL_BYTES", sizes[0])
    monkeypatch.setattr(runs, "_NEAR_BYTES", sizes[1])
    monkeypatch.setattr(runs, "_PARTLY_BYTES", sizes[2])
    samples = numbered_samples(30)
    store = one(indexed(tmp_path / "x.tar", members_of(samples)), 30, using="pread")
    rng = np.random.default_rng(0)
    for together in (shards._TOGETHER_BYTES, 16):
        monkeypatch.setattr(shards, "_TOGETHER_BYTES", together)
        for parts in (None, ["txt"], ["jpg", "detail.json"], []):
            for size in (1, 2, 9, 60):
                at = rng.integers(0, 30, size)
                found = store.read(np.zeros_like(at), at, parts)
                assert [sample.key for sample in found] == [samples[number][0] for number in at.tolist()]
                assert [sample.parts for sample in found] == [
                    {name: data for name, data in samples[number][1].items() if parts is None or name in parts}
                    for number in at.tolist()
                ]


def test_only_what_is_wanted_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping, a caption of a large sample costs its headers."""
    path = indexed(tmp_path / "x.tar", [("a.mp4", bytes(3 << 20)), ("a.txt", b"1"), ("b.txt", b"2")])
    store = one(path, 2, using="pread")
    total = 0
    read = store.reader.read_ranges

    def counted(path: str, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        nonlocal total
        total += int(lengths.sum())
        return read(path, offsets, lengths)

    monkeypatch.setattr(store.reader, "read_ranges", counted)
    assert store.read(numbers(0), numbers(0), ["txt"])[0].parts == {"txt": b"1"}
    assert total < 2 << 20
    total = 0
    assert len(store.read(numbers(0), numbers(0))[0].parts["mp4"]) == 3 << 20
    assert 3 << 20 <= total < 4 << 20


@pytest.mark.parametrize("using", USING)
@pytest.mark.parametrize(
    ("offsets", "error", "match"),
    [
        ([0, 1024, 2048], StoreError, "2.*samples.*2,048"),
        ([0, 1024, 2048, 3072, 3072], StoreError, "3.*samples"),
        ([0, 1024, 2048, 2**40], StoreError, "short"),
        ([0, 2048, 1024, 3072], StoreError, "sample.*1.*2048.*1024"),
        ([0, -512, 2048, 3072], StoreError, "sample.*0.*0.*-512"),
        ([0, 2**62, 2048, 3072], StoreError, f"{2**62}"),
        ([0, 1024, 3072, 3072], InputError, r"sample.*1.*'k1'.*2048.*'k2\.txt'"),
        ([0, 1024, 1024, 3072], InputError, "sample.*1.*1024.*part.*1024"),
        ([0, 1024, 2000, 3072], InputError, "sample.*1.*1024.*past"),
        ([0, 1000, 2048, 3072], InputError, "sample.*0.*0.*past"),
        ([0, 1024, 1030, 3072], InputError, "sample.*1.*1024.*short.*6"),
        ([0, 1024, 2048, 3584], InputError, "sample.*2.*'k2'.*3072.*ends"),
        ([0, 1030, 2048, 3072], InputError, "sample.*0.*'k0'.*1024.*short"),
    ],
)
def test_an_index_that_is_wrong(
    tmp_path: Path, using: str, offsets: list[int], error: type[Exception], match: str
) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"k{number}.txt", b"1") for number in range(3)])
    write_offsets(index_path(path), offsets)
    store = one(path, 3, using=using)
    with pytest.raises(error, match=match) as caught:
        store.read(np.zeros(3, np.int64), np.arange(3))
    assert str(path) in str(caught.value)
    assert len(list(one(path, 3, using=using).check(0))) >= 1


def test_sample_0_begins_with_the_file(tmp_path: Path) -> None:
    """As Energon reads it: its first entry may say anything."""
    path = write_tar(tmp_path / "x.tar", [("noext", b"1"), ("k0.txt", b"1"), ("k1.txt", b"1")])
    write_offsets(index_path(path), [1500, 2048, 3072])
    assert [one(path, 2).key(0, number) for number in (0, 1)] == ["k0", "k1"]


@pytest.mark.parametrize("using", USING)
def test_missing_files(tmp_path: Path, using: str) -> None:
    path = write_tar(tmp_path / "x.tar", [("k0.txt", b"1")])
    for ask in (lambda: one(path, 1, using=using).key(0, 0), lambda: one(path, 1, using=using).offsets(0)):
        with pytest.raises(StoreError, match=r"x\.tar\.idx.*TarStore"):
            ask()
    with pytest.raises(StoreError, match=r"y\.tar"):
        one(tmp_path / "y.tar", 1, using=using).read(numbers(0), numbers(0))
    (problem,) = one(tmp_path / "y.tar", 1, using=using).check(0)
    assert "no such shard" in problem.message


@pytest.mark.parametrize("using", USING)
def test_members_that_belong_to_no_sample(tmp_path: Path, using: str) -> None:
    folder, _ = member("k0.d", type=tarfile.DIRTYPE)
    link, _ = member("lnk", type=tarfile.LNKTYPE, linkname="k0.txt")
    path = tmp_path / "x.tar"
    entries = [(folder, b""), ("k0.txt", b"1"), (link, b""), ("noext", b"x"), ("k0.jpg", b"2"), ("k1.txt", b"3")]
    path.write_bytes(tar_bytes([*entries, ("README", b"x")]))
    write_offsets(index_path(path), scan_shard(path).offsets)
    found = one(path, 2, using=using).read(numbers(0, 0), numbers(1, 0))
    assert [sample.key for sample in found] == ["k1", "k0"]
    assert [sample.parts for sample in found] == [{"txt": b"3"}, {"txt": b"1", "jpg": b"2"}]


def test_keys_that_begin_like_another(tmp_path: Path) -> None:
    names = ["__a.b", "__a.b__", "__a.c", "a.b/c.txt", "a.txt", "a.b.c", "ab.txt", "d/.x", "d/.y.z", "d/a.b"]
    path = indexed(tmp_path / "x.tar", [(name, name.encode()) for name in names])
    found = one(path, 6).read(np.zeros(6, np.int64), np.arange(6))
    assert [(sample.key, list(sample.parts)) for sample in found] == [
        ("__a", ["b", "c"]),
        ("a.b/c", ["txt"]),
        ("a", ["txt", "b.c"]),
        ("ab", ["txt"]),
        ("d/", ["x", "y.z"]),
        ("d/a", ["b"]),
    ]


def small_tar(layout: int) -> tuple[bytes, Samples]:
    samples: Samples = [(f"k{number}", {"jpg": bytes([number]) * 700, "txt": b"t%d" % number}) for number in range(5)]
    samples[2] = ("k2" * 60, samples[2][1]) if layout != tarfile.USTAR_FORMAT else samples[2]
    return tar_bytes(members_of(samples), layout), samples


@settings(max_examples=cases(15, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4),
    keep=st.one_of(st.none(), st.floats(0, 1)),
    faulty=st.sampled_from(["error", "skip"]),
    using=st.sampled_from(USING),
)
def test_damage(
    tmp_path: Path,
    layout: int,
    flips: list[tuple[float, int]],
    keep: float | None,
    faulty: str,
    using: str,
) -> None:
    """Whatever is flipped or cut: an error with a place, or the samples; those that were not touched stay the same."""
    data, samples = small_tar(layout)
    damaged = bytearray(data)
    touched = [int(place * len(data)) for place, _ in flips]
    for at, (_, bit) in zip(touched, flips, strict=True):
        damaged[at] ^= 1 << bit
    cut = len(data) if keep is None else int(keep * len(data))
    path = tmp_path / "x.tar"
    path.write_bytes(damaged[:cut])
    (tmp_path / "good.tar").write_bytes(data)
    good = scan_shard(tmp_path / "good.tar").offsets.tolist()
    found: list[RawSample] = []
    error: HeadraceError | None = None
    try:
        with TarStore(path, using=using, index="memory", faulty=faulty) as store:  # type: ignore[arg-type]
            found = [store[number] for number in range(len(store))]
            list(store.check())
    except HeadraceError as caught:
        error = caught
    if error is not None:
        assert str(path) in str(error)
        assert re.search(r"byte \d+", str(error))
        assert bytes(damaged[:cut]) != data
        return
    # Samples none of whose bytes were touched are as they were, and in order, wherever the damage is.
    spans = list(zip([0, *good[1:-1]], good[1:], strict=True))
    untouched = [end <= cut and not any(begin <= at < end for at in touched) for begin, end in spans]
    same = {key for (key, _), kept in zip(samples, untouched, strict=True) if kept}
    assert [(sample.key, sample.parts) for sample in found if sample.key in same] == [
        (key, parts) for key, parts in samples if key in same and key in {sample.key for sample in found}
    ]
    # What lies before the damage is there; without a next header nobody knows whether the last of them is whole.
    before = len(samples) if all(untouched) else untouched.index(False)
    assert len(found) >= before - (faulty == "skip")
    sure = max(0, before - 1)
    assert [sample.key for sample in found[:sure]] == [key for key, _ in samples[:sure]]


SIZE, COUNT, ROUNDS = 60_000, 32, 20

_READ = """
import resource, sys
import numpy as np
from headrace.stores.tar.store import TarShards
count, rounds = int(sys.argv[2]), int(sys.argv[3])
shards = TarShards(sys.argv[1], ["0.tar"], np.array([count]))
zeros, numbers = np.zeros(count, np.int64), np.arange(count)
def read():
    for _ in range(rounds):
        shards.read(zeros, numbers, None)
read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's malloc")
def test_a_page_is_not_faulted_in_for_every_batch(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "0.tar", [(f"{number}.jpg", bytes(SIZE)) for number in range(COUNT)])
    write_offsets(index_path(tar), scan_shard(tar).offsets)
    arguments = [str(tmp_path), str(COUNT), str(ROUNDS)]
    done = subprocess.run([sys.executable, "-c", _READ, *arguments], capture_output=True, text=True, check=True)
    pages = SIZE // 4096 * COUNT
    assert int(done.stdout) < 2 * pages  # of the 20 times as many that are read


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0./_\n"), min_size=1, max_size=120)
KEYS = st.one_of(NAMES, st.tuples(NAMES, NAMES).map("/".join))
PARTS = st.dictionaries(
    st.one_of(st.sampled_from(["jpg", "txt", "seg.png", ""]), NAMES), st.binary(max_size=1500), min_size=1, max_size=4
)


def plainly(samples: dict[str, dict[str, bytes]]) -> bytes:
    """The same by `tarfile`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for key, parts in samples.items():
            for part, data in parts.items():
                info = tarfile.TarInfo(f"{key}.{part}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def write(path: Path, samples: dict[str, dict[str, bytes]]) -> TarWriter:
    with TarWriter(path) as writer:
        for key, parts in samples.items():
            writer.add(key, parts)
    return writer


@settings(max_examples=cases(12, 60), deadline=None)
@given(samples=st.dictionaries(KEYS, PARTS, min_size=1, max_size=5))
def test_bytes_are_those_of_tarfile(samples: dict[str, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    written = write(path, samples).written
    assert path.read_bytes() == plainly(samples)
    scanned = scan_shard(path)
    assert scanned.keys == list(samples)
    assert scanned.part_names == [part for parts in samples.values() for part in parts]
    assert written is not None
    for name in type(scanned).__struct_fields__:
        assert np.array_equal(getattr(scanned, name), getattr(written.scanned, name))
    assert scanned.offsets.tolist() == read_index(index_path(path)).tolist()
    assert np.frombuffer(index_path(path).read_bytes(), "<u8").tolist() == scanned.offsets.tolist()
    sizes = [sum(member_bytes(f"{key}.{part}", len(data)) for part, data in samples[key].items()) for key in samples]
    assert np.diff(scanned.offsets).tolist() == sizes
    assert [file.size for file in written.files] == [path.stat().st_size, index_path(path).stat().st_size]


@pytest.mark.parametrize("name", ["a.jpg", "n" * 97 + ".jpg", "n" * 96 + ".jpg", "ä/b.txt", "d" * 300 + "/b.txt"])
@pytest.mark.parametrize("size", [0, 1, 512, MAX_PLAIN_BYTES, MAX_PLAIN_BYTES + 1, 1 << 50])
def test_headers_of_any_size(name: str, size: int) -> None:
    header = member_header(name, size)
    assert header == _info(name, size).tobuf(tarfile.PAX_FORMAT)
    assert member_bytes(name, size) == len(header) + -(-size // 512) * 512


def test_lengths_of_records_count_their_own_digits() -> None:
    for length in range(80, 1010):
        name = "n" * length + ".x"
        assert member_header(name, 3) == _info(name, 3).tobuf(tarfile.PAX_FORMAT)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_parts_in_chunks(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.begin_sample("a")
        writer.add_part("bin", len(data), (data[at : at + 700_000] for at in range(0, len(data), 700_000)))
        writer.begin_sample("b")
        writer.add_part("mp4", len(data), [memoryview(data)])
    assert (tmp_path / "a.tar").read_bytes() == plainly({"a": {"bin": data}, "b": {"mp4": data}})
    assert writer.written is not None
    assert writer.written.part_bytes == {"bin": len(data), "mp4": len(data)}
    assert writer.finish() is writer.written


@pytest.mark.parametrize(
    ("key", "parts", "message"),
    [
        ("a.b", {"jpg": b""}, "'a'.*'b.jpg'"),
        ("__meta__/a", {"jpg": b""}, "None"),
        ("", {"jpg": b""}, "None"),
        ("a", {"x/y": b""}, "read"),
        ("a\0", {"jpg": b""}, "name"),
        ("a\udc80", {"jpg": b""}, "UTF-8"),
        ("a", {}, "parts"),
    ],
)
def test_names_that_would_not_be_read_back(tmp_path: Path, key: str, parts: dict[str, bytes], message: str) -> None:
    with pytest.raises(ConfigError, match=message), TarWriter(tmp_path / "a.tar") as writer:
        writer.add(key, parts)
    assert list(tmp_path.iterdir()) == []


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shard"):
        TarWriter(tmp_path / "a.zip")
    for message, steps in {
        "row": lambda writer: (writer.add("a", {"x": b""}), writer.add("a", {"y": b""})),
        "twice": lambda writer: (writer.add("a", {"x": b""}), writer.add_part("x", 0, [])),
        "begin": lambda writer: writer.add_part("x", 0, []),
        "parts": lambda writer: (writer.begin_sample("a"), writer.begin_sample("b")),
        "2.*1": lambda writer: (writer.begin_sample("a"), writer.add_part("x", 2, [b"1"])),
        "announced": lambda writer: (writer.begin_sample("a"), writer.add_part("x", 2, [b"12", b"3"])),
        "samples": lambda writer: None,
    }.items():
        with pytest.raises(ConfigError, match=message), TarWriter(tmp_path / "a.tar") as writer:
            steps(writer)
        assert list(tmp_path.iterdir()) == [], message
    write(tmp_path / "a.tar", {"a": {"x": b"1"}})
    writer = write(tmp_path / "b.tar", {"a": {"x": b"1"}})
    with pytest.raises(OutputError, match="finished"):
        writer.add("b", {"x": b"1"})


def test_what_is_there_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {"a": {"x": b"1"}, "b": {"x": b"2"}})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError), TarWriter(tmp_path / "a.tar") as writer:
        assert writer.add("c", {"x": b"3"}) == 0 != writer.add("c", {"x": b"3"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
