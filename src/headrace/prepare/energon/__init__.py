"""Tars -> an Energon dataset, in place: what training needs to find a sample, and what else Energon looks up.

    finding      the tars of a folder, in Energon's order
    state        which of them an earlier run has read, and are as they were
    worker       the others, in processes          scanning: headers -> one file a shard; media: their facts
    run          all of these in their order
      committer  -> index.sqlite
      finishing  -> split.yaml, dataset.yaml, .info.json        splitting: which shard is train, val, test     pure
      work       the hidden folder of a run; new files appear at once, or after a kill by the next run
    media_files  a folder of plain files: facts of its media
    metadataset  the joins that a metadataset names

`api` has `prepare_energon`.
"""

from __future__ import annotations

from headrace.prepare.energon.options import DatasetChoice, EnergonOptions, MediaFilter, SplitChoice
from headrace.prepare.energon.report import DuplicateKey, EnergonProgress, EnergonReport
from headrace.prepare.energon.run import prepare_energon

__all__ = [
    "DatasetChoice",
    "DuplicateKey",
    "EnergonOptions",
    "EnergonProgress",
    "EnergonReport",
    "MediaFilter",
    "SplitChoice",
    "prepare_energon",
]
