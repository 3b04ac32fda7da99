"""`TarWriter`: the bytes of `tarfile`, read back by its own scan, and nothing left behind by an error."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError, OutputError
from headrace.stores.tar.index import index_path, read_index
from headrace.stores.tar.scan import scan_shard
from headrace.stores.tar.writer import MAX_PLAIN_BYTES, TarWriter, member_bytes, member_header

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


@settings(max_examples=cases(24, 60), deadline=None)
@given(samples=st.dictionaries(KEYS, PARTS, min_size=1, max_size=5))
def test_bytes_are_those_of_tarfile(samples: dict[str, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    written = write(path, samples).written
    assert path.read_bytes() == plainly(samples)
    scanned = scan_shard(path)
    assert scanned.keys == list(samples)
    assert scanned.part_names == [part for parts in samples.values() for part in parts]
    assert written is not None
    assert scanned.offsets.tolist() == list(written.offsets) == read_index(index_path(path)).tolist()
    assert np.frombuffer(index_path(path).read_bytes(), "<u8").tolist() == list(written.offsets)
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
        ("a.b", {"jpg": b""}, "would be read as"),
        ("__meta__/a", {"jpg": b""}, "would be read as None"),
        ("", {"jpg": b""}, "would be read as None"),
        ("a", {"x/y": b""}, "would be read as"),
        ("a\0", {"jpg": b""}, "cannot be the name"),
        ("a\udc80", {"jpg": b""}, "not UTF-8"),
        ("a", {}, "has no parts"),
    ],
)
def test_names_that_would_not_be_read_back(tmp_path: Path, key: str, parts: dict[str, bytes], message: str) -> None:
    with pytest.raises(ConfigError, match=message), TarWriter(tmp_path / "a.tar") as writer:
        writer.add(key, parts)
    assert list(tmp_path.iterdir()) == []


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the name of a shard must end in \.tar"):
        TarWriter(tmp_path / "a.zip")
    for message, steps in {
        "in a row": lambda writer: (writer.add("a", {"x": b""}), writer.add("a", {"y": b""})),
        "twice": lambda writer: (writer.add("a", {"x": b""}), writer.add_part("x", 0, [])),
        "begin a sample": lambda writer: writer.add_part("x", 0, []),
        "has no parts": lambda writer: (writer.begin_sample("a"), writer.begin_sample("b")),
        "there are 1": lambda writer: (writer.begin_sample("a"), writer.add_part("x", 2, [b"1"])),
        "announced": lambda writer: (writer.begin_sample("a"), writer.add_part("x", 2, [b"12", b"3"])),
        "the shard has no samples": lambda writer: None,
    }.items():
        with pytest.raises(ConfigError, match=message), TarWriter(tmp_path / "a.tar") as writer:
            steps(writer)
        assert list(tmp_path.iterdir()) == [], message
    write(tmp_path / "a.tar", {"a": {"x": b"1"}})
    writer = write(tmp_path / "b.tar", {"a": {"x": b"1"}})
    with pytest.raises(OutputError, match="already finished"):
        writer.add("b", {"x": b"1"})


def test_what_is_there_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {"a": {"x": b"1"}, "b": {"x": b"2"}})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError), TarWriter(tmp_path / "a.tar") as writer:
        assert writer.add("c", {"x": b"3"}) == 0 != writer.add("c", {"x": b"3"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
