"""Global batches: which positions make step N, for a batch size that may change or ramp up along the run.

A schedule consists of pieces; a piece is a stretch of steps with the same global batch size. Megatron's ramp-up of the
batch size is such a schedule. Source of the ramp-up: megatron-core, ``RampupBatchsizeNumMicroBatchesCalculator``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.config import whole
from headrace.errors import ConfigError
from headrace.plan.keys import IntArray


def ramp_up_pieces(
    start: int, increment: int, samples: int, global_batch_size: int, multiple_of: int
) -> tuple[tuple[int, int], ...]:
    """Return (first step, samples a step) for each size; see `BatchSchedule.ramp_up`. O(increments * log samples).

    Raises:
        ConfigError: a number is out of range, the increments do not lead to ``global_batch_size``, or a size is 0 after
            rounding down.
    """
    if start < 1 or increment < 1 or samples < 0 or multiple_of < 1:
        raise ConfigError(
            "start, increment and multiple_of are at least 1 and samples at least 0, found"
            f" start={start}, increment={increment}, multiple_of={multiple_of}, samples={samples}"
        )
    if global_batch_size < start or (global_batch_size - start) % increment:
        raise ConfigError(
            f"a ramp-up from {start} by increments of {increment} never reaches a global_batch_size of"
            f" {global_batch_size}: it must be start plus a whole number of increments"
        )
    num_increments = (global_batch_size - start) // increment
    if not num_increments or not samples:
        return ((0, _rounded(global_batch_size, multiple_of)),)
    # Floats here and in the quotient below, as in Megatron: their rounding can move the border of a size by a sample.
    per_increment = samples / num_increments

    def increments(consumed: int) -> int:
        return num_increments if consumed > samples else int(consumed / per_increment)

    pieces: list[tuple[int, int]] = []
    step = position = 0
    while True:
        done = increments(position)
        size = _rounded(start + done * increment, multiple_of)
        if not pieces or pieces[-1][1] != size:
            pieces.append((step, size))
        if done == num_increments:
            return tuple(pieces)
        # The first position at which another increment is due; beyond all samples every increment is.
        border = bisect_right(range(samples + 1), done, lo=position, key=increments)
        num_steps = -(-(border - position) // size)
        step += num_steps
        position += num_steps * size


def _rounded(size: int, multiple_of: int) -> int:
    rounded = size // multiple_of * multiple_of
    if not rounded:
        raise ConfigError(
            f"a global batch of {size} samples is empty when rounded down to a multiple of {multiple_of}: start with"
            f" at least {multiple_of}, or use fewer ranks or smaller micro-batches at first"
        )
    return rounded


class BatchSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The global batch size as a piecewise constant function of the step.

    ``pieces`` are (first step, samples a step), the first at step 0: ``((0, 256), (1000, 512))`` feeds 256 samples a
    step up to step 999 and 512 from then on. Step N consists of the positions ``[begin(N), begin(N + 1))``.

    Example:
        >>> schedule = headrace.BatchSchedule(((0, 256), (1000, 512)))
        >>> schedule.size(1000), schedule.begin(1000), schedule.step_of(256_512)
        (512, 256000, 1001)
    """

    pieces: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Raise ConfigError unless the steps rise from 0 and every size is at least 1."""
        pieces = tuple((whole(step, "step"), whole(size, "global_batch_size")) for step, size in self.pieces)
        msgspec.structs.force_setattr(self, "pieces", pieces)
        steps = [step for step, _ in pieces]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError(f"a batch schedule begins at step 0 and its steps rise, found steps {steps}")
        if min(size for _, size in self.pieces) < 1:
            raise ConfigError(f"global batch sizes must be at least 1, found {[size for _, size in self.pieces]}")

    @classmethod
    def of(cls, global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]]) -> BatchSchedule:
        """Return a schedule from a constant size, a sequence of pieces, or a schedule."""
        if isinstance(global_batch_size, BatchSchedule):
            return global_batch_size
        if isinstance(global_batch_size, Sequence):
            return cls(tuple((step, size) for step, size in global_batch_size))
        return cls(((0, global_batch_size),))

    @classmethod
    def ramp_up(
        cls, *, start: int, increment: int, samples: int, global_batch_size: int, multiple_of: int = 1
    ) -> BatchSchedule:
        """Return Megatron's ``--rampup-batch-size START INCREMENT SAMPLES``, exact to the sample.

        The size grows from ``start`` to ``global_batch_size`` by ``increment``, each size for an equal part of the
        first ``samples`` samples; a step has the size that is due where it begins. ``multiple_of`` rounds sizes down:
        set to ``micro_batch_size * data_parallel_size`` it equals ``--decrease-batch-size-if-needed``.

            start 4, increment 4, 48 samples, to 16: 4 samples a step up to sample 16, 8 up to 32, 12 up to 56, then 16

        If ``samples`` is 0, or ``start`` is already ``global_batch_size``, there is nothing to ramp up and the size is
        constant (Megatron divides by zero).

        Raises:
            ConfigError: a number is out of range, the increments do not lead to ``global_batch_size``, or a size is 0
                after rounding down.
        """
        given = (start, increment, samples, global_batch_size, multiple_of)
        names = ("start", "increment", "samples", "global_batch_size", "multiple_of")
        return cls(ramp_up_pieces(*map(whole, given, names)))

    def size(self, step: int) -> int:
        """Return the number of samples in a step."""
        return self.pieces[self._piece_of_step(step)][1]

    def begin(self, step: int) -> int:
        """Return the first position of a step. O(pieces)."""
        position = 0
        for piece, (first, size) in enumerate(self.pieces):
            end = self._end_step(piece)
            if end is None or step <= end:
                return position + (step - first) * size
            position += (end - first) * size
        raise ConfigError(f"no step {step}")  # pragma: no cover - the last piece has no end

    def step_of(self, position: int) -> int:
        """Return the step that a position belongs to. O(pieces)."""
        return self.locate(position)[0]

    def locate(self, position: int) -> tuple[int, int, int, int | None]:
        """Return the step of a position, its first position, its size, and how many steps of this size begin with it.

        The last number is None in the last piece, which has no end. O(pieces).
        """
        piece_begin = 0
        for piece, (first, size) in enumerate(self.pieces):
            end = self._end_step(piece)
            if end is None or position < piece_begin + (end - first) * size:
                step = first + (position - piece_begin) // size
                return step, piece_begin + (step - first) * size, size, None if end is None else end - step
            piece_begin += (end - first) * size
        raise ConfigError(f"no position {position}")  # pragma: no cover - the last piece has no end

    def bounds(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return for (n,) int64 positions the first position of their step, and that of the next step; both (n,)."""
        sizes = np.array([size for _, size in self.pieces], dtype=np.int64)
        if len(sizes) == 1:
            begins = positions - positions % sizes[0]
            return begins, begins + sizes[0]
        steps = np.array([step for step, _ in self.pieces], dtype=np.int64)
        firsts = np.append(0, np.cumsum(np.diff(steps) * sizes[:-1]))
        pieces = np.searchsorted(firsts, positions, side="right") - 1
        begins = positions - (positions - firsts[pieces]) % sizes[pieces]
        return begins, begins + sizes[pieces]

    def _end_step(self, piece: int) -> int | None:
        return self.pieces[piece + 1][0] if piece + 1 < len(self.pieces) else None

    def _piece_of_step(self, step: int) -> int:
        return bisect_right(self.pieces, step, key=lambda piece: piece[0]) - 1
