"""The places of samples, and the seeds of the calls that make them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

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
"""Each hook has random numbers of its own: what one draws moves no other. The numbers are part of the order."""


class Place(NamedTuple):
    """Whose turn it is: all that random numbers depend on.

    Attributes:
        key: 64 bits, of seed, source and epoch.
        position: of the sample, or of the first of several, below 2^63.
        output: which output of the sample.
        part: which of several packs that begin with it.
    """

    key: int
    position: int
    output: int = 0
    part: int = 0


def seed_of(place: Place, stage: str, number: int = 0) -> int:
    """64 bits for a call; ``number`` counts the outputs of a generator."""
    outputs = ((place.output << 20) + place.part << 20) + number
    return derive(derive(_stage_key(place.key, stage), place.position), outputs)


@lru_cache(maxsize=1024)
def _stage_key(key: int, stage: str) -> int:
    """The same for all samples of a source."""
    return derive(key, STAGES[stage])
