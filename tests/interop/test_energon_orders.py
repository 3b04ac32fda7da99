"""Which sample comes when, beside a live loader of Energon: its own orders, and what both systems promise of theirs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from columned import get_savable_loader
from counts import cases
from headrace import StateError
from headrace.compat.energon import WorkerConfig, get_train_dataset
from interop import energon_peer
from interop.energon_live import metadataset, our_loader, steps, take, texts, their_loader

pytestmark = pytest.mark.interop

Given = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    energon_peer.energon()
    folder = tmp_path_factory.mktemp("orders")
    texts(folder / "a", [25, 25, 25, 25, 7, 7, 7], val=3)
    texts(folder / "b", [7, 3, 12])
    texts(folder / "c", [40, 1, 2, 30, 5])
    return folder


def mixed(folder: Path, name: str) -> Path:
    """One dataset, or a metadataset of all."""
    part = {"subset": {"range": ["10%", "90%"]}}
    inner = {"blend": [{"weight": 3, "path": "./b"}, {"weight": 1, "path": "./c", **part}]}
    repeats = [{"path": "./a", "repetitions": 1}, {"path": "./b", "repetitions": 2.5}, {"path": "./c", **part}]
    if name == "a":
        return folder / "a"
    metadataset(folder / "inner.yaml", train=inner)
    return metadataset(
        folder / f"{name}.yaml",
        train={
            "weights": {"blend": [{"weight": 0.7, "path": "./a"}, {"weight": 2, "path": "./inner.yaml"}]},
            "repeats": {"blend_epochized": repeats},
        }[name],
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["a", "weights", "repeats"])
@pytest.mark.parametrize(
    ("world_size", "num_workers", "given"),
    [
        (1, 0, {}),
        (1, 0, {"max_samples_per_sequence": 5, "parallel_shard_iters": 4, "shuffle_buffer_size": 10}),
        (2, 0, {"max_samples_per_sequence": 3, "shuffle_over_epochs_multiplier": 2}),
        (2, 1, {"max_samples_per_sequence": 7, "parallel_shard_iters": 1, "shuffle_buffer_size": 30, "seed": 5}),
        (1, 2, {"max_samples_per_sequence": 5, "parallel_shard_iters": 2}),
        (5, 0, {"shuffle_over_epochs_multiplier": -1, "parallel_shard_iters": 3, "shuffle_buffer_size": 4}),
    ],
)
def test_training_order(folder: Path, name: str, world_size: int, num_workers: int, given: Given) -> None:
    path = mixed(folder, name)
    for rank in range(world_size):
        place = (path, rank, world_size, num_workers)
        wanted = take(their_loader(*place, batch_size=4, **given), 40)
        assert len(wanted) == 40
        ours = our_loader(*place, batch_size=4, order="energon", **given)
        assert take(ours, 40) == wanted
        ours.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("drop", "num_workers"), [(False, 0), (True, 2)])
@pytest.mark.parametrize("name", ["a", "repeats"])
def test_training_without_repeat(folder: Path, name: str, num_workers: int, drop: bool) -> None:
    """Each pass of ours begins as the first; that is all there is to compare."""
    given = {"batch_size": 4, "repeat": False, "batch_drop_last": drop, "max_samples_per_sequence": 6}
    place = (mixed(folder, name), 1, 2, num_workers)
    wanted = take(their_loader(*place, **given))
    assert wanted
    assert take(our_loader(*place, order="energon", **given)) == wanted


@pytest.mark.sampled(3)
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (2, 0), (3, 0), (1, 2), (2, 1)])
def test_validation_order(folder: Path, world_size: int, num_workers: int, limit: int | None) -> None:
    given: Given = {"val": True, "batch_size": 2, "limit": limit}
    found = []
    for rank in range(world_size):
        place = (folder / "a", rank, world_size, num_workers)
        wanted = take(their_loader(*place, **given))
        assert take(our_loader(*place, order="energon", **given)) == wanted
        assert limit is None or len(wanted) == limit
        found += wanted
    if limit is None:
        numbers = sorted(int(text[1:]) for batch in found for text in batch)
        assert numbers == list(range(100, 121))


LENGTH = 14


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["energon", "shards", "full"])
@pytest.mark.parametrize("name", ["a", "weights", "repeats"])
def test_resumed_at_every_step(folder: Path, name: str, order: str) -> None:
    """A run that is stopped after k batches and goes on in a new loader has the batches of one that never stopped."""
    path = mixed(folder, name)
    given: Given = {"batch_size": 9, "max_samples_per_sequence": 5, "parallel_shard_iters": 4, "shuffle_buffer_size": 6}
    systems: list[Callable[[], Any]] = [lambda: our_loader(path, order=order, **given)]
    if order == "energon":
        systems.append(lambda: their_loader(path, **given))
    whole = take(systems[-1](), LENGTH + 2)
    for make in systems:
        stopped = make()
        batches = steps(iter(stopped))
        for step in range(LENGTH):
            if step % cases(4, 1) == 0:
                resumed = make()
                if step:
                    resumed.restore_state_rank(stopped.save_state_rank())
                assert take(resumed, 3) == whole[step : step + 3]
            assert next(batches) == whole[step]


def test_resumed_with_workers_and_ranks(folder: Path) -> None:
    """Energon goes on with as many workers and ranks; so do we in its order, and in ours with any."""
    given: Given = {"batch_size": 4, "max_samples_per_sequence": 5}
    for make, order in ((their_loader, {}), (our_loader, {"order": "energon"})):
        stopped = make(folder / "a", 1, 2, 2, **given, **order)
        whole = take(make(folder / "a", 1, 2, 2, **given, **order), 9)
        assert take(stopped, 5) == whole[:5]
        resumed = make(folder / "a", 1, 2, 2, **given, **order)
        resumed.restore_state_rank(stopped.save_state_rank())
        assert take(resumed, 4) == whole[5:]
    other = our_loader(folder / "a", 0, 4, 1, order="energon", **given)
    with pytest.raises(StateError, match=r"workers.*4.*1"):
        other.restore_state_rank(resumed.save_state_rank())


def test_seeds(folder: Path) -> None:
    """The same seed is the same order, another is another; of both."""
    for make in (their_loader, our_loader):
        first, again, other = (take(make(folder / "a", batch_size=10, seed=seed), 9) for seed in (1, 1, 2))
        assert first == again != other


def test_virtual_epochs_go_on(folder: Path) -> None:
    """An iteration ends after so many batches, and the next one goes on."""
    given: Given = {"batch_size": 4, "max_samples_per_sequence": 5, "virtual_epoch_length": 6}
    theirs = their_loader(folder / "a", **given)
    ours = our_loader(folder / "a", order="energon", **given)
    wanted = [take(theirs) for _ in range(3)]
    assert [len(epoch) for epoch in wanted] == [6, 6, 6]
    assert [take(ours) for _ in range(3)] == wanted
    stream = our_loader(folder / "a", **given)
    assert [text for _ in range(3) for batch in take(stream) for text in batch] == [
        text for batch in islice(our_loader(folder / "a", batch_size=4, max_samples_per_sequence=5), 18)
        for text in batch["text"]
    ]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_ranks_draw_other_sources_of_a_blend(tmp_path: Path, num_workers: int) -> None:
    """As Energon's ``test_blending_randomness`` judges: of four ranks with batches of one, no two see the same sources.

    It looks at 25 batches of three of them, with each number of workers. Ours is computed, so that it needs no Energon.
    """
    for name in "ab":
        texts(tmp_path / name, [55])
    blend = [{"weight": 1, "path": f"./{name}"} for name in "ab"]
    path = metadataset(tmp_path / "mix.yaml", train={"blend": blend})
    seen = []
    for rank in range(3):
        config = WorkerConfig(rank=rank, world_size=4, num_workers=num_workers)
        data = get_train_dataset(path, worker_config=config, batch_size=1)
        loader = get_savable_loader(data, start_method="fork")
        seen.append("".join(batch["text"][0][0] for batch in islice(loader, 25)))
        loader.close()
    assert len(set(seen)) == 3, seen
    assert all(set(one) == {"a", "b"} for one in seen), "and none is of one source"
