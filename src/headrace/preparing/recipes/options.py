"""Options for a run with a recipe: which the recipe decides itself, and which stand in either of the two."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from headrace.errors import ConfigError
from headrace.preparing.options import ErrorOptions, OutputOptions, PrepareOptions
from headrace.samples.recipe import Recipe

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
