"""torchtitan's trainer, fed by `headrace.integrations.torchtitan`: killed within a step, resumed on other ranks.

The trainer runs in `titan_training.py`, in processes of a gloo group.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from interop import trainer_processes

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

PROGRAM = Path(__file__).parent / "titan_training.py"
SEQ_LEN = 32


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_processes.write_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def face() -> Any:
    if find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed: `make interop` puts it into .venv/torchtitan, if it can be had")
    from headrace.integrations.torchtitan import HeadraceDataLoader

    return HeadraceDataLoader


@pytest.mark.usefixtures("face")
def test_killed_and_resumed_on_other_ranks(store: str, tmp_path: Path) -> None:
    """From 1 rank to 2 and back to 1, each time after a SIGKILL; the data end in the middle of a step."""
    kills = (0, random.randrange(9, 16)), (random.randrange(2), random.randrange(5, 8))
    print("killed (rank, micro-step):", kills)
    lives = [("whole", 1, None), ("chain", 1, kills[0]), ("chain", 2, kills[1]), ("chain", 1, None)]
    told = []
    for number, (folder, world_size, kill) in enumerate(lives):
        report = tmp_path / f"said-{number}"
        said = trainer_processes.train(PROGRAM, [store, tmp_path / folder, report], report, world_size, kill)
        told.append(trainer_processes.samples_and_losses(said))
    samples, losses = told[0]
    run = headrace.Run(
        headrace.WindowDataset(headrace.open(store), seq_len=SEQ_LEN),
        global_batch_size=8,
        order=headrace.Order(seed=3),
        samples=51,
    )
    assert list(samples) == list(losses) == list(range(1, 8))
    assert [len(rows) for rows in samples.values()] == [8, 8, 8, 8, 8, 8, 3]
    assert [min(fed) for fed, _ in told[1:]] == [1, 3, 5]
    assert max(told[-1][1]) == 7
    trainer_processes.check_lives(told, run, first_step=1)


RunOf = Callable[..., Any]


@pytest.fixture
def loader_of(face: Any, store: str) -> RunOf:
    """Makes the face over a run of ``samples`` windows, for what the trainer passes."""

    def build(*, samples: int | None = 22, global_batch_size: int = 8, labels: Any = "next", **runtime: Any) -> Any:
        dataset = headrace.WindowDataset(headrace.open(store), seq_len=SEQ_LEN, labels=labels)
        run = headrace.Run(dataset, global_batch_size=global_batch_size, samples=samples)
        options = {name: runtime.pop(name) for name in ("infinite", "repeat") if name in runtime}
        passed = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, "seq_len": SEQ_LEN, "local_batch_size": 2}
        if "num_tokens_per_batch" in runtime:
            del passed["seq_len"], passed["local_batch_size"]
        return face.Config(run=lambda: run, **options).build(**passed | runtime)

    return build


def test_every_rank_has_equally_many_full_batches(loader_of: RunOf) -> None:
    for world_size in (1, 2, 4):
        ranks = [list(loader_of(dp_world_size=world_size, dp_rank=rank)) for rank in range(world_size)]
        assert {len(batches) for batches in ranks} == {12 // world_size}
        batches = [batch for one in ranks for batch in one]
        assert {tuple(labels.shape) for _, labels in batches} == {(2, SEQ_LEN)}
        assert sum(int((labels != -100).any(1).sum()) for _, labels in batches) == 22


def test_the_newer_interface_counts_tokens(loader_of: RunOf) -> None:
    rows = list(loader_of())
    flat = list(loader_of(num_tokens_per_batch=2 * SEQ_LEN, max_context_length=SEQ_LEN))
    assert len(rows) == len(flat)
    for (inputs, labels), (flat_inputs, flat_labels) in zip(rows, flat, strict=True):
        assert flat_labels.shape == (2 * SEQ_LEN,)
        assert torch.equal(flat_labels, labels.flatten())
        assert all(torch.equal(flat_inputs[name], inputs[name].flatten()) for name in ("input", "positions"))


def test_infinite_data_begin_again(loader_of: RunOf) -> None:
    for name in ("infinite", "repeat"):
        batches = iter(loader_of(**{name: True}))
        seen = [next(batches)[0]["input"] for _ in range(24)]
        assert all(torch.equal(first, second) for first, second in zip(seen[:12], seen[12:], strict=True))


def test_a_state_at_the_end_is_an_empty_loader(loader_of: RunOf) -> None:
    loader = loader_of()
    assert len(list(loader)) == 12
    other = loader_of(dp_world_size=2, dp_rank=1)
    other.load_state_dict(loader.state_dict())
    assert list(other) == []


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"seq_len": 64}, r"training\.seq_len.*64.*32"),
        ({"dp_world_size": 3}, "8.*2.*3.*6"),
        ({"snapshot_every_n_steps": 6}, "6.*4.*batch_size.*8"),
        ({"labels": "same"}, 'labels="same"'),
        ({"global_batch_size": [(0, 8), (2, 16)]}, "global.batch"),
        ({"num_tokens_per_batch": 40, "max_context_length": 32}, "40"),
        ({"num_tokens_per_batch": 32, "max_context_length": 16}, "max_context_length.*16"),
    ],
)
def test_what_does_not_fit_is_refused(loader_of: RunOf, asked: dict[str, Any], named: str) -> None:
    with pytest.raises(headrace.ConfigError, match=named):
        loader_of(**asked)


def test_states_that_do_not_fit(loader_of: RunOf) -> None:
    loader = loader_of()
    batches = iter(loader)
    next(batches)
    with pytest.raises(headrace.StateError, match=r"0.*training.global_batch_size.*8"):
        loader.state_dict()
    loader.load_state_dict({})
    with pytest.raises(headrace.StateError, match="another"):
        loader.load_state_dict({"dp_rank_0": b"", "world_size": 1})
    other = loader_of(global_batch_size=2)
    next(iter(other))
    with pytest.raises(headrace.StateError, match="pieces"):
        loader.load_state_dict(other.state_dict())
