"""What Megatron's training loop decides around the datasets: batch sizes that grow."""

from __future__ import annotations

import numpy as np
import pytest

from counts import cases
from headrace import BatchSchedule

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("seed", range(cases(24, 2000)))
@pytest.mark.filterwarnings("ignore")
def test_ramp_up_has_the_sizes_of_the_calculator(seed: int) -> None:
    """At every step up to well behind the ramp-up, with and without sizes rounded down to what divides."""
    calculator = pytest.importorskip("megatron.core.num_microbatches_calculator")
    rng = np.random.default_rng(seed)
    micro, ranks, increment, num_increments = (int(rng.integers(1, high)) for high in (5, 5, 40, 40))
    decrease = bool(rng.integers(2))
    together = micro * ranks
    if decrease:
        start = together + int(rng.integers(0, 30))
    else:
        start, increment = together * int(rng.integers(1, 9)), increment * together
    last = start + num_increments * increment
    samples = int(rng.integers(1, int(rng.choice([50, 5_000, 300_000]))))
    theirs = calculator.RampupBatchsizeNumMicroBatchesCalculator(
        last, micro, ranks, decrease, 1, start, increment, samples
    )
    ours = BatchSchedule.ramp_up(
        start=start,
        increment=increment,
        samples=samples,
        global_batch_size=last,
        multiple_of=together if decrease else 1,
    )
    consumed = step = 0
    sizes: set[int] = set()
    while consumed < samples + 3 * last:
        theirs.update(consumed, True)
        size = theirs.get() * together
        assert size == theirs.get_current_running_global_batch_size()
        if size not in sizes:
            assert ours.begin(step) == consumed
            sizes.add(size)
        assert ours.size(step) == size
        consumed += size
        step += 1
    assert [size for _, size in ours.pieces] == sorted(sizes)
