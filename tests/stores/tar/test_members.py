"""Headers against ``tarfile``: every kind of member, in every format, and what it takes in silence for the end."""

from __future__ import annotations

import io
import re
import struct
import tarfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.stores.tar.members import MAX_EXTENSIONS, HeaderError, Member, next_member, plain_member, sample_part
from tars_made import member, tar_bytes

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


@settings(max_examples=cases(50, 250), deadline=None)
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


@settings(max_examples=cases(80, 400), deadline=None)
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


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a000.jpg", ("a000", "jpg")),
        ("a000.detail.json", ("a000", "detail.json")),
        ("a000.TXT", ("a000", "TXT")),
        ("adir/a001.img1.jpg", ("adir/a001", "img1.jpg")),
        ("./a002.txt", ("./a002", "txt")),
        ("av1.2/a003.txt", ("av1.2/a003", "txt")),
        ("noext", None),
        ("adir/noext", None),
        (".hidden", None),
        ("adir/.hid", ("adir/", "hid")),
        ("a005.", ("a005", "")),
        ("__meta__/info.txt", None),
        ("__skip__", None),
        ("adir/__sub__/a004.txt", ("adir/__sub__/a004", "txt")),
        ("", None),
    ],
)
def test_names(name: str, wanted: tuple[str, str] | None) -> None:
    assert sample_part(name) == wanted


def with_checksum(block: bytearray, *, signed: bool = False) -> bytes:
    block[148:156] = b" " * 8
    values = struct.unpack("512b" if signed else "512B", block)
    block[148:156] = b"%06o\0 " % sum(values)
    return bytes(block)


def header(name: str = "a.txt", size: int = 0, **fields: object) -> bytearray:
    return bytearray(member(name, b"", **fields)[0].tobuf(tarfile.GNU_FORMAT)[:512]) if not size else bytearray(
        _sized(name, size, **fields)
    )  # fmt: skip


def _sized(name: str, size: int, **fields: object) -> bytes:
    info, _ = member(name, b"", **fields)
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
        with_checksum(header("d.txt"), signed=True),
    ]
    found = walk(b"".join(blocks))
    assert [(one.name, one.regular, one.size) for one in found] == [
        ("é.txt", True, 0),
        ("old/", False, 0),
        ("b.txt", True, 3),
        ("c.txt", True, 3),
        ("d.txt", True, 0),
    ]
    assert [one[0] for one in as_tarfile_does(b"".join(blocks))] == ["é.txt", "old", "b.txt", "c.txt", "d.txt"]


def test_a_plain_header_with_a_sum_of_signed_bytes() -> None:
    block = with_checksum(header("éé.txt"), signed=True)
    assert plain_member(memoryview(block)) is None
    assert walk(block)[0].name == "éé.txt"


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
        with pytest.raises(HeaderError, match="global PAX header"):
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
    with pytest.raises(HeaderError, match="map of a sparse file does not end"):
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
        (b"x" * 512, "not a tar header"),
        (bytes(header())[:100], "cut short: only 100 bytes are left for a header of 512"),
        (bytes(_sized("a.txt", 600)) + bytes(512), "a member has 600 bytes, of which 512 are there"),
        (bytes(_sized("a.txt", 513)) + bytes(513), "a member has 513 bytes, of which 513 are there"),
        (bytes(_sized("a.txt", 2**80)), "a member has 1,208,925,819,614,629,174,706,176 bytes, of which 0"),
        (extension(b"L", b"x"), "cut short: only 0 bytes are left"),
        (extension(b"L", b"x") + bytes(1024), "the archive ends after an extension"),
        (extension(b"x", b"", size=2 << 20), "extension header has 2,097,152 bytes; at most 1,048,576"),
        (extension(b"L", b"", size=2**80), "at most 1,048,576"),
        (extension(b"L", b"x" * 512, size=600), "an extension header has 600 bytes, of which 512 are there"),
        (extension(b"g", b"") * (MAX_EXTENSIONS + 2), "more than 64 extension headers"),
        (extension(b"x", b"0 path=x\n") + bytes(header()), "a record in a PAX header is malformed"),
        (extension(b"x", b"99 path=x\n") + bytes(header()), "a record in a PAX header is malformed"),
        (extension(b"x", b"3 p\n") + bytes(header()), "a record in a PAX header is malformed"),
        (extension(b"x", b"-9 path=x\n") + bytes(header()), "a record in a PAX header is malformed"),
        (extension(b"x", b"path") + bytes(header()), "a record in a PAX header is malformed"),
        (extension(b"x", b"1" * 600) + bytes(header()), "a record in a PAX header is malformed"),
        (extension(b"x", record("size", "-1")) + bytes(header()), "b'-1' is not a valid size"),
        (extension(b"x", record("size", "9" * 30)) + bytes(header()), "is not a valid size"),
        (extension(b"x", record("size", "99")) + bytes(header()), "a member has 99 bytes, of which 0"),
    ],
)  # fmt: skip
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
