"""Record number N of a recipe's inputs, read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.errors import ConfigError, InputError
from headrace.prepare.sources import RecordSpec, SourceFile, Span, counted_from, find_inputs, open_span, record_noun
from headrace.samples.layouts import NUM_RECORDS
from headrace.samples.recipe import Recipe

OnRecords = Callable[[int], None]


class FoundRecord(NamedTuple):
    """A record, where it is, and the first records of its input, by which the layout is known."""

    record: Any
    source: int
    """Number of the input in the recipe."""

    input: str
    place: str
    first: list[Any]


def find_record(recipe: Recipe, number: int, on_records: OnRecords | None = None) -> FoundRecord:
    """Record ``number``, counted from 0 over all inputs in their order, bad ones included and blank lines not.

    Reads the inputs up to it.

    Raises:
        ConfigError: there is no such record, or no such file.
        InputError: the record cannot be read.
    """
    if number < 0:
        raise ConfigError(f"--record {number}: records are counted from 0")
    reached = 0
    for source, spec in enumerate(recipe.inputs):
        first: list[Any] = []
        found: tuple[Any, str, str] | None = None
        paths = [spec.paths] if isinstance(spec.paths, str) else list(spec.paths)
        for name, place, record in _records(paths):
            if reached == number:
                if isinstance(record, _Bad):
                    raise InputError(f"{name}, {place}: {record.message}")
                found = (record, name, place)
            if not isinstance(record, _Bad) and len(first) < NUM_RECORDS:
                first.append(record)
            reached += 1
            if on_records is not None:
                on_records(reached)
            if found is not None and len(first) >= NUM_RECORDS:
                break
        if found is not None:
            return FoundRecord(found[0], source, found[1], found[2], first)
    raise ConfigError(f"--record {number}: the inputs have {reached:,} records, counted from 0")


class _Bad(NamedTuple):
    message: str


def _records(paths: list[str]) -> Iterator[tuple[str, str, Any]]:
    """File, place in words and record, or a `_Bad` in its stead."""
    spec = RecordSpec(fields=(), whole=True, lists=True)
    for file in find_inputs(paths, spec=spec):
        unit = record_noun(file.format, spec.sample_by)
        for line, record in _of_file(file, spec):
            yield file.name, f"{unit} {line + counted_from(unit):,}", record


def _of_file(file: SourceFile, spec: RecordSpec) -> Iterator[tuple[int, Any]]:
    for block in open_span(file, Span(0, 0, file.extent), spec).blocks():
        good = zip(block.lines.tolist(), block.records or [], strict=True)
        bad = ((entry.line, _Bad(entry.message)) for entry in block.bad)
        yield from sorted([*good, *bad], key=lambda entry: entry[0])
