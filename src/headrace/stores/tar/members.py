"""The members of a tar: `next_member` parses headers, `sample_part` splits names, `walk_samples` reads samples.

Headers are parsed as ``tarfile`` does: ustar, v7, GNU (long names, base-256 sizes, sparse) and PAX.

    +--------+--------+--------+ +--------+--------+--------+       +--------+--------+
    | header | data, padded    | | PAX    | records| header | data  | zeros  | zeros  |
    +--------+--------+--------+ +--------+--------+--------+       +--------+--------+
    a block of 512 bytes         an extension belongs to the         the end; the first of
                                 member that follows it              them ends the archive

Where ``tarfile`` silently takes a broken header for the end of the archive, this raises an error, so that members after
it are not lost unnoticed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar
from zlib import adler32

from headrace.errors import InputError

BLOCK: Final = 512
"""Size of a header in bytes; contents are padded to a multiple of it."""

MAX_EXTENSION_BYTES: Final = 1 << 20
"""The largest allowed size of a long name, a PAX header or a map of holes, in bytes."""

MAX_EXTENSIONS: Final = 64
"""The largest allowed number of extension headers before a member."""

Fetch = Callable[[int, int], memoryview]
"""``fetch(offset, length)`` returns the bytes of a range that lies inside the file."""

# The checksum is split: its digits, and then its last two bytes together with the kind.
_PLAIN: Final = struct.Struct("100s24x11sc12x6s3s188xc166x").unpack
_FIELDS: Final = struct.Struct("100s24x12s12x8sc188x155s12x").unpack
_EXTENSIONS: Final = (b"x", b"X", b"g", b"L", b"K")
_REGULAR: Final = (b"0", b"\0", b"7", b"S")
_WITHOUT_DATA: Final = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices and folders: a header follows directly, whatever their size field says."""


class Member(NamedTuple):
    """One member of an archive.

    Attributes:
        name: name as ``tarfile`` decodes it: UTF-8, with surrogates for other bytes.
        regular: whether it is a file; sparse files count as files, links do not.
        sparse: whether it is a sparse file, whose content is stored without the holes.
        kind: its type, as the header has it; ``b"5"`` for all folders.
        offset: offset of its first header, including extensions.
        data: offset of its content.
        size: number of bytes of its content in the archive.
        end: offset of what follows: a header, or the end of the archive.
    """

    name: str
    regular: bool
    sparse: bool
    offset: int
    data: int
    size: int
    end: int
    kind: bytes = b"0"


