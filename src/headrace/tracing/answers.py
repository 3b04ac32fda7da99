"""What a trace asks of a dataset, and the answers of a history of runs."""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace.config import check_fields
from headrace.datasets.origins import Origins
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray


class Face(Protocol):
    """What a trace asks of a dataset whose store can be opened."""

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the addresses of samples."""

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return what each sample is made of."""

    def holders(self, document: int) -> IntArray:
        """(n,) int64, rising: the samples that have tokens of a document in some epoch."""

    def find_keys(self, key: str) -> list[int]:
        """Return the samples with a key."""


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is divided: the number of data-parallel ranks, and the samples in a micro-batch."""

    ranks: int
    micro_batch_size: int

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers below 1."""
        check_fields(self)
        if self.ranks < 1 or self.micro_batch_size < 1:
            raise ConfigError(
                f"ranks and micro-batch size are at least 1, found {self.ranks} and {self.micro_batch_size}"
            )


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One sample in its place.

    Attributes:
        step: the global step.
        last_step: equal to ``step``; or, with bucketing whose lengths are not known, the sample is in one of the steps
            from ``step`` to this one.
        position: position in the run; None if the step is not known.
        run: number of the run in the history, from 0.
        source: path of the source in the blend, ``"."`` for a single dataset.
        epoch: epoch of the source, from 0.
        index: number of the sample in the source's dataset.
        rank: the data-parallel rank that takes it, if a topology is given and the step is known.
        micro_step: the micro-batch of the step on that rank, from 0.
        seen: whether a saved state is past it; None without a state.
        origins: what it is made of, without what exclusions mask; empty if that is not known or was not asked for.
        num_masked: number of parts, such as documents, that exclusions mask. If there are some and no ``origins``, the
            whole sample is masked, and nothing of it is trained on.
        unit: in a framed run, number of the unit that holds it; None if that is not known.
        output: in a framed run, number of the output of the sample; None if that is not known.
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
    num_masked: int = 0
    unit: int | None = None
    output: int | None = None


class TracedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of a framed run in its place.

    Attributes:
        step: the global step.
        unit: its number in the run.
        lane: its lane.
        frame: the frame of the lane in which it was made; if the journal lacks some frames, the first that it may be.
        first_position, last_position: those of the frame; a lane has every ``num_lanes``-th position between them.
        num_carried: number of outputs of earlier positions that were carried on into the frame.
        is_exact: whether ``samples`` are those in the unit; else they are all that may be, or empty if not asked for.
        samples: in the order of their positions.
        rank, micro_step, seen: as in `Traced`.
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
        count: number of times before ``until_step``.
        shown: the first of these times.
        until_step: the step at whose beginning the search ended; the part of it that a saved state or a number of
            samples reached is searched too.
        notes: what was left out, and why.
    """

    count: int
    shown: tuple[Traced, ...]
    until_step: int
    notes: tuple[str, ...] = ()
