"""One task of the second phase: write the tar and the index of a shard from the list of its samples."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import xxhash

from headrace.engine.job import TaskResult
from headrace.engine.serving import save
from headrace.errors import HeadraceError, OutputError
from headrace.io.remote import Status
from headrace.preparing.shards.files import CHUNK_BYTES, at, contents_of, read_at
from headrace.preparing.shards.messages import FilledShard, FillTask, FoundPart, ListedSample, ShardSetup, spool_path
from headrace.stores.tar.writer import TarWriter

_LENGTH = struct.Struct("<I")
_MODULUS: Final = 1 << 128


class FileHashes:
    """One hash of many files in any order: the sum of the xxh3_128 of ``name, NUL, hash of the content``."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, name: str, digest: bytes) -> None:
        """Add a file; a file that is used twice counts twice."""
        self.total = (self.total + xxhash.xxh3_128_intdigest(name.encode() + b"\0" + digest)) % _MODULUS

    def add_sum(self, other: str) -> None:
        """Add the files of another sum, in hex."""
        self.total = (self.total + int(other, 16)) % _MODULUS

    @property
    def xxh3_128(self) -> str:
        """The sum, in hex."""
        return f"{self.total:032x}"


def _hashed(name: str, sums: FileHashes, pieces: Iterator[Any]) -> Iterator[Any]:
    """Yield the pieces of a file, and add it to a sum at its end."""
    hasher = xxhash.xxh3_128()
    for data in pieces:
        hasher.update(data)
        yield data
    sums.add(name, hasher.digest())


def list_name(shard: int) -> str:
    """Return the name of the list of a shard."""
    return f"{shard}.list"


def done_path(folder: str | Path, shard: int) -> Path:
    """Return the path of the file beside a shard that says that it is complete."""
    return Path(folder) / f"{shard}.done"


def pack_listed(sample: ListedSample) -> bytes:
    """Encode a sample as an entry of a list."""
    data = msgspec.msgpack.encode(sample)
    return _LENGTH.pack(len(data)) + data


def read_list(place: str) -> list[ListedSample]:
    """Read the list of a shard; the samples are returned in their order.

    Raises:
        OutputError, StoreError: the list cannot be read.
    """
    data = read_at(place)
    decoder = msgspec.msgpack.Decoder(ListedSample)
    view, at, found = memoryview(data), 0, []
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        found.append(decoder.decode(view[at - length : at]))
    return sorted(found, key=lambda sample: sample.place)


class Filler:
    """Writes shards. Parts are copied in pieces of 4 MiB, so memory is bounded for parts of any size.

    Parts that are objects, or lie in the spool of another host, are fetched in pieces of 8 MiB, some of them ahead, see
    `headrace.io.objects.files.fetched`. Parts that lie side by side in a spool are fetched together.

    Args:
        setup: the folders and inputs of the run.
        report: called with the bytes of contents and the number of samples that a shard holds so far.
    """

    def __init__(self, setup: ShardSetup, report: Callable[[int, int], None]) -> None:
        self._setup = setup
        self._report = report
        self._spools: dict[int, BinaryIO] = {}

    def run(self, order: FillTask) -> TaskResult:
        """Write a shard, then the file that says that it is complete.

        Raises:
            InputError: a file cannot be read, or has changed since it was surveyed.
            StoreError: the same of an object.
            OutputError: a file cannot be written.
        """
        samples = read_list(at(self._setup.lists, list_name(order.shard)))
        roots = self._setup.survey.roots
        wanted = ((at(roots[one.input], part.path), part) for one in samples for part in one.parts if part.path)
        files = contents_of(((place, _status(part)) for place, part in wanted), self._setup.survey.storage)
        spooled = SpooledBytes(self._spool_objects(samples))
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
                            data = _hashed(part.path, sums, next(files))
                            offset = writer.add_part(part.name, part.size, data)
                            file_bytes[sample.input] = file_bytes.get(sample.input, 0) + part.size
                        else:
                            is_away = sample.spool in self._setup.spools
                            data = spooled.take(part.size) if is_away else self._spooled(sample.spool, part)
                            offset = writer.add_part(part.name, part.size, data)
                        parts.append((number, part.name, offset, part.size))
                        copied += part.size
                    self._report(copied, number + 1)
                written = writer.finish()
        finally:
            files.close()
            spooled.close()
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
        path = done_path(self._setup.shards, order.shard)
        save(path, filled, sync=True)
        return TaskResult(
            files=(*(file.name for file in filled.files), path.name), counts={"bytes": copied, "samples": len(samples)}
        )

    def _spool_objects(self, samples: Sequence[ListedSample]) -> Generator[Any]:
        """Yield the bytes of all parts that lie in spools at URLs, in any pieces, some of which are fetched ahead."""
        spools = self._setup.spools
        wanted = [
            (sample.spool, part.offset, part.offset + part.size)
            for sample in samples
            if sample.spool in spools
            for part in sample.parts
            if not part.path
        ]
        if wanted:
            files = import_module("headrace.io.objects.files")
            parts = (
                one
                for number, begin, end in merged(wanted)
                for one in files.parts_of(spools[number].url, Status(spools[number].size, "", 0), begin, end)
            )
            yield from files.fetched(parts, None)

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
            raise HeadraceError(f"{path}: the file is too short: start again with --restart")


class SpooledBytes:
    """Bytes that come in some pieces, and are given out in others.

    Args:
        pieces: yields the bytes.
    """

    def __init__(self, pieces: Generator[Any]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next bytes; raises what the pieces raise."""
        while size:
            if not self._left:
                self._left = memoryview(next(self._pieces))
            data, self._left = self._left[:size], self._left[size:]
            size -= len(data)
            yield data

    def close(self) -> None:
        """Fetch no more."""
        self._pieces.close()


def merged(ranges: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Join ranges that follow each other in the same file.

    >>> list(merged([(0, 0, 3), (0, 3, 5), (0, 9, 10), (1, 10, 11)]))
    [(0, 0, 5), (0, 9, 10), (1, 10, 11)]
    """
    at = 0
    while at < len(ranges):
        number, begin, end = ranges[at]
        at += 1
        while at < len(ranges) and ranges[at][:2] == (number, end):
            end = ranges[at][2]
            at += 1
        yield number, begin, end


def _status(part: FoundPart) -> Status:
    return Status(part.size, part.etag, part.mtime_ns)
