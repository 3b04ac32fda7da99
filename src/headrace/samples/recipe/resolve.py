"""The layout of an input that the recipe leaves open, from its first records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import ConfigError
from headrace.samples.layouts import NUM_RECORDS, Recognised, recognise, without_nulls
from headrace.samples.recipe.check import check_recipe
from headrace.samples.recipe.recipe import AUTO, MAKES, Recipe


def resolve_layout(
    recipe: Recipe, records: Sequence[Mapping[str, Any]], *, source: int = 0
) -> tuple[Recipe, Recognised | None]:
    """The recipe with the layout of input number ``source`` said, and what was found; None where nothing was open.

    Raises:
        ConfigError: none fits all of the first records, or several do.
    """
    spec = recipe.inputs[source]
    if recipe.by_sections or spec.layout != AUTO:
        return recipe, None
    first = records[:NUM_RECORDS]
    if spec.drop_nulls:
        first = [without_nulls(record) for record in first]
    try:
        found = recognise(first, spec.options, makes=MAKES[recipe.type])
    except ConfigError as error:
        raise ConfigError(f"inputs[{source}], for type {recipe.type}: {error}") from None
    inputs = list(recipe.inputs)
    inputs[source] = msgspec.structs.replace(spec, layout=found.layout)
    recipe = msgspec.structs.replace(recipe, inputs=tuple(inputs))
    check_recipe(recipe)
    return recipe, found
