"""Merge, convert and split stores. Every document of the output is a whole document of a source.

    tools         merge, convert, split          check the arguments, and run the steps below
    formats       CopyOptions, FORMATS           what the caller may choose; the formats and dtypes that can be written
    sources       open_sources(paths)            -> StoreSource, ...: documents, lengths, rows, hashes of files
    plan          ranges of documents            -> FolderPlan, ...: stores of shards of ranges of documents
    orders        ordered(request) -> CopyOrder  everything that decides a copy; reports
    jobs          CopyJobPlan, CopyJob           a task for each shard, done here or by processes on any hosts
                  Copier(order, sources)         -> a shard, which is read back and compared; the manifests

The output appears as that of a run which prepares, see ``headrace.preparing.outputs.folder``.
All three tools copy ordered ranges of documents. The manifest keeps the ranges, so that each document of a copy can be
traced to its source. Memory does not depend on the number of documents, but the longest document must fit.
This package imports ``preparing``, ``engine``, ``stores``, ``plan``, ``io`` and ``errors``.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
