"""Sources whose facts are known only while running: lanes that form their units frame by frame, alone.

    positions --- Lanes ---> the frames of each lane --- find ---> Items --- Form, plan_frame ---> units, and a carry
                                                                       Singles, ShuffleBuffer, GroupBatches,
                                                                       BestFit, Selected

    unit u of lane l is number u * num_lanes + l of the run; Walk gives any of them from the states of the lanes

Nothing is dropped: an item is in a unit of its frame or of one of the four after it. What a lane keeps is where it is
and what it carries on, some dozens of bytes; a resumed lane encodes one frame and its carry again.

May import: plan, errors.
"""

from headrace.plan.framed.form import Count, Counted, Find, Form, Formed, Frame, Items, plan_frame
from headrace.plan.framed.forms import BestFit, GroupBatches, Select, Selected, ShuffleBuffer, Singles
from headrace.plan.framed.lane import FrameTotals, Framing, Lane, Unit, Walk
from headrace.plan.framed.lanes import FRAMED_FORMAT, OLDEST, Lanes, Serving, lanes_key, served_lanes, serving
from headrace.plan.framed.state import (
    Journal,
    LaneState,
    beginning,
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
    "Counted",
    "Find",
    "Form",
    "Formed",
    "Frame",
    "FrameTotals",
    "Framing",
    "GroupBatches",
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
