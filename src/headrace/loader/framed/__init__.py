"""Framed runs in the loader: each lane has a state of its own, and is made by one reader of one rank.

    FramedRun --> BatchParts, assigned to readers by their lanes --> LaneReader, in process, threads or workers
                                                                       |
    batches, in order <-- put together <-- PartMessage: samples or a batch, and how far its lanes have come
                                                                       |
                                                         LaneHistory: the state of each lane after any batch

A rank saves the lanes that it serves. `merge_state_dicts` merges the states of all ranks into one that any number of
ranks loads.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
