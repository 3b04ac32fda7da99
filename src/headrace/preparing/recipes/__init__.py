"""Make a store of the records of a recipe, whatever their layouts. This package belongs to recipes alone.

inputs          the recipe, from a file or a URL -> files, the first records of each input, layouts
first_records   makes samples of the first records, so that a recipe that cannot be followed fails at once, and
                proves the library that encodes on their texts
resolving       all of this, tokeniser, template, keys and end tokens -> run_plan
api             the whole way: `prepare_recipe`, `plan_recipe` for a job, and `estimate_recipe` for a sample
"""

from __future__ import annotations

from headrace.preparing.recipes.api import RecipeOptions, estimate_recipe, plan_recipe, prepare_recipe
from headrace.preparing.recipes.inputs import read_recipe, with_inputs
from headrace.preparing.recipes.resolving import find_template, find_tokenizer

__all__ = [
    "RecipeOptions",
    "estimate_recipe",
    "find_template",
    "find_tokenizer",
    "plan_recipe",
    "prepare_recipe",
    "read_recipe",
    "with_inputs",
]
