"""``headrace prepare --recipe``: merges the options of the command line with the recipe."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.preparing import RecipeOptions
    from headrace.samples.recipe import Recipe

INSTEAD = {
    "fields": ("--field", "`fields:` of the input gives fields their names"),
    "join": ("--join", "`sections:` joins fields"),
    "sample_by": ("--sample-by", "a text file is one record"),
    "append_eod": ("--append-eod", "`ends: {append_eos: true}`"),
    "eod": ("--eod", "`ends: {eos: TOKEN}`"),
    "prepend_bos": ("--prepend-bos", "`ends: {prepend_bos: true}`"),
    "bos": ("--bos", "`ends: {bos: TOKEN}`"),
    "special_tokens_in_text": ("--special-tokens-in-text", "templates write special tokens, which are encoded as such"),
    "min_chars": ("--min-chars", "`filters: {min_chars: N}`"),
    "max_chars": ("--max-chars", "`filters: {max_chars: N}`"),
    "min_tokens": ("--min-tokens", "`filters: {min_tokens: N}`"),
    "max_tokens": ("--max-tokens", "`filters: {max_tokens: N}`, or `length: {max_tokens: N}` to cut"),
}
"""Options for texts, and what a recipe says instead of each."""

_PLACES = {"format": "output", "shard_tokens": "output", "on_error": "errors", "max_errors": "errors"}
_OPTIONS = (
    "id_field",
    "max_record_bytes",
    "function",
    "deduplicate",
    "shuffle",
    "backend",
    "workers",
    "overwrite",
    "restart",
)


def load(path: str, given: dict[str, Any], named: Collection[str], tokenizer: str | None) -> Recipe:
    """Load a recipe, and apply the options of the command line about output and errors to it.

    Args:
        path: the file of the recipe.
        given: the values of all options.
        named: the options that the user gave on the command line.
        tokenizer: the value of ``--tokenizer``.

    Raises:
        ConfigError: the recipe is invalid, an option is for texts, or an option contradicts the recipe.
    """
    import msgspec

    from headrace.samples.recipe import load_recipe, with_now

    for name, (option, instead) in INSTEAD.items():
        if name in named:
            raise ConfigError(f"{option} is for texts, and {path} is a recipe: {instead}")
    recipe = load_recipe(path)
    if tokenizer is not None and recipe.tokenizer not in (None, tokenizer):
        raise ConfigError(f"{path} says tokenizer: {recipe.tokenizer}, but --tokenizer says {tokenizer}: name only one")
    values = {name: given[name] for name in _PLACES if name in named}
    if "single" in named:
        values["shard_tokens"] = None
    for name, value in values.items():
        part = getattr(recipe, _PLACES[name])
        found, default = getattr(part, name), getattr(type(part)(), name)
        if found not in (default, value):
            raise ConfigError(
                f"{path} says {_PLACES[name]}.{name}: {found}, but the command line says {value}: set it in one place"
            )
        recipe = msgspec.structs.replace(recipe, **{_PLACES[name]: msgspec.structs.replace(part, **{name: value})})
    if given["now"] is not None:
        recipe = with_now(recipe, given["now"], path)
    if "max_errors" in named and recipe.errors.on_error != "skip":
        raise ConfigError("--max-errors needs --on-error skip: otherwise the first bad record ends the run")
    return recipe


def options(given: dict[str, Any], named: Collection[str]) -> RecipeOptions:
    """Return the options that a recipe does not hold."""
    from headrace.preparing import RecipeOptions

    return RecipeOptions(**{name: given[name] for name in _OPTIONS if name in named})


def lines(samples: Any, dtypes: dict[str, str]) -> list[tuple[str, str]]:
    """Return the lines that the run of a recipe adds to the report, as pairs of name and value."""
    from headrace.inspect.figures import count

    pairs = []
    for key, tokens in samples.keys.items():
        kept = f"{count(tokens.kept)} ({dtypes.get(key, '')})"
        if tokens.truncated:
            kept += f", {count(sum(tokens.truncated.values()))} cut off"
        if tokens.dropped:
            kept += f" ({', '.join(f'{name} {count(number)}' for name, number in tokens.dropped.items())} dropped)"
        pairs.append((key, kept))
    total = sum(tokens.kept for tokens in samples.keys.values())
    if samples.supervised:
        pairs.append(("trained", f"{count(samples.supervised)} ({samples.supervised / max(total, 1):.1%})"))
    pairs += [(name.replace("_", " "), count(number)) for name, number in samples.notes.items()]
    return pairs
