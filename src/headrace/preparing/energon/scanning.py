"""Find the tars of a dataset and read their headers.

`find_shards` lists the tars below a folder in Energon's order: sorted by the components of their paths, without hidden
ones. `scan_tar` reads the headers of a tar once and saves what the dataset needs as a file. `peek` looks at the first
samples before a dataset is prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.engine.serving import load, save
from headrace.errors import InputError, OutputError
from headrace.io import AtomicFile, local_path
from headrace.preparing.energon.media import HEAD_BYTES, MediaFinder, walk_files
from headrace.preparing.energon.options import MediaFilter, exclude_pattern
from headrace.preparing.energon.state import ShardFault, tar_index_hash
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.tar.index import index_path
from headrace.stores.tar.members import SUFFIXES, check_uncompressed
from headrace.stores.tar.scan import ScannedShard, scan_shard


class FoundTar(msgspec.Struct, frozen=True):
    """A tar, with its size and time of change when the run began."""

    name: str
    """Path relative to the folder, with slashes."""
    size: int
    mtime_ns: int


def find_shards(
    root: Path, exclude: str | None, *, refuse_compressed: bool, on_notice: Callable[[str], None]
) -> list[FoundTar]:
    """Find the shards of a dataset, in order.

    Args:
        root: the folder; links to folders are followed.
        exclude: a regular expression; tars in whose names it is found are left out.
        refuse_compressed: whether a compressed tar is an error; otherwise it is left out with a notice.
        on_notice: called with a message about compressed tars that are left out.

    Raises:
        InputError: a folder cannot be read; a tar is compressed; there is no tar.
    """
    pattern = exclude_pattern(exclude) if exclude is not None else None
    names, compressed = [], []
    for name in _walk(root):
        if pattern is not None and pattern.search(name):
            continue
        if name.endswith(".tar"):
            names.append(name)
        elif name.endswith(SUFFIXES):
            compressed.append(name)
    if compressed:
        first = min(compressed, key=_key)
        if refuse_compressed or not names:
            check_uncompressed(str(root / first))
        on_notice(f"{len(compressed):,} compressed tars are left out, the first is {first}: only plain tars are shards")
    if not names:
        left = " that is not excluded" if pattern is not None else ""
        raise InputError(f"{root}: the folder holds no .tar{left}, at any depth: a dataset is made of tars")
    return [_status(root, name) for name in sorted(names, key=_key)]


def _key(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts


def _walk(root: Path) -> list[str]:
    """The names of all files that are not hidden. Links are followed, but not for ever."""
    seen = {os.path.realpath(root)}

    def enters(path: str) -> bool:
        is_hidden = os.path.basename(path).startswith(".")  # noqa: PTH119 - names by the million
        return not is_hidden and not (os.path.islink(path) and _leads_up(path, seen))  # noqa: PTH114

    return [name for name in walk_files(root, enters, follow_links=True) if not name.rpartition("/")[2].startswith(".")]


def _leads_up(path: str, seen: set[str]) -> bool:
    """Whether a link leads to a folder that contains it, or that was visited: following it would never end."""
    target = os.path.realpath(path)
    if target in seen or f"{os.path.realpath(os.path.dirname(path))}/".startswith(f"{target}/"):  # noqa: PTH120
        return True
    seen.add(target)
    return False


def _status(root: Path, name: str) -> FoundTar:
    try:
        status = (root / name).stat()
    except OSError as error:
        raise InputError(f"{root / name}: cannot be read: {error.strerror or error}") from error
    return FoundTar(name, status.st_size, status.st_mtime_ns)


MAX_PARTS: Final = 50
"""Maximum number of part names that are kept of a shard; data with more parts have arbitrary names."""


class ShardScan(msgspec.Struct, frozen=True, array_like=True):
    """What was read of a shard. Arrays are little-endian bytes; see `ScannedShard` for the fields."""

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
        """Number of samples."""
        return len(self.keys)

    @property
    def parts(self) -> tuple[str, ...]:
        """Sorted names of the parts, at most `MAX_PARTS`."""
        return tuple(sorted(set(self.part_names))[:MAX_PARTS])

    @property
    def tar_index(self) -> str:
        """Hash of the ``.tar.idx`` of the shard."""
        return tar_index_hash(self.offsets)

    def scanned(self) -> ScannedShard:
        """Return the scan in the form that `scan_shard` returns."""
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
    """Return the path of the saved scan of a shard."""
    return scans / xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogateescape"))


def load_scan(scans: Path, tar: FoundTar, media: MediaFilter | None, *, skips_faults: bool) -> ShardScan | None:
    """Load the scan that an unfinished run left of a shard; None if there is none that fits the tar and the options."""
    scan = load(scan_path(scans, tar.name), ShardScan)
    if scan is None or scan.tar != tar or scan.media_filter != media or (scan.faults and not skips_faults):
        return None
    return scan


def scan_tar(
    root: Path, scans: Path, tar: FoundTar, media: MediaFilter | None, *, skips_faults: bool, adds_index: bool
) -> ShardScan:
    """Read the headers of a shard and its media; save the scan, and add the ``.tar.idx`` if there is none yet.

    A ``.tar.idx`` that exists and differs is replaced at the end of the run, together with the other files.

    Raises:
        InputError: the shard is malformed and faults are not skipped, or it changed while it was read.
        OutputError: a file cannot be written.
        MissingExtraError: the package that reads media is not installed.
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
        raise InputError(f"{path}: the shard changed during the run; run again when it is complete")
    arrays = (scanned.offsets, scanned.part_bounds, scanned.part_offsets, scanned.part_sizes)
    offsets, bounds, places, sizes = (np.ascontiguousarray(array, "<i8").tobytes() for array in arrays)
    scan = ShardScan(
        tar, media, skips_faults, offsets, scanned.keys, bounds, scanned.part_names, places, sizes, rows, tuple(faults)
    )
    if adds_index and scan.count and not index_path(path).exists():
        write_tar_index(root, scan)
    save(scan_path(scans, tar.name), scan)
    return scan


