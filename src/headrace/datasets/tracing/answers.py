"""What is asked of a history of runs, and what it answers."""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace.datasets.dataset import Origins
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray


class Face(Protocol):
    """What a trace asks of a dataset, where its store is there."""

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Addresses of samples."""

    def origins(self, addresses: IntArray) -> list[Origins]:
        """What each sample is made of."""

    def holders(self, document: int) -> IntArray:
        """(n,) int64, rising: the samples that have tokens of a document in some epoch."""

    def find_keys(self, key: str) -> list[int]:
        """The samples of a key."""


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes what of a step: so many data-parallel ranks, so many samples each at a time."""

    ranks: int
    micro_batch_size: int

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers below 1."""
        if self.ranks < 1 or self.micro_batch_size < 1:
            raise ConfigError(
                f"ranks and micro-batch size are at least 1, found {self.ranks} and {self.micro_batch_size}"
            )


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One sample in its place.

    Attributes:
        step: the global step.
        last_step: the same; or, with bucketing whose lengths are not at hand, the sample is in one of the steps up to
            this one.
        position: of the run; None where the step is not known.
        run: which of the runs of a history, from 0.
        source: the path of the source in the blend, ``"."`` for a single dataset.
        epoch: of the source, from 0.
        index: the number of the sample in the source's dataset.
        rank: the data-parallel rank that takes it, if a topology is given and the step is known.
        micro_step: the micro-batch of the step on that rank, from 0.
        seen: whether a saved state is past it; None without a state.
        origins: what it is made of; empty where that is not known, or nothing was to be looked up.
        unit: of a framed run, the number of the unit that it is in; None where that is not known.
        output: of a framed run, which output of the sample it is; None where that is not known.
    """

    step: int
    last_step: int
    position: int | None
    run: int
    source: str
    epoch: int
    index: int
    rank: int | None = None
    micro_step: int | None = None
    seen: bool | None = None
    origins: Origins = ()
    unit: int | None = None
    output: int | None = None


class TracedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of a framed run in its place.

    Attributes:
        step: the global step.
        unit: its number in the run.
        lane: the lane that it is of.
        frame: the frame of the lane in which it was made; where the journal leaves some out, the first that it may be.
        first_position, last_position: of the frame; a lane has every ``num_lanes``-th one between them.
        num_carried: outputs that were carried on into the frame, of positions before it.
        is_exact: whether ``samples`` are those in the unit; else all that may be, or none if they were not asked for.
        samples: in the order of their positions.
        rank, micro_step, seen: as of `Traced`.
    """

    step: int
    unit: int
    lane: int
    frame: int
    first_position: int
    last_position: int
    num_carried: int
    is_exact: bool
    samples: tuple[Traced, ...] = ()
    rank: int | None = None
    micro_step: int | None = None
    seen: bool | None = None


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When a sample, or a document, comes.

    Attributes:
        count: how often, before ``until_step``.
        shown: the first of these times.
        until_step: the step at whose begin the search ended; the part of it that a saved state or a number of samples
            reached is searched too.
        notes: what was left out, and why.
    """

    count: int
    shown: tuple[Traced, ...]
    until_step: int
    notes: tuple[str, ...] = ()
