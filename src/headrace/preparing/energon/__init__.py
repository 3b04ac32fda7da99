"""Make a folder of tars an Energon dataset, in place: write the indices and settings that Energon and training need.

options      what the caller may choose, with the defaults
job          `prepare_energon` and `plan_energon`, which write a plan
  plan       what is read: the shards that are new or have changed, or files of media; a task reads some of them
    scanning   finds the tars of a folder, in Energon's order, and reads the headers of each
               metadata of images, video and sound, in tars or in plain files
    state      what earlier runs recorded, to find the shards that have not changed; what a run returns
             the end makes the new files, and puts them into place
    merging    index, split file, dataset.yaml, state and info
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
