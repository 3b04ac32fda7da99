"""Task encoders of the documentation, and those that draw, filter, group and pack: what holds of both systems."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import encoder_ported
import encoders_ported
from energon_prepared import prepared
from headrace.encoders import ErrorPolicy
from headrace.errors import SampleError
from interop import energon_peer
from interop.energon_live import our_loader, texts, their_loader
from interop.energon_systems import System, fields, in_energon

pytestmark = pytest.mark.interop

VAL = range(30, 53)
TOPOLOGIES = [(1, 0), (2, 0), (1, 2)]
KINDS: dict[str, dict[str, Any]] = {
    "Drawing": {"batch_size": 3},
    "Generating": {"batch_size": 3},
    "Grouping": {"batch_size": None},
    "Packing": {"batch_size": 2, "packing_buffer_size": 7},
    "Posting": {"batch_size": 2, "packing_buffer_size": 7},
}
"""Arguments for the encoders of `encoders_ported`."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 texts for training in two shards, 23 for validation."""
    energon_peer.energon()
    return texts(tmp_path_factory.mktemp("running") / "a", [20, 10, 23], val=1)


@pytest.fixture(params=["ours", "theirs"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    return System(request.param, encoders_ported, tmp_path)


def validation(system: System, root: Path, encoder: str, world_size: int, num_workers: int) -> list[dict[str, Any]]:
    """All batches of all ranks."""
    found = []
    for rank in range(world_size):
        loader = system.loader(encoder, root, rank, world_size, num_workers, val=True, **KINDS[encoder])
        found += system.given(loader)
    return found


def numbers_of(batches: list[dict[str, Any]]) -> list[int]:
    """Of samples, in packs or not."""
    found = [number for batch in batches for number in batch["numbers"]]
    return [number for pack in found for number in pack] if found and isinstance(found[0], list) else found


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("world_size", "num_workers"), TOPOLOGIES)
@pytest.mark.parametrize("encoder", ["Packing", "Posting"])
def test_packs_of_validation(system: System, root: Path, encoder: str, world_size: int, num_workers: int) -> None:
    """Each sample once, no pack too long; the second half of encoding is for each sample of a pack."""
    batches = validation(system, root, encoder, world_size, num_workers)
    assert sorted(numbers_of(batches)) == list(VAL)
    for batch in batches:
        for numbers, draws in zip(batch["numbers"], batch["draws"], strict=True):
            assert 0 < sum(1 + number % 5 for number in numbers) <= 10
            assert all(int(draw) == (encoder == "Posting") for draw in draws)
            assert len(draws) == len(numbers)


@pytest.mark.parametrize(("world_size", "num_workers"), TOPOLOGIES)
def test_generators_and_skipped_samples(system: System, root: Path, world_size: int, num_workers: int) -> None:
    batches = validation(system, root, "Generating", world_size, num_workers)
    found = [pair for batch in batches for pair in zip(batch["numbers"], batch["outputs"], strict=True)]
    wanted = [(number, output) for number in VAL if number % 7 != 3 for output in range(number % 3)]
    assert sorted(found) == wanted
    assert len({draw for batch in batches for draw in batch["draws"]}) == len(wanted), "each output draws on its own"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("encoder", ["Drawing", "Generating"])
def test_indices_of_samples_and_batches(system: System, root: Path, encoder: str, num_workers: int) -> None:
    """No two samples have one, and no two batches of single outputs; the outputs of one sample share theirs."""
    batches = system.given(system.loader(encoder, root, 0, 1, num_workers, **KINDS[encoder]), 25)
    if encoder == "Drawing":
        assert len({batch["index"] for batch in batches}) == 25
    of_index: dict[int, set[int]] = {}
    outputs = set()
    for batch in batches:
        for number, output, index in zip(batch["numbers"], batch["outputs"], batch["indices"], strict=True):
            of_index.setdefault(index, set()).add(number)
            assert (index, output) not in outputs
            outputs.add((index, output))
    assert all(len(found) == 1 for found in of_index.values())


def test_9_5_samples_of_workers_are_restored_with_what_was_drawn(root: Path, tmp_path: Path) -> None:
    """Energon's have the draws of the worker that the decorator met first."""

    def restored(name: Any) -> list[bool]:
        system = System(name, encoders_ported, tmp_path)
        loader = system.loader("Drawing", root, 0, 1, 2, batch_size=3)
        batches = system.given(loader, 6)
        keys = [batch["__restore_key__"] for batch in batches]
        again = [fields(energon_peer.quietly(loader.restore_sample, key)) for key in keys]
        return [one["draws"] == other["draws"] for one, other in zip(again, batches, strict=True)]

    assert restored("ours") == [True] * 6
    assert restored("theirs") != [True] * 6


def test_9_6_what_ran_before_changes_no_draws(root: Path, tmp_path: Path) -> None:
    """With Energon a loader without workers that was iterated changes what the second worker of another draws."""

    def draws(module: ModuleType, make: Any, *, before: bool) -> list[Any]:
        system = System("ours", module, tmp_path)
        loader = make(root, 0, 1, 2, batch_size=3, task_encoder=module.Drawing())
        if before:
            system.given(make(root, batch_size=3, task_encoder=module.Drawing()), 1)
        return [batch["draws"] for batch in system.given(loader, 6)]

    one, other = (draws(encoders_ported, our_loader, before=before) for before in (False, True))
    assert one == other
    one, other = (draws(in_energon(encoders_ported, tmp_path), their_loader, before=before) for before in (False, True))
    assert [found == wanted for found, wanted in zip(other, one, strict=True)] == [True, False] * 3


def test_9_7_packs_and_groups_are_restored(root: Path, tmp_path: Path) -> None:
    def restored(name: Any, encoder: str) -> bool:
        system = System(name, encoders_ported, tmp_path)
        loader = system.loader(encoder, root, **KINDS[encoder])
        [batch] = system.given(loader, 1)
        return fields(energon_peer.quietly(loader.restore_sample, batch["__restore_key__"])) == batch

    for encoder in ("Posting", "Grouping"):
        assert restored("ours", encoder)
        with pytest.raises((AssertionError, ValueError)):
            restored("theirs", encoder)


def test_9_14_a_tolerance_holds_beside_seeds(root: Path, tmp_path: Path) -> None:
    """Energon's hook asks for two and gets a hundred, more than there are samples: the loader gives nothing at all."""
    given: dict[str, Any] = {"val": True, "batch_size": 3}
    theirs = System("theirs", encoders_ported, tmp_path)
    assert theirs.given(theirs.loader("Hopeless", root, **given)) == []
    ours = System("ours", encoders_ported, tmp_path)
    loader = ours.loader("Hopeless", root, errors=ErrorPolicy(on_error="substitute"), **given)
    with pytest.raises(SampleError, match=r"2.*failed"):
        ours.given(loader)


def test_nothing_that_is_not_selected_is_lost(root: Path, tmp_path: Path) -> None:
    """A hook that leaves an odd sample: Energon drops it, in every buffer."""
    given: dict[str, Any] = {"val": True, "batch_size": 2, "packing_buffer_size": 7}
    lost = {}
    for name in ("ours", "theirs"):
        system = System(name, encoders_ported, tmp_path)  # type: ignore[arg-type]
        found = numbers_of(system.given(system.loader("Choosing", root, **given)))
        assert len(found) == len(set(found))
        lost[name] = set(VAL) - set(found)
    assert not lost["ours"]
    assert len(lost["theirs"]) > 1


def test_failures(root: Path, tmp_path: Path) -> None:
    """Both go on with all that can be made, and tell each failure once; what is skipped is none."""
    peer = energon_peer.energon()
    told: list[str] = []
    config = peer.WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=lambda error, sample, sources: told.append(str(error))
    )
    encoder = in_energon(encoders_ported, tmp_path).Failing()
    dataset = peer.get_val_dataset(root, worker_config=config, batch_size=3, task_encoder=encoder)
    theirs = System("theirs", encoders_ported, tmp_path).given(energon_peer.quietly(peer.get_savable_loader, dataset))
    good = [number for number in VAL if number % 5 != 4 and number % 7 != 3]
    assert numbers_of(theirs) == good
    assert sorted(told) == [f"number {number} is not liked" for number in VAL if number % 5 == 4]
    system = System("ours", encoders_ported, tmp_path)
    policy = ErrorPolicy(on_error="substitute")
    loader = system.loader("Failing", root, val=True, batch_size=3, framed=True, errors=policy)
    ours = numbers_of(system.given(loader))
    assert Counter(good) <= Counter(ours), "others stand in for those that failed"
    assert set(ours) == set(good)
    assert len(ours) <= len(good) + len(told)
    assert sorted(fault.reason for fault in loader.faults.faults if fault.attempt == 0) == sorted(told)
    with pytest.raises(ValueError, match="liked"):
        system.given(system.loader("Failing", root, val=True, batch_size=3, framed=True))


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
