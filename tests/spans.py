"""Reads spans with the package's own readers, and holds what every block must be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.preparing.sources import BadRecord, RecordSpec, SourceFile, Span, find_inputs, open_span, plan_tasks

SPEC = RecordSpec()


@dataclasses.dataclass
class Read:
    """All that the spans of a file gave, lines counted from the beginning of the file."""

    texts: list[list[str]]
    lines: list[int] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)
    blank: list[int] = dataclasses.field(default_factory=list)
    bad: list[BadRecord] = dataclasses.field(default_factory=list)
    num_lines: int = 0
    input_bytes: int = 0
    ids: list[str] = dataclasses.field(default_factory=list)
    records: list[Any] = dataclasses.field(default_factory=list)
    block_sizes: list[int] = dataclasses.field(default_factory=list)
    reached: int = 0
    xxh3_128: str = ""

    @property
    def messages(self) -> list[str]:
        return [record.message for record in self.bad]


def find(path: Path | Sequence[Path], spec: RecordSpec = SPEC) -> list[SourceFile]:
    return find_inputs([path] if isinstance(path, Path) else path, spec=spec)


def read(path: Path, spec: RecordSpec = SPEC, *, task_bytes: int = 1 << 50, **options: int) -> Read:
    """A whole file, in the spans that tasks of this size cut."""
    (file,) = find(path, spec)
    spans = [span for task in plan_tasks([file], task_bytes=task_bytes, max_spans=1) for span in task.spans]
    return read_spans(file, spans, spec, **options)


def read_spans(file: SourceFile, spans: Sequence[Span], spec: RecordSpec = SPEC, **options: int) -> Read:
    found = Read([[] for _ in spec.fields])
    for span in spans:
        first_line = found.num_lines
        reader = open_span(file, span, spec, **options)
        for block in reader.blocks():
            count = len(block.lines)
            assert block.num_lines == count + block.num_blank + len(block.bad) > 0
            assert len(block.blank_lines) == block.num_blank
            assert block.lines.dtype == block.places.dtype == block.blank_lines.dtype == np.int64
            assert len(block.texts) == len(spec.fields)
            assert all(len(texts) == count == len(block.places) for texts in block.texts)
            assert (block.ids is None) == (spec.id_field is None)
            assert (block.records is None) == (not spec.whole)
            # Each line of the block is one thing.
            numbers = [*block.lines, *block.blank_lines, *(record.line for record in block.bad)]
            begin = found.num_lines - first_line
            assert sorted(numbers) == list(range(begin, begin + block.num_lines))
            assert list(block.lines) == sorted(block.lines)
            for all_texts, texts in zip(found.texts, block.texts, strict=True):
                all_texts += texts
            found.lines += (block.lines + first_line).tolist()
            found.places += block.places.tolist()
            found.blank += (block.blank_lines + first_line).tolist()
            found.bad += [
                BadRecord(record.line + first_line, record.place, record.message, record.fatal) for record in block.bad
            ]
            found.num_lines += block.num_lines
            found.input_bytes += block.input_bytes
            found.ids += block.ids or []
            found.records += block.records or []
            found.block_sizes.append(sum(len(text) for texts in block.texts for text in texts))
        if reader.end > reader.begin:
            assert reader.begin == found.reached
            found.reached = reader.end
        found.xxh3_128 = reader.xxh3_128
    assert found.reached == file.extent
    assert sorted(set(found.places)) == found.places
    return found
