"""Writes tar shards with their ``.tar.idx``. The bytes depend only on names and contents, never on time or user.

    | header | data, padded | header | data, padded | ... | zeros to a multiple of 10,240 |
    ^ sample 0: idx[0] = 0          ^ sample 1: idx[1]    ^ the end: idx[N]

Headers are ustar. A name that is long or not ASCII, or a size of 8 GiB or more, gets a PAX header before it. Time, user
and group are 0, and the mode is 0644. `tarfile` writes the same bytes for the same ``TarInfo`` in its PAX format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from headrace.errors import ConfigError, OutputError
from headrace.io import AtomicFile, FileSum, commit
from headrace.stores.tar.index import index_path
from headrace.stores.tar.members import BLOCK, sample_part
from headrace.stores.tar.scan import Collected, ScannedShard

RECORD: Final = 10_240
"""A tar is padded to a multiple of this many bytes."""

MAX_NAME_BYTES: Final = 100
MAX_PLAIN_BYTES: Final = 8**11 - 1
"""The largest size that eleven octal digits hold."""

_BUFFER_BYTES: Final = 1 << 20
_PAX_NAME: Final = b"././@PaxHeader"

Data = bytes | bytearray | memoryview


class WrittenTar(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was written.

    Attributes:
        files: sizes and checksums of the tar and of its ``.tar.idx``.
        scanned: what a scan of the tar would find.
        part_bytes: number of bytes of content for each name of a part, in the order in which the parts were added.
    """

    files: tuple[FileSum, FileSum]
    scanned: ScannedShard
    part_bytes: dict[str, int]


def member_bytes(name: str, size: int) -> int:
    """Return how many bytes a member takes in a tar: its headers, its content and the padding."""
    content = size + -size % BLOCK
    if size <= MAX_PLAIN_BYTES and name.isascii() and len(name) <= MAX_NAME_BYTES:
        return BLOCK + content
    return 2 * BLOCK + _padded(len(_pax_records(name, size))) + content


def member_header(name: str, size: int) -> bytes:
    """Return the header blocks of a regular file.

    Raises:
        ConfigError: the name is empty, holds a NUL byte or cannot be encoded as UTF-8.
    """
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be the name of a member of a tar")
    try:
        records = _pax_records(name, size)
    except UnicodeEncodeError:
        raise ConfigError(f"{name!r} cannot be the name of a member of a tar: it is not UTF-8") from None
    # A reader without PAX sees a name that is cut off, and 0 for a size that does not fit.
    plain_name = name.encode("ascii", "replace")[:MAX_NAME_BYTES]
    header = _header(plain_name, size if size <= MAX_PLAIN_BYTES else 0, 0o644, b"0")
    if not records:
        return header
    return _header(_PAX_NAME, len(records), 0, b"x") + records + bytes(-len(records) % BLOCK) + header


