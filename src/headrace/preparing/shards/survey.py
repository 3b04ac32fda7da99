"""One task of the first phase: find out what each sample is made of, from rows or groups of files.

A task writes two files, named by its number:

    7.survey    all samples of the task: the key, and name, size and place of each part; all faults
    7.spool     the values of columns, one after another; a part is a range of this file, or a file of the input

Files in an object store are looked up, and their first bytes read, many at the same time.

`part_content` makes the content of a part from a column: bytes, or the file that the column names. `look` checks that
the content of a part is what its name says. Of images it reads only the headers.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import io
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from headrace.engine.job import TaskResult
from headrace.engine.serving import decoded, save
from headrace.errors import HeadraceError, MissingExtraError, StoreError
from headrace.io import output_errors, safe_relative, write_all
from headrace.io.finding import each
from headrace.preparing.shards.files import FilesBelow, NamedFile, at, read_at
from headrace.preparing.shards.listing import HEAD_BYTES, BadNameError, SampleFiles, av_part, checked_key, image_part
from headrace.preparing.shards.messages import (
    SPEC,
    FolderTask,
    FoundPart,
    FoundSample,
    FoundSpan,
    ShardSurvey,
    SurveySetup,
    TableTask,
    spool_path,
    survey_path,
)
from headrace.preparing.shards.options import AUDIO, IMAGE, VIDEO, PartSpec
from headrace.preparing.sources import Block, SourceFile, Span, open_span
from headrace.preparing.sources.json import kind as kind_in_words

_BUFFER_BYTES = 1 << 20


class _Made(NamedTuple):
    """A sample whose values have no place in the spool yet."""

    sample: FoundSample
    values: bytearray


class Surveyor:
    """Makes surveys. It decides only what each sample is; order, numbers and shards come later.

    Args:
        setup: how rows and files become samples.
        report: called with the bytes of the inputs, the number of samples and the bytes of their parts that a task has
            so far.
    """

    def __init__(self, setup: SurveySetup, report: Callable[[int, int, int], None]) -> None:
        self._setup = setup
        self._report = report
        key = {setup.key_field} if setup.key_field is not None else set[str]()
        self._taken = [{spec.column for spec in parts} | key for parts in setup.parts]
        self._files = [FilesBelow(root, setup.storage) for root in setup.roots]
        self._spool = bytearray()
        self._spooled = 0
        self._spool_file: BinaryIO | None = None
        self._found = [0, 0, 0]

    def run(self, order: TableTask | FolderTask) -> TaskResult:
        """Write survey and spool of a task.

        Raises:
            InputError: a file cannot be read, or has changed. Bad samples are no error; they are in the survey.
            OutputError: a file cannot be written.
        """
        folder = Path(self._setup.folder)
        path = spool_path(folder, order.task_index)
        with output_errors(path, "write"), path.open("wb", buffering=0) as self._spool_file:
            survey = self.survey(order)
            self._flush()
            os.fsync(self._spool_file.fileno())
        self._spool_file = None
        if not survey.spool_bytes:
            with output_errors(path, "remove"):
                path.unlink()
        paths = [survey_path(folder, order.task_index), *([path] if survey.spool_bytes else [])]
        save(paths[0], survey, sync=True)
        input_bytes, samples, _ = self._found
        return TaskResult(files=tuple(path.name for path in paths), counts={"bytes": input_bytes, "samples": samples})

    def survey(self, order: TableTask | FolderTask) -> ShardSurvey:
        """Return what a task finds; raises InputError as `run` does."""
        self._spool.clear()
        self._spooled = 0
        self._found = [0, 0, 0]
        if isinstance(order, FolderTask):
            spans = [self._group_span(order)]
        else:
            spans = [self._table_span(file, span) for span, file in zip(order.task.spans, order.files, strict=True)]
        return ShardSurvey(tuple(spans), self._spooled + len(self._spool))

    def _table_span(self, file: SourceFile, span: Span) -> FoundSpan:
        reader = open_span(file, span, SPEC, max_record_bytes=self._setup.max_record_bytes)
        samples: list[FoundSample] = []
        blank: list[int] = []
        lines = input_bytes = 0
        for block in reader.blocks():
            lines += block.num_lines
            input_bytes += block.input_bytes
            blank += block.blank_lines.tolist()
            samples += self._rows(block, span.file)
            self._advance(block.input_bytes, samples[-block.num_lines :])
        return FoundSpan(
            span.file, lines, tuple(samples), tuple(blank), input_bytes, reader.begin, reader.end, reader.xxh3_128
        )

    def _rows(self, block: Block, given: int) -> list[FoundSample]:
        found = [FoundSample(bad.line, "", (), bad.message) for bad in block.bad]
        records: list[Any] = list(block.records or [])  # A line of JSON may hold any value.

        def make(found: tuple[int, Any]) -> _Made:
            line, row = found
            if isinstance(row, Mapping):
                return self._made(line, functools.partial(self._row_key, row), self._row_parts(row, given))
            return _Made(FoundSample(line, "", (), f"not a JSON object but {kind_in_words(row)}"), bytearray())

        rows = list(zip(block.lines.tolist(), records, strict=False))
        found += map(self._placed, each(make, rows, [self._files[given].root]))
        return sorted(found, key=lambda sample: sample.line) if block.bad else found

    def _group_span(self, order: FolderTask) -> FoundSpan:
        place = at(self._setup.listings, order.listing)
        groups = decoded(read_at(place), tuple[int, tuple[SampleFiles, ...]])
        if groups is None:
            raise HeadraceError(f"{place}: the listing of a folder is incomplete: run again with --restart")
        begin, listed = groups
        samples = []
        total = 0

        def make(number: int) -> _Made:
            group = listed[number]
            return self._made(number, functools.partial(str, group.name), self._group_parts(group, order.input))

        made = each(make, range(len(listed)), [self._files[order.input].root])
        for group, one in zip(listed, made, strict=True):
            sample = self._placed(one)
            samples.append(sample)
            size = sum(file.size for _, file in group.files)
            total += size
            self._advance(size, [sample])
        return FoundSpan(order.input, len(listed), tuple(samples), (), total, begin, begin + len(listed))

    def _row_key(self, row: Mapping[str, Any]) -> str:
        field = self._setup.key_field
        if field is None:
            return ""
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int):
            columns = ", ".join(list(row)[:12])
            what = f"is {value!r:.80}" if field in row else f"is missing; the columns are: {columns}"
            raise BadNameError(f"the key field {field!r} {what}: it must hold a string or an integer")
        return str(value)

    def _made(self, line: int, name_of: Callable[[], str], parts: Iterator[tuple[str, bytes | NamedFile]]) -> _Made:
        """Make one sample. The values of a bad sample are not spooled, but their sizes are kept."""
        values = bytearray()
        found: list[FoundPart] = []
        key = name = bad = ""
        try:
            name = name_of()
            key = checked_key(name, self._setup.key_dots) if name else ""
            if self._setup.key_field is not None and not name:
                raise BadNameError("the key is empty")
            for part, content in parts:
                self._add_part(found, values, part, content)
            if not found:
                raise BadPartError("it has no parts")
        except (BadNameError, BadPartError) as error:
            bad = str(error)
        return _Made(FoundSample(line, key, tuple(found), bad, name if name != key else ""), values)

    def _placed(self, made: _Made) -> FoundSample:
        """Spool the values of a sample, and return it with their places."""
        begin = self._spooled + len(self._spool)
        if not made.sample.bad:
            self._write(made.values)
        parts = tuple(
            part if part.path else FoundPart(part.name, part.size, part.offset + begin) for part in made.sample.parts
        )
        return msgspec.structs.replace(made.sample, parts=parts)

    def _add_part(self, found: list[FoundPart], values: bytearray, part: str, content: bytes | NamedFile) -> None:
        if isinstance(content, bytes):
            made = FoundPart(part, len(content), len(values))
            values += content
        else:
            made = FoundPart(part, content.size, 0, content.name, content.mtime_ns, content.etag)
        found.append(made)
        if not made.size:
            raise BadPartError(f"part {part!r} is empty")
        if needs_look(part, verify=self._setup.verify):
            try:
                part = look(part, content, verify=self._setup.verify)
            except BadPartError as error:
                raise BadPartError(f"{made.path}: {error}" if made.path else str(error)) from error
            found[-1] = msgspec.structs.replace(made, name=part)
        if any(other.name == part for other in found[:-1]):
            raise BadPartError(f"it has the part {part!r} twice")

    def _row_parts(self, row: Mapping[str, Any], given: int) -> Iterator[tuple[str, bytes | NamedFile]]:
        rest = row.keys() - self._taken[given]
        for spec in self._setup.parts[given]:
            yield spec.part, part_content(spec, row, rest, self._files[given])

    def _group_parts(self, group: SampleFiles, given: int) -> Iterator[tuple[str, bytes | NamedFile]]:
        for part, file in group.files:
            yield part, self._files[given].as_listed(file)
        if group.bad:
            raise BadPartError(group.bad)
        if group.row is not None:
            yield from self._row_parts(group.row, given)

    def _advance(self, input_bytes: int, samples: list[FoundSample]) -> None:
        self._found[0] += input_bytes
        self._found[1] += len(samples)
        self._found[2] += sum(part.size for sample in samples for part in sample.parts)
        self._report(*self._found)

    def _write(self, data: bytearray) -> None:
        self._spool += data
        if len(self._spool) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._spool_file is not None:
            write_all(self._spool_file.write, self._spool)
        self._spooled += len(self._spool)
        self._spool.clear()


_SHOWN = 80


class BadPartError(ValueError):
    """A part that cannot be made. The message says which column, what was found, and what to do."""


def part_content(spec: PartSpec, row: Mapping[str, Any], rest: Collection[str], files: FilesBelow) -> bytes | NamedFile:
    """Make the content of one part of a row.

    Args:
        spec: the part and its column.
        row: all columns.
        rest: the columns that no other part uses.
        files: the files that rows name.

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
        return named_file(value, files)
    if spec.kind == "column":
        return value.encode() if isinstance(value, str) else _json(value, f"column {spec.column!r}")
    return _binary(value, spec.column, files)


