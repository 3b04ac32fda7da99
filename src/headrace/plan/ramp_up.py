"""The global batch size that grows along a run, as Megatron's calculator of micro-batches lets it grow.

Source: megatron-core, ``RampupBatchsizeNumMicroBatchesCalculator``.
"""

from __future__ import annotations

from bisect import bisect_right

from headrace.errors import ConfigError


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
