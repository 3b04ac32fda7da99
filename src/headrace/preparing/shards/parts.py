"""What columns and files become: the parts of samples, and whether their content is what their names say.

    rows, or groups of files -> `ListedSample`: its key, and each part as a value or as a file
    `PartFinder.found`       -> the same with the sizes and final names of its parts, or with its fault

Rows and groups are listed without a look at any file. `PartFinder.found` looks for the files, of objects many at the
same time, and reads their first bytes if these decide something; of images it reads only the headers.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from headrace.config import describe
from headrace.errors import StoreError, load_extra
from headrace.io import Storage, safe_relative
from headrace.io.finding import each
from headrace.preparing.shards.listing import (
    HEAD_BYTES,
    SPEC,
    BadEntryError,
    FilesBelow,
    ListedFile,
    av_part,
    checked_key,
    image_part,
    numbered,
)
from headrace.preparing.shards.options import AUDIO, IMAGE, VIDEO, PartSpec, ShardSource
from headrace.preparing.sources import Block, RecordSpec, SourceFile, Span, SpanReader, open_span
from headrace.stores.tar.writer import member_bytes


class ListedPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of a sample: a value, or a file."""

    name: str
    size: int
    """-1 as long as its file was not looked up."""

    content: bytes = b""
    file: ListedFile | None = None
    """The file, by its path relative to the root of its input, or as a row names it; None if the part is a value."""


