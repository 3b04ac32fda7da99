"""Where a framed run ends: after the last step in which any lane has a unit.

How many units a lane has shows when its last frame is planned, and lanes end at different ones. A step is there for all
ranks if it is for one, so they agree on it where the first of them does not know: each then says up to which step it
has units for sure, and all go on to the highest. That is one exchange of 8 bytes about every frame of a lane, at the
same micro-step on all ranks.

    rank 0 has units up to step 7 at least     |  both ask after step 9   |  0: up to 12     both ask after 12
    rank 1                           9         |                          |  1: up to 9      nobody has more: the end
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.encoders import FaultLog
from headrace.loader.spans import Batch


class Made(NamedTuple):
    """A micro-batch of a step, of how many units, the position after it, and what failed in it, if anything."""

    batch: Batch
    num_units: int
    step: int
    after: int
    faults: FaultLog | None = None


def up_to_the_end(
    made: Iterator[Made], last_step: int, known_step: Callable[[], int], agreed: Callable[[int], int]
) -> Iterator[Made]:
    """The micro-batches of the steps that there are.

    Args:
        made: all, without an end, empty where nothing is left.
        last_step: the step up to which it is known that there are units, -1 for none.
        known_step: the same of this rank, by now.
        agreed: the highest that any rank knows.
    """
    held: deque[Made] = deque()
    while held or _read_on(made, held):
        step = held[0].step
        if step > last_step:
            # What is asked for here is handed over next, or not at all; so nothing is read in vain but at the end.
            while held[-1].step == step and not held[-1].num_units and _read_on(made, held):
                pass
            last_step = agreed(max(last_step, known_step()))
            if step > last_step:
                return
        yield held.popleft()


def _read_on(made: Iterator[Made], held: deque[Made]) -> bool:
    one = next(made, None)
    if one is not None:
        held.append(one)
    return one is not None
