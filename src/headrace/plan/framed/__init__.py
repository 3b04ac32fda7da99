"""Framed runs, for sources whose lengths or groups are known only while running.

The positions of a run are divided over lanes, which are independent of each other. A lane encodes its samples frame by
frame (a frame is a stretch of its positions) and forms units, such as packs, from the outputs:

    positions --- Lanes ---> the frames of each lane --- find ---> Items --- plan_frame ---> units, and a carry
                                                                       Singles, ShuffleBuffer, Grouping,
                                                                       Packing, Selected

    unit u of lane l is unit number u * num_lanes + l of the run; Walk returns any of them from the states of the lanes

Items that fit into no unit are carried into the next frame. Nothing is dropped: an item is in a unit of its own frame
or of one of the four after it. The state of a lane is its place and the numbers of the items that it carries, some
dozens of bytes. A resumed lane encodes only one frame and its carried items again.

May import: plan, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
