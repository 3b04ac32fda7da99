"""The states of the ranks of a framed run, made into one that any topology loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import StateError
from headrace.loader.exchange import all_gathered_texts, is_alone
from headrace.plan import Cursor
from headrace.plan.framed import lanes_in, merge_states, states_from_dict, states_to_dict


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of a run from those that its ranks saved after the same micro-step, in any order.

    States of a `headrace.Run` are the same on all ranks, and so is the result.

    Raises:
        StateError: there are none; they are of different runs or positions; a lane is in none of them.
    """
    if not states:
        raise StateError("there are no saved states to merge: give those of all ranks")
    cursors = [Cursor.from_dict(state) for state in states]
    first = msgspec.structs.replace(cursors[0], lanes=())
    for number, cursor in enumerate(cursors):
        if msgspec.structs.replace(cursor, lanes=()) != first:
            raise StateError(
                f"saved state {number} is of step {cursor.step:,} and position {cursor.position:,}, and the first one "
                f"of step {first.step:,} and position {first.position:,}, or they are of different runs: merge what "
                "the ranks of one run saved at one moment"
            )
    found = [cursor.lanes[0] for cursor in cursors if cursor.lanes]
    if not found:
        return first.to_dict()
    lanes = lanes_in(found[0])
    merged = merge_states((states_from_dict(one, lanes) for one in found), lanes, number=first.position)
    return msgspec.structs.replace(first, lanes=(states_to_dict(merged, lanes),)).to_dict()


def gathered_state(state: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """The merged state of all ranks, on every one of them: two all-gathers, of 8 bytes and of the states.

    Raises:
        StateError: there are other ranks, and no process group; what `merge_state_dicts` raises.
    """
    if world_size > 1 and is_alone():
        raise StateError(
            f"there are {world_size} ranks and no process group over which to gather their states: save the "
            "state_dict() of every rank, and merge them with headrace.loader.merge_state_dicts"
        )
    return merge_state_dicts([msgspec.json.decode(one) for one in all_gathered_texts(msgspec.json.encode(state))])
