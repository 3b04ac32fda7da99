"""A call of a hook: its place, its seed, and what the hook can ask about it."""

from __future__ import annotations

from contextvars import ContextVar
from functools import lru_cache
from typing import Final, NamedTuple

from headrace.errors import ConfigError
from headrace.plan.keys import derive

STAGES: Final = {
    name: number
    for number, name in enumerate(
        (
            "cook",
            "encode",
            "select_samples_to_pack",
            "postencode_sample",
            "pack_selected_samples",
            "batch_group_criterion",
            "batch",
            "encode_batch",
            "sample_length",
        )
    )
}
"""A number for each hook, so that each has random numbers of its own. The numbers are part of the order."""


class CallKey(NamedTuple):
    """The place of a call: all that its random numbers depend on, apart from the hook.

    Attributes:
        key: 64 bits, from seed, source and epoch.
        position: the position of the sample, or of the first of several; below 2^63.
        output: the number of the output of the sample.
        part: the number of the pack, if several begin with this output.
    """

    key: int
    position: int
    output: int = 0
    part: int = 0


def seed_of(place: CallKey, stage: str, number: int = 0) -> int:
    """Return 64 bits for a call; ``number`` counts the outputs of a generator."""
    outputs = ((place.output << 20) + place.part << 20) + number
    return derive(_stage_key(place.key, stage), place.position, outputs)


@lru_cache(maxsize=1024)
def _stage_key(key: int, stage: str) -> int:
    """Return the part of the seed that is the same for all samples of a source."""
    return derive(key, STAGES[stage])


class Call(NamedTuple):
    """A call of a hook: what the hook may ask about it. ``number`` counts the outputs of a generator."""

    place: CallKey
    stage: str
    is_batch: bool = False
    number: int = 0

    @property
    def seed(self) -> int:
        """64 bits of its own."""
        return seed_of(self.place, self.stage, self.number)


CALL: ContextVar[Call | None] = ContextVar("headrace_call", default=None)
"""The call that runs in this thread. It is ambient, since Energon's encoders ask for it by themselves, as in
``self.current_seed``. The encoder cannot hold it: several threads call hooks of one encoder, and an
`AugmentTaskEncoder` wraps another one. Only `EncoderPipeline` sets it, and only `TaskEncoder` asks for it."""


def current(what: str) -> Call:
    """Return the call that is running. Raises ConfigError if there is none."""
    call = CALL.get()
    if call is None:
        raise ConfigError(f"{what} is known only within a hook of a task encoder, while a pipeline calls it")
    return call
