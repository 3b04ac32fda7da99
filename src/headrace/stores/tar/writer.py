"""Writes tar shards with their ``.tar.idx``: the bytes depend on names and contents alone, never on time or user.

    | header | data, padded | header | data, padded | ... | zeros to a multiple of 10,240 |
    ^ sample 0: idx[0] = 0          ^ sample 1: idx[1]    ^ the end: idx[N]

Headers are ustar; a name that is long or not ASCII, and a size of 8 GiB or more, have a PAX header before them. Time,
user and group are 0, the mode is 0644. `tarfile` writes the same bytes of the same ``TarInfo`` in its PAX format.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec
import numpy as np

from headrace.errors import ConfigError, OutputError
from headrace.io import AtomicFile, FileSum, commit
from headrace.stores.tar.headers import BLOCK
from headrace.stores.tar.index import index_path
from headrace.stores.tar.names import sample_part

RECORD: Final = 10_240
"""A tar is padded to a multiple of this."""

MAX_NAME_BYTES: Final = 100
MAX_PLAIN_BYTES: Final = 8**11 - 1
"""The largest size that eleven octal digits hold."""

_BUFFER_BYTES: Final = 1 << 20
_PAX_NAME: Final = b"././@PaxHeader"

Data = bytes | bytearray | memoryview


class WrittenTar(msgspec.Struct, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        files: sizes and checksums of the tar and of its ``.tar.idx``.
        offsets: (N + 1,) where each sample begins, and the end: what the index holds.
        part_bytes: bytes of content by the name of the part, in the order in which they came.
    """

    files: tuple[FileSum, FileSum]
    offsets: tuple[int, ...]
    part_bytes: dict[str, int]

    @property
    def num_samples(self) -> int:
        """Samples in the shard."""
        return len(self.offsets) - 1


def member_bytes(name: str, size: int) -> int:
    """Bytes that a member takes in a tar: its headers, its content and the padding."""
    content = size + -size % BLOCK
    if size <= MAX_PLAIN_BYTES and name.isascii() and len(name) <= MAX_NAME_BYTES:
        return BLOCK + content
    return 2 * BLOCK + _padded(len(_pax_records(name, size))) + content


def member_header(name: str, size: int) -> bytes:
    """The header blocks of a regular file.

    Raises:
        ConfigError: the name is empty, holds a NUL byte or is not Unicode.
    """
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} cannot be the name of a member of a tar")
    try:
        records = _pax_records(name, size)
    except UnicodeEncodeError:
        raise ConfigError(f"{name!r} cannot be the name of a member of a tar: it is not UTF-8") from None
    # A reader that knows no PAX sees the name cut off, and 0 for a size that does not fit.
    plain_name = name.encode("ascii", "replace")[:MAX_NAME_BYTES]
    header = _header(plain_name, size if size <= MAX_PLAIN_BYTES else 0, 0o644, b"0")
    if not records:
        return header
    return _header(_PAX_NAME, len(records), 0, b"x") + records + bytes(-len(records) % BLOCK) + header


class TarWriter:
    """Writes one shard, a sample at a time; tar and index appear together at `finish`, or not at all.

    As a context manager it finishes at the end, and removes what it wrote on an exception.

    Args:
        path: of the tar; its name ends in ``.tar``.

    Raises:
        ConfigError: the name does not.
        OutputError: the system refuses.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != ".tar":
            raise ConfigError(f"{path}: a shard is named *.tar")
        self.written: WrittenTar | None = None
        self._file = AtomicFile(self.path)
        self._buffer = bytearray()
        self._size = 0
        self._offsets = array("q")
        self._key: str | None = None
        self._names: set[str] = set()
        self._part_bytes: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Bytes so far, without the zeros at the end."""
        return self._size

    def add(self, key: str, parts: Mapping[str, Data]) -> int:
        """Add a sample whose parts are in memory; its offset.

        Raises:
            ConfigError: see `begin_sample` and `add_part`; or there is no part.
            OutputError: the system refuses.
        """
        if not parts:
            raise ConfigError(f"{self.path}: sample {key!r} has no parts: in a tar it would not be there")
        offset = self.begin_sample(key)
        for part, data in parts.items():
            self.add_part(part, memoryview(data).nbytes, (data,))
        return offset

    def begin_sample(self, key: str) -> int:
        """The parts that follow belong to a new sample of this key; its offset.

        Raises:
            ConfigError: the sample before it has this key: readers would take both for one; or that one has no parts.
        """
        self._check_ended()
        if key == self._key:
            raise ConfigError(f"{self.path}: two samples in a row have the key {key!r}: readers take them for one")
        self._key = key
        self._names.clear()
        self._offsets.append(self._size)
        return self._size

    def add_part(self, part: str, size: int, chunks: Iterable[Data]) -> int:
        """Add a part of the sample that was begun last; the offset of its content.

        Args:
            part: name of the part, as ``jpg`` or ``seg.png``.
            size: its bytes.
            chunks: its content; large parts need not be in memory as a whole.

        Raises:
            ConfigError: no sample was begun; key and part would be read back as others; the sample has the part; or
                the chunks have more or fewer bytes.
            OutputError: the system refuses.
        """
        if self._key is None:
            raise ConfigError(f"{self.path}: begin a sample before its parts")
        name = f"{self._key}.{part}"
        if sample_part(name) != (self._key, part):
            raise ConfigError(
                f"{self.path}: {name!r} would be read back as {sample_part(name)}, not as part {part!r} of"
                f" {self._key!r}: a key has no dot behind its last slash, and no __name__ at its begin"
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
            raise ConfigError(f"{self.path}: {name!r}: {size:,} bytes were promised, there are {size - left:,}")
        self._write(bytes(-size % BLOCK))
        self._part_bytes[part] = self._part_bytes.get(part, 0) + size
        return offset

    def finish(self) -> WrittenTar:
        """Write the end and the index, bring both to the disk, and give them their names.

        Raises:
            ConfigError: there are no samples: Energon refuses such a shard.
            OutputError: the system refuses.
        """
        if self.written is not None:
            return self.written
        if not self._offsets:
            raise ConfigError(f"{self.path}: a shard without samples")
        self._check_ended()
        offsets = (*self._offsets, self._size)
        end = self._size + 2 * BLOCK
        self._write(bytes(end + -end % RECORD - self._size))
        self._flush()
        index = AtomicFile(index_path(self.path))
        try:
            index.write(np.array(offsets, "<i8").tobytes())
        except BaseException:
            index.discard()
            raise
        commit([self._file, index])
        self.written = WrittenTar(files=(self._file.sum, index.sum), offsets=offsets, part_bytes=self._part_bytes)
        return self.written

    def discard(self) -> None:
        """Remove what was written. Nothing happens after `finish`."""
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
            raise OutputError(f"{self.path}: was finished already")
        if self._key is not None and not self._names:
            raise ConfigError(f"{self.path}: sample {self._key!r} has no parts: in a tar it would not be there")

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
    """One ustar block. The checksum takes its own eight bytes for spaces."""
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
    """``b"20 path=a/file.txt\\n"``: the length counts its own digits too."""
    rest = len(keyword) + len(value) + 3
    length = rest
    while length != rest + len(str(length)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


def _padded(size: int) -> int:
    return size + -size % BLOCK
