"""The texts of records, read again from the inputs that a store was made of, by input and line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError, StoreError
from headrace.preparing.sources import Block, RecordSpec, SampleBy, SourceFile, Span, find_inputs, open_span
from headrace.preparing.sources.source_file import counted_from, format_of, record_noun
from headrace.preparing.sources.streams import MAX_LINE_BYTES
from headrace.stores import Manifest

FREE_BYTES = 256 << 20
"""Inputs up to this size are read for texts by default; larger ones only with ``read_all``."""

_READ_BYTES = 1 << 20


def describe_input(manifest: Manifest, file: int) -> tuple[str, int]:
    """Return what is counted in an input, such as ``line``, and whether people count it from 0 or from 1."""
    entry = manifest.inputs[file]
    kind = entry.format or format_of(entry.path) or "jsonl"
    unit = record_noun(kind, record_options(manifest).sample_by)
    return unit, counted_from(unit)


class _Records(msgspec.Struct, frozen=True):
    """The options of a run that decide what a record is."""

    fields: tuple[str, ...] = ("text",)
    sample_by: SampleBy = "document"
    max_record_bytes: int | None = None


class InputTexts:
    """Reads the texts of records, by input and line. All records of a file are read in one pass."""

    def __init__(self, manifest: Manifest, *, read_all: bool) -> None:
        self._manifest = manifest
        self._read_all = read_all
        self._found: dict[tuple[int, int], dict[str, str]] = {}
        self._notes: dict[int, str] = {}

    def want(self, places: Iterable[tuple[int, int]]) -> None:
        """Read the records at these pairs of input and line."""
        lines_of: dict[int, list[int]] = {}
        for file, line in sorted(set(places)):
            lines_of.setdefault(file, []).append(line)
        for file, lines in lines_of.items():
            note = self._obstacle(file)
            if not note:
                try:
                    self._read(file, lines)
                except HeadraceError as error:
                    note = str(error)
            self._notes[file] = note or "the record cannot be found; the input has changed"

    def get(self, file: int, line: int) -> tuple[dict[str, str] | None, str]:
        """Return the texts by field and an empty text; or None and the reason why there are none."""
        found = self._found.get((file, line))
        return found, "" if found is not None else self._notes[file]

    def _obstacle(self, file: int) -> str:
        entry = self._manifest.inputs[file]
        if entry.path == "-":
            return "the input was standard input, which is gone"
        try:
            size = Path(entry.path).stat().st_size
        except OSError as error:
            return f"the input cannot be read: {error.strerror or error}"
        if size != entry.size:
            return f"the input has changed: it had {entry.size:,} bytes, and has {size:,}"
        if size > FREE_BYTES and not self._read_all:
            return "the input is large, and was not read; with --show it is read up to the record"
        return ""

    def _read(self, file: int, lines: list[int]) -> None:
        options = record_options(self._manifest)
        fields = options.fields
        # A recipe reads whole records.
        spec = RecordSpec(fields=fields, sample_by=options.sample_by, whole=not fields, lists=not fields)
        [source] = find_inputs([self._manifest.inputs[file].path], spec=spec)
        for line, texts in readrecord_options(source, spec, lines, options.max_record_bytes):
            self._found[file, line] = dict(zip(fields or ("record",), texts, strict=True))


def readrecord_options(
    source: SourceFile, spec: RecordSpec, lines: list[int], max_record_bytes: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line and texts of the records on these lines (ascending) that can be read; whole records are JSON."""
    limit = max_record_bytes or MAX_LINE_BYTES
    if source.can_split:
        for line, offset in _offsets(Path(source.path), lines):
            # A span of one byte holds only the line that begins at it.
            for block in open_span(source, Span(0, offset, offset + 1), spec, max_record_bytes=limit).blocks():
                if len(block.lines):
                    yield line, _texts_of(block, 0)
        return
    wanted = set(lines)
    for block in open_span(source, Span(0, 0, source.extent), spec, max_record_bytes=limit).blocks():
        for index, line in enumerate(block.lines.tolist()):
            if line in wanted:
                yield line, _texts_of(block, index)
                wanted.remove(line)
        if not wanted:
            return


def _texts_of(block: Block, index: int) -> list[str]:
    if block.texts or block.records is None:
        return [texts[index] for texts in block.texts]
    return [json.dumps(block.records[index], ensure_ascii=False, default=str)]


def _offsets(path: Path, lines: list[int]) -> Iterator[tuple[int, int]]:
    """Yield lines (ascending) with the byte at which each begins. Reads up to the last one, and counts newlines."""
    reached = begin = 0
    rest = iter(lines)
    line = next(rest, None)
    with path.open("rb") as file:
        while line is not None:
            if line == 0:
                yield 0, 0
                line = next(rest, None)
                continue
            piece = file.read(_READ_BYTES)
            if not piece:
                return
            num_newlines = piece.count(b"\n")
            while line is not None and line <= reached + num_newlines:
                at = -1
                for _ in range(line - reached):
                    at = piece.find(b"\n", at + 1)
                yield line, begin + at + 1
                line = next(rest, None)
            reached += num_newlines
            begin += len(piece)


def record_options(manifest: Manifest) -> _Records:
    """Return the options of the run that decide what a record is.

    Raises:
        StoreError: the options have types that no run writes.
    """
    try:
        given = manifest.options.get("records")
        return msgspec.convert(given if isinstance(given, dict) else {}, _Records)
    except msgspec.ValidationError as error:
        raise StoreError(f"the manifest is damaged: options: records: {error}") from error
