"""One task of the first phase: find out what each sample is made of, from rows or groups of files.

A task writes two files, named by its number:

    7.survey    all samples of the task: the key, and name, size and place of each part; all faults
    7.spool     the values of columns, one after another; a part is a range of this file, or a file of the input
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headrace.engine.serving import load, save
from headrace.errors import HeadraceError, InputError
from headrace.io import output_errors, write_all
from headrace.preparing.shards.listing import BadNameError, ListedFile, SampleFiles, checked_key
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
from headrace.preparing.shards.values import BadPartError, NamedFile, look, needs_look, part_content
from headrace.preparing.sources import Block, SourceFile, Span, open_span
from headrace.preparing.sources.json import kind

_BUFFER_BYTES = 1 << 20


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
        self._spool = bytearray()
        self._spooled = 0
        self._spool_file: BinaryIO | None = None
        self._found = [0, 0, 0]

    def run(self, order: TableTask | FolderTask) -> None:
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
        save(survey_path(folder, order.task_index), survey, sync=True)

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
        for line, row in zip(block.lines.tolist(), records, strict=True):
            if isinstance(row, Mapping):
                found.append(self._sample(line, functools.partial(self._row_key, row), self._row_parts(row, given)))
            else:
                found.append(FoundSample(line, "", (), f"not a JSON object but {kind(row)}"))
        return sorted(found, key=lambda sample: sample.line) if block.bad else found

    def _group_span(self, order: FolderTask) -> FoundSpan:
        groups = load(Path(order.listing), tuple[int, tuple[SampleFiles, ...]])
        if groups is None:
            raise HeadraceError(f"{order.listing}: the listing of a folder is incomplete: run again with --restart")
        begin, listed = groups
        samples = []
        total = 0
        for number, group in enumerate(listed):
            parts = self._group_parts(group, order.input)
            sample = self._sample(number, functools.partial(str, group.name), parts)
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

    def _sample(
        self, line: int, name_of: Callable[[], str], parts: Iterator[tuple[str, bytes | NamedFile, Path | None]]
    ) -> FoundSample:
        """Make one sample. The values of a bad sample are not spooled, but their sizes are kept."""
        spooled = self._spooled, len(self._spool)
        values = bytearray()
        found: list[FoundPart] = []
        key = name = bad = ""
        try:
            name = name_of()
            key = checked_key(name, self._setup.key_dots) if name else ""
            if self._setup.key_field is not None and not name:
                raise BadNameError("the key is empty")
            for part, content, path in parts:
                self._add_part(found, values, part, content, path)
            if not found:
                raise BadPartError("it has no parts")
        except (BadNameError, BadPartError) as error:
            bad = str(error)
        if not bad:
            self._write(values)
        begin = sum(spooled)
        placed = tuple(part if part.path else FoundPart(part.name, part.size, part.offset + begin) for part in found)
        return FoundSample(line, key, placed, bad, name if name != key else "")

    def _add_part(
        self, found: list[FoundPart], values: bytearray, part: str, content: bytes | NamedFile, path: Path | None
    ) -> None:
        is_spooled = isinstance(content, bytes)
        size = len(content) if isinstance(content, bytes) else content.size
        at = len(found)
        if isinstance(content, bytes):
            found.append(FoundPart(part, size, len(values)))
            values += content
        else:
            found.append(FoundPart(part, size, 0, content.name, content.mtime_ns))
        if not size:
            raise BadPartError(f"part {part!r} is empty")
        if needs_look(part, verify=self._setup.verify):
            source: bytes | Path = content if isinstance(content, bytes) else path or Path()
            try:
                part = look(part, source, verify=self._setup.verify)
            except BadPartError as error:
                where = "" if is_spooled else f"{content.name}: "  # type: ignore[union-attr]
                raise BadPartError(f"{where}{error}") from error
            found[at] = msgspec.structs.replace(found[at], name=part)
        if any(other.name == part for other in found[:at]):
            raise BadPartError(f"it has the part {part!r} twice")

    def _row_parts(self, row: Mapping[str, Any], given: int) -> Iterator[tuple[str, bytes | NamedFile, Path | None]]:
        root = self._setup.roots[given]
        rest = row.keys() - self._taken[given]
        for spec in self._setup.parts[given]:
            content = part_content(spec, row, rest, root)
            yield spec.part, content, Path(root, content.name) if isinstance(content, NamedFile) else None

    def _group_parts(self, group: SampleFiles, given: int) -> Iterator[tuple[str, bytes | NamedFile, Path | None]]:
        root = self._setup.roots[given]
        for part, file in group.files:
            yield part, _as_listed(file, root), Path(root, file.name)
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


def _as_listed(file: ListedFile, root: str) -> NamedFile:
    """Return a file; it must not have changed since the run began."""
    try:
        status = Path(root, file.name).stat()
    except OSError as error:
        raise InputError(f"{root}/{file.name}: cannot be read: {error.strerror or error}") from error
    if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
        raise InputError(f"{root}/{file.name}: the file changed during the run; run again when it is complete")
    return NamedFile(file.name, file.size, file.mtime_ns)
