"""Headers against ``tarfile``, what it takes in silence for the end; and the scan of a shard: parts, faults, an end."""

from __future__ import annotations

import io
import re
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import InputError, StoreError
from headrace.stores.kept_arrays import write_offsets
from headrace.stores.tar import scan
from headrace.stores.tar.index import read_index
from headrace.stores.tar.members import MAX_EXTENSIONS, HeaderError, Member, next_member, plain_member, sample_part
from headrace.stores.tar.scan import scan_shard
from tars_made import member, tar_bytes, write_tar

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
PEERS_RULE = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
PEERS_META = re.compile(r"__[^/]*__($|/)")


def walk(data: bytes) -> list[Member]:
    view = memoryview(data)
    found, at = [], 0
    while (one := next_member(lambda begin, length: view[begin : begin + length], at, len(data))) is not None:
        found.append(one)
        at = one.end
    return found


def as_tarfile_does(data: bytes) -> list[tuple[str, bool, int, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [(info.name, info.isreg(), info.offset, info.offset_data, info.size) for info in tar]


names = st.one_of(
    st.text("ab./_-é\U0001f600\udc80", min_size=1, max_size=14),
    st.builds(lambda part, times: part * times + "x.jpg", st.sampled_from(["a/", "abc/", "é/é/"]), st.integers(1, 90)),
    st.builds(lambda length: "n" * length, st.sampled_from([99, 100, 101, 155, 156, 255, 256, 300, 600])),
)  # fmt: skip
kinds = st.sampled_from(
    [tarfile.REGTYPE] * 4
    + [tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
    + [tarfile.CONTTYPE, b"Z"]
)


@st.composite
def members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    kind = draw(kinds)
    has_data = kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, b"Z")
    content = draw(st.binary(max_size=1100)) if has_data else b""
    # An old file whose name ends with a slash, be it where a long name is cut, is a folder, which has no data.
    name = "old.txt" if kind == tarfile.AREGTYPE else draw(names)
    info, _ = member(name, content, type=kind, mtime=draw(st.sampled_from([0, 1.5, 2**40, 1700000000])))
    if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE):
        info.linkname = draw(names)
    info.uname = draw(st.sampled_from(["", "user", "é" * 40]))
    return info, content


@settings(max_examples=cases(25, 250), deadline=None)
@given(st.lists(members(), max_size=6), st.sampled_from(FORMATS))
def test_as_tarfile_reads_them(drawn: list[tuple[tarfile.TarInfo, bytes]], layout: int) -> None:
    fitting = []
    for info, content in drawn:
        try:
            info.tobuf(layout, "utf-8", "surrogateescape")
        except ValueError:  # a name or number that ustar cannot hold
            continue
        fitting.append((info, content))
    data = tar_bytes(fitting, layout)
    found = walk(data)
    wanted = as_tarfile_does(data)
    assert [one[1:] for one in wanted] == [(one.regular, one.offset, one.data, one.size) for one in found]
    # The names of folders, which are no samples, keep their last slash here.
    assert [one[0] for one in wanted if one[1]] == [one.name for one in found if one.regular]
    assert not any(one.sparse for one in found)
    view = memoryview(data)
    for one in found:
        plain = plain_member(view[one.offset : one.offset + 512])
        assert plain in (None, (one.name, one.size))
        assert plain is None or (one.regular and one.data == one.offset + 512)


def test_most_members_are_plain() -> None:
    for layout in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT):
        data = tar_bytes([("a/é.jpg", b"12345"), ("b.txt", b"")], layout)
        assert plain_member(memoryview(data)[:512]) == ("a/é.jpg", 5)
        assert plain_member(memoryview(data)[-512:]) is None


@settings(max_examples=cases(40, 400), deadline=None)
@given(st.text("ab._/-é\n", max_size=12), st.booleans())
@example("adir/.hid", True)
@example("a.b/.hid", True)
@example("a.b/c/.hid", True)
@example("/.hid", True)
@example("//.hid", True)
@example("__a__/b.c", True)
@example("__a.b__", True)
@example("x/__a__/b.c", True)
@example("a\nb.c/d.e", True)
@example("a.txt\n", True)
def test_the_rule_of_names_is_that_of_the_peers(name: str, hidden: bool) -> None:
    found = PEERS_RULE.match(name)
    wanted = None if found is None or PEERS_META.match(name) else found.groups()
    if wanted is not None and not hidden and name.rpartition("/")[2].startswith("."):
        wanted = None
    assert sample_part(name, hidden=hidden) == wanted


def with_checksum(block: bytearray, *, signed: bool = False) -> bytes:
    block[148:156] = b" " * 8
    values = struct.unpack("512b" if signed else "512B", block)
    block[148:156] = b"%06o\0 " % sum(values)
    return bytes(block)


def header(name: str = "a.txt") -> bytearray:
    return bytearray(_sized(name, 0))


def _sized(name: str, size: int) -> bytes:
    info, _ = member(name, b"")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)[:512]


