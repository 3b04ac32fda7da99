"""Stores to stores: merged, converted, split; every document of the output is a document of a source, whole.

    options    CopyOptions                         format, dtypes, shards, what may be lost
    sources    open_sources(paths)              -> Source, Source, ...      documents, lengths, rows, sums of files
    plan       merge, convert, split            -> CopyPlan                 folders of shards of ranges of documents
    copy       plan x sources -> formats        -> shards, in a hidden folder beside the destination
    check      the shards are opened and read back, and compared with what the sources gave
    commit     one rename: the destination is there whole, or as it was

All three tools are one thing, ordered ranges of documents; the manifest keeps the ranges, so that each document leads
back to where it was. Memory does not depend on the number of documents, but holds the longest one.
This room imports ``stores``, ``plan``, ``io`` and ``errors``.
"""

from __future__ import annotations

from headrace.copying.copier import CopiedStore, CopyProgress, CopyReport
from headrace.copying.destination import Destination
from headrace.copying.formats import FORMATS, CopyOptions, FormatName, Shards, SortBy
from headrace.copying.plan import CopiedDocument, copied_documents, is_copy
from headrace.copying.tools import convert, merge, split

__all__ = [
    "FORMATS",
    "CopiedDocument",
    "CopiedStore",
    "CopyOptions",
    "CopyProgress",
    "CopyReport",
    "Destination",
    "FormatName",
    "Shards",
    "SortBy",
    "convert",
    "copied_documents",
    "is_copy",
    "merge",
    "split",
]
