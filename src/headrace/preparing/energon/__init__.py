"""Make a folder of tars an Energon dataset, in place: write the indices and settings that Energon and training need.

options      what the caller may choose, with the defaults
scanning     finds the tars of a folder, in Energon's order, and reads the headers of each
state        what earlier runs recorded, to find the shards that have not changed
media        metadata of images, video and sound, in tars or in plain files
work         the hidden folder of a run, and the worker processes that read shards
objects      the same for a dataset at a URL, which is read in threads, and whose files are uploaded
run          `prepare_energon`, and the steps of a run in their order; `plan_energon`
  job        the same, with shards that processes on any hosts read
  committer  writes the shards into index.sqlite
  finishing  writes split.yaml, dataset.yaml and .info.json; all new files appear together, or after a kill by the
             next run
report       what a run returns; checks that the field map fits the samples
metadataset  makes the indices of the joins in a metadataset
"""

from __future__ import annotations

from headrace.preparing.energon.options import DatasetChoice, EnergonOptions, MediaFilter, SplitChoice
from headrace.preparing.energon.report import DuplicateKey, EnergonProgress, EnergonReport
from headrace.preparing.energon.run import plan_energon, prepare_energon

__all__ = [
    "DatasetChoice",
    "DuplicateKey",
    "EnergonOptions",
    "EnergonProgress",
    "EnergonReport",
    "MediaFilter",
    "SplitChoice",
    "plan_energon",
    "prepare_energon",
]