def write_tar_index(root: Path, scan: ShardScan) -> None:
    """Write the ``.tar.idx`` of a shard. If this is killed, it leaves a temporary file that the next run overwrites.

    Raises:
        OutputError: the file cannot be written.
    """
    with AtomicFile(local_path(index_path(root / scan.tar.name)), resumable=True) as file:
        file.write(scan.offsets)


def is_tar_index_right(root: Path, scan: ShardScan) -> bool:
    """Whether the existing ``.tar.idx`` is the one that belongs to the scan."""
    try:
        return index_path(root / scan.tar.name).read_bytes() == scan.offsets
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OutputError(f"{index_path(root / scan.tar.name)}: cannot be read: {error.strerror or error}") from error


def _writable(scanned: ScannedShard) -> tuple[ScannedShard, ShardFault | None]:
    """Cut a shard before the first name that is not UTF-8, which no index can hold; return it and the fault, if any."""
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
    """Read all bytes of a part; one ``pread`` returns at most 2 GB."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


MAX_JSON_BYTES: Final = 1 << 20
_MAX_TEXT: Final = 25
_MAX_ITEMS: Final = 3


class Peek(msgspec.Struct, frozen=True, kw_only=True):
    """What the first shard that has samples holds.

    Attributes:
        shard: name of the shard.
        samples: for each of the first samples its key, the names of its parts, and its part ``json``, shortened, or
            None.
        parts: sorted names of the parts in the shard, at most `MAX_PARTS`.
    """

    shard: str
    samples: tuple[tuple[str, tuple[str, ...], Any], ...]
    parts: tuple[str, ...]


def peek(root: Path, names: Sequence[str], num_samples: int = 2) -> Peek | None:
    """Look into the first shard that has samples; None if no shard has any.

    Raises:
        InputError: a shard is compressed.
        StoreError: a shard cannot be read.
    """
    for name in names:
        scanned = scan_shard(root / name, on_fault="keep")
        if not scanned.keys:
            continue
        bounds = scanned.part_bounds.tolist()
        samples = []
        for number, key in enumerate(scanned.keys[:num_samples]):
            parts = tuple(scanned.part_names[bounds[number] : bounds[number + 1]])
            found = None
            if "json" in parts:
                at = bounds[number] + parts.index("json")
                found = _json(root / name, int(scanned.part_offsets[at]), int(scanned.part_sizes[at]))
            samples.append((key, parts, found))
        parts = tuple(sorted(set(scanned.part_names))[:MAX_PARTS])
        return Peek(shard=name, samples=tuple(samples), parts=parts)
    return None


def _json(path: Path, offset: int, size: int) -> Any:
    if size > MAX_JSON_BYTES:
        return None
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    try:
        return shortened(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def shortened(value: Any) -> Any:
    """Shorten JSON data for display: long texts and lists are cut."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [*map(shortened, value[:_MAX_ITEMS]), *(["..."] if len(value) > _MAX_ITEMS else [])]
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return value[:_MAX_TEXT] + "..."
    return value
