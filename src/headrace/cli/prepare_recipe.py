"""``headrace prepare --recipe``: what the command line may say besides the recipe, and how the two go together."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.prepare import RecipeOptions
    from headrace.samples.recipe import Recipe

INSTEAD = {
    "fields": ("--field", "`fields:` of the input gives fields their names"),
    "join": ("--join", "`sections:` puts fields together"),
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
"""Options that are for texts, and what a recipe says in their place."""

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
    """The recipe in a file, with what the command line says of output and errors.

    Args:
        path: of the recipe.
        given: all options.
        named: those that were really given.
        tokenizer: as given.

    Raises:
        ConfigError: the recipe cannot be, an option is for texts, or the two contradict each other.
    """
    import msgspec

    from headrace.samples.recipe import load_recipe, with_now

    for name, (option, instead) in INSTEAD.items():
        if name in named:
            raise ConfigError(f"{option} is for texts, and {path} is a recipe: {instead}")
    recipe = load_recipe(path)
    if tokenizer is not None and recipe.tokenizer not in (None, tokenizer):
        raise ConfigError(f"{path} says tokenizer: {recipe.tokenizer}, --tokenizer says {tokenizer}: say one of them")
    values = {name: given[name] for name in _PLACES if name in named}
    if "single" in named:
        values["shard_tokens"] = None
    for name, value in values.items():
        part = getattr(recipe, _PLACES[name])
        found, default = getattr(part, name), getattr(type(part)(), name)
        if found not in (default, value):
            raise ConfigError(
                f"{path} says {_PLACES[name]}.{name}: {found}, the command line says {value}: say it in one place"
            )
        recipe = msgspec.structs.replace(recipe, **{_PLACES[name]: msgspec.structs.replace(part, **{name: value})})
    if given["now"] is not None:
        recipe = with_now(recipe, given["now"], path)
    if "max_errors" in named and recipe.errors.on_error != "skip":
        raise ConfigError("--max-errors needs --on-error skip: without it the first bad record ends the run")
    return recipe


def options(given: dict[str, Any], named: Collection[str]) -> RecipeOptions:
    """What the recipe does not say."""
    from headrace.prepare import RecipeOptions

    return RecipeOptions(**{name: given[name] for name in _OPTIONS if name in named})


def lines(samples: Any, dtypes: dict[str, str]) -> list[tuple[str, str]]:
    """What a run of a recipe tells people besides documents: names and values."""
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
