"""``headrace prepare recipe``: its options, and how they are merged with the recipe."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click import Option

from headrace import preparing
from headrace.cli import prepare_options as common
from headrace.cli.command import check_shards, is_given
from headrace.cli.job import ExecutorOptions
from headrace.cli.prepare_text import run
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.samples.recipe import Recipe

_INSTEAD = {
    "--field": "`fields:` of the input gives fields their names",
    "--join": "`sections:` joins fields",
    "--sample-by": "a text file is one record",
    "--append-eod": "`ends: {append_eos: true}`",
    "--eod": "`ends: {eos: TOKEN}`",
    "--bos": "`ends: {bos: auto}`, always, never or a token",
    "--special-tokens-in-text": "`special_tokens_in_text: ...` of the recipe",
    "--min-chars": "`filters: {min_chars: N}`",
    "--max-chars": "`filters: {max_chars: N}`",
    "--min-tokens": "`filters: {min_tokens: N}`",
    "--max-tokens": "`filters: {max_tokens: N}`, or `length: {max_tokens: N}` to cut",
}
"""Options for texts, and what a recipe says instead of each."""

_PLACES = {"format": "output", "shard_tokens": "output", "on_error": "errors", "max_errors": "errors"}
_FROM_COMMAND_LINE = (
    *("id_field", "max_record_bytes", "function", "deduplicate", "backend", "workers", "overwrite"),
    "restart",
)


@click.command(
    cls=common.Subcommand,
    urls=("path", "inputs", "output", "tokenizer"),
    name="recipe",
    short_help="Make samples of records, as a recipe says.",
    what="a recipe",
    instead=_INSTEAD,
    groups={
        "Samples": (
            common.TOKENIZER,
            common.BACKEND,
            Option(["--now"], metavar="TIME", help="The time that the template sees (default: when the run began)."),
        ),
        "Records": (common.ID_FIELD, common.MAX_RECORD_BYTES, common.FILTER, common.DEDUPLICATE),
        "Output": (
            common.OUTPUT,
            Option(
                ["--format"],
                type=click.Choice(["indexed", "keyed", "hdf5", "jsonl"]),
                default="indexed",
                help=".bin and .idx (default: indexed), .bin and meta.json, .h5, or .jsonl.",
            ),
            common.SHARD_TOKENS,
            common.SINGLE,
        ),
        "Errors": (common.ON_ERROR, common.MAX_ERRORS),
        "Run": (common.WORKERS, common.OVERWRITE, common.RESTART, common.DRY_RUN, common.QUIET),
    },
)
@click.argument("path", metavar="RECIPE")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
def command(
    path: str, inputs: tuple[str, ...], output: str | None, tokenizer: str | None, executor: ExecutorOptions,
    dry_run: bool, quiet: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Make samples of records as RECIPE says, a file in YAML or JSON; see docs/recipes.md.

    A recipe names its own inputs, unless INPUT is given: a file, a folder, a glob, a brace pattern, or - for standard
    input. All of these may be URLs; relative paths in a recipe at a URL begin at its folder. The result does not depend
    on the number of workers, and appears whole or not at all. If a run ends early for any reason, the same command
    continues it.
    """

    context = click.get_current_context()
    given = {name: value for name, value in given.items() if is_given(context, name)}
    recipe = _load(path, given, tokenizer)
    options = preparing.RecipeOptions(**{name: given[name] for name in _FROM_COMMAND_LINE if name in given})
    prepare = preparing.prepare_recipe if executor.is_local else preparing.plan_recipe
    run(
        output,
        estimate=lambda: preparing.estimate_recipe(recipe, inputs=inputs, tokenizer=tokenizer, options=options),
        prepare=partial(prepare, recipe, inputs=inputs, tokenizer=tokenizer, options=options),
        options=options,
        executor=executor,
        dry_run=dry_run,
        quiet=quiet,
        as_json=as_json,
    )


def _load(path: str, given: dict[str, Any], tokenizer: str | None) -> Recipe:
    """Load a recipe, and apply the options of the command line about output and errors to it.

    Raises:
        ConfigError: the recipe is invalid, or an option contradicts the recipe.
    """
    import msgspec

    from headrace.samples.recipe import with_now

    if "max_errors" in given:
        given["max_errors"] = common.number_or_share(given["max_errors"])
    check_shards(given)
    recipe = preparing.read_recipe(path)
    if tokenizer is not None and recipe.tokenizer not in (None, tokenizer):
        raise ConfigError(f"{path} says tokenizer: {recipe.tokenizer}, but --tokenizer says {tokenizer}: name only one")
    values = {name: given[name] for name in _PLACES if name in given}
    if "single" in given:
        values["shard_tokens"] = None
    for name, value in values.items():
        part = getattr(recipe, _PLACES[name])
        found, default = getattr(part, name), getattr(type(part)(), name)
        if found not in (default, value):
            raise ConfigError(
                f"{path} says {_PLACES[name]}.{name}: {found}, but the command line says {value}: set it in one place"
            )
        recipe = msgspec.structs.replace(recipe, **{_PLACES[name]: msgspec.structs.replace(part, **{name: value})})
    if "now" in given:
        recipe = with_now(recipe, given["now"], path)
    common.check_skips(given.get("max_errors"), recipe.errors.on_error, "bad record")
    return recipe
