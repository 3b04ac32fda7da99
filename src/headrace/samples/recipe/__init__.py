"""Recipes: typed descriptions of how records become a store, read from YAML, JSON or AstrAI's configurations.

recipe.yaml
  -> reading            checks every key and word; an error names the nearest valid one. It translates a configuration
                        of AstrAI, and refuses values that contradict each other
  -> recipe             `Recipe`, a frozen struct and the only place of the defaults; the keys of the store
"""

from __future__ import annotations

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
    StoreKey,
    TemplateSpec,
    TrainType,
    store_keys,
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