class ListedSample(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A row of a table, or a group of files, which becomes a sample."""

    input: int
    number: int
    """Its number among the samples of all inputs, bad ones counted."""

    line: int
    """Its line in the table, or its number in the folder, from 0."""

    key: str
    parts: tuple[ListedPart, ...]
    bad: str = ""
    """Why it cannot be used."""

    name: str = ""
    """Its name in the input, if the key differs from it."""

    offset: int = 0
    """Where its values begin in the file to which its task writes them."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.size for part in self.parts)

    @property
    def tar_bytes(self) -> int:
        """Bytes of the sample in a tar, without those of files that were not looked up."""
        return sum(member_bytes(f"{self.key}.{part.name}", max(part.size, 0)) for part in self.parts)


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Rows of a table that holds the media themselves."""

    input: int
    span: Span
    number: int
    """The number of their first sample among those of all inputs."""

    line: int
    """The line of their first row."""


class MediaInput(msgspec.Struct, frozen=True, kw_only=True):
    """A table, or a folder of files.

    Attributes:
        name: the name as the user gave it, or the folder that the user gave joined with the relative path.
        root: absolute path of the folder of its files, or its URL.
        table: the table; None for a folder.
        files: the files of the folder.
        captions: the table that describes the files of a folder.
        parts: the parts that the columns of the table, or of the captions, become.
    """

    name: str
    root: str
    table: SourceFile | None = None
    files: tuple[ListedFile, ...] = ()
    captions: SourceFile | None = None
    parts: tuple[PartSpec, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Size of the table, or of all files."""
        return sum(file.size for file in self.files) if self.table is None else self.table.size_bytes


class PartFinder:
    """Makes the samples of inputs, and finds their parts.

    Args:
        inputs: the inputs.
        source: how rows and files become samples.
        storage: how the stores of URLs are reached; None goes by the environment.
    """

    def __init__(self, inputs: Sequence[MediaInput], source: ShardSource, storage: Storage | None) -> None:
        self._source = source
        self.tables = {
            number: msgspec.structs.replace(given.table, storage=storage)
            for number, given in enumerate(inputs)
            if given.table is not None
        }
        """The table of each input that is one."""
        self._parts = [given.parts for given in inputs]
        self._taken = [{source.key_field, *(spec.column for spec in specs)} for specs in self._parts]
        self._files = [FilesBelow(given.root, storage) for given in inputs]

    def reader(self, given: int, span: Span, spec: RecordSpec = SPEC) -> SpanReader:
        """Return the reader of a span of the table of an input."""
        spec = msgspec.structs.replace(spec, max_record_bytes=self._source.max_record_bytes)
        return open_span(self.tables[given], span, spec)

    def rows(self, rows: Rows) -> Iterator[list[ListedSample]]:
        """Yield the entries of rows, block by block."""
        number = rows.number
        for block in self.reader(rows.input, rows.span).blocks():
            entries = self.of_block(block, rows.input, number, rows.line)
            number += len(entries)
            yield entries

    def of_block(self, block: Block, given: int, number: int, line: int) -> list[ListedSample]:
        """Return the entry of each line of a block that is not blank.

        Args:
            block: the block.
            given: the number of the input.
            number: the number of the first sample.
            line: the line at which the span of the block begins.
        """
        records: list[Any] = list(block.records or [])  # A line of JSON may hold any value.
        found: list[tuple[int, Any, str]] = [(bad.line, None, bad.message) for bad in block.bad]
        found += [(own, row, "") for own, row in zip(block.lines.tolist(), records, strict=True)]
        found.sort(key=lambda row: row[0])
        return [self._of_row(given, number + at, line + own, row, bad) for at, (own, row, bad) in enumerate(found)]

    def of_group(
        self,
        given: int,
        number: int,
        line: int,
        name: str,
        files: Sequence[tuple[str, ListedFile]],
        rows: Sequence[Mapping[str, Any]] | None,
    ) -> ListedSample:
        """Return the entry of a group of files; ``rows`` are those of the captions that name them, if there are any."""
        key, bad = "", ""
        parts: list[ListedPart] = []
        try:
            key = checked_key(name, self._source.key_dots)
            parts += (ListedPart(part, file.size, file=file) for part, file in files)
            if rows is not None and len(rows) != 1:
                raise BadEntryError(
                    "several rows of the captions name its files" if rows else "no row of the captions names it"
                )
            parts += self._row_parts(given, rows[0]) if rows else ()
        except BadEntryError as error:
            bad = str(error)
        shown = "" if name == key else name.encode(errors="replace").decode()
        return ListedSample(given, number, line, key, tuple(parts), bad, shown)

    def _of_row(self, given: int, number: int, line: int, row: Any, bad: str) -> ListedSample:
        if bad:
            return ListedSample(given, number, line, "", (), bad)
        if not isinstance(row, Mapping):
            return ListedSample(given, number, line, "", (), f"not a JSON object but {describe(row)}")
        name = key = ""
        parts: list[ListedPart] = []
        try:
            name = self._row_key(row, number)
            key = checked_key(name, self._source.key_dots)
            parts += self._row_parts(given, row)
        except BadEntryError as error:
            bad = str(error)
        return ListedSample(given, number, line, key, tuple(parts), bad, name if name != key else "")

    def _row_key(self, row: Mapping[str, Any], number: int) -> str:
        field = self._source.key_field
        if field is None:
            return numbered(number)
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int):
            columns = ", ".join(list(row)[:12])
            what = f"is {value!r:.80}" if field in row else f"is missing; the columns are: {columns}"
            raise BadEntryError(f"the key field {field!r} {what}: it must hold a string or an integer")
        if value == "":
            raise BadEntryError("the key is empty")
        return str(value)

    def _row_parts(self, given: int, row: Mapping[str, Any]) -> Iterator[ListedPart]:
        rest = row.keys() - self._taken[given]
        for spec in self._parts[given]:
            content = part_content(spec, row, rest)
            if isinstance(content, str):
                yield ListedPart(spec.part, -1, file=ListedFile(content, -1, 0))
            else:
                yield ListedPart(spec.part, len(content), content)

    def found(self, entries: Sequence[ListedSample]) -> Iterator[ListedSample]:
        """Find the parts of entries.

        Raises:
            InputError: a file that was listed has changed. Other faults are those of the entry.
            StoreError: a store cannot be reached.
        """
        yield from each(self._found, entries, {self._files[entry.input].root for entry in entries})

    def _found(self, entry: ListedSample) -> ListedSample:
        found: list[ListedPart] = []
        bad = entry.bad
        try:
            for part in entry.parts:
                self._add(found, part, self._files[entry.input])
            if not found and not bad:
                raise BadEntryError("it has no parts")
        except BadEntryError as error:
            bad = bad or str(error)
        return msgspec.structs.replace(entry, parts=tuple(found), bad=bad)

    def _add(self, found: list[ListedPart], part: ListedPart, files: FilesBelow) -> None:
        """Add a part, which a fault does not keep from being counted."""
        if part.file is not None and part.size < 0:
            file = named_file(part.file.name, files)
            part = ListedPart(part.name, file.size, file=file)
        elif part.file is not None:
            files.check(part.file)
        found.append(part)
        if not part.size:
            raise BadEntryError(f"part {part.name!r} is empty")
        try:
            name = looked_at(part, files, verify=self._source.verify)
        except BadEntryError as error:
            raise BadEntryError(f"{part.file.name}: {error}" if part.file else str(error)) from error
        part = found[-1] = msgspec.structs.replace(part, name=name)
        if any(other.name == part.name for other in found[:-1]):
            raise BadEntryError(f"it has the part {part.name!r} twice")


_SHOWN = 80


def part_content(spec: PartSpec, row: Mapping[str, Any], rest: Collection[str]) -> bytes | str:
    """Make one part of a row: its content, or the name of its file.

    Args:
        spec: the part and its column.
        row: all columns.
        rest: the columns that no other part uses.

    Raises:
        BadEntryError: the column is missing or null, or the part cannot be made of its value.
    """
    if spec.kind == "row":
        return _json({name: value for name, value in row.items() if name in rest}, "the rest of the row")
    if spec.column not in row:
        raise BadEntryError(f"no column {spec.column!r}; the columns are: {', '.join(list(row)[:12]) or 'none'}")
    value = row[spec.column]
    if value is None:
        raise BadEntryError(f"column {spec.column!r} is null")
    if spec.kind == "path":
        if not isinstance(value, str):
            raise BadEntryError(f"column {spec.column!r} must name a file, found {describe(value)}")
        return value
    if spec.kind == "column":
        return value.encode() if isinstance(value, str) else _json(value, f"column {spec.column!r}")
    return _binary(value, spec.column)


