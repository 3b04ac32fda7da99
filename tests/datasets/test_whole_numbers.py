"""Whole floats are whole numbers wherever Python calls pass integers; other floats, NaN and booleans are refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import records_made
from headrace import BatchSchedule, ConfigError, Loader, NumpyLoader, Order, Packing, Prompts, WindowDataset, loader_for
from headrace.config import whole
from headrace.datasets import Blend, Collation, Limit, PackedSequenceDataset, PromptDataset, Run
from headrace.loader import Ranks, Reading
from headrace.plan import Bucketing

NOT_WHOLE = [0.5, float("nan"), float("inf"), True, "2", np.float32(1.5), np.bool_(True), np.array([2, 3]), None]


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.int16(2), np.array(2), Fraction(4, 2)])
def test_what_is_whole(value: Any) -> None:
    found = whole(value, "epochs")
    assert found == 2
    assert type(found) is int
    assert whole((1 << 60) + 1, "samples") == (1 << 60) + 1
    assert whole(2.0**60, "samples") == 1 << 60


@pytest.mark.parametrize("value", NOT_WHOLE)
def test_what_is_not_whole(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        whole(value, "epochs")


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> WindowDataset:
    store = records_made.store(tmp_path_factory.mktemp("s"), [{"tokens": list(range(1, 402))}])
    return WindowDataset(store, seq_len=4)


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "epochs": lambda d, n: Run(d, global_batch_size=8, epochs=n(2)).measured_by,
    "samples": lambda d, n: Run(d, global_batch_size=8, samples=n(96)).measured_by,
    "global_batch_size": lambda d, n: Run(d, global_batch_size=n(8)).schedule,
    "pieces": lambda d, n: Run(d, global_batch_size=[(n(0), n(8)), (n(3), n(4))]).schedule,
    "schedule": lambda d, n: BatchSchedule(((n(0), n(8)),)),
    "ramp": lambda d, n: BatchSchedule.ramp_up(start=n(4), increment=n(4), samples=n(48), global_batch_size=n(16)),
    "seed": lambda d, n: Order(seed=n(3), block_samples=n(5)),
    "at_step": lambda d, n: Run(d, global_batch_size=8).edit(n(5), samples=n(80)).edits[0].at_step,
    "edit_samples": lambda d, n: Run(d, global_batch_size=8).edit(5, samples=n(80)).length,
    "edit_epochs": lambda d, n: Run(d, global_batch_size=8).edit(5, epochs=n(2)).edits[0].length,
    "positions": lambda d, n: Run(d, global_batch_size=8).positions(n(5)).tolist(),
    "account": lambda d, n: Run(d, global_batch_size=8).account(n(5)),
    "seq_len": lambda d, n: WindowDataset(d.store, seq_len=n(4), stride=n(2)).recipe,
    "packing": lambda d, n: Packing(seq_len=n(8), window_documents=n(4), segment_multiple=n(2)),
    "padding_idx": lambda d, n: PackedSequenceDataset(d.store, Packing(seq_len=512), padding_idx=n(7)).recipe,
    "collation": lambda d, n: Collation(max_length=n(8), multiple_of=n(2), padding_idx=n(7), pad_to="max_length"),
    "limit": lambda d, n: Limit(d, n(10)).num_samples,
    "block_samples": lambda d, n: Blend({"a": d}, weights={"a": 1}, block_samples=n(2)).block_samples,
    "bucketing": lambda d, n: Bucketing(window_steps=n(4), group_samples=n(2)),
    "ranks": lambda d, n: Ranks(n(1), n(4), per_node=n(2)),
    "reading": lambda d, n: Reading(num_threads=n(2), prefetch=n(3)),
    "micro_batch_size": lambda d, n: [
        batch["sample_positions"].tolist()
        for face in (Loader, NumpyLoader)
        for batch in face(Run(d, global_batch_size=4, samples=8), micro_batch_size=n(2))
    ],
    "rank": lambda d, n: [
        batch["sample_positions"].tolist()
        for batch in NumpyLoader(Run(d, global_batch_size=4, samples=8), micro_batch_size=2, rank=n(1), world_size=n(2))
    ],
    "batch_size": lambda d, n: next(iter(loader_for(d.store.path, seq_len=n(4), batch_size=n(4))))["input_ids"].shape,
}


@pytest.mark.parametrize("name", MAKERS)
def test_whole_floats_are_integers(windows: WindowDataset, name: str) -> None:
    wanted, found = MAKERS[name](windows, int), MAKERS[name](windows, float)
    assert found == wanted
    assert repr(found) == repr(wanted), "a float is no part of any recipe"


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("wrong", [0.5, float("nan"), True])
def test_other_values_are_refused_by_name(windows: WindowDataset, name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{wrong}"):
        MAKERS[name](windows, lambda value: wrong)


def test_prompts_take_whole_floats(tmp_path: Path) -> None:
    dataset = PromptDataset(records_made.store(tmp_path / "s", records_made.prompts(1, 4)))
    prompts: Any = Prompts(Run(dataset, global_batch_size=2, epochs=1), group_size=2.0)  # type: ignore[arg-type]
    assert [prompt.position for prompt in prompts.take(2.0)] == [0, 1]
    with pytest.raises(ConfigError, match=r"0\.5"):
        prompts.take(0.5)
