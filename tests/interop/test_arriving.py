"""What Megatron and Energon began goes on with Headrace at the sample where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.compat.megatron import GPTBlend, GPTDataset
from headrace.loader import Ranks
from interop import energon_peer, megatron_peer
from interop.energon_live import our_loader, take, texts, their_loader
from interop.megatron_peer import data_path, write_drawn

pytestmark = pytest.mark.interop


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_megatron(tmp_path: Path) -> None:
    """A blend of two corpora goes on after Megatron's consumed samples, on two ranks that it did not have."""
    rng = np.random.default_rng(3)
    prefixes = [str(tmp_path / name) for name in "ab"]
    for prefix in prefixes:
        write_drawn(Path(prefix), rng, fewest=30)
    theirs = megatron_peer.build(
        [96, 1, 1],
        random_seed=9,
        sequence_length=8,
        blend=(prefixes, [3.0, 1.0]),
        split="1,0,0",
        path_to_cache=str(tmp_path / "cache"),
    )[0]

    def build(prefix: str, num_samples: int) -> GPTDataset:
        return GPTDataset(prefix, sequence_length=8, num_samples=num_samples, seed=9)

    blend = GPTBlend.of(data_path(prefixes, [3.0, 1.0]), num_samples=96, build=build, surplus=0.005)
    run = headrace.Run(blend, global_batch_size=8, order=headrace.Order(kind="none"), samples=96)
    loaders = [headrace.Loader(run, micro_batch_size=4, ranks=Ranks(rank, 2)) for rank in range(2)]
    consumed = 40
    for loader in loaders:
        loader.start_at(consumed)
    for parts in zip(*loaders, strict=True):
        expected = [theirs[consumed + row] for row in range(8)]
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            found = torch.cat([part[name] for part in parts])
            assert torch.equal(found, torch.stack([one[name] for one in expected])), name
        consumed += 8
    assert consumed == loaders[0].position == 96


@pytest.mark.parametrize(("world_size", "num_workers"), [(2, 0), (1, 2)])
def test_energon(world_size: int, num_workers: int, tmp_path: Path) -> None:
    """Each rank goes on after the batches that Energon gave it."""
    energon_peer.energon()
    path, given = texts(tmp_path / "a", [25, 25, 7, 30]), 7
    options: dict[str, Any] = {"batch_size": 4, "max_samples_per_sequence": 5, "shuffle_buffer_size": 6}
    for rank in range(world_size):
        place = (path, rank, world_size, num_workers)
        expected = take(their_loader(*place, **options), 30)
        loader = our_loader(*place, order="energon", **options)
        loader.restore_state_rank({**loader.save_state_rank(), "step": given, "position": given})
        assert take(loader, 23) == expected[given:]
        loader.close()