class HeaderError(Exception):
    """A header cannot be parsed. The caller adds the name of the file."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


def plain_member(block: memoryview) -> tuple[str, int] | None:
    """Return name and size of an ordinary file from its header; None if `next_member` has to parse it.

    Nearly all members are ordinary files whose content follows the header, and every sample that is read comes through
    here.
    """
    name, size, size_end, stored, kind, prefix = _PLAIN(block)
    if kind != b"\0 0" or prefix != b"\0" or (size_end != b"\0" and size_end != b" "):
        return None
    try:
        num_bytes, checksum = int(size, 8), int(stored, 8)
    except ValueError:
        return None
    # The low half of adler32 is 1 + the sum of the bytes, modulo 65521, at a tenth of the cost of sum(). The checksum
    # is computed with its own eight bytes as spaces; stored are six digits, a zero and a space.
    if (adler32(block) & 0xFFFF) - (adler32(stored) & 0xFFFF) + 7 * 32 != checksum or num_bytes < 0:
        return None
    return name.partition(b"\0")[0].decode("utf-8", "surrogateescape"), num_bytes


def next_member(fetch: Fetch, at: int, end: int) -> Member | None:
    """Parse the member whose first header is at ``at``; None at the end, which is a block of zeros or ``end``.

    Args:
        fetch: reads from the file.
        at: offset of the header.
        end: offset at which the archive or the sample ends.

    Raises:
        HeaderError: a header or an extension is malformed, or its data go past ``end``.
    """
    if at == end:
        return None
    extensions = _Extensions()
    for count in range(MAX_EXTENSIONS + 1):
        header = _read_header(fetch, at, end)
        if header is None:
            if not count:
                return None
            raise HeaderError(at, "the archive ends after an extension header, which belongs to no member")
        if header.kind not in _EXTENSIONS:
            return _member(fetch, header, at, end, extensions)
        at = extensions.read(fetch, header, at, end)
    raise HeaderError(at, f"a member has more than {MAX_EXTENSIONS} extension headers")


class _Header(NamedTuple):
    """The fields of one header, and the whole block."""

    name: str
    size: int
    kind: bytes
    prefix: bytes
    block: bytes


def _read_header(fetch: Fetch, at: int, end: int) -> _Header | None:
    """Return the header at ``at``; None if the block is zero, which ends the archive."""
    if end - at < BLOCK:
        raise HeaderError(at, f"cut short: only {max(0, end - at)} bytes are left for a header of {BLOCK} bytes")
    block = fetch(at, BLOCK).tobytes()
    if not any(block):
        return None
    name, size, stored, kind, prefix = _FIELDS(block)
    _check_sum(block, stored, at)
    return _Header(_text(name), _number(size, at, "size"), kind, prefix, block)


class _Extensions:
    """What the extension headers before a member say about it. The first of several wins, as in ``tarfile``.

    Attributes:
        offset: offset of the first extension that belongs to the member; a global one does not.
        path: the member's name.
        size: number of bytes of its content.
        sparse: whether it is a sparse file.
    """

    def __init__(self) -> None:
        self.offset: int | None = None
        self.path: str | None = None
        self.size: int | None = None
        self.sparse = False

    def read(self, fetch: Fetch, header: _Header, at: int, end: int) -> int:
        """Read the content of the extension header at ``at``, and return the offset after it."""
        data = at + BLOCK
        if header.size > MAX_EXTENSION_BYTES:
            raise HeaderError(
                at, f"an extension header has {header.size:,} bytes; at most {MAX_EXTENSION_BYTES:,} are allowed"
            )
        after = _after(at, data, header.size, end, "an extension header")
        content = fetch(data, header.size).tobytes()
        if self.offset is None and header.kind != b"g":
            self.offset = at
        if header.kind == b"L":
            self.path = _text(content) if self.path is None else self.path
        elif header.kind != b"K":
            self._take_records(_pax_records(content, data), at, data, is_global=header.kind == b"g")
        return after

    def _take_records(self, records: dict[bytes, bytes], at: int, data: int, *, is_global: bool) -> None:
        path = _pax_path(records)
        holes = any(key.startswith(b"GNU.sparse.") for key in records)
        if is_global and (path is not None or b"size" in records or holes):
            raise HeaderError(at, "a global PAX header sets a path or a size for all members that follow")
        self.path = path if self.path is None else self.path
        self.sparse = self.sparse or holes
        if self.size is None and b"size" in records:
            self.size = _pax_size(records[b"size"], data)


def _member(fetch: Fetch, header: _Header, at: int, end: int, extensions: _Extensions) -> Member:
    """Return the member of the header at ``at``, which is no extension."""
    name, kind, data = header.name, header.kind, at + BLOCK
    if kind == b"\0" and name.endswith("/"):
        kind = b"5"  # a folder, as v7 writes it
    if kind == b"S":
        data = _behind_map(fetch, header.block, data, end)
    elif header.prefix[0]:
        name = f"{_text(header.prefix)}/{name}"
    size = header.size if extensions.size is None else extensions.size
    return Member(
        name=name if extensions.path is None else extensions.path,
        regular=kind in _REGULAR,
        sparse=extensions.sparse or kind == b"S",
        offset=at if extensions.offset is None else extensions.offset,
        data=data,
        size=size,
        end=data if kind in _WITHOUT_DATA else _after(at, data, size, end, "a member"),
        kind=kind,
    )


def _after(at: int, data: int, size: int, end: int, what: str) -> int:
    """Return the offset after padded data."""
    after = data + (size + BLOCK - 1) // BLOCK * BLOCK
    if after > end:
        raise HeaderError(at, f"{what} has {size:,} bytes, of which {max(0, min(size, end - data)):,} are there")
    return after


def _check_sum(block: bytes, stored: bytes, at: int) -> None:
    wanted = _number(stored, at, "checksum")
    found = sum(block) - sum(stored) + 8 * 32
    if found == wanted:
        return
    # Some old programs add the bytes up as signed numbers.
    signed = found - 256 * (sum(byte > 127 for byte in block) - sum(byte > 127 for byte in stored))
    if signed != wanted:
        raise HeaderError(at, f"not a tar header, or a damaged one: its checksum is {found}, but {wanted} is stored")


def _number(field: bytes, at: int, what: str) -> int:
    """Parse a number: octal digits, or base 256 after a first byte of 128 or 255, as GNU writes large numbers."""
    if field[0] in (0o200, 0o377):
        value = int.from_bytes(field[1:], "big", signed=False) - (256 ** (len(field) - 1) if field[0] == 0o377 else 0)
    else:
        try:
            value = int(field.partition(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            raise HeaderError(at, f"not a tar header, or a damaged one: {field!r} is not a {what}") from None
    if value < 0:
        raise HeaderError(at, f"not a tar header, or a damaged one: its {what} is {value}")
    return value


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _behind_map(fetch: Fetch, block: bytes, data: int, end: int) -> int:
    """Return the offset of the data of a sparse file in GNU's old format; a byte says whether its map continues."""
    first, extended = data, block[482]
    while extended:
        if end - data < BLOCK or data - first >= MAX_EXTENSION_BYTES:
            raise HeaderError(first, "the map of a sparse file does not end")
        extended = fetch(data, BLOCK)[504]
        data += BLOCK
    return data


