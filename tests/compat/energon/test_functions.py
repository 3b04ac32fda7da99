"""Energon's wrappers by their names: framed sources out of functions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from framed_encoders import cook, numbers
from headrace import Blend, ConfigError, MediaDataset, Order
from headrace.compat.energon import (
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    PackingDataset,
    ShuffleBufferDataset,
)
from headrace.datasets import Framed, FramedRun, MapDataset
from headrace.encoders import Cooker, DefaultTaskEncoder, SkipSample, stateless

NUMPY: Any = np.random


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    return MediaDataset.open(numbers(tmp_path_factory.mktemp("whole") / "ds", 12)).cooked_by([Cooker(cook)])


@stateless
def is_even(sample: Any) -> bool:
    return bool(sample["n"] % 2 == 0)


@stateless
def twice(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        yield {**sample, "n": sample["n"] + 100}


@stateless
def doubled(sample: Any) -> Any:
    return {**sample, "n": 2 * sample["n"]}


def halves(sample: Any) -> Any:
    """Neither marked nor of one output."""
    if sample["n"] == 4:
        raise SkipSample
    yield sample


@stateless
def by_three(sample: Any) -> tuple[int, None]:
    return sample["n"] % 3, None


@stateless
def pairs(samples: list[Any]) -> list[list[Any]]:
    return [samples[at : at + 2] for at in range(0, len(samples) - 1, 2)]


@stateless
def joined(samples: list[Any]) -> Any:
    return {"n": [sample["n"] for sample in samples]}


def found(framed: Framed, **options: Any) -> list[Any]:
    """``n`` of all units of one pass in one lane."""
    run = FramedRun(framed, global_batch_size=1, order=Order(kind="none"), epochs=1, **options)
    units = pickle.loads(pickle.dumps(run)).reader().samples(range(40))
    return [[one["n"] for one in unit] if isinstance(unit, list) else unit["n"] for unit in units if unit is not None]


def test_filters_and_generators_in_a_row(whole: MediaDataset) -> None:
    assert found(FilterDataset(whole, is_even)) == [0, 2, 4, 6, 8, 10]
    assert found(IterMapDataset(FilterDataset(whole, is_even), twice)) == [
        n + more for n in range(0, 12, 2) for more in (0, 100)
    ]
    assert found(FilterDataset(MapDataset(whole, doubled), is_even)) == list(range(0, 24, 2))
    mapped = FilterDataset(MapDataset(MapDataset(whole, doubled), halves), is_even)
    assert found(mapped) == [0, 2, *range(6, 24, 2)]
    assert mapped.unrestorable == "FunctionEncoder.preencode_sample"
    assert FilterDataset(whole, is_even).unrestorable is None


@stateless(restore_seeds=("numpy",))
def noisy(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield {**sample, "n": float(NUMPY.rand())}


def test_functions_are_seeded_as_they_say(whole: MediaDataset) -> None:
    noise = found(IterMapDataset(FilterDataset(whole, is_even), noisy))
    assert len(set(noise)) == 6
    assert noise == found(IterMapDataset(FilterDataset(whole, is_even), noisy))


def test_units_of_several(whole: MediaDataset) -> None:
    even = FilterDataset(whole, is_even, seed=5)
    packed = PackingDataset(even, 3, pairs, joined, sample_encoder=doubled)
    assert packed.frame_positions == 3
    assert packed.seed == 5
    assert sorted(n for pack in found(packed) for n in pack) == [0, 4, 8, 12, 16, 20]
    assert {len(pack) for pack in found(packed)} <= {1, 2}
    groups = found(GroupBatchDataset(whole, 2, by_three, joined))
    assert sorted(n for group in groups for n in group) == list(range(12))
    assert all(len(group) == 2 and group[0] % 3 == group[1] % 3 for group in groups)
    buffered = found(ShuffleBufferDataset(whole, 5))
    assert sorted(buffered) == list(range(12)) != buffered


def test_batches_and_keys(whole: MediaDataset) -> None:
    mix = Blend({"a": whole, "b": whole}, weights={"a": 1, "b": 1})
    run = FramedRun(GroupBatchDataset(mix, 2, by_three, joined), global_batch_size=1)
    reader = run.reader()
    batch = reader.collate(reader.samples([3]))
    assert len(batch["n"]) == 2
    assert run.restore_sample([one["__restore_key__"] for one in reader.samples([4])[0]])["n"]
    assert "hooks" in str(run.recipe.dataset["a"])
    assert "by_three" in run.recipe.dataset["a"]["version"]


def test_what_is_refused(whole: MediaDataset) -> None:
    with pytest.raises(ConfigError, match="FilterDataset: expected a function, found 3"):
        FilterDataset(whole, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="FilterDataset around PackingDataset"):
        FilterDataset(PackingDataset(whole, 3, pairs, joined), is_even)
    with pytest.raises(ConfigError, match="PackingDataset around ShuffleBufferDataset"):
        PackingDataset(ShuffleBufferDataset(whole, 4), 3, pairs, joined)
    with pytest.raises(ConfigError, match="FilterDataset around Framed"):
        FilterDataset(Framed(whole, DefaultTaskEncoder()), is_even)
    with pytest.raises(ConfigError, match="must hold at least 1 item"):
        ShuffleBufferDataset(whole, 0)
