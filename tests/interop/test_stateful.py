"""A `StatefulLoader` beside torchdata's, and in processes that are killed and resumed on other numbers of ranks."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import corpora
from headrace import Run, WindowDataset
from headrace.integrations.stateful import StatefulLoader
from interop import trainer_processes

pytestmark = pytest.mark.interop

MEETINGS = count()


def train(folder: Path, world_size: int, store: Path, killed_at: int = 0) -> dict[Any, list[Any]]:
    """Train with some ranks; return for each step and epoch the positions that were fed, and the sum of the losses."""
    arguments = [store, folder, folder / f"meeting-{next(MEETINGS)}"]
    fed: dict[Any, list[Any]] = defaultdict(lambda: [[], 0.0])
    for step, epoch, positions, loss in trainer_processes.said_by(
        "stateful_rank.py", arguments, folder, world_size, killed_at
    ):
        fed[step, epoch][0] += positions
        fed[step, epoch][1] += loss
    return {key: [sorted(positions), pytest.approx(loss, rel=1e-4)] for key, (positions, loss) in fed.items()}


@pytest.mark.parametrize("within", [True, False], ids=["within-an-epoch", "at-its-end"])
def test_killed_and_resumed_on_other_ranks(within: bool, corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    store = Path(corpus[0].store.path)
    whole = train(tmp_path / "whole", 1, store)
    expected = {(i, i // 5): list(range(8 * i, 8 * i + 8)) for i in range(10)}
    assert {key: positions for key, (positions, _) in whole.items()} == expected
    draw = random.Random(2)
    # Two micro-steps a step, five steps an epoch; a checkpoint after each step. At the end, 2 ranks begin epoch 1.
    first = draw.randint(3, 6) if within else 11
    found: dict[Any, list[Any]] = {}
    for world_size, killed_at in ((1, first), (2, draw.randint(3, 6)), (1, 0)):
        part = train(tmp_path / "killed", world_size, store, killed_at)
        assert killed_at == 0 or part.keys() < whole.keys()
        found |= part
    assert found == whole


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_epoch_after_a_state_of_its_end(corpus: list[corpora.Corpus]) -> None:
    """Torchdata's loader has an empty one there, which docs/integrations/stateful.md says."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="needs the extra interop")
    run = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=8, samples=48)
    lengths = []
    for make in (
        lambda: torchdata.StatefulDataLoader(range(24), batch_size=8),
        lambda: StatefulLoader(run, micro_batch_size=8, epochs=2),
    ):
        first, later, state = make(), make(), {}
        for _ in first:
            state = first.state_dict()
        later.load_state_dict(state)
        lengths.append(len(list(later)))
    assert lengths == [0, 3]