def _pax_records(content: bytes, at: int) -> dict[bytes, bytes]:
    """Parse records like ``b"20 path=a/file.txt\\n"``: length of the whole record in bytes, keyword, value."""
    records: dict[bytes, bytes] = {}
    begin = 0
    while begin < len(content) and content[begin]:
        space = content.find(b" ", begin, begin + 20)
        digits = content[begin : max(begin, space)]
        end = begin + int(digits) if digits.isdigit() else begin
        keyword, equals, value = content[space + 1 : end - 1].partition(b"=")
        if end > len(content) or end <= space or not equals or content[end - 1 : end] != b"\n":
            raise HeaderError(at + begin, "a record in a PAX header is malformed")
        records[keyword] = value
        begin = end
    return records


def _pax_path(records: dict[bytes, bytes]) -> str | None:
    path = None
    for key, value in records.items():
        if key in (b"path", b"GNU.sparse.name"):
            path = value.decode("utf-8", "surrogateescape").rstrip("/")
    return path


def _pax_size(value: bytes, at: int) -> int:
    if not value.isdigit() or len(value) > 20:
        raise HeaderError(at, f"{value[:40]!r} is not a valid size in a PAX header")
    return int(value)


_SPLIT: Final = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""Splits a name into key and part, as webdataset and Energon do; `sample_part` returns the same, but faster."""

_META: Final = re.compile(r"__[^/]*__($|/)")
"""Names that begin like this are skipped, as by webdataset and Energon."""


def sample_part(name: str, *, hidden: bool = True) -> tuple[str, str] | None:
    """Return key and part of a regular member, or None if it belongs to no sample.

    The name is split at the first dot after its last slash. Folders belong to the key, and nothing is normalised:

        ``a0.jpg``           key ``a0``, part ``jpg``         ``a0.seg.PNG``    key ``a0``, part ``seg.PNG``
        ``v1.2/a0.txt``      key ``v1.2/a0``, part ``txt``    ``./a0.txt``      key ``./a0``, part ``txt``
        ``a0.``              key ``a0``, part ``""``          ``a0``, ``.git``  None: no key or no part
        ``__meta__/a0.txt``  None: begins with ``__...__``    ``d/__a__/b.x``   key ``d/__a__/b``, part ``x``

    Args:
        name: the full name of the member, as ``tarfile`` decodes it.
        hidden: whether ``dir/.hid`` is key ``dir/`` and part ``hid``, as in webdataset and Energon, or is skipped.
    """
    if name.startswith("__") and _META.match(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    if dot == slash + 1:
        # The pattern then takes the last folder for the name of the file, if there is a folder and it has no dot.
        if not hidden or slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]:
            return None
    elif "\n" not in name:
        return name[:dot], name[dot + 1 :]
    if "\n" in name:
        # The pattern treats line breaks differently in different places, so such names are left to it.
        found = _SPLIT.match(name)
        return None if found is None else (found[1], found[2])
    return name[:dot], name[dot + 1 :]


_KINDS: Final = {
    "gzip": (b"\x1f\x8b", (".tar.gz", ".tgz"), "gzip -dc"),
    "zstd": (b"\x28\xb5\x2f\xfd", (".tar.zst", ".tzst"), "zstd -dc"),
    "bzip2": (b"BZh", (".tar.bz2", ".tbz2", ".tbz"), "bzip2 -dc"),
    "xz": (b"\xfd7zXZ\0", (".tar.xz", ".txz"), "xz -dc"),
    "lz4": (b"\x04\x22\x4d\x18", (".tar.lz4",), "lz4 -dc"),
}
SUFFIXES: Final = tuple(suffix for _, suffixes, _ in _KINDS.values() for suffix in suffixes)


def check_uncompressed(path: str, head: bytes = b"") -> None:
    """Raise InputError if a tar is compressed, by its name or its first bytes; the message says how to unpack it."""
    for kind, (magic, suffixes, command) in _KINDS.items():
        named = next((suffix for suffix in suffixes if path.endswith(suffix)), None)
        if named is None and not (head and head.startswith(magic)):
            continue
        stem = path.removesuffix(named) if named else path.removesuffix(".tar") + "-plain"
        raise InputError(
            f"{path}: compressed with {kind}; samples can be reached by number only in a plain tar: unpack it with"
            f" {command} {path} > {stem}.tar"
        )


HOLES: Final = "is a sparse file without its holes; pack it again without -S"
_LOST: Final = {
    b"1": "is a hard link to another member, and has no bytes of its own; pack it again with --hard-dereference",
    b"2": "is a symbolic link, and has no bytes of its own; pack it again with --dereference",
    b"3": "is a device, which has no content; leave it out",
    b"4": "is a device, which has no content; leave it out",
    b"6": "is a named pipe, which has no content; leave it out",
    b"M": "is the rest of a file that begins in another volume; pack it again without -M",
}
"""What is wrong with members that are no files. Energon and webdataset leave them out without a word."""
_NO_PARTS: Final = (b"5", b"D", b"V")
"""Folders, folders of an incremental archive, and the label of an archive."""


def named(member: Member) -> tuple[str, int, int, int, int, str]:
    """Return name, size, offset, data and end of a member, and what is wrong with it; no name if it can be no part."""
    wrong = HOLES if member.sparse else ""
    if not member.regular:
        wrong = _LOST.get(member.kind, f"is of the unknown type {member.kind!r}; pack it again as a file")
    name = "" if member.kind in _NO_PARTS else member.name
    return name, member.size, member.offset, member.data, member.end, wrong


def same_key(key: str) -> str | tuple[()]:
    """Return how names of the same key begin; nothing if they could be among the names that are skipped."""
    return () if key.startswith("__") else key + "."


Places = dict[str, tuple[int, int]]
"""Offset and size of the content of each part by name, in the order of the file."""

T = TypeVar("T")
Take = Callable[[int, int], T]
"""Returns something for a part, given offset and size of its content."""


def fetches(data: memoryview) -> Fetch:
    """Return a function that reads from memory that holds the whole file."""
    return lambda at, length: data[at : at + length]


def copies(data: memoryview) -> Take[bytes]:
    """Return a function that copies parts from memory that holds the whole file."""
    return lambda at, length: data[at : at + length].tobytes()


class WalkError(Exception):
    """A sample differs from what its index says. The caller adds the file and raises an InputError.

    ``row`` tells which of several samples it is.
    """

    def __init__(self, at: int, key: str | None, message: str, *, row: int = 0) -> None:
        super().__init__(message)
        self.row = row
        self.at = at
        self.key = key
        self.message = message


def sample_places(fetch: Fetch, begin: int, end: int, *, hidden: bool = True) -> tuple[str, Places]:
    """Return the key of the sample in ``[begin, end)`` and the places of its parts; raises as `walk_samples` does."""
    return _walk(fetch, begin, end, _place, None, hidden)


def _place(offset: int, size: int) -> tuple[int, int]:
    return offset, size


def walk_samples(
    spans: Iterable[tuple[int, int]],
    takes: Iterable[tuple[Fetch, Take[T]]],
    wanted: frozenset[str] | None,
    hidden: bool,
) -> list[tuple[str, dict[str, T]]]:
    """Return the key of each sample in ``spans``, and the result of ``take`` for each of its parts.

    This takes about 1.5 us a member.

    Members that belong to no sample are skipped, and so are links that would be parts of another sample: an index by
    Energon has no such samples, and `scan_shard` finds them. If parts have the same name, the last one counts, as in
    Energon.

    Args:
        spans: for each sample, the offset of its first header and that after its last member.
        takes: for each sample, at least as many as there are spans: what reads from the file, and ``take``, which is
            called with offset and size of the content of each part.
        wanted: the parts to take; None takes all.
        hidden: whether ``dir/.hid`` belongs to a sample.

    Raises:
        WalkError: a header is malformed, a member goes past the end, there are two keys or no part, or a part is a
            sparse file, a link or a device.
    """
    samples: list[tuple[str, dict[str, T]]] = []
    try:
        for (begin, end), (fetch, take) in zip(spans, takes):  # noqa: B905 - `strict` costs a tenth of it
            samples.append(_walk(fetch, begin, end, take, wanted, hidden))
    except WalkError as error:
        error.row = len(samples)
        raise
    return samples


def _walk(
    fetch: Fetch, begin: int, end: int, take: Take[T], wanted: frozenset[str] | None, hidden: bool
) -> tuple[str, dict[str, T]]:
    parts: dict[str, T] = {}
    key: str | None = None
    same: str | tuple[()] = ()
    skipped = 0
    at = begin
    while at < end:
        plain = plain_member(fetch(at, BLOCK)) if end - at >= BLOCK else None
        if plain is not None:
            name, size = plain
            data, wrong = at + BLOCK, ""
            after = data + (size + 511 & -512)
            if after > end:
                raise WalkError(at, key, f"a member of {size:,} bytes goes past the end of the sample at byte {end}")
        else:
            name, size, _, data, after, wrong = named(_member_inside(fetch, at, end, key))
        # No name begins with an empty tuple.
        if name.startswith(same) and "/" not in (part := name[len(same) :]):
            pass
        elif (split := sample_part(name, hidden=hidden)) is None or (
            wrong and wrong is not HOLES and key not in (None, split[0])
        ):
            at, skipped = after, skipped + 1
            continue
        else:
            if key is None:
                key = split[0]
                same = same_key(key)
            elif split[0] != key:
                message = f"the member {name!r} of another sample comes before this sample's end at byte {end}"
                raise WalkError(at, key, message)
            part = split[1]
        if wrong:
            raise WalkError(at, key, f"part {part!r} {wrong}")
        if wanted is None or part in wanted:
            parts[part] = take(data, size)
        at = after
    if key is None:
        others = f"; {skipped} members belong to no sample" if skipped else ""
        raise WalkError(begin, None, f"there is no part of a sample up to byte {end}{others}")
    return key, parts


def _member_inside(fetch: Fetch, at: int, end: int, key: str | None) -> Member:
    """Return the member at ``at``, which is no plain one; raises WalkError if it is not inside the sample."""
    try:
        member = next_member(fetch, at, end)
    except HeaderError as error:
        raise WalkError(error.at, key, error.message) from None
    if member is None:
        raise WalkError(at, key, f"the archive ends here, but the sample should end at byte {end}")
    return member
