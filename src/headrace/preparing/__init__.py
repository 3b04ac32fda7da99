"""Prepares stores offline from text, records and media. This room does not import torch.

    sources        files, folders, globs -> files -> spans -> blocks of records, for every format
    backends       texts -> ids: tokenizers, and faster libraries that are proved equal to it
    run_plan       files and options -> tasks, setup of the workers                         pure
      worker       spans -> blocks -> documents -> a part                                    in the workers
      parts        documents on their way to the output
    duplicates     documents whose texts are the same, found by tasks
    cutting        parts -> which documents make up which shard, ledger, table of origins
    finishing      documents of parts -> a shard; all shards -> the manifests
    ledger         the counts of a block, a part and a run, up to the ledger of the manifest
    outputs        puts all files into the output folder, at once or not at all; or the same at a URL
    run            the library is proved on the first documents; the plan is written, and done on this host
    text_job       all of that as phases of tasks, which any process may do, see ``headrace.engine``
    api            the whole way: `prepare`; `plan` for a job, and `estimate` for what a run would write

A recipe goes the same way. These files belong to recipes alone:

    recipes        recipe -> files, layouts, template, keys, end tokens, the library -> run_plan
      record_encoder   whole records -> documents of several keys, by ``headrace.samples``      in the workers
    columns        the keys of a document, and its domain

`shards` writes media files, and tables that name them, into tar shards, with the same workers, folder and table of
origins. `energon` makes a dataset for Energon out of a folder of tars.

This room imports ``headrace.engine``, ``headrace.samples``, ``headrace.plan``, ``headrace.stores``, ``headrace.io`` and
``headrace.errors``.
Runs over text load nothing of ``headrace.samples`` but ``tokenizer``.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
