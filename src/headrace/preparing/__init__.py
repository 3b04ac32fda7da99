"""Prepares stores offline from text, records and media. This room does not import torch.

    sources        files, folders, globs -> files -> spans -> blocks of records, for every format
    backends       texts -> ids: tokenizers, and faster libraries that are proved equal to it
    run_plan       files and options -> tasks, setup of the workers                         pure
      worker       spans -> blocks -> documents -> a part                                    in the workers
      parts        documents on their way to the output
    duplicates     documents whose texts are the same, found by tasks
    cutting        parts -> which documents make up which shard, ledger, table of origins
    joining        documents of parts -> a shard
    tally          the counts of a block, a part and a run, up to the ledger of the manifest
    output_folder  puts all files into the output folder, at once or not at all; output_url the same at a URL
    text_job       all of that as phases of tasks, which any process may do, see ``headrace.engine``
    api            the whole way: prepare_text, and estimate_text for a sample
    estimate       a sample of the inputs -> what a run would write

`prepare_recipe` and `estimate_recipe` run a recipe in the same way. These files belong to recipes alone:

    recipes        recipe -> files, layouts, template, keys, end tokens, the library -> run_plan
      record_encoder   whole records -> documents of several keys, by ``headrace.samples``      in the workers
    columns        the keys of a document, and its domain

`choosing` is `headrace.prepare`, which calls one of these functions by what it is given.

`shards` writes media files, and tables that name them, into tar shards, with the same workers, folder and table of
origins. `energon` makes a dataset for Energon out of a folder of tars.

This room imports ``headrace.engine``, ``headrace.samples``, ``headrace.plan``, ``headrace.stores``, ``headrace.io`` and
``headrace.errors``.
Workers of runs over text load nothing of ``headrace.samples``, and their parent only ``text_ends``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.preparing.api import estimate_text, plan_text, prepare_text
    from headrace.preparing.choosing import prepare
    from headrace.preparing.energon import plan_energon, prepare_energon
    from headrace.preparing.estimate import Estimate
    from headrace.preparing.filters import FilterSpec
    from headrace.preparing.options import ErrorOptions, OutputOptions, RecordOptions, TextOptions, TokenOptions
    from headrace.preparing.recipes import RecipeOptions, estimate_recipe, plan_recipe, prepare_recipe, read_recipe
    from headrace.preparing.shards import ShardOptions, estimate_shards, plan_shards, prepare_shards

_HOMES = {
    "ErrorOptions": "headrace.preparing.options",
    "Estimate": "headrace.preparing.estimate",
    "FilterSpec": "headrace.preparing.filters",
    "OutputOptions": "headrace.preparing.options",
    "RecipeOptions": "headrace.preparing.recipes",
    "RecordOptions": "headrace.preparing.options",
    "ShardOptions": "headrace.preparing.shards",
    "TextOptions": "headrace.preparing.options",
    "TokenOptions": "headrace.preparing.options",
    "estimate_recipe": "headrace.preparing.recipes",
    "estimate_shards": "headrace.preparing.shards",
    "estimate_text": "headrace.preparing.api",
    "plan_energon": "headrace.preparing.energon",
    "plan_recipe": "headrace.preparing.recipes",
    "plan_shards": "headrace.preparing.shards",
    "plan_text": "headrace.preparing.api",
    "prepare": "headrace.preparing.choosing",
    "prepare_energon": "headrace.preparing.energon",
    "prepare_recipe": "headrace.preparing.recipes",
    "prepare_shards": "headrace.preparing.shards",
    "prepare_text": "headrace.preparing.api",
    "read_recipe": "headrace.preparing.recipes",
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
    "TokenOptions",
    "estimate_recipe",
    "estimate_shards",
    "estimate_text",
    "plan_energon",
    "plan_recipe",
    "plan_shards",
    "plan_text",
    "prepare",
    "prepare_energon",
    "prepare_recipe",
    "prepare_shards",
    "prepare_text",
    "read_recipe",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