def test_old_headers() -> None:
    """v7: no magic, type NUL, folders by a slash; numbers with spaces; sums of signed bytes."""
    v7 = header("é.txt")
    v7[156:] = bytes(512 - 156)
    folder = header("old/")
    folder[156:] = bytes(512 - 156)
    spaced = header("b.txt")
    spaced[124:136] = b"       3    "
    full = header("c.txt")
    full[124:136] = b"000000000003"
    blocks = [
        with_checksum(v7, signed=True),
        with_checksum(folder),
        with_checksum(spaced) + b"abc" + bytes(509),
        with_checksum(full) + b"abc" + bytes(509),
        with_checksum(header("éé.txt"), signed=True),
    ]
    assert plain_member(memoryview(blocks[-1])) is None
    found = walk(b"".join(blocks))
    assert [(one.name, one.regular, one.size) for one in found] == [
        ("é.txt", True, 0),
        ("old/", False, 0),
        ("b.txt", True, 3),
        ("c.txt", True, 3),
        ("éé.txt", True, 0),
    ]
    assert [one[0] for one in as_tarfile_does(b"".join(blocks))] == ["é.txt", "old", "b.txt", "c.txt", "éé.txt"]


def test_a_file_of_ten_gigabytes() -> None:
    """A size in base 256; the file itself is never made."""
    block = bytes(_sized("big.bin", 10 << 30))
    assert plain_member(memoryview(block)) is None
    found = next_member(lambda at, length: memoryview(block)[at : at + length], 0, (10 << 30) + 512)
    assert found == Member("big.bin", True, False, 0, 512, 10 << 30, (10 << 30) + 512)


def test_global_headers() -> None:
    """A comment, as ``git archive`` writes it, does not begin the member."""
    pax = tarfile.TarInfo.create_pax_global_header({"comment": "c" * 40})
    data = pax + tar_bytes([("a.txt", b"1")])
    assert [(one.name, one.offset) for one in walk(data)] == [("a.txt", 1024)]
    assert as_tarfile_does(data)[0][:3] == ("a.txt", True, 1024)
    for fields in ({"path": "x"}, {"size": "3"}, {"GNU.sparse.name": "x"}):
        with pytest.raises(HeaderError, match="PAX"):
            walk(tarfile.TarInfo.create_pax_global_header(fields) + tar_bytes([("a.txt", b"1")]))


