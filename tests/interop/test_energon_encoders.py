"""A task encoder of Energon's users in both systems: only its import line is another one, and the batches are equal."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import encoder_ported
from energon_prepared import prepared
from interop import energon_peer
from interop.energon_live import our_loader, their_loader
from interop.energon_systems import in_energon

pytestmark = pytest.mark.interop
FIELDS = ("values", "mask", "label")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The encoder of the same source with the import line of Energon."""
    return in_energon(encoder_ported, tmp_path_factory.mktemp("encoders")).NumberEncoder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 crude samples in four shards, two of them for training, all for validation."""
    shards: dict[str, list[tuple[str, bytes]]] = {f"{shard}.tar": [] for shard in range(4)}
    for number in range(22):
        stream = io.BytesIO()
        np.save(stream, np.arange(2 + number % 4, dtype=np.float32) + number)
        text = json.dumps({"text": f"text {number}", "number": number}).encode()
        shards[f"{number // 6}.tar"] += [(f"s/{number:03d}.npy", stream.getvalue()), (f"s/{number:03d}.json", text)]
    root = prepared(tmp_path_factory.mktemp("encoders") / "numbers", shards, {"train": [*shards][:2], "val": [*shards]})
    (root / ".nv-meta" / "dataset.yaml").write_text(
        "{__module__: megatron.energon, __class__: CrudeWebdataset, subflavors: {kind: numbers}}\n"
    )
    return root


class Unskipping(encoder_ported.NumberEncoder):
    """The same, but for the sample that it would skip, for which a run would have to be framed."""

    @encoder_ported.stateless
    def encode_sample(self, sample: Any) -> Any:
        values = torch.as_tensor(np.asarray(sample.values))
        label = torch.tensor(sample.number)
        return encoder_ported.EncodedNumber.derive_from(sample, values=values * 2, length=len(values), label=label)


def assert_same(ours: list[dict[str, Any]], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert type(other).__name__ == "NumberBatch"
        assert one["__key__"] == list(other.__key__)
        for name in FIELDS:
            wanted = getattr(other, name)
            assert one[name].dtype == wanted.dtype
            assert torch.equal(one[name], wanted)


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 2), (2, 0)])
def test_batches_of_validation(numbers: Path, theirs: Any, world_size: int, num_workers: int) -> None:
    """In Energon's order on any ranks and workers; in ours of one rank alone, which is the same then."""
    for rank in range(world_size):
        where: Any = (numbers, rank, world_size, num_workers)
        wanted = energon_peer.quietly(list, their_loader(*where, val=True, batch_size=4, task_encoder=theirs()))
        given: dict[str, Any] = {"val": True, "batch_size": 4, "task_encoder": Unskipping()}
        assert len(wanted) > 2
        assert_same(list(our_loader(*where, order="energon", **given)), wanted)
        if (world_size, num_workers) == (1, 0):
            for workers in (0, 2):
                assert_same(list(our_loader(numbers, num_workers=workers, **given)), wanted)


def test_batches_of_training(numbers: Path, theirs: Any) -> None:
    """Shuffled as Energon does it, for some epochs."""
    options: dict[str, Any] = {"batch_size": 3, "shuffle_buffer_size": 5, "max_samples_per_sequence": 4}
    wanted = energon_peer.quietly(
        lambda: list(islice(their_loader(numbers, seed=2, task_encoder=theirs(), **options), 12))
    )
    ours = our_loader(numbers, seed=2, order="energon", task_encoder=Unskipping(), **options)
    assert_same(list(islice(ours, 12)), wanted)
