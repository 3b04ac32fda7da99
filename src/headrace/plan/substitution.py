"""Which sample stands in for one that cannot be made: a hash of who asks, so that every rank takes the same."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.plan.keys import derive


def substitute_index(key: int, position: int, attempt: int, num_samples: int) -> int:
    """The sample to try at a position whose own, and whose first ``attempt - 1`` substitutes, cannot be made.

    It is uniform over all samples, to a part in 2^64 / num_samples, and may be one that was tried before. O(1).

    Args:
        key: 64 bits, of seed, source and epoch.
        position: of the sample, at least 0.
        attempt: 1 for the first substitute.
        num_samples: of the source.

    Raises:
        ConfigError: no samples, or an attempt below 1.
    """
    if num_samples < 1 or attempt < 1 or position < 0:
        raise ConfigError(
            f"attempt {attempt} at position {position} of {num_samples} samples: attempts count from 1, positions from"
            " 0, and there is at least one sample"
        )
    return derive(derive(key, position), attempt) * num_samples >> 64