def named_file(value: str, files: FilesBelow) -> NamedFile:
    """Find the file that a row names by a path relative to the root, or an absolute path or a URL below it.

    Raises:
        BadPartError: the path leads out of the root, does not exist, or is not a file.
        StoreError: the store of the root cannot be reached.
    """
    name, root = value, files.root
    if name.startswith("/"):
        name = os.path.relpath(name, root)
    name = name.removeprefix(f"{root}/").removeprefix("./")
    try:
        safe_relative(name)
    except StoreError:
        raise BadPartError(
            f"the file {value[:_SHOWN]!r} is not below {root}; --root DIR names the folder of the files of a table"
        ) from None
    try:
        found = files.find(name)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise BadPartError(f"the file {value[:_SHOWN]!r} below {root} cannot be read: {reason}") from None
    if found is None:
        raise BadPartError(f"{value[:_SHOWN]!r} below {root} is not a file")
    return found


def _binary(value: Any, column: str, files: FilesBelow) -> bytes | NamedFile:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and (
        "bytes" in value or "path" in value
    ):  # an image of the Hugging Face library ``datasets``
        if value.get("bytes") is not None:
            return _binary(value["bytes"], column, files)
        if isinstance(value.get("path"), str):
            return named_file(value["path"], files)
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
    return part in (IMAGE, AUDIO, VIDEO) or (verify and _kind(part) in IMAGES | _TEXTS | _JSON)


def look(part: str, content: bytes | NamedFile, *, verify: bool) -> str:
    """Check the content of a part, and return its name; ``image``, ``audio`` and ``video`` are renamed.

    Raises:
        BadPartError: the content is not what the name says.
        MissingExtraError: Pillow is not installed.
    """
    try:
        with _opened(content, None if verify else HEAD_BYTES) as file:
            if part in (IMAGE, AUDIO, VIDEO):
                part = _renamed(part, file.read(HEAD_BYTES), "" if isinstance(content, bytes) else content.name)
                file.seek(0)
            return _look(part, file, verify=verify)
    except OSError as error:
        raise BadPartError(f"part {part!r} cannot be read: {error.strerror or error}") from error


def _opened(content: bytes | NamedFile, num_bytes: int | None) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open(num_bytes=num_bytes)


def _renamed(part: str, head: bytes, name: str) -> str:
    found = image_part(head) if part == IMAGE else av_part(head, name)
    if found is None:
        what = "an image" if part == IMAGE else "a sound or video"
        raise BadPartError(f"part {part!r} is not {what} of a known format; its first bytes are {head[:16]!r}")
    return found


def _look(part: str, file: BinaryIO, *, verify: bool) -> str:
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
