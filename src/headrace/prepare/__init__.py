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

This room imports ``headrace.plan``, ``headrace.stores``, ``headrace.io`` and ``headrace.errors``.
"""

from __future__ import annotations

from headrace.prepare.estimate import Estimate, estimate_text
from headrace.prepare.filters import FilterSpec
from headrace.prepare.options import ErrorOptions, OutputOptions, RecordOptions, TextOptions, TokenOptions
from headrace.prepare.run_plan import TextProgress
from headrace.prepare.text import prepare_text

__all__ = [
    "ErrorOptions",
    "Estimate",
    "FilterSpec",
    "OutputOptions",
    "RecordOptions",
    "TextOptions",
    "TextProgress",
    "TokenOptions",
    "estimate_text",
    "prepare_text",
]
