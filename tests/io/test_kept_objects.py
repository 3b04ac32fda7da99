"""Many objects that are fetched whole and kept: all of their bytes, and few of them in memory at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from counts import PATIENCE_S
from headrace.io import ObjectReader
from headrace.io.objects import lookups, reader
from headrace.io.objects.lookups import ObjectPart, Objects
from headrace.io.remote import Status
from memory_stores import memory_bucket


def test_few_bytes_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of objects of one block, 4 at a time; of larger ones 2, of each of which 40 bytes are in memory at once."""
    sizes = [10] * 8 + [80] * 8
    fetch_whole = Objects._fetch_whole
    together = {10: threading.Barrier(4), 80: threading.Barrier(2)}
    now: dict[int, int] = {}
    most: list[int] = []
    under_way: list[int] = []
    in_turn = Objects.in_turn

    def watched(self: Objects, url: str, status: Status, file: Path) -> Path:
        now[threading.get_ident()] = min(status.size, 40)
        most.append(sum(now.values()))
        together[status.size].wait(PATIENCE_S)
        try:
            return fetch_whole(self, url, status, file)
        finally:
            together[status.size].wait(PATIENCE_S)
            del now[threading.get_ident()]
            together[status.size].wait(PATIENCE_S)

    def counted(self: Objects, parts: Iterable[ObjectPart]) -> Iterator[memoryview]:
        num_asked = num_yielded = 0

        def asked() -> Iterator[ObjectPart]:
            nonlocal num_asked
            for part in parts:
                # The next one waits for room, in addition to those that are under way.
                under_way.append(num_asked - num_yielded)
                num_asked += part.end - part.begin
                yield part

        for data in in_turn(self, asked()):
            num_yielded += len(data)
            yield data

    monkeypatch.setattr(lookups, "BLOCK_BYTES", 20)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 20)
    monkeypatch.setattr(lookups, "AHEAD_BYTES", 40)
    monkeypatch.setattr(reader, "_AT_ONCE", 4)
    monkeypatch.setattr(reader, "_LARGE_AT_ONCE", 2)
    monkeypatch.setattr(Objects, "_fetch_whole", watched)
    monkeypatch.setattr(Objects, "in_turn", counted)
    with memory_bucket() as bucket:
        content = {f"{bucket.url}/{number}": bytes([number] * size) for number, size in enumerate(sizes)}
        for url, data in content.items():
            bucket.put(url.rpartition("/")[2], data)
        using = ObjectReader()
        using.keep_all(list(content))
        kept = {url: bytes(using.view(url)) for url in content}  # type: ignore[arg-type]
        assert using.stats.gets == 8 + 8 * 4
    assert kept == content
    assert max(most) == 80
    assert max(under_way) == 40


@pytest.mark.parametrize("damage", ["a bit", "cut short", "longer", "empty", "digest", "no digest"])
def test_a_kept_file_is_compared_before_its_first_byte_is_used(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        bucket.put("x.idx", bytes(range(200)))
        url = f"{bucket.url}/x.idx"

        def read() -> tuple[bytes, int, int]:
            using = ObjectReader()
            using.keep(url)
            found = using.whole(url).tobytes()
            assert using.path_at(url).read_bytes() == found  # type: ignore[union-attr]
            return found, using.stats.gets, using.stats.damaged_files

        assert read() == (bytes(range(200)), 1, 0)
        assert read() == (bytes(range(200)), 0, 0)
        [kept] = (tmp_path / "objects").iterdir()
        [digest] = (tmp_path / "digests").iterdir()
        whole, status = kept.read_bytes(), kept.stat()
        changed = {"a bit": bytes([1]) + whole[1:], "cut short": whole[:50], "longer": whole + b"x", "empty": b""}
        if damage in changed:
            kept.write_bytes(changed[damage])
            os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif damage == "digest":
            digest.write_bytes(digest.read_bytes()[::-1])
        else:
            digest.unlink()
        assert read() == (whole, 1, 1)
        assert f"{kept}: is damaged: it is not what was kept of {url}; it is made or fetched again" in caplog.text
        assert read() == (whole, 0, 0)
        kept.unlink()
        assert read() == (whole, 1, 0)


def test_a_kept_file_is_compared_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        bucket.put("x.idx", bytes(range(200)))
        path = ObjectReader().path_at(f"{bucket.url}/x.idx")
        assert path.read_bytes() == bytes(range(200))
        compared: list[Path] = []
        is_as_kept = lookups.is_as_kept
        monkeypatch.setattr(
            lookups, "is_as_kept", lambda file, what: (compared.append(file), is_as_kept(file, what))[1]
        )
        path = ObjectReader().path_at(f"{bucket.url}/x.idx")
        for _ in range(3):
            assert path.read_bytes() == bytes(range(200))
        assert len(compared) == 1


@pytest.mark.parametrize("number", [1, 3])
def test_ends_are_kept_until_their_object_changes(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later process asks only who the objects are; damaged copies are fetched again."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        content = {f"{bucket.url}/{index}": bytes(range(index, index + 40)) for index in range(number)}
        for url, data in content.items():
            bucket.put(url.rpartition("/")[2], data)

        def read() -> tuple[list[bytes], int]:
            using = ObjectReader()
            using.keep_all([], {url: 4 + 20 * index for index, url in enumerate(content)})
            return [using.ends(url, 4 + 20 * index) for index, url in enumerate(content)], using.stats.gets

        def expected() -> list[bytes]:
            sizes = [min(40, 4 + 20 * index) for index in range(number)]
            return [data[:size] + data[-size:] for data, size in zip(content.values(), sizes, strict=True)]

        first, gets = read()
        assert first == expected()
        assert gets >= number
        assert read() == (first, 0)
        [kept] = (tmp_path / "objects").glob("*-ends")
        whole = kept.read_bytes()
        for damaged in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], b""):
            kept.write_bytes(damaged)
            assert read() == (first, gets)
            assert kept.read_bytes() == whole
        content[f"{bucket.url}/0"] = bytes(40)
        bucket.put("0", bytes(40))
        assert read() == (expected(), gets)


def test_without_room_ends_are_fetched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("not a folder")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        bucket.put("a", bytes(range(40)))
        for _ in range(2):
            using = ObjectReader()
            using.keep_all([], {f"{bucket.url}/a": 4})
            assert using.ends(f"{bucket.url}/a", 4) == bytes([0, 1, 2, 3, 36, 37, 38, 39])
            assert using.stats.gets == 2
