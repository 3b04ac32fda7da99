"""The inputs that a recipe names: their files, their first records, and the layout that these have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.prepare.first_documents import MAX_TEXT_BYTES
from headrace.prepare.sources import RecordSpec, SourceFile, Span, find_inputs, open_span
from headrace.samples.recipe import Recipe, resolve_layout
from headrace.samples.recipe.recipe import InputSpec


class RecipeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    recipe: Recipe
    """With every layout said."""

    files: tuple[SourceFile, ...]
    sources: tuple[int, ...]
    """For each file the number of the recipe's input that named it."""

    first_records: tuple[tuple[Any, ...], ...]
    """For each input of the recipe."""


def with_inputs(recipe: Recipe, inputs: Sequence[str | os.PathLike[str]]) -> Recipe:
    """The recipe with these files in place of its own, where some are given.

    Raises:
        ConfigError: it has several inputs, or there are none at all.
    """
    if inputs:
        if len(recipe.inputs) > 1:
            raise ConfigError(
                f"the recipe has {len(recipe.inputs)} inputs, each with a layout of its own, so that it cannot be said "
                "which of them other files stand for: name the files in the recipe"
            )
        spec = recipe.inputs[0] if recipe.inputs else InputSpec(paths="")
        paths = tuple(os.fspath(path) for path in inputs)
        return msgspec.structs.replace(recipe, inputs=(msgspec.structs.replace(spec, paths=paths),))
    if not recipe.inputs:
        raise ConfigError("no input: name files in the recipe, `inputs: [data.jsonl]`, or after it")
    return recipe


def reads_stdin(recipe: Recipe) -> bool:
    """Whether standard input is among the inputs."""
    return any("-" in _paths(spec) for spec in recipe.inputs)


def find_recipe_inputs(
    recipe: Recipe,
    spec: RecordSpec,
    *,
    stdin: Path | None,
    keep_faulty: bool,
    num_records: int,
    max_record_bytes: int,
    on_notice: Callable[[str], None],
) -> RecipeInputs:
    """Find all files, read the first records of each input, and resolve layouts that are open.

    Raises:
        ConfigError: as `find_inputs`; or no layout fits, or several do.
        InputError: as `find_inputs`; or there is no record to know a layout by.
    """
    files: list[SourceFile] = []
    sources: list[int] = []
    seen: dict[str, str] = {}
    first_records = []
    for number, given in enumerate(recipe.inputs):
        found = find_inputs(_paths(given), spec=spec, stdin=stdin, keep_faulty=keep_faulty)
        for file in found:
            real = os.path.realpath(file.path)
            if real in seen:
                raise ConfigError(f"{file.name}: the same file comes from two inputs of the recipe: name it once")
            seen[real] = file.name
        records, bad = _first_records(found, spec, num_records, max_record_bytes)
        if not recipe.by_sections and given.layout == "auto" and not records:
            raise InputError(bad or f"no records in {len(found):,} files of inputs[{number}]. Nothing was written.")
        recipe, recognised = resolve_layout(recipe, records, source=number)
        if recognised is not None:
            others = f" (would do as well: {', '.join(recognised.alternatives)})" if recognised.alternatives else ""
            on_notice(f"inputs[{number}] is of the layout {recognised.layout}: {recognised.why}{others}")
        files += found
        sources += [number] * len(found)
        first_records.append(tuple(records))
    return RecipeInputs(recipe=recipe, files=tuple(files), sources=tuple(sources), first_records=tuple(first_records))


def _paths(spec: InputSpec) -> tuple[str, ...]:
    return (spec.paths,) if isinstance(spec.paths, str) else spec.paths


def _first_records(
    files: Sequence[SourceFile], spec: RecordSpec, num_records: int, max_record_bytes: int
) -> tuple[list[Any], str]:
    """The first good records, so many or of so many bytes; and what the first bad one is, where it comes before."""
    records: list[Any] = []
    bad, num_bytes = "", 0
    for file in files:
        reader = open_span(file, Span(0, 0, file.extent), spec, max_record_bytes=max_record_bytes)
        for block in reader.blocks():
            records += (block.records or [])[: num_records - len(records)]
            num_bytes += block.input_bytes
            if block.bad and not bad:
                bad = f"{file.name}, {block.bad[0].line + 1:,}: {block.bad[0].message}"
            if len(records) >= num_records or num_bytes >= MAX_TEXT_BYTES:
                return records, bad
    return records, bad
