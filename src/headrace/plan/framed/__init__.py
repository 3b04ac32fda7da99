"""Framed runs, for sources whose lengths or groups are known only while running.

The positions of a run are divided over lanes, which are independent of each other. A lane encodes its samples frame by
frame (a frame is a stretch of its positions) and forms units, such as packs, from the outputs:

    positions --- Lanes ---> the frames of each lane --- find ---> Items --- plan_frame ---> units, and a carry
                                                                       Singles, ShuffleBuffer, GroupBatches,
                                                                       BestFit, Selected, HookPacks

    unit u of lane l is unit number u * num_lanes + l of the run; Walk returns any of them from the states of the lanes

Items that fit into no unit are carried into the next frame. Nothing is dropped: an item is in a unit of its own frame
or of one of the four after it. The state of a lane is its place and the numbers of the items that it carries, some
dozens of bytes. A resumed lane encodes only one frame and its carried items again.

May import: plan, errors.
"""

from headrace.plan.framed.forms import (
    BestFit,
    Count,
    Find,
    Formed,
    Frame,
    FramedForm,
    FrameTotals,
    GroupBatches,
    HookPacks,
    Items,
    Select,
    Selected,
    ShuffleBuffer,
    Singles,
)
from headrace.plan.framed.lanes import (
    FRAMED_FORMAT,
    OLDEST,
    Framing,
    Lane,
    Lanes,
    LaneState,
    Serving,
    Unit,
    Walk,
    beginning,
    lanes_key,
    plan_frame,
    served_lanes,
    serving,
)
from headrace.plan.framed.state import (
    Journal,
    journal_record,
    lanes_in,
    merge_states,
    states_from_bytes,
    states_from_dict,
    states_to_bytes,
    states_to_dict,
    whole_bytes,
)

__all__ = [
    "FRAMED_FORMAT",
    "OLDEST",
    "BestFit",
    "Count",
    "Find",
    "Formed",
    "Frame",
    "FrameTotals",
    "FramedForm",
    "Framing",
    "GroupBatches",
    "HookPacks",
    "Items",
    "Journal",
    "Lane",
    "LaneState",
    "Lanes",
    "Select",
    "Selected",
    "Serving",
    "ShuffleBuffer",
    "Singles",
    "Unit",
    "Walk",
    "beginning",
    "journal_record",
    "lanes_in",
    "lanes_key",
    "merge_states",
    "plan_frame",
    "served_lanes",
    "serving",
    "states_from_bytes",
    "states_from_dict",
    "states_to_bytes",
    "states_to_dict",
    "whole_bytes",
]
