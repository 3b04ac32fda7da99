"""Find the tars of a dataset and read their headers.

`find_shards` lists the tars below a folder in Energon's order: sorted by the components of their paths, without hidden
ones. `scan_tar` reads the headers of a tar once, and returns what the dataset needs.

Metadata of images, video and sound as rows of the table ``media_metadata`` in ``index.sqlite``.

The media are parts of samples in tars, or files in a folder of plain files (a filesystem dataset of Energon).
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import HeadraceError, InputError, MissingExtraError, load_extra
from headrace.io import AnyPath, Reader
from headrace.io.finding import names_below
from headrace.preparing.energon.options import MediaFilter, exclude_pattern
from headrace.preparing.energon.state import ShardFault
from headrace.preparing.shards.listing import ListedFile, listed
from headrace.preparing.sources.source_file import check_same, input_errors, is_utf8
from headrace.samples.media.decoding.av_decoder import AVDecoder
from headrace.samples.media.decoding.decoder import guess_extension
from headrace.stores.arguments import check_case
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.foreign_ranges import foreign_format
from headrace.stores.tar.members import SUFFIXES, check_uncompressed
from headrace.stores.tar.scan import ScannedShard, scan_shard

IMAGE_EXTENSIONS: Final = frozenset(
    ("bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp")
)
AV_EXTENSIONS: Final = frozenset(("aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm"))
HEAD_BYTES: Final = 262
"""Number of first bytes by which Energon recognises the type of a file."""

_WHOLE_BYTES: Final = 1 << 18
"""A file of at most so many bytes is read at once, also if its first bytes decide whether it is a medium."""

_MORE_BEGINS: Final = ((b"OggS", "av"), (b"\xff\xf1", "av"), (b"\xff\xf9", "av"), (b"\xff\x4f\xff\x51", "image"))
_log = logging.getLogger("headrace")


class MediaFinder:
    """Finds media among parts or files, and reads their metadata.

    Args:
        wanted: the filter that chooses them.
    """

    def __init__(self, wanted: MediaFilter) -> None:
        self._strategy = wanted.strategy
        self._patterns = tuple(pattern.lower() for pattern in wanted.patterns)

    def may_be(self, name: str) -> bool:
        """Whether the part or file of this name may be a medium, as far as its name shows."""
        if self._strategy == "HEADER":
            return True
        if self._strategy == "EXTENSION":
            return _by_extension(name) is not None
        lower = name.lower()
        return any(fnmatchcase(lower, pattern) for pattern in self._patterns)

    @property
    def needs_head(self) -> bool:
        """Whether `kind` needs the first bytes; with the strategy ``EXTENSION`` the name is enough."""
        return self._strategy != "EXTENSION"

    def kind(self, name: str, head: bytes) -> str | None:
        """Return ``"image"`` or ``"av"``; None if this is not a medium."""
        by_name = _by_extension(name)
        if self._strategy == "EXTENSION" or (self._strategy == "GLOB" and by_name):
            return by_name
        return _by_content(head[:HEAD_BYTES]) or by_name

    def row(self, name: str, kind: str, data: bytes) -> MediaRow | None:
        """Return the row of a medium; if its bytes cannot be read, log that and return None.

        Raises:
            MissingExtraError: Pillow or PyAV is not installed.
        """
        try:
            facts = _image_facts(data) if kind == "image" else _av_facts(data)
        except MissingExtraError:
            raise
        except Exception as error:
            reason = error if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
            _log.info("%s: the metadata of this medium cannot be read: %s", name, reason)
            return None
        return MediaRow(name, kind, json.dumps(facts, separators=(",", ":")))


def _by_extension(name: str) -> str | None:
    suffix = PurePosixPath(name).suffix[1:].lower()
    return "image" if suffix in IMAGE_EXTENSIONS else "av" if suffix in AV_EXTENSIONS else None


def _by_content(head: bytes) -> str | None:
    found = guess_extension(head)
    if found is None:
        return next((kind for begin, kind in _MORE_BEGINS if head.startswith(begin)), None)
    return "image" if found in IMAGE_EXTENSIONS or found == "psd" else "av"


def _image_facts(data: bytes) -> dict[str, Any]:
    pillow = load_extra("PIL.Image", "metadata of images need Pillow: pip install 'headrace[image]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Warnings about large images do not apply: no pixels are decoded.
        with pillow.open(io.BytesIO(data)) as image:
            if image.format == "ICO":  # A file may hold several images; the one that is decoded counts.
                image.load()
            width, height = image.size
            return {"width": width, "height": height, "format": image.format or "UNKNOWN", "mode": image.mode}


def _av_facts(data: bytes) -> dict[str, Any]:
    facts = AVDecoder(data).get_metadata(get_audio_num_samples=True)
    names = (
        "video_duration", "video_num_frames", "video_fps", "video_width", "video_height",
        "audio_duration", "audio_channels", "audio_sample_rate", "audio_num_samples",
    )  # fmt: skip
    return {name: value for name in names if (value := getattr(facts, name)) is not None}


def find_files(root: AnyPath, wanted: MediaFilter) -> list[str]:
    """Find the files that may be media, sorted by the components of their paths; ``.nv-meta`` is left out.

    Raises:
        InputError: a folder cannot be read.
        StoreError: the store of a URL cannot be reached.
    """
    names = _local_names(root) if isinstance(root, Path) else root.names_below()
    found = (name for name in names if META_FOLDER not in name.split("/")[:-1])
    return sorted(filter(MediaFinder(wanted).may_be, found), key=path_key)


def _local_names(root: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    with input_errors(None):
        for folder, _, files in os.walk(root, onerror=fail):
            below = os.path.relpath(folder, root)
            prefix = "" if below == "." else f"{below}/"
            yield from (prefix + name for name in files)


def read_medium(root: AnyPath, name: str, wanted: MediaFilter, using: Reader) -> MediaRow | None:
    """Read the metadata of a file; None if it is no medium, or cannot be decoded.

    Args:
        root: the folder, or its URL.
        name: the file.
        wanted: the filter that chooses media.
        using: what reads it.

    Raises:
        StoreError: it cannot be read.
        MissingExtraError: the package that reads media is not installed.
    """
    finder, path = MediaFinder(wanted), str(root / name)
    try:
        if finder.needs_head and using.size(path) > _WHOLE_BYTES:
            head = using.read(path, 0, HEAD_BYTES).tobytes()
            if finder.kind(name, head) is None:
                return None
        data = using.read_files([path])[0].tobytes()
    finally:
        using.release(path)
    kind = finder.kind(name, data)
    return None if kind is None else finder.row(name, kind, data)


def find_shards(
    root: AnyPath, exclude: str | None, *, refuse_compressed: bool, on_notice: Callable[[str], None]
) -> list[ListedFile]:
    """Find the shards of a dataset, in order.

    Args:
        root: the folder, or its URL; links to folders are followed.
        exclude: a regular expression; tars in whose names it is found are left out.
        refuse_compressed: whether a compressed tar is an error; otherwise it is left out with a notice.
        on_notice: called with a message about compressed tars that are left out.

    Raises:
        InputError: a folder cannot be read; a tar is compressed; there is no tar.
        StoreError: the store of the URL cannot be reached.
    """
    pattern = exclude_pattern(exclude) if exclude is not None else None
    with input_errors(None):
        listed_names = list(names_below(root))
    names, compressed = [], []
    for name in listed_names:
        if pattern is not None and pattern.search(name):
            continue
        if name.endswith(".tar"):
            names.append(name)
        elif name.endswith(SUFFIXES):
            compressed.append(name)
        check_case(root, [name], (".tar", *SUFFIXES))
    if compressed:
        first = min(compressed, key=path_key)
        if refuse_compressed or not names:
            check_uncompressed(str(root / first))
        on_notice(f"{len(compressed):,} compressed tars are left out, the first is {first}: only plain tars are shards")
    if not names:
        if told := foreign_format(root):
            raise InputError(f"{root}: {told}")
        left = " that is not excluded" if pattern is not None else ""
        raise InputError(f"{root}: the folder holds no .tar{left}, at any depth: a dataset is made of tars")
    return [found_file(root, name) for name in sorted(names, key=path_key)]


def path_key(name: str) -> tuple[str, ...]:
    """Return by what Energon sorts the names of files."""
    return PurePosixPath(name).parts


def found_file(root: AnyPath, name: str) -> ListedFile:
    """Return what a file is now.

    Raises:
        InputError: there is none, or it cannot be looked up.
    """
    with input_errors(str(root / name)):
        return listed(name, root / name)


MAX_PARTS: Final = 50
"""Maximum number of part names that are kept of a shard; data with more parts have arbitrary names."""


class ShardScan(msgspec.Struct, frozen=True, array_like=True):
    """What was read of a shard."""

    tar: ListedFile
    shard: ScannedShard
    media: list[MediaRow]
    faults: tuple[ShardFault, ...]

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.shard.keys)

    @property
    def parts(self) -> tuple[str, ...]:
        """Sorted names of the parts, at most `MAX_PARTS`."""
        return tuple(sorted(set(self.shard.part_names))[:MAX_PARTS])

    @property
    def offsets(self) -> bytes:
        """The content of its ``.tar.idx``."""
        return np.ascontiguousarray(self.shard.offsets, "<i8").tobytes()


def scan_tar(
    root: AnyPath, tar: ListedFile, media: MediaFilter | None, *, skips_faults: bool, using: Reader
) -> ShardScan:
    """Read the headers of a shard, and its media.

    Args:
        root: the folder of the dataset, or its URL.
        tar: the shard as it was found.
        media: the media whose metadata are gathered.
        skips_faults: whether the samples before a fault are used.
        using: what reads it; an object it knows as it was found.

    Raises:
        InputError: the shard is malformed and faults are not skipped, or it has changed since it was found.
        StoreError: the shard cannot be read, or the object changed.
        MissingExtraError: the package that reads media is not installed.
    """
    path = root / tar.name
    scanned = scan_shard(path, on_fault="keep" if skips_faults else "raise", using=using)
    faults = [ShardFault(fault.byte, fault.sample, fault.message) for fault in scanned.faults]
    scanned, unwritable = _writable(scanned)
    if unwritable is not None:
        if not skips_faults:
            raise InputError(f"{path}: sample {unwritable.sample}: byte {unwritable.byte}: {unwritable.message}")
        faults.append(unwritable)
    rows = _media_rows(str(path), scanned, media, using) if media is not None else []
    if not tar.etag:
        check_same(str(path), tar.status, found_file(root, tar.name).status)
    return ShardScan(tar, scanned, rows, tuple(faults))


def _writable(scanned: ScannedShard) -> tuple[ScannedShard, ShardFault | None]:
    """Cut a shard before the first name that is not UTF-8, which no index can hold; return it and the fault, if any."""
    if all(is_utf8("\0".join(names)) for names in (scanned.keys, scanned.part_names)):
        return scanned, None
    bounds = scanned.part_bounds.tolist()
    for sample, key in enumerate(scanned.keys):
        names = [f"{key}.{part}" for part in scanned.part_names[bounds[sample] : bounds[sample + 1]]]
        bad = next((name for name in names if not is_utf8(name)), None)
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


MEDIA_BYTES: Final = 16 << 20
"""About this many bytes of media are read at once."""


MEDIA_AT_ONCE: Final = 64
"""The most media that are read at once."""


def _media_rows(path: str, scanned: ScannedShard, wanted: MediaFilter, using: Reader) -> list[MediaRow]:
    finder = MediaFinder(wanted)
    samples = np.repeat(np.arange(len(scanned.keys)), np.diff(scanned.part_bounds)).tolist()
    parts = zip(samples, scanned.part_names, scanned.part_offsets.tolist(), scanned.part_sizes.tolist(), strict=True)
    named = ((f"{scanned.keys[sample]}.{part}", (offset, size)) for sample, part, offset, size in parts)
    found = [(name, place) for name, place in named if finder.may_be(name)]
    head_bytes = HEAD_BYTES if finder.needs_head else 0
    heads = _contents(path, [(offset, min(size, head_bytes)) for _, (offset, size) in found], using)
    kinds = (finder.kind(name, head) for (name, _), head in zip(found, heads, strict=True))
    media = [(name, kind, place) for (name, place), kind in zip(found, kinds, strict=True) if kind is not None]
    contents = _contents(path, [place for _, _, place in media], using)
    rows = (finder.row(name, kind, data) for (name, kind, _), data in zip(media, contents, strict=True))
    try:
        return [row for row in rows if row is not None]
    finally:
        using.release(path)


def _contents(path: str, spans: Sequence[tuple[int, int]], using: Reader) -> Iterator[bytes]:
    """Yield the bytes of spans, which are read `MEDIA_BYTES` or `MEDIA_AT_ONCE` of them at a time."""
    at = 0
    while at < len(spans):
        first, total = at, 0
        while at < len(spans) and at - first < MEDIA_AT_ONCE and (at == first or total + spans[at][1] <= MEDIA_BYTES):
            total += spans[at][1]
            at += 1
        table = np.array(spans[first:at], np.int64).reshape(-1, 2)
        data = using.read_ranges(path, table[:, 0].copy(), table[:, 1].copy()).data
        ends = np.cumsum(table[:, 1]).tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            yield data[begin:end].tobytes()