def named_file(value: str, files: FilesBelow) -> ListedFile:
    """Find the file that a row names by a path relative to the root, or an absolute path or a URL below it.

    Raises:
        BadEntryError: the path leads out of the root, does not exist, or is not a file.
        StoreError: the store of the root cannot be reached.
    """
    name, root = value, files.root
    if name.startswith("/"):
        name = os.path.relpath(name, root)
    name = name.removeprefix(f"{root}/").removeprefix("./")
    try:
        safe_relative(name)
    except StoreError:
        raise BadEntryError(
            f"the file {value[:_SHOWN]!r} is not below {root}; --root DIR names the folder of the files of a table"
        ) from None
    try:
        found = files.find(name)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise BadEntryError(f"the file {value[:_SHOWN]!r} below {root} cannot be read: {reason}") from None
    if found is None:
        raise BadEntryError(f"{value[:_SHOWN]!r} below {root} is not a file")
    return found


def _binary(value: Any, column: str) -> bytes | str:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and (
        "bytes" in value or "path" in value
    ):  # an image of the Hugging Face library ``datasets``
        if value.get("bytes") is not None:
            return _binary(value["bytes"], column)
        if isinstance(value.get("path"), str):
            return str(value["path"])
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise BadEntryError(f"column {column!r} is not base64; found {value[:_SHOWN]!r}") from None
    raise BadEntryError(f"column {column!r} must hold bytes, found {describe(value)}")


def _json(value: Any, what: str) -> bytes:
    if _holds_bytes(value):
        raise BadEntryError(
            f"{what} holds bytes, which JSON cannot hold: give them a part of their own with --part NAME=bytes:COLUMN"
        )
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadEntryError(f"{what} cannot be written as JSON: {error}") from None


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, bytes):
        return True
    if isinstance(value, dict):
        return any(map(_holds_bytes, value.values()))
    return isinstance(value, list) and any(map(_holds_bytes, value))


IMAGES = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "jp2", "avif"))
_TEXTS = frozenset(("txt", "text", "transcript"))
_JSON = frozenset(("json", "jsn"))


def looked_at(part: ListedPart, files: FilesBelow, *, verify: bool) -> str:
    """Check the content of a part, as far as that is asked for, and return its name.

    ``image``, ``audio`` and ``video`` are renamed.

    Raises:
        BadEntryError: the content is not what the name says.
        MissingExtraError: Pillow is not installed.
    """
    name, source = part.name, "" if part.file is None else part.file.name
    is_medium = name in (IMAGE, AUDIO, VIDEO)
    if not is_medium and not (verify and _kind(name) in IMAGES | _TEXTS | _JSON):
        return name
    try:
        with _opened(part, files, None if verify else HEAD_BYTES) as file:
            if is_medium:
                head = file.read(HEAD_BYTES)
                found = image_part(head) if name == IMAGE else av_part(head, source)
                if found is None:
                    what = "an image" if name == IMAGE else "a sound or video"
                    raise BadEntryError(
                        f"part {name!r} is not {what} of a known format; its first bytes are {head[:16]!r}"
                    )
                name = found
                file.seek(0)
            if verify:
                _verify(name, file)
            return name
    except OSError as error:
        raise BadEntryError(f"part {name!r} cannot be read: {error.strerror or error}") from error


def _opened(part: ListedPart, files: FilesBelow, num_bytes: int | None) -> BinaryIO:
    return io.BytesIO(part.content) if part.file is None else files.open(part.file, num_bytes=num_bytes)


def _verify(part: str, file: BinaryIO) -> None:
    kind = _kind(part)
    if kind in IMAGES:
        _check_image(part, file)
    elif kind in _TEXTS:
        try:
            file.read().decode()
        except UnicodeDecodeError as error:
            raise BadEntryError(f"part {part!r} is not UTF-8: {error.reason} at byte {error.start:,}") from error
    elif kind in _JSON:
        try:
            msgspec.json.decode(file.read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadEntryError(f"part {part!r} is not JSON: {error}") from error


def _check_image(part: str, file: BinaryIO) -> None:
    image = load_extra("PIL.Image", "--verify needs Pillow for images: pip install 'headrace[image]'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Warnings about large images do not apply: nothing is decoded here.
            with image.open(file) as opened:
                width, height = opened.size
    except image.DecompressionBombError as error:
        raise BadEntryError(f"part {part!r}: {error}") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise BadEntryError(f"part {part!r} is an image that cannot be read: {error}") from error
    if not width or not height:
        raise BadEntryError(f"part {part!r} is an image of {width} x {height} pixels")


def _kind(part: str) -> str:
    return part.rpartition(".")[2].lower()
