"""Sources -> store, offline: everything that happens to text before training. No torch.

    inputs         files, folders, globs -> files in a defined order
    tasks          sizes -> byte ranges, a task each                    pure
    executor       tasks -> worker processes -> results in order
      lines        byte range -> whole lines                            \\
      records      line -> text                                          |  in the workers
      text_task    texts -> ids -> a part on disk                       /
    ledger         what was read = what was kept
    output_folder  parts -> store and manifest, at once or not at all
    text           all of it: prepare_text

This room imports ``headrace.stores``, ``headrace.io`` and ``headrace.errors``.
"""

from __future__ import annotations

from headrace.prepare.options import TextOptions
from headrace.prepare.text import TextProgress, prepare_text

__all__ = ["TextOptions", "TextProgress", "prepare_text"]
