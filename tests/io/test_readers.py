from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError, StoreError
from headrace.io import FilePool, MmapReader, PreadReader, Reader, reader
from headrace.testing.readers import ReaderContract


class TestMmapReader(ReaderContract):
    def make(self, pool: FilePool) -> Reader:
        return MmapReader(pool=pool)


class TestPreadReader(ReaderContract):
    def make(self, pool: FilePool) -> Reader:
        return PreadReader(pool=pool)

    def test_a_file_cut_short_after_opening(self, reader: Reader, path: str) -> None:
        reader.size(path)
        os.truncate(path, 4000)
        with pytest.raises(StoreError, match=r"byte 3990: wanted 20 bytes, found 10; the file was cut short"):
            reader.read_ranges(path, np.array([0, 3990]), np.array([10, 20]))

    def test_short_reads_are_continued(self, reader: Reader, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: whole(fd, [buffers[0][:7]], offset))
        found = reader.read_ranges(path, np.array([3, 100]), np.array([90, 20]))
        content = Path(path).read_bytes()
        assert found.tobytes() == content[3:93] + content[100:120]

    def test_neighbours_are_read_at_once(self, reader: Reader, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        reads = []
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda *args: reads.append(args[2]) or whole(*args))
        reader.read_ranges(path, np.array([0, 10, 20, 50, 55]), np.array([10, 10, 20, 5, 5]))
        assert reads == [0, 50]


def test_by_name() -> None:
    assert type(reader("mmap")) is MmapReader
    assert type(reader("pread")) is PreadReader
    own = PreadReader()
    assert reader(own) is own
    with pytest.raises(ConfigError, match="'map' is unknown; the readers are 'mmap', 'pread'"):
        reader("map")


def test_mapping_survives_eviction_under_a_view(tmp_path: Path) -> None:
    pool = FilePool(1)
    views = []
    for number in range(20):
        path = tmp_path / str(number)
        path.write_bytes(bytes([number]) * 5000)
        views.append(MmapReader(pool=pool).view(str(path)))
        path.unlink()
    assert [view[4999] for view in views] == list(range(20))


def test_a_pass_copies_where_reads_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    mapped = MmapReader()
    assert mapped.size(str(path)) == 10
    passing = mapped.for_pass()
    assert type(passing) is PreadReader
    assert passing.for_pass() is passing
    assert bytes(passing.read_ranges(str(path), np.array([2]), np.array([3]))) == b"234"
    path.write_bytes(b"01234567890")
    with pytest.raises(StoreError, match="changed while it was in use"):
        mapped.for_pass().size(str(path))
