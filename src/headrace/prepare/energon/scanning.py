"""One shard -> what the dataset needs to know of it, on disk: a worker makes it, the run takes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import xxhash

from headrace.errors import InputError, OutputError
from headrace.io import AtomicFile
from headrace.prepare.energon.finding import FoundTar
from headrace.prepare.energon.media import HEAD_BYTES, MediaFinder
from headrace.prepare.energon.options import MediaFilter
from headrace.prepare.energon.state import ShardFault, tar_index_hash
from headrace.prepare.shards.messages import load, save
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.tar.index import index_path
from headrace.stores.tar.scan import ScannedShard, scan_shard

MAX_PARTS: Final = 50
"""Names of parts that are kept of a shard; data that has more has names without a rule."""


class ShardScan(msgspec.Struct, frozen=True, array_like=True):
    """A shard, read. Arrays as little-endian bytes; see `ScannedShard`."""

    tar: FoundTar
    media_filter: MediaFilter | None
    skips_faults: bool
    offsets: bytes
    keys: list[str]
    part_bounds: bytes
    part_names: list[str]
    part_offsets: bytes
    part_sizes: bytes
    media: list[MediaRow]
    faults: tuple[ShardFault, ...]

    @property
    def count(self) -> int:
        """Samples."""
        return len(self.keys)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts, sorted, `MAX_PARTS` at most."""
        return tuple(sorted(set(self.part_names))[:MAX_PARTS])

    @property
    def tar_index(self) -> str:
        """Hash of its ``.tar.idx``."""
        return tar_index_hash(self.offsets)

    def scanned(self) -> ScannedShard:
        """As `scan_shard` gave it."""
        return ScannedShard(
            offsets=np.frombuffer(self.offsets, "<i8"),
            keys=self.keys,
            part_bounds=np.frombuffer(self.part_bounds, "<i8"),
            part_names=self.part_names,
            part_offsets=np.frombuffer(self.part_offsets, "<i8"),
            part_sizes=np.frombuffer(self.part_sizes, "<i8"),
            size=self.tar.size,
            faults=(),
        )


def scan_path(scans: Path, name: str) -> Path:
    """Where the scan of a shard lies."""
    return scans / xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogateescape"))


def load_scan(scans: Path, tar: FoundTar, media: MediaFilter | None, *, skips_faults: bool) -> ShardScan | None:
    """The scan of a shard as it is now, where an unfinished run left one."""
    scan = load(scan_path(scans, tar.name), ShardScan)
    if scan is None or scan.tar != tar or scan.media_filter != media or (scan.faults and not skips_faults):
        return None
    return scan


def scan_tar(root: Path, scans: Path, tar: FoundTar, media: MediaFilter | None, *, skips_faults: bool) -> ShardScan:
    """Read the headers of a shard, and its media; write the scan, and the ``.tar.idx`` where there is none yet.

    An index that is there and differs is replaced at the end of the run, with all else.

    Raises:
        InputError: the shard is malformed, and faults are not skipped; or it changed.
        OutputError: the system refuses.
        MissingExtraError: what reads media is not installed.
    """
    path = root / tar.name
    scanned = scan_shard(path, on_fault="keep" if skips_faults else "raise")
    faults = [ShardFault(fault.byte, fault.sample, fault.message) for fault in scanned.faults]
    scanned, unwritable = _writable(scanned)
    if unwritable is not None:
        if not skips_faults:
            raise InputError(f"{path}: sample {unwritable.sample}: byte {unwritable.byte}: {unwritable.message}")
        faults.append(unwritable)
    rows = _media_rows(path, scanned, media) if media is not None else []
    status = path.stat()
    if (status.st_size, status.st_mtime_ns) != (tar.size, tar.mtime_ns):
        raise InputError(f"{path}: the shard changed during the run; run again when it is written")
    arrays = (scanned.offsets, scanned.part_bounds, scanned.part_offsets, scanned.part_sizes)
    offsets, bounds, places, sizes = (np.ascontiguousarray(array, "<i8").tobytes() for array in arrays)
    scan = ShardScan(
        tar, media, skips_faults, offsets, scanned.keys, bounds, scanned.part_names, places, sizes, rows, tuple(faults)
    )
    if scan.count and not index_path(path).exists():
        write_tar_index(root, scan)
    save(scan_path(scans, tar.name), scan)
    return scan


def write_tar_index(root: Path, scan: ShardScan) -> None:
    """Write the ``.tar.idx`` of a shard; whoever is killed leaves a file that the next one writes over.

    Raises:
        OutputError: the system refuses.
    """
    with AtomicFile(index_path(root / scan.tar.name), resumable=True) as file:
        file.write(scan.offsets)


def is_tar_index_right(root: Path, scan: ShardScan) -> bool:
    """Whether the ``.tar.idx`` that is there is that of the scan."""
    try:
        return index_path(root / scan.tar.name).read_bytes() == scan.offsets
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OutputError(f"{index_path(root / scan.tar.name)}: cannot be read: {error.strerror or error}") from error


def _writable(scanned: ScannedShard) -> tuple[ScannedShard, ShardFault | None]:
    """The samples before the first name that is not UTF-8, which no index can hold."""
    try:
        "\0".join(scanned.keys).encode()
        "\0".join(scanned.part_names).encode()
    except UnicodeEncodeError:
        pass
    else:
        return scanned, None
    bounds = scanned.part_bounds.tolist()
    for sample, key in enumerate(scanned.keys):
        names = [f"{key}.{part}" for part in scanned.part_names[bounds[sample] : bounds[sample + 1]]]
        bad = next((name for name in names if not _is_utf8(name)), None)
        if bad is not None:
            break
    end = bounds[sample]
    cut = msgspec.structs.replace(
        scanned,
        offsets=scanned.offsets[: sample + 1],
        keys=scanned.keys[:sample],
        part_bounds=scanned.part_bounds[: sample + 1],
        part_names=scanned.part_names[:end],
        part_offsets=scanned.part_offsets[:end],
        part_sizes=scanned.part_sizes[:end],
    )
    message = f"the name {bad!r} is not UTF-8, which an index cannot hold; rename it"
    return cut, ShardFault(int(scanned.offsets[sample]), sample, message)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _media_rows(path: Path, scanned: ScannedShard, wanted: MediaFilter) -> list[MediaRow]:
    finder = MediaFinder(wanted)
    rows = []
    samples = np.repeat(np.arange(len(scanned.keys)), np.diff(scanned.part_bounds)).tolist()
    parts = zip(samples, scanned.part_names, scanned.part_offsets.tolist(), scanned.part_sizes.tolist(), strict=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for sample, part, offset, size in parts:
                name = f"{scanned.keys[sample]}.{part}"
                if not finder.may_be(name):
                    continue
                head = os.pread(descriptor, min(size, HEAD_BYTES), offset) if finder.needs_head else b""
                kind = finder.kind(name, head)
                row = None if kind is None else finder.row(name, kind, _read(descriptor, offset, size))
                if row is not None:
                    rows.append(row)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return rows


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """All bytes of a part: one call gives 2 GB at most."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
