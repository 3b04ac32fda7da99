"""Global batches: which positions make step N, for a batch size that may change or ramp up along the run.

The global batch size that grows along a run, as Megatron's calculator of micro-batches lets it grow.

Source: megatron-core, ``RampupBatchsizeNumMicroBatchesCalculator``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import index

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray


def ramp_up_pieces(
    start: int, increment: int, samples: int, global_batch_size: int, multiple_of: int
) -> tuple[tuple[int, int], ...]:
    """(first step, samples a step) of each size; see `BatchSchedule.ramp_up`. O(increments * log samples).

    Raises:
        ConfigError: a number is out of range, the increments do not lead to ``global_batch_size``, or a size that is
            rounded down is 0.
    """
    if start < 1 or increment < 1 or samples < 0 or multiple_of < 1:
        raise ConfigError(
            "start, increment and multiple_of are at least 1 and samples at least 0, found"
            f" start={start}, increment={increment}, multiple_of={multiple_of}, samples={samples}"
        )
    if global_batch_size < start or (global_batch_size - start) % increment:
        raise ConfigError(
            f"from {start} by increments of {increment} there is no way to a global_batch_size of {global_batch_size}:"
            " it is start and a whole number of increments"
        )
    num_increments = (global_batch_size - start) // increment
    if not num_increments or not samples:
        return ((0, _rounded(global_batch_size, multiple_of)),)
    # A float, and so is the quotient below: where they round, the border of a size moves by a sample.
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
        # The first sample at which more is due; behind the last of all, everything is.
        border = bisect_right(range(samples + 1), done, lo=position, key=increments)
        num_steps = -(-(border - position) // size)
        step += num_steps
        position += num_steps * size


def _rounded(size: int, multiple_of: int) -> int:
    rounded = size // multiple_of * multiple_of
    if not rounded:
        raise ConfigError(
            f"a global batch of {size} samples rounded down to a multiple of {multiple_of} is empty: begin with at"
            f" least {multiple_of}, or use fewer ranks or smaller micro-batches at first"
        )
    return rounded


class BatchSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The global batch size as a piecewise constant function of the step.

    ``pieces`` are (first step, samples a step), the first at step 0: ``((0, 256), (1000, 512))`` feeds 256 samples a
    step up to step 999 and 512 from then on. Step N is the positions ``[begin(N), begin(N + 1))``.
    """

    pieces: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Raise ConfigError unless steps rise from 0 and every size is at least 1."""
        steps = [step for step, _ in self.pieces]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError(f"a batch schedule begins at step 0 and its steps rise, found steps {steps}")
        if min(size for _, size in self.pieces) < 1:
            raise ConfigError(f"global batch sizes must be at least 1, found {[size for _, size in self.pieces]}")

    @classmethod
    def of(cls, global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]]) -> BatchSchedule:
        """A schedule from one constant size, a sequence of pieces, or a schedule."""
        if isinstance(global_batch_size, BatchSchedule):
            return global_batch_size
        if isinstance(global_batch_size, Sequence):
            return cls(tuple((index(step), index(size)) for step, size in global_batch_size))
        return cls(((0, index(global_batch_size)),))

    @classmethod
    def ramp_up(
        cls, *, start: int, increment: int, samples: int, global_batch_size: int, multiple_of: int = 1
    ) -> BatchSchedule:
        """Megatron's ``--rampup-batch-size START INCREMENT SAMPLES``, to the sample.

        The size grows from ``start`` to ``global_batch_size`` by ``increment``, in equal parts of the first ``samples``
        samples; a step has the size that is due where it begins. ``multiple_of`` rounds sizes down: with
        ``micro_batch_size * data_parallel_size`` it is ``--decrease-batch-size-if-needed``.

            start 4, increment 4, 48 samples, to 16: 4 samples a step up to sample 16, 8 up to 32, 12 up to 56, then 16

        Without samples, or from the size that is the last, there is nothing to ramp up (Megatron divides by zero).

        Raises:
            ConfigError: a number is out of range, the increments do not lead to ``global_batch_size``, or a size
                that is rounded down is 0.
        """
        return cls(ramp_up_pieces(*map(index, (start, increment, samples, global_batch_size, multiple_of))))

    def size(self, step: int) -> int:
        """Samples of a step."""
        return self.pieces[self._piece_of_step(step)][1]

    def begin(self, step: int) -> int:
        """The first position of a step. O(pieces)."""
        position = 0
        for piece, (first, size) in enumerate(self.pieces):
            end = self._end_step(piece)
            if end is None or step <= end:
                return position + (step - first) * size
            position += (end - first) * size
        raise ConfigError(f"no step {step}")  # pragma: no cover - the last piece has no end

    def step_of(self, position: int) -> int:
        """The step that a position belongs to. O(pieces)."""
        return self.locate(position)[0]

    def locate(self, position: int) -> tuple[int, int, int, int | None]:
        """Of a position: (step, its first position, its size, steps of this size from it on or None for all)."""
        piece_begin = 0
        for piece, (first, size) in enumerate(self.pieces):
            end = self._end_step(piece)
            if end is None or position < piece_begin + (end - first) * size:
                step = first + (position - piece_begin) // size
                return step, piece_begin + (step - first) * size, size, None if end is None else end - step
            piece_begin += (end - first) * size
        raise ConfigError(f"no position {position}")  # pragma: no cover - the last piece has no end

    def bounds(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Of each of (n,) int64 positions the first one of its step, and the first one of the next step; both (n,)."""
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
