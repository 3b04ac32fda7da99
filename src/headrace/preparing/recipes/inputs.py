"""The recipe of a run: its file, what options say about it, its inputs with their first records and layouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError, sentence
from headrace.io import Storage, check_readable, path_at, reader_of
from headrace.io.finding import real_name
from headrace.preparing.options import ErrorOptions, OutputOptions, PrepareOptions
from headrace.preparing.run import MAX_TEXT_BYTES
from headrace.preparing.sources import RecordSpec, SourceFile, Span, counted_from, find_inputs, open_span, record_noun
from headrace.preparing.sources.find import Wanted, check_fields
from headrace.samples.layouts import LAYOUTS
from headrace.samples.layouts.turns import EACH, InputSpec
from headrace.samples.recipe import Recipe, load_recipe, resolve_layout
from headrace.samples.templates import suite_names


def read_recipe(path: str | os.PathLike[str], storage: Storage | None = None) -> Recipe:
    """Read a recipe as `load_recipe` does, also from a URL, to whose folder relative paths in the recipe refer then.

    A template that is not there by its name may be one of our suite, as with a local recipe.

    Args:
        path: the path of the file, or its URL.
        storage: how the store of a URL is reached; None goes by the environment.

    Raises:
        ConfigError: as `load_recipe`.
        StoreError: the store of the URL cannot be reached.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("chats.yaml").write_text("{type: sft, inputs: chats.jsonl, tokenizer: chat-tokenizer}")
        >>> headrace.preparing.read_recipe("chats.yaml").inputs[0].paths
        'chats.jsonl'
    """
    check_readable(path)
    place = path_at(path, reader_of(storage))
    recipe = load_recipe(place)
    if isinstance(place, Path):
        return recipe
    folder = str(place.parent)
    inputs = []
    for spec in recipe.inputs:
        paths = tuple(_placed(one, folder) for one in _paths(spec))
        inputs.append(msgspec.structs.replace(spec, paths=paths[0] if isinstance(spec.paths, str) else paths))
    tokenizer = None if recipe.tokenizer is None else _placed(recipe.tokenizer, folder)
    template = recipe.template
    if template is not None and template.path is not None:
        found = _placed(template.path, folder)
        if template.path not in suite_names() or path_at(found, reader_of(storage)).exists():
            template = msgspec.structs.replace(template, path=found)
    return msgspec.structs.replace(recipe, inputs=tuple(inputs), tokenizer=tokenizer, template=template)


def _placed(path: str, folder: str) -> str:
    """Return a path that a recipe in a folder at a URL names: the URL of a relative one, all others as they are."""
    if path == "-" or path.startswith("/") or "://" in path:
        return path
    slash = "/" if path.endswith("/") else ""
    return f"{path_at(folder) / path}{slash}"


class RecipeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a recipe, as they were found."""

    recipe: Recipe
    """The recipe, with every layout resolved."""

    files: tuple[SourceFile, ...]
    sources: tuple[int, ...]
    """For each file the number of the recipe's input that named it."""

    first_records: tuple[tuple[Any, ...], ...]
    """The first records of each input of the recipe."""


def with_inputs(recipe: Recipe, inputs: Sequence[str | os.PathLike[str]]) -> Recipe:
    """Replace the files of a recipe by ``inputs``, if there are any.

    Raises:
        ConfigError: the recipe has several inputs, or there are no inputs at all.
    """
    if inputs:
        if len(recipe.inputs) > 1:
            raise ConfigError(
                f"the recipe has {len(recipe.inputs)} inputs, each with a layout of its own, so it is not clear which "
                "of them other files would replace: name the files in the recipe"
            )
        spec = recipe.inputs[0] if recipe.inputs else InputSpec()
        paths = tuple(os.fspath(path) for path in inputs)
        return msgspec.structs.replace(recipe, inputs=(msgspec.structs.replace(spec, paths=paths),))
    if not recipe.inputs:
        raise ConfigError("no input: name files in the recipe, `inputs: [data.jsonl]`, or on the command line")
    return recipe


def reads_stdin(recipe: Recipe) -> bool:
    """Whether standard input is among the inputs."""
    return any("-" in _paths(spec) for spec in recipe.inputs)


def find_recipe_inputs(
    recipe: Recipe,
    spec: RecordSpec,
    *,
    stdin: Path | None,
    storage: Storage | None,
    keep_faulty: bool,
    num_records: int,
    max_record_bytes: int,
    on_notice: Callable[[str], None],
) -> RecipeInputs:
    """Find all files, read the first records of each input, and resolve the layouts that the recipe leaves open.

    Raises:
        ConfigError: see `find_inputs`; or no layout fits the records, or several do.
        InputError: see `find_inputs`; or there is no record by which to recognise a layout.
    """
    files: list[SourceFile] = []
    sources: list[int] = []
    seen: dict[str, str] = {}
    first_records = []
    for number, entry in enumerate(recipe.inputs):
        found = find_inputs(_paths(entry), spec=spec, stdin=stdin, keep_faulty=keep_faulty, storage=storage)
        for file in found:
            real = real_name(file.path)
            if real in seen:
                raise ConfigError(f"{file.name}: the same file comes from two inputs of the recipe: name it once")
            seen[real] = file.name
        records, bad = _first_records(found, spec, num_records, max_record_bytes)
        if not recipe.by_sections and entry.layout == "auto" and not records:
            raise InputError(bad or f"no records in {len(found):,} files of inputs[{number}]. Nothing was written.")
        recipe, recognised = resolve_layout(recipe, records, source=number)
        if recognised is not None:
            others = f" (would fit as well: {', '.join(recognised.alternatives)})" if recognised.alternatives else ""
            on_notice(f"inputs[{number}] is of the layout {recognised.layout}: {recognised.why}{others}")
        check_fields(found, spec, _needed(recipe, number))
        files += found
        sources += [number] * len(found)
        first_records.append(tuple(records))
    return RecipeInputs(recipe=recipe, files=tuple(files), sources=tuple(sources), first_records=tuple(first_records))


