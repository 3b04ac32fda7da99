"""The scan of a shard: Energon's index to the byte, parts, faults, and what lies behind the end."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import InputError, StoreError
from headrace.stores.kept_arrays import write_offsets
from headrace.stores.tar import scan
from headrace.stores.tar.index import read_index
from headrace.stores.tar.scan import scan_shard
from tars_made import member, tar_bytes, write_tar

GOLDEN_INDEX = [2560, 7168, 10240, 13312, 14336, 15360, 16384, 17408, 18432]
"""What `energon prepare` of 7.4.1 wrote for the tar of `golden_tar`."""


def golden_tar() -> bytes:
    """Every kind of name and member that the rule of names tells apart."""
    link, nothing = member("link.txt", type=tarfile.SYMTYPE, linkname="a000.jpg")
    folder, _ = member("adir", type=tarfile.DIRTYPE)
    return tar_bytes(
        [
            (folder, b""),
            ("__meta__/info.txt", b"meta"),
            ("noext", b"x"),
            ("a000.jpg", b"j" * 600),
            ("a000.detail.json", b'{"a":1}'),
            ("a000.TXT", b"hello"),
            (link, nothing),
            (link, nothing),
            ("adir/a001.img1.jpg", b"1"),
            ("adir/a001.img2.jpg", b"2"),
            ("adir/noext", b"x"),
            ("./a002.txt", b"2"),
            (".hidden", b"x"),
            ("__skip__", b"x"),
            ("av1.2/a003.txt", b"3"),
            ("adir/__sub__/a004.txt", b"4"),
            ("a005.", b"5"),
            ("adir/.hid", b"6"),
            ("a006.txt", b"7"),
        ]
    )


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    (tmp_path / "g.tar").write_bytes(golden_tar())
    return tmp_path / "g.tar"


def test_the_golden_index(golden: Path, tmp_path: Path) -> None:
    assert golden.stat().st_size == 20480
    found = scan_shard(golden, on_fault="keep")
    write_offsets(tmp_path / "x.tar.idx", found.offsets)
    assert (tmp_path / "x.tar.idx").read_bytes() == b"".join(entry.to_bytes(8, "little") for entry in GOLDEN_INDEX)
    assert found.keys == [
        "a000", "adir/a001", "./a002", "av1.2/a003", "adir/__sub__/a004", "a005", "adir/", "a006",
    ]  # fmt: skip
    rows = list(zip(found.part_names, found.part_offsets.tolist(), found.part_sizes.tolist(), strict=True))
    assert rows[:3] == [("jpg", 3072, 600), ("detail.json", 4608, 7), ("TXT", 5632, 5)]
    assert found.part_bounds.tolist() == [0, 3, 5, 6, 7, 8, 9, 10, 11]
    assert found.part_names[5:] == ["txt", "txt", "txt", "", "hid", "txt"]
    assert found.size == 20480
    assert [(fault.byte, fault.ends) for fault in found.faults] == [(6144, False), (6656, False)]
    assert found.faults[0].message.startswith("'link.txt' is a symbolic link")
    assert (found.offsets.dtype, found.part_bounds.dtype) == (np.int64, np.int64)


def test_without_hidden_ones(golden: Path) -> None:
    found = scan_shard(golden, hidden=False, on_fault="keep")
    assert found.keys == ["a000", "adir/a001", "./a002", "av1.2/a003", "adir/__sub__/a004", "a005", "a006"]
    assert found.offsets.tolist() == [*GOLDEN_INDEX[:6], *GOLDEN_INDEX[7:]]


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("sizes", [(512, 1024, 2048), (4 << 10, 1 << 20, 64 << 10), (512, 513, 0)])
def test_whatever_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: int, sizes: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(scan, "ON_DISK", scan.WindowSteps(near=sizes[1], after_gap=sizes[0], far=sizes[2]))
    rng = np.random.default_rng(0)
    members = [
        (
            f"{'k' * 120 if number % 5 == 4 else 'k'}{number:03d}.{part}",
            rng.bytes(int(rng.choice([0, 9, 3000, 90_000]))),
        )
        for number in range(30)
        for part in ("jpg", "txt")
        if layout != tarfile.USTAR_FORMAT or number % 5 != 4
    ]
    path = write_tar(tmp_path / "x.tar", members, layout)
    found = scan_shard(path)
    data = path.read_bytes()
    spans = zip(found.part_offsets.tolist(), found.part_sizes.tolist(), strict=True)
    assert [data[offset : offset + size] for offset, size in spans] == [content for _, content in members]
    with tarfile.open(path) as tar:
        wanted = [info.offset for info in tar if info.name.endswith("jpg")]
        assert found.offsets.tolist() == [*wanted, tar.offset]


def test_an_index_is_read_back(tmp_path: Path) -> None:
    for offsets in ([0], [512, 2**62]):
        write_offsets(tmp_path / "x.tar.idx", offsets)
        for using in ("mmap", "pread"):
            found = read_index(tmp_path / "x.tar.idx", using)
            assert (found.tolist(), found.dtype, found.flags.writeable) == (offsets, np.int64, False)


@pytest.mark.parametrize("data", [b"", b"1234567", np.array([5, 4]).tobytes(), np.array([-1, 4]).tobytes()])
def test_no_index(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar.idx").write_bytes(data)
    for using in ("mmap", "pread"):
        with pytest.raises(StoreError, match=r"x.tar.idx: .*headrace prepare"):
            read_index(tmp_path / "x.tar.idx", using)


def test_faults(tmp_path: Path) -> None:
    whole = tar_bytes([("a.txt", b"1"), ("b.txt", b"2"), ("b.jpg", b"3"), ("c.txt", b"4")])
    flipped = bytearray(whole)
    flipped[2048] ^= 1
    cases = {
        "empty": (b"", 0, [0], "the file is empty", True),
        "no tar": (b"x" * 2000, 0, [0], "not a tar header", True),
        "flipped": (bytes(flipped), 1, [0, 1024], "checksum", True),
        "cut in a header": (whole[:2100], 1, [0, 1024], "cut short: only 52 bytes", True),
        "cut in the data": (whole[:2900], 1, [0, 1024], "cut short: a member has 1 bytes", True),
        "cut in the padding": (whole[:1500], 0, [0], "cut short: a header|cut short", True),
        "two archives": (tar_bytes([("a.txt", b"1")]) + whole, 1, [0, 1024], "several archives", True),
        "a lone block of zeros": (
            whole[:2048] + bytes(512) + whole[2048:],
            2,
            [0, 1024, 2048],
            "there are more data",
            True,
        ),
    }
    for name, (data, count, offsets, message, ends) in cases.items():
        path = tmp_path / "x.tar"
        path.write_bytes(data)
        with pytest.raises(InputError, match=rf"x\.tar: sample {count}: byte \d+: .*({message})"):
            scan_shard(path)
        found = scan_shard(path, on_fault="keep")
        (fault,) = found.faults
        assert (fault.sample, fault.ends) == (count, ends), name
        assert found.offsets.tolist() == offsets, name
        assert len(found.keys) == count == len(found.part_bounds) - 1
        assert found.part_bounds[-1] == len(found.part_names) == len(found.part_sizes)
    with pytest.raises(StoreError, match="cannot be opened"):
        scan_shard(tmp_path / "none.tar")


def test_an_end_that_is_missing_is_no_fault(tmp_path: Path) -> None:
    """GNU tar takes it, too; `check` tells of it."""
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes([("a.txt", b"1")])[:1024])
    found = scan_shard(path)
    assert (found.offsets.tolist(), found.faults) == ([0, 1024], ())
