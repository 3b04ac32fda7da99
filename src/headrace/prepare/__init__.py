"""Sources -> store, offline: everything that happens to text before training. No torch.

    sources        files, folders, globs -> files -> spans -> blocks of records, for every format
    backends       texts -> ids: tokenizers, and faster libraries behind a proof
    run_plan       files and options -> tasks, setup of the workers                         pure
    executor       tasks -> worker processes -> results in order
      text_task    spans -> blocks -> documents -> pieces on disk                            \\
      buckets      a bucket of a shuffled run -> a sorted piece                               | in the workers
    taking         pieces -> shards or buckets, ledger, table of origins, checkpoints
    output_folder  all of it -> the folder, at once or not at all
    text           the whole: prepare_text
    estimate       a sample of it: estimate_text

A recipe is run in the same way: `prepare_recipe`, `estimate_recipe`. What is its own:

    resolving      recipe -> files, layouts, template, keys, the library -> run_plan
      record_encoder   whole records -> documents of several keys, by ``headrace.samples``      in the workers
    columns        the keys of a document, and its domain

This room imports ``headrace.samples``, ``headrace.plan``, ``headrace.stores``, ``headrace.io`` and ``headrace.errors``;
runs over text load nothing of the first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.prepare.estimate import Estimate, estimate_text
from headrace.prepare.filters import FilterSpec
from headrace.prepare.options import ErrorOptions, OutputOptions, RecordOptions, TextOptions, TokenOptions
from headrace.prepare.run_plan import TextProgress
from headrace.prepare.text import prepare_text

if TYPE_CHECKING:
    from headrace.prepare.recipe import RecipeOptions, estimate_recipe, prepare_recipe

_LAZY = ("RecipeOptions", "estimate_recipe", "prepare_recipe")

__all__ = [
    "ErrorOptions",
    "Estimate",
    "FilterSpec",
    "OutputOptions",
    "RecipeOptions",
    "RecordOptions",
    "TextOptions",
    "TextProgress",
    "TokenOptions",
    "estimate_recipe",
    "estimate_text",
    "prepare_recipe",
    "prepare_text",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'headrace.prepare' has no attribute {name!r}")
    value = getattr(import_module("headrace.prepare.recipe"), name)
    globals()[name] = value
    return value
