"""What is asked for, typed: a file of YAML or JSON -> `Recipe`; AstrAI's configurations too.

recipe.yaml
  -> reading, convert   every key and word checked, with the nearest valid one where it is wrong
  -> astrai             a configuration of AstrAI says the same in its own words
  -> check              what contradicts itself is refused
  -> Recipe             frozen; the only place of its defaults
  -> keys               the keys that its store has, and their dtypes
"""

from __future__ import annotations

from headrace.samples.recipe.keys import StoreKey, store_keys
from headrace.samples.recipe.reading import load_recipe, make_recipe, parse_recipe, resolve_layout, with_now
from headrace.samples.recipe.recipe import (
    MAKES,
    EndSpec,
    ErrorSpec,
    InputSpec,
    LengthSpec,
    OutputSpec,
    Recipe,
    RecordFilters,
    Section,
    Source,
    TemplateSpec,
    TrainType,
)

__all__ = [
    "MAKES",
    "EndSpec",
    "ErrorSpec",
    "InputSpec",
    "LengthSpec",
    "OutputSpec",
    "Recipe",
    "RecordFilters",
    "Section",
    "Source",
    "StoreKey",
    "TemplateSpec",
    "TrainType",
    "load_recipe",
    "make_recipe",
    "parse_recipe",
    "resolve_layout",
    "store_keys",
    "with_now",
]
