"""One task of the second phase: the list of a shard's samples -> its tar and index."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import xxhash

from headrace.errors import HeadraceError, InputError, OutputError
from headrace.prepare.shards.messages import (
    FilledShard,
    FillTask,
    FoundPart,
    ListedSample,
    ShardSetup,
    save,
    spool_path,
)
from headrace.stores.tar.writer import TarWriter

CHUNK_BYTES: Final = 4 << 20
_LENGTH = struct.Struct("<I")
_MODULUS: Final = 1 << 128


class FileHashes:
    """One hash of many files, whatever their order: the sum of the xxh3_128 of ``name, NUL, hash of the content``."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, name: str, digest: bytes) -> None:
        """Take a file; one that is used twice counts twice."""
        self.total = (self.total + xxhash.xxh3_128_intdigest(name.encode() + b"\0" + digest)) % _MODULUS

    def add_sum(self, other: str) -> None:
        """Take the files of another sum."""
        self.total = (self.total + int(other, 16)) % _MODULUS

    @property
    def xxh3_128(self) -> str:
        """In hex."""
        return f"{self.total:032x}"


def list_path(folder: str | Path, shard: int) -> Path:
    """Where the list of a shard lies."""
    return Path(folder) / f"{shard}.list"


def done_path(folder: str | Path, shard: int) -> Path:
    """What says that a shard is whole."""
    return Path(folder) / f"{shard}.done"


def pack_listed(sample: ListedSample) -> bytes:
    """A sample as it stands in a list."""
    data = msgspec.msgpack.encode(sample)
    return _LENGTH.pack(len(data)) + data


def read_list(path: Path) -> list[ListedSample]:
    """The samples of a shard in their order.

    Raises:
        OutputError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OutputError(f"{path}: cannot be read back: {error.strerror or error}") from error
    decoder = msgspec.msgpack.Decoder(ListedSample)
    view, at, found = memoryview(data), 0, []
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        found.append(decoder.decode(view[at - length : at]))
    return sorted(found, key=lambda sample: sample.place)


class Filler:
    """Writes shards. What a part holds is copied in pieces: memory is bounded, however large it is.

    Args:
        setup: where everything lies.
        report: is told how many bytes of contents and samples a shard has so far.
    """

    def __init__(self, setup: ShardSetup, report: Callable[[int, int], None]) -> None:
        self._setup = setup
        self._report = report
        self._spools: dict[int, BinaryIO] = {}

    def run(self, order: FillTask) -> None:
        """Write a shard, and what says that it is whole.

        Raises:
            InputError: a file cannot be read, or is not what it was when it was surveyed.
            OutputError: the system refuses.
        """
        samples = read_list(list_path(self._setup.lists, order.shard))
        parts: list[tuple[int, str, int, int]] = []
        hashes: dict[int, FileHashes] = {}
        file_bytes: dict[int, int] = {}
        copied = 0
        try:
            with TarWriter(Path(self._setup.shards) / order.name) as writer:
                for number, sample in enumerate(samples):
                    writer.begin_sample(sample.key)
                    for part in sample.parts:
                        if part.path:
                            sums = hashes.setdefault(sample.input, FileHashes())
                            offset = writer.add_part(part.name, part.size, self._file(sample.input, part, sums))
                            file_bytes[sample.input] = file_bytes.get(sample.input, 0) + part.size
                        else:
                            offset = writer.add_part(part.name, part.size, self._spooled(sample.spool, part))
                        parts.append((number, part.name, offset, part.size))
                        copied += part.size
                    self._report(copied, number + 1)
                written = writer.finish()
        finally:
            for file in self._spools.values():
                file.close()
            self._spools.clear()
        filled = FilledShard(
            files=written.files,
            keys=tuple(sample.key for sample in samples),
            offsets=written.offsets,
            parts=tuple(parts),
            part_bytes=written.part_bytes,
            file_bytes=file_bytes,
            file_hashes={given: sums.xxh3_128 for given, sums in hashes.items()},
        )
        save(done_path(self._setup.done, order.shard), filled, sync=True)

    def _file(self, given: int, part: FoundPart, sums: FileHashes) -> Iterator[bytes]:
        path = Path(self._setup.survey.roots[given], part.path)
        hasher = xxhash.xxh3_128()
        left = part.size
        try:
            with path.open("rb", buffering=0) as file:
                while left:
                    data = file.read(min(left, CHUNK_BYTES))
                    if not data:
                        break
                    left -= len(data)
                    hasher.update(data)
                    yield data
                changed = bool(left or file.read(1)) or path.stat().st_mtime_ns != part.mtime_ns
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}. Nothing was written.") from error
        if changed:
            raise InputError(
                f"{path}: the file changed during the run: it had {part.size:,} bytes. Wait until it is written, then "
                "run again with --restart."
            )
        sums.add(part.path, hasher.digest())

    def _spooled(self, spool: int, part: FoundPart) -> Iterator[bytes]:
        path = spool_path(self._setup.survey.folder, spool)
        try:
            file = self._spools.get(spool)
            if file is None:
                if len(self._spools) >= 64:
                    self._spools.pop(next(iter(self._spools))).close()
                file = self._spools[spool] = path.open("rb", buffering=0)
            file.seek(part.offset)
            left = part.size
            while left and (data := file.read(min(left, CHUNK_BYTES))):
                left -= len(data)
                yield data
        except OSError as error:
            raise OutputError(f"{path}: cannot be read back: {error.strerror or error}") from error
        if left:
            raise HeadraceError(f"{path}: was cut short: begin the run anew with --restart")
