"""Make a store of the records of a recipe, whatever their layouts. This package belongs to recipes alone.

inputs      the recipe, from a file or a URL -> files, the first records of each input, layouts
resolving   all of this, tokeniser, template, keys, end tokens, samples of the first records -> run_plan
"""

from __future__ import annotations

from headrace.preparing.recipes.inputs import (
    all_paths,
    read_recipe,
    reads_stdin,
    recipe_options,
    with_inputs,
    with_options,
)
from headrace.preparing.recipes.resolving import find_template, find_tokenizer, resolve

__all__ = [
    "all_paths",
    "find_template",
    "find_tokenizer",
    "read_recipe",
    "reads_stdin",
    "recipe_options",
    "resolve",
    "with_inputs",
    "with_options",
]
