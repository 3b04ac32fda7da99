"""Looks whether the beginning of a part is what its name says; images by their headers alone."""

from __future__ import annotations

import importlib
import io
import warnings
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.errors import MissingExtraError
from headrace.prepare.shards.naming import HEAD_BYTES, image_part
from headrace.prepare.shards.options import IMAGE
from headrace.prepare.shards.values import BadPartError

IMAGES = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "jp2", "avif"))
_TEXTS = frozenset(("txt", "text", "transcript"))
_JSON = frozenset(("json", "jsn"))


def needs_look(part: str, *, verify: bool) -> bool:
    """Whether the content of a part of this name must be looked at."""
    return part == IMAGE or (verify and _kind(part) in IMAGES | _TEXTS | _JSON)


def look(part: str, content: bytes | Path, *, verify: bool) -> str:
    """The name of the part, with ``image`` named by its content.

    Raises:
        BadPartError: the content is not what the name says.
        MissingExtraError: Pillow is not installed.
    """
    try:
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            return _look(part, file, verify=verify)
    except OSError as error:
        raise BadPartError(f"part {part!r} cannot be read: {error.strerror or error}") from error


def _look(part: str, file: BinaryIO, *, verify: bool) -> str:
    if part == IMAGE:
        head = file.read(HEAD_BYTES)
        found = image_part(head)
        if found is None:
            raise BadPartError(f"part {part!r} is no image that is known by its first bytes, which are {head!r}")
        part = found
        file.seek(0)
    if not verify:
        return part
    kind = _kind(part)
    if kind in IMAGES:
        _check_image(part, file)
    elif kind in _TEXTS:
        try:
            file.read().decode()
        except UnicodeDecodeError as error:
            raise BadPartError(f"part {part!r} is not UTF-8: {error.reason} at byte {error.start:,}") from error
    elif kind in _JSON:
        try:
            msgspec.json.decode(file.read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadPartError(f"part {part!r} is not JSON: {error}") from error
    return part


def _check_image(part: str, file: BinaryIO) -> None:
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError("--verify needs Pillow for images: pip install 'headrace[image]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a picture may be large: nothing is decoded here
            with image.open(file) as opened:
                width, height = opened.size
    except image.DecompressionBombError as error:
        raise BadPartError(f"part {part!r}: {error}") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadPartError(f"part {part!r} is no image that can be read: {error}") from error
    if not width or not height:
        raise BadPartError(f"part {part!r} is an image of {width} x {height} pixels")


def _kind(part: str) -> str:
    return part.rpartition(".")[2].lower()