def _needed(recipe: Recipe, number: int) -> list[Wanted]:
    """What `check_fields` wants of the files of an input."""
    spec = recipe.inputs[number]
    if recipe.by_sections:
        sections = [source.sections for source in recipe.sources.values() if source.sections] or [recipe.sections]
        groups, what = [[section.field for section in group] for group in sections], "the sections need it"
    else:
        groups = [] if spec.layout == EACH else [[field] for field in LAYOUTS[spec.layout].required]
        what = f"the layout {spec.layout} needs it"
    advice = f"{what}: name the right one with `fields`, or give such files an input of their own"
    return [([spec.fields.get(field, field) for field in group], advice) for group in groups]


def _first_records(
    files: Sequence[SourceFile], spec: RecordSpec, num_records: int, max_record_bytes: int
) -> tuple[list[Any], str]:
    """The first good records, up to a number of records and bytes, and the first bad record among them, in words."""
    records: list[Any] = []
    bad, num_bytes = "", 0
    for file in files:
        reader = open_span(file, Span(0, 0, file.extent), spec, max_record_bytes=max_record_bytes)
        for block in reader.blocks():
            records += (block.records or [])[: num_records - len(records)]
            num_bytes += block.input_bytes
            if block.bad and not bad:
                noun = record_noun(file.format, spec.sample_by)
                line = block.bad[0].line + counted_from(noun)
                bad = f"{file.name}, {noun} {line:,}: {sentence(block.bad[0].message)} Nothing was written."
            if len(records) >= num_records or num_bytes >= MAX_TEXT_BYTES:
                return records, bad
    return records, bad


def all_paths(recipe: Recipe) -> list[str | None]:
    """Return all paths and URLs that a recipe names; None for what it leaves open."""
    template = None if recipe.template is None else recipe.template.path
    return [*(path for spec in recipe.inputs for path in _paths(spec)), recipe.tokenizer, template]


def _paths(spec: InputSpec) -> tuple[str, ...]:
    return (spec.paths,) if isinstance(spec.paths, str) else spec.paths


_INSTEAD = {
    "fields": "`fields:` of the input gives fields their names",
    "join": "`sections:` joins fields",
    "sample_by": "a text file is one record",
    "append_eod": "`ends: {append_eos: true}`",
    "eod": "`ends: {eos: TOKEN}`",
    "bos": "`ends: {bos: auto}`, always, never or a token",
    "special_tokens_in_text": "`special_tokens_in_text: ...` of the recipe",
    "min_chars": "`filters: {min_chars: N}`",
    "max_chars": "`filters: {max_chars: N}`",
    "min_tokens": "`filters: {min_tokens: N}`",
    "max_tokens": "`filters: {max_tokens: N}`, or `length: {max_tokens: N}` to cut",
}
"""Options for text alone, and what a recipe says instead of each."""


def with_options(recipe: Recipe, options: PrepareOptions, given: Collection[str] = ()) -> Recipe:
    """Return the recipe with what options say about its output and errors.

    Args:
        recipe: a recipe.
        options: those of the run. An option counts as given if it differs from its default.
        given: the names of options that were given, even if they have their defaults.

    Raises:
        ConfigError: an option is for text alone, or the recipe says something else.

    Example:
        >>> from headrace.preparing.recipes import with_options
        >>> from headrace.samples.recipe import parse_recipe
        >>> options = headrace.preparing.PrepareOptions(output=headrace.preparing.OutputOptions(format="jsonl"))
        >>> with_options(parse_recipe("{type: seq, inputs: a.jsonl}"), options).output.format
        'jsonl'
    """
    for group in ("records", "tokens", "filters"):
        for name in _given(options, group, given):
            if name in _INSTEAD:
                raise ConfigError(f"`{name}` is for text, not for a recipe: {_INSTEAD[name]}")
    for group in ("output", "errors"):
        part, values = getattr(recipe, group), _given(options, group, given)
        for name, value in values.items():
            found, default = getattr(part, name), getattr(type(part)(), name)
            if found not in (default, value):
                raise ConfigError(
                    f"the recipe says {group}.{name}: {found}, but the options say {value}: set it in one place"
                )
        recipe = msgspec.structs.replace(recipe, **{group: msgspec.structs.replace(part, **values)})
    return recipe


def recipe_options(recipe: Recipe, options: PrepareOptions) -> PrepareOptions:
    """Return the options of a run of a recipe: whole records are read, and the recipe decides output and errors."""
    return msgspec.structs.replace(
        options,
        records=msgspec.structs.replace(options.records, fields=()),
        tokens=msgspec.structs.replace(options.tokens, special_tokens_in_text="encode"),
        output=OutputOptions(format=recipe.output.format, shard_tokens=recipe.output.shard_tokens),
        errors=ErrorOptions(on_error=recipe.errors.on_error, max_errors=recipe.errors.max_errors),
    )


def _given(options: PrepareOptions, group: str, given: Collection[str]) -> dict[str, Any]:
    """The options of a group that were given, by their names."""
    values, default = msgspec.structs.asdict(getattr(options, group)), getattr(PrepareOptions(), group)
    return {name: value for name, value in values.items() if name in given or value != getattr(default, name)}
