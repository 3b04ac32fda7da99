"""What Megatron's training loop decides around the datasets: cyclic batches by torch, and batch sizes that grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import corpora
from counts import cases
from headrace import BatchSchedule, Loader, Order, Run
from headrace.compat.megatron import CyclicDataset, GPTDataset
from headrace.loader import Ranks, Reading

pytestmark = pytest.mark.interop


def cyclic(total: int, consumed: int, rank: int, ranks: int, size: int, *, sharded: bool) -> Iterator[list[int]]:
    """A rank's micro-batches for ever, by torch's own shuffle, from the rules of Megatron-LM's random sampler."""
    together = ranks * size
    chunks = total // together
    step = consumed // together
    while True:
        epoch, chunk = divmod(step, chunks)
        generator = torch.Generator().manual_seed(epoch)
        if sharded:
            shuffled = torch.randperm(chunks * size, generator=generator) + rank * chunks * size
            yield shuffled[chunk * size : (chunk + 1) * size].tolist()
        else:
            shuffled = torch.randperm(total // size * size, generator=generator)
            yield shuffled[rank::ranks][chunk * size : (chunk + 1) * size].tolist()
        step += 1


@pytest.mark.parametrize("seed", range(cases(12, 200)))
def test_the_loader_feeds_the_batches_of_the_cyclic_sampler(tmp_path: Path, seed: int) -> None:
    """C21 through runs and loaders, over several epochs, from any number of consumed samples."""
    rng = np.random.default_rng(seed)
    total, size, ranks, sharded = (int(rng.integers(low, high)) for low, high in ((20, 90), (1, 5), (1, 5), (0, 2)))
    corpora.write(tmp_path / "x", [np.arange(2 * total + 1, dtype=np.uint16)])
    dataset = GPTDataset(tmp_path / "x", sequence_length=2)
    assert len(dataset) == total
    data = CyclicDataset(dataset, micro_batch_size=size, data_parallel_size=ranks, data_sharding=bool(sharded))
    run = Run(data, global_batch_size=ranks * size * int(rng.integers(1, 4)), order=Order(kind="none"))
    consumed = ranks * size * int(rng.integers(0, 50))
    for rank in range(ranks):
        loader = Loader(run, micro_batch_size=size, ranks=Ranks(rank, ranks), reading=Reading(num_threads=0))
        loader.start_at(consumed, allow_repeats=True)
        theirs = cyclic(total, consumed, rank, ranks, size, sharded=bool(sharded))
        for _, expected, batch in zip(range(60), theirs, loader, strict=False):
            assert batch["tokens"].tolist() == dataset.read(np.array(expected))["tokens"].tolist()


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
