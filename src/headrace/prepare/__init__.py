"""Prepares stores offline from text, records and media. This room does not import torch.

    sources        files, folders, globs -> files -> spans -> blocks of records, for every format
    backends       texts -> ids: tokenizers, and faster libraries that are proved equal to it
    run_plan       files and options -> tasks, setup of the workers                         pure
    executor       tasks -> worker processes -> results in order
      worker       spans -> blocks -> documents -> pieces on disk                            \\
      buckets      a bucket of a shuffled run -> a sorted piece                               | in the workers
    committer      pieces -> shards or buckets, ledger, table of origins, checkpoints
    output_folder  moves all files into the output folder, at once or not at all
    api            the whole way: prepare_text
    estimate       the same for a sample: estimate_text

`prepare_recipe` and `estimate_recipe` run a recipe in the same way. These files belong to recipes alone:

    resolving      recipe -> files, layouts, template, keys, the library -> run_plan
      record_encoder   whole records -> documents of several keys, by ``headrace.samples``      in the workers
    columns        the keys of a document, and its domain

`shards` writes media files, and tables that name them, into tar shards, with the same workers, folder and table of
origins. `energon` makes a dataset for Energon out of a folder of tars.

This room imports ``headrace.samples``, ``headrace.plan``, ``headrace.stores``, ``headrace.io`` and ``headrace.errors``.
Runs over text load nothing of ``headrace.samples``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.prepare.api import RecipeOptions, estimate_recipe, prepare_recipe, prepare_text
    from headrace.prepare.energon import prepare_energon
    from headrace.prepare.estimate import Estimate, estimate_text
    from headrace.prepare.filters import FilterSpec
    from headrace.prepare.options import ErrorOptions, OutputOptions, RecordOptions, TextOptions, TokenOptions
    from headrace.prepare.run_plan import TextProgress
    from headrace.prepare.shards import ShardOptions, estimate_shards, prepare_shards

_HOMES = {
    "ErrorOptions": "headrace.prepare.options",
    "Estimate": "headrace.prepare.estimate",
    "FilterSpec": "headrace.prepare.filters",
    "OutputOptions": "headrace.prepare.options",
    "RecipeOptions": "headrace.prepare.api",
    "RecordOptions": "headrace.prepare.options",
    "ShardOptions": "headrace.prepare.shards",
    "TextOptions": "headrace.prepare.options",
    "TextProgress": "headrace.prepare.run_plan",
    "TokenOptions": "headrace.prepare.options",
    "estimate_recipe": "headrace.prepare.api",
    "estimate_shards": "headrace.prepare.shards",
    "estimate_text": "headrace.prepare.estimate",
    "prepare_energon": "headrace.prepare.energon",
    "prepare_recipe": "headrace.prepare.api",
    "prepare_shards": "headrace.prepare.shards",
    "prepare_text": "headrace.prepare.api",
}

__all__ = [
    "ErrorOptions",
    "Estimate",
    "FilterSpec",
    "OutputOptions",
    "RecipeOptions",
    "RecordOptions",
    "ShardOptions",
    "TextOptions",
    "TextProgress",
    "TokenOptions",
    "estimate_recipe",
    "estimate_shards",
    "estimate_text",
    "prepare_energon",
    "prepare_recipe",
    "prepare_shards",
    "prepare_text",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
