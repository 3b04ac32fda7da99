"""Metadata of images, video and sound as rows of the table ``media_metadata`` in ``index.sqlite``.

The media are parts of samples in tars, or files in a folder of plain files (a filesystem dataset of Energon).
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headrace.errors import HeadraceError, InputError, MissingExtraError
from headrace.io import AnyPath, Reader
from headrace.preparing.energon.options import MediaFilter
from headrace.samples.media.decoding.av_decoder import AVDecoder
from headrace.samples.media.decoding.decoder import guess_extension
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.sqlite_index import MediaRow

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
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("metadata of images need Pillow: pip install 'headrace[image]'") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Warnings about large images do not apply: no pixels are decoded.
        with Image.open(io.BytesIO(data)) as image:
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
    return sorted(filter(MediaFinder(wanted).may_be, found), key=lambda name: PurePosixPath(name).parts)


def _local_names(root: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read: {error.strerror or error}") from error

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