def test_sparse_files() -> None:
    old, content = member("a.txt", b"x" * 600, type=tarfile.GNUTYPE_SPARSE)
    block = bytearray(old.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1
    more, last = bytearray(512), bytes(512)
    more[504] = 1
    data = with_checksum(block) + bytes(more) + last + content + bytes(424) + tar_bytes([("b.txt", b"")])
    assert walk(data)[0] == Member("a.txt", True, True, 0, 2048 - 512, 600, 2560, b"S")
    assert [one[0] for one in as_tarfile_does(data)] == ["a.txt", "b.txt"]
    with pytest.raises(HeaderError, match="sparse"):
        walk(with_checksum(block) + bytes(more))
    info, content = member("GNUSparseFile.0/a.txt", b"x")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.txt"}
    (found,) = walk(tar_bytes([(info, content)], tarfile.PAX_FORMAT))
    assert (found.name, found.sparse, found.regular) == ("a.txt", True, True)


def extension(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    block = bytearray(_sized("ext", len(content) if size is None else size))
    block[156:157] = kind
    return with_checksum(block) + content + bytes(-len(content) % 512)


def record(keyword: str, value: str) -> bytes:
    body = f" {keyword}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


MALFORMED_RECORDS = [b"0 path=x\n", b"99 path=x\n", b"3 p\n", b"-9 path=x\n", b"path", b"1" * 600]


def test_the_outermost_of_several_extensions_counts() -> None:
    end = tar_bytes([("a.txt", b"1")])
    for blocks, name in [
        (extension(b"x", record("path", "x.txt")) + extension(b"L", b"long.txt\0"), "x.txt"),
        (extension(b"L", b"long.txt\0") + extension(b"x", record("path", "x.txt")), "long.txt"),
        (extension(b"X", record("path", "sun.txt")), "sun.txt"),
        (extension(b"K", b"link\0"), "a.txt"),
        (extension(b"x", record("mtime", "1.5") + record("size", "1")), "a.txt"),
    ]:
        (found,) = walk(blocks + end)
        assert (found.name, found.offset, found.size) == (name, 0, 1)
        assert as_tarfile_does(blocks + end)[0][:3] == (name, True, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x" * 512, "header"),
        (bytes(header())[:100], "100.*512"),
        (bytes(_sized("a.txt", 600)) + bytes(512), "600.*512"),
        (bytes(_sized("a.txt", 513)) + bytes(513), "513.*513"),
        (bytes(_sized("a.txt", 2**80)), "1,208,925,819,614,629,174,706,176.*0"),
        (extension(b"L", b"x"), "short.*0"),
        (extension(b"L", b"x") + bytes(1024), "ends"),
        (extension(b"x", b"", size=2 << 20), "2,097,152.*1,048,576"),
        (extension(b"L", b"", size=2**80), "1,048,576"),
        (extension(b"L", b"x" * 512, size=600), "600.*512"),
        (extension(b"g", b"") * (MAX_EXTENSIONS + 2), "64"),
        *((extension(b"x", content) + bytes(header()), "PAX") for content in MALFORMED_RECORDS),
        (extension(b"x", record("size", "-1")) + bytes(header()), "b'-1'"),
        (extension(b"x", record("size", "9" * 30)) + bytes(header()), "b'9+'"),
        (extension(b"x", record("size", "99")) + bytes(header()), "99.*0"),
    ],
)
def test_malformed_headers(data: bytes, message: str) -> None:
    with pytest.raises(HeaderError, match=message) as caught:
        walk(data)
    assert 0 <= caught.value.at < len(data) + 1


@pytest.mark.parametrize(
    "field", [b"-0000000001", b"00000000_1\0", b"0000x000001", b"\xff" * 12, b"\x80" + b"\xff" * 11]
)
def test_strange_sizes(field: bytes) -> None:
    """Of such a header no more than a member that goes past the end is believed."""
    block = header()
    block[124 : 124 + len(field)] = field
    with pytest.raises(HeaderError):
        walk(with_checksum(block))


def test_every_flipped_bit_of_a_header_is_found() -> None:
    data = tar_bytes([("a.txt", b"1")])
    for at in range(512 * 8):
        block = bytearray(data[:512])
        block[at // 8] ^= 1 << at % 8
        assert plain_member(memoryview(bytes(block))) is None or 148 * 8 <= at < 156 * 8
        if not 148 <= at // 8 < 156:
            with pytest.raises(HeaderError):
                walk(bytes(block) + data[512:])


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
    assert found.part_names == ["jpg", "txt"] * len(found.keys)
    assert found.part_bounds.tolist() == [2 * number for number in range(len(found.keys) + 1)]
    with tarfile.open(path) as tar:
        wanted = [info.offset for info in tar if info.name.endswith("jpg")]
        assert found.offsets.tolist() == [*wanted, tar.offset]


def test_an_index_is_read_back_or_refused(tmp_path: Path) -> None:
    for offsets in ([0], [512, 2**62]):
        write_offsets(tmp_path / "x.tar.idx", offsets)
        for using in ("mmap", "pread"):
            found = read_index(tmp_path / "x.tar.idx", using)
            assert (found.tolist(), found.dtype, found.flags.writeable) == (offsets, np.int64, False)

    for data in (b"", b"1234567", np.array([5, 4]).tobytes(), np.array([-1, 4]).tobytes()):
        (tmp_path / "x.tar.idx").write_bytes(data)
        for using in ("mmap", "pread"):
            with pytest.raises(StoreError, match=r"x.tar.idx"):
                read_index(tmp_path / "x.tar.idx", using)


def test_faults(tmp_path: Path) -> None:
    whole = tar_bytes([("a.txt", b"1"), ("b.txt", b"2"), ("b.jpg", b"3"), ("c.txt", b"4")])
    flipped = bytearray(whole)
    flipped[2048] ^= 1
    cases = {
        "empty": (b"", 0, [0], "empty"),
        "no tar": (b"x" * 2000, 0, [0], "header"),
        "flipped": (bytes(flipped), 1, [0, 1024], "checksum"),
        "cut in a header": (whole[:2100], 1, [0, 1024], "short.*52"),
        "cut in the data": (whole[:2900], 1, [0, 1024], "short.*1"),
        "cut in the padding": (whole[:1500], 0, [0], "short"),
        "two archives": (tar_bytes([("a.txt", b"1")]) + whole, 1, [0, 1024], "archives"),
        "a lone block of zeros": (whole[:2048] + bytes(512) + whole[2048:], 2, [0, 1024, 2048], "more"),
    }
    for name, (data, count, offsets, message) in cases.items():
        path = tmp_path / "x.tar"
        path.write_bytes(data)
        with pytest.raises(InputError, match=rf"x\.tar.*{count}.*{message}"):
            scan_shard(path)
        found = scan_shard(path, on_fault="keep")
        (fault,) = found.faults
        assert (fault.sample, fault.ends) == (count, True), name
        assert found.offsets.tolist() == offsets, name
        assert len(found.keys) == count == len(found.part_bounds) - 1
        assert found.part_bounds[-1] == len(found.part_names) == len(found.part_sizes)
    with pytest.raises(StoreError, match="opened"):
        scan_shard(tmp_path / "none.tar")


def test_an_end_that_is_missing_is_no_fault(tmp_path: Path) -> None:
    """GNU tar takes it, too; `check` tells of it."""
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes([("a.txt", b"1")])[:1024])
    found = scan_shard(path)
    assert (found.offsets.tolist(), found.faults) == ([0, 1024], ())
