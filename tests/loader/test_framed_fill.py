"""How full packs are and how long samples wait, as a loader hands them over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import media_texts
from headrace import Loader, MediaDataset, Order
from headrace.datasets import Framed, FramedRun
from headrace.datasets.encoded.framed_run import read_journals
from headrace.encoders import TaskEncoder, stateless
from headrace.plan.framed import OLDEST, BestFit

ROOM = 4_096
NUM_SAMPLES = 5_000
SETS = {"sft": (5.5, 1), "web": (6, 1.2), "long": (7, 0.8)}
"""Logarithms' mean and deviation; ``bimodal`` is a mixture."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    place = media_texts.shards(tmp_path_factory.mktemp("fill") / "ds", (NUM_SAMPLES // 2, NUM_SAMPLES // 2))
    return MediaDataset.open(place, **media_texts.TEXT)


def draw(name: str) -> np.ndarray[Any, Any]:
    """(NUM_SAMPLES,) lengths, cut to a pack."""
    rng = np.random.default_rng(0)
    if name == "bimodal":
        short = rng.random(NUM_SAMPLES) < 0.8
        drawn = np.where(short, rng.lognormal(4.5, 0.5, NUM_SAMPLES), rng.lognormal(7, 0.5, NUM_SAMPLES))
    else:
        drawn = rng.lognormal(*SETS[name], NUM_SAMPLES)
    return np.clip(drawn, 1, ROOM).astype(np.int64)


class Lengths(TaskEncoder[Any, Any, Any, Any]):
    """Texts as long as a set says; a pack has the lengths of what is in it."""

    decoder = None

    def __init__(self, name: str) -> None:
        self._lengths = draw(name)
        self.name = name

    @stateless(restore_seeds=())
    def preencode_sample(self, sample: Any) -> Any:
        return {"number": int(sample.text), "length": int(self._lengths[int(sample.text)]), "__restore_key__": ()}

    @stateless(restore_seeds=())
    def sample_length(self, sample: Any) -> int:
        return int(sample["length"])

    @stateless(restore_seeds=())
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {
            "numbers": [sample["number"] for sample in samples],
            "lengths": [sample["length"] for sample in samples],
            "__restore_key__": (),
        }


class Chosen(Lengths):
    """Packs by a hook: each takes the longest that still fit, one after another."""

    @stateless(restore_seeds=())
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        left = sorted(samples, key=lambda sample: -sample["length"])
        packs = []
        while left:
            pack, rest, room = [], [], ROOM
            for sample in left:
                fits = sample["length"] <= room
                room -= sample["length"] if fits else 0
                (pack if fits else rest).append(sample)
            packs.append(pack)
            left = rest
        return packs


@pytest.mark.parametrize("name", ["sft", "web", "bimodal", "long"])
@pytest.mark.parametrize("encoder", [Lengths, Chosen])
@pytest.mark.sampled(3)
def test_packs_on_the_fly_are_full(texts: MediaDataset, encoder: type[Lengths], name: str) -> None:
    """Frames of 1,000 samples; those of the four frames that a run begins with, so that nothing is flushed."""
    form = BestFit(ROOM) if encoder is Lengths else None
    run = FramedRun(Framed(texts, encoder(name), form=form), global_batch_size=2, order=Order(kind="full", seed=3))
    assert run.lanes.frame_positions == 1_000
    lengths: list[int] = []
    packs = 0
    for batch in Loader(run, micro_batch_size=2):
        lengths += [length for one in batch["lengths"] for length in one]
        packs += len(batch["lengths"])
        if len(lengths) > 2_500:
            break
    assert sum(lengths) / (packs * ROOM) >= 0.97


class Groups(TaskEncoder[Any, Any, Any, Any]):
    """Batches of 8 of one parity, but for one text in all that is of a group of its own."""

    decoder = None

    @stateless(restore_seeds=())
    def encode_sample(self, sample: Any) -> Any:
        return {"number": int(sample.text), "__restore_key__": ()}

    @stateless(restore_seeds=())
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int]:
        return ("rare" if sample["number"] == 777 else sample["number"] % 2), 8


def test_a_group_of_one_sample_waits_for_four_frames_at_most(texts: MediaDataset, tmp_path: Path) -> None:
    framed = Framed(texts, Groups(), frame_positions=100)
    order = Order(kind="full", seed=2)
    run = FramedRun(framed, global_batch_size=4, order=order, samples=NUM_SAMPLES)
    lanes = run.lanes
    positions = np.arange(NUM_SAMPLES, dtype=np.int64)
    found = run.stream.lookup(positions)
    where = dict(zip(found.indices.tolist(), positions.tolist(), strict=True))
    loader = Loader(run, micro_batch_size=1, journal=tmp_path / "0.bin")
    batches = [(int(batch["unit_numbers"][0]), batch["number"]) for batch in loader if len(batch["unit_numbers"])]
    assert sorted(number for _, numbers in batches for number in numbers) == list(range(NUM_SAMPLES))
    journal = read_journals([tmp_path / "0.bin"], run.recipe.hashes(), lanes)
    waited = []
    for unit, numbers in batches:
        planned = journal.frames(unit % lanes.num_lanes, unit // lanes.num_lanes)
        assert planned is not None
        state, last = planned
        assert last == state.frame
        own = lanes.frames_of(state.lane, np.array([where[number] for number in numbers], dtype=np.int64))
        waited += (state.frame - own).tolist()
        if 777 in numbers:
            assert numbers == [777]
            assert state.frame - own[0] == OLDEST
    assert min(waited) == 0
    assert max(waited) == OLDEST