class TarWriter:
    """Writes one shard, one sample at a time. Tar and index appear together at `finish`, or not at all.

    As a context manager it finishes at the end, and removes what it wrote on an exception.

    Args:
        path: path of the tar, whose name ends in ``.tar``.

    Raises:
        ConfigError: the name does not end in ``.tar``.
        OutputError: the system reports an error.

    Example:
        >>> from headrace.stores.tar.writer import TarWriter
        >>> with TarWriter("notes.tar") as writer:
        ...     offset = writer.add("0001", {"txt": b"a note"})
        >>> headrace.open("notes.tar")[0].parts
        {'txt': b'a note'}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != ".tar":
            raise ConfigError(f"{path}: the name of a shard must end in .tar")
        self.written: WrittenTar | None = None
        self._file = AtomicFile(self.path)
        self._buffer = bytearray()
        self._size = 0
        self._found = Collected()
        self._key: str | None = None
        self._names: set[str] = set()
        self._part_bytes: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Number of bytes written so far, without the zeros at the end."""
        return self._size

    def add(self, key: str, parts: Mapping[str, Data]) -> int:
        """Add a sample whose parts are in memory, and return its offset.

        Raises:
            ConfigError: as in `begin_sample` and `add_part`; or there are no parts.
            OutputError: the system reports an error.
        """
        if not parts:
            raise ConfigError(f"{self.path}: sample {key!r} has no parts: a tar cannot hold such a sample")
        offset = self.begin_sample(key)
        for part, data in parts.items():
            self.add_part(part, memoryview(data).nbytes, (data,))
        return offset

    def begin_sample(self, key: str) -> int:
        """Begin a new sample, to which the parts that follow belong, and return its offset.

        Raises:
            ConfigError: the sample before has the same key, so that readers would take both for one; or it has no
                parts.
        """
        self._check_ended()
        if key == self._key:
            raise ConfigError(
                f"{self.path}: two samples in a row have the key {key!r}: readers would take them for one"
            )
        self._key = key
        self._names.clear()
        self._found.offsets.append(self._size)
        self._found.bounds.append(len(self._found.part_names))
        self._found.keys.append(key)
        return self._size

    def add_part(self, part: str, size: int, chunks: Iterable[Data]) -> int:
        """Add a part of the current sample, and return the offset of its content.

        Args:
            part: name of the part, such as ``jpg`` or ``seg.png``.
            size: number of bytes in its content.
            chunks: its content in pieces, so that a large part need not be in memory as a whole.

        Raises:
            ConfigError: no sample was begun, readers would split the name into another key and part, the sample already
                has the part, or the chunks do not have ``size`` bytes.
            OutputError: the system reports an error.
        """
        if self._key is None:
            raise ConfigError(f"{self.path}: begin a sample before its parts")
        name = f"{self._key}.{part}"
        if sample_part(name) != (self._key, part):
            raise ConfigError(
                f"{self.path}: {name!r} would be read as {sample_part(name)}, not as part {part!r} of {self._key!r}: a"
                " key may not have a dot after its last slash, nor begin with a __name__"
            )
        if part in self._names:
            raise ConfigError(f"{self.path}: sample {self._key!r} has the part {part!r} twice")
        self._names.add(part)
        self._write(member_header(name, size))
        offset, left = self._size, size
        for chunk in chunks:
            left -= memoryview(chunk).nbytes
            if left < 0:
                break
            self._write(chunk)
        if left:
            raise ConfigError(f"{self.path}: {name!r}: {size:,} bytes were announced, but there are {size - left:,}")
        self._write(bytes(-size % BLOCK))
        self._part_bytes[part] = self._part_bytes.get(part, 0) + size
        self._found.part_names.append(part)
        self._found.part_offsets.append(offset)
        self._found.part_sizes.append(size)
        return offset

    def finish(self) -> WrittenTar:
        """Write the end and the index, bring both files to the disk, and give them their final names.

        Raises:
            ConfigError: there are no samples; Energon refuses such a shard.
            OutputError: the system reports an error.
        """
        if self.written is not None:
            return self.written
        if not self._found.keys:
            raise ConfigError(f"{self.path}: the shard has no samples; a shard needs at least one")
        self._check_ended()
        begin, end = self._size, self._size + 2 * BLOCK
        self._write(bytes(end + -end % RECORD - begin))
        self._flush()
        scanned = self._found.shard(begin, self._size)
        index = AtomicFile(Path(index_path(self.path)))
        try:
            index.write(scanned.offsets.astype("<i8").tobytes())
        except BaseException:
            index.discard()
            raise
        commit([self._file, index])
        self.written = WrittenTar(files=(self._file.sum, index.sum), scanned=scanned, part_bytes=self._part_bytes)
        return self.written

    def discard(self) -> None:
        """Remove what was written. After `finish` this does nothing."""
        self._file.discard()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.discard()

    def _check_ended(self) -> None:
        if self.written is not None:
            raise OutputError(f"{self.path}: the shard is already finished")
        if self._key is not None and not self._names:
            raise ConfigError(f"{self.path}: sample {self._key!r} has no parts: a tar cannot hold such a sample")

    def _write(self, data: Data) -> None:
        self._size += memoryview(data).nbytes
        if memoryview(data).nbytes >= _BUFFER_BYTES:
            self._flush()
            self._file.write(data)
            return
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()


def _header(name: bytes, size: int, mode: int, kind: bytes) -> bytes:
    """Return one ustar block. The checksum is computed with its own eight bytes as spaces."""
    head = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, 0, 0, size, 0)
    tail = kind + bytes(100) + b"ustar\x0000" + bytes(64 + 16 + 155 + 12)
    return head + b"%06o\0 " % (sum(head) + sum(tail) + 8 * 32) + tail


def _pax_records(name: str, size: int) -> bytes:
    records = b""
    if not name.isascii() or len(name) > MAX_NAME_BYTES:
        records += _pax_record(b"path", name.encode())
    if size > MAX_PLAIN_BYTES:
        records += _pax_record(b"size", b"%d" % size)
    return records


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """Return a record like ``b"20 path=a/file.txt\\n"``, whose length includes its own digits."""
    rest = len(keyword) + len(value) + 3
    length = rest
    while length != rest + len(str(length)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


def _padded(size: int) -> int:
    return size + -size % BLOCK
