"""What the plan says: which samples come at positions, when a sample comes, and how long a run is."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.nodes import Declared, Leaf
from headrace.plan.schedule import BatchSchedule

MAX_POSITIONS = 1 << 62


class Lookup(NamedTuple):
    """The samples at some positions; all arrays are (n,), in the order of the positions.

    ``sources`` int64: the numbers of the leaves. ``epochs`` int64: how many passes through the source are complete.
    ``indices`` int64: the sample within the source's dataset. ``keys`` uint64: the key of (seed, path, epoch), from
    which everything else that is random in a sample is drawn.
    """

    sources: IntArray
    epochs: IntArray
    indices: IntArray
    keys: KeyArray


class SampleTimes(NamedTuple):
    """The positions at which a sample comes, (n,) int64, rising, and the epoch of its source at each, (n,) int64."""

    positions: IntArray
    epochs: IntArray


def run_length(
    root: Declared, schedule: BatchSchedule, *, epochs: int | None, samples: int | None, drop_last: bool
) -> int | None:
    """Return how many samples a run feeds: ``epochs`` passes, or ``samples``; None for a run without an end.

    If neither is given, a mix that ends is fed for one pass, and all else goes on without end. With ``drop_last``,
    samples of a last step that is short are left out.

    Raises:
        ConfigError: both are given, the plan has no end and ``epochs`` is given, or no samples are left.
    """
    if epochs is not None and samples is not None:
        raise ConfigError("epochs and samples are both given: a run is measured in one of them")
    one_pass = root.num_samples
    if epochs is not None and one_pass is None:
        raise ConfigError("an endless blend has no epochs: pass samples, or give the blend an end")
    if epochs is not None and one_pass is not None:
        length = epochs * one_pass
    elif samples is not None:
        length = samples
    elif one_pass is not None and not isinstance(root, Leaf):
        length = one_pass
    else:
        return None
    if drop_last:
        length = schedule.begin(schedule.step_of(length))
    if length < 1:
        raise ConfigError(
            f"a run of {epochs if samples is None else samples} "
            f"{'epochs' if samples is None else 'samples'} with drop_last={drop_last} has no samples to feed"
        )
    return length
