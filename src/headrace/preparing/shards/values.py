"""Make the content of parts from columns: bytes, or the file that a column names.

`look` checks that the content of a part is what its name says. Of images it reads only the headers.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import io
import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from headrace.errors import MissingExtraError, StoreError
from headrace.io import safe_relative
from headrace.preparing.shards.listing import HEAD_BYTES, image_part
from headrace.preparing.shards.options import IMAGE, PartSpec
from headrace.preparing.sources.json import kind as kind_in_words

_SHOWN = 80


class BadPartError(ValueError):
    """A part that cannot be made. The message says which column, what was found, and what to do."""


class NamedFile(NamedTuple):
    """An existing file below the root."""

    name: str
    size: int
    mtime_ns: int


def part_content(spec: PartSpec, row: Mapping[str, Any], rest: Collection[str], root: str) -> bytes | NamedFile:
    """Make the content of one part of a row.

    Args:
        spec: the part and its column.
        row: all columns.
        rest: the columns that no other part uses.
        root: folder of the files that rows name.

    Raises:
        BadPartError: the column is missing or null, or the part cannot be made of its value.
    """
    if spec.kind == "row":
        return _json({name: value for name, value in row.items() if name in rest}, "the rest of the row")
    if spec.column not in row:
        raise BadPartError(f"no column {spec.column!r}; the columns are: {', '.join(list(row)[:12]) or 'none'}")
    value = row[spec.column]
    if value is None:
        raise BadPartError(f"column {spec.column!r} is null")
    if spec.kind == "path":
        if not isinstance(value, str):
            raise BadPartError(f"column {spec.column!r} must name a file, found {kind_in_words(value)}")
        return named_file(value, root)
    if spec.kind == "column":
        return value.encode() if isinstance(value, str) else _json(value, f"column {spec.column!r}")
    return _binary(value, spec.column, root)


def named_file(value: str, root: str) -> NamedFile:
    """Find the file that a row names by a path relative to the root, or an absolute path below it.

    Raises:
        BadPartError: the path leads out of the root, does not exist, or is not a file.
    """
    name = value
    if name.startswith("/"):
        name = os.path.relpath(name, root)
    elif name.startswith("./"):
        name = name[2:]
    try:
        safe_relative(name)
    except StoreError:
        raise BadPartError(
            f"the file {value[:_SHOWN]!r} is not below {root}; --root DIR names the folder of the files of a table"
        ) from None
    try:
        path = Path(root, name)
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise BadPartError(f"the file {value[:_SHOWN]!r} below {root} cannot be read: {reason}") from None
    if not path.is_file():
        raise BadPartError(f"{value[:_SHOWN]!r} below {root} is not a file")
    return NamedFile(name, status.st_size, status.st_mtime_ns)


def _binary(value: Any, column: str, root: str) -> bytes | NamedFile:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and (
        "bytes" in value or "path" in value
    ):  # an image of the Hugging Face library ``datasets``
        if value.get("bytes") is not None:
            return _binary(value["bytes"], column, root)
        if isinstance(value.get("path"), str):
            return named_file(value["path"], root)
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise BadPartError(f"column {column!r} is not base64; found {value[:_SHOWN]!r}") from None
    raise BadPartError(f"column {column!r} must hold bytes, found {kind_in_words(value)}")


def _json(value: Any, what: str) -> bytes:
    if _holds_bytes(value):
        raise BadPartError(
            f"{what} holds bytes, which JSON cannot hold: give them a part of their own with --part NAME=bytes:COLUMN"
        )
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadPartError(f"{what} cannot be written as JSON: {error}") from None


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, bytes):
        return True
    if isinstance(value, dict):
        return any(map(_holds_bytes, value.values()))
    return isinstance(value, list) and any(map(_holds_bytes, value))


IMAGES = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "jp2", "avif"))
_TEXTS = frozenset(("txt", "text", "transcript"))
_JSON = frozenset(("json", "jsn"))


def needs_look(part: str, *, verify: bool) -> bool:
    """Whether the content of a part of this name must be read, to rename or to verify it."""
    return part == IMAGE or (verify and _kind(part) in IMAGES | _TEXTS | _JSON)


def look(part: str, content: bytes | Path, *, verify: bool) -> str:
    """Check the content of a part, and return the name of the part; ``image`` is renamed by its content.

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
            raise BadPartError(f"part {part!r} is not an image of a known format; its first bytes are {head!r}")
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
            warnings.simplefilter("ignore")  # Warnings about large images do not apply: nothing is decoded here.
            with image.open(file) as opened:
                width, height = opened.size
    except image.DecompressionBombError as error:
        raise BadPartError(f"part {part!r}: {error}") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadPartError(f"part {part!r} is an image that cannot be read: {error}") from error
    if not width or not height:
        raise BadPartError(f"part {part!r} is an image of {width} x {height} pixels")


def _kind(part: str) -> str:
    return part.rpartition(".")[2].lower()
