"""Media through run and loader: blended, exact on any ranks and after any number of kills, however they are read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slots
from counts import cases
from headrace import Blend, ConfigError, Loader, MediaDataset, Order, Run, StateError
from headrace.errors import DecodeError
from headrace.loader import Ranks, Reading, collate_fn
from headrace.plan import Bucketing
from headrace.samples.media import CaptioningSample, Cooker, SampleDecoder, basic_sample_keys, cooker

Make = Callable[..., Path]
CHW = SampleDecoder(image_decode="chwrgb8")
CONFIG = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"
READINGS = [Reading(num_threads=0), Reading(num_threads=1), Reading(num_threads=3), Reading(num_workers=2)]


@cooker
def caption(crude: dict[str, Any]) -> CaptioningSample:
    """Cooks the crude one of the two sources."""
    text = crude["txt"] if "txt" in crude else crude["json"]["text"]
    return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=f"cooked {text}")


@pytest.fixture(scope="module")
def sources(captions: Path, make_captions: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaDataset]:
    root = make_captions(tmp_path_factory.mktemp("cooked") / "cats", 13, CONFIG)
    return {
        "typed": MediaDataset.open(captions, decoder=CHW),
        "cooked": MediaDataset.open(root, None, decoder=CHW, cookers=[Cooker(caption)]),
    }


def expected(run: Run, positions: list[int]) -> dict[str, Any]:
    """A micro-batch by the slow way: samples one by one, collated."""
    found = [run.lookup(np.array([position])) for position in positions]
    samples = [run.datasets[int(one.sources[0])][int(one.indices[0])] for one in found]
    return run.datasets[0].collate(samples)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[name], value) if isinstance(value, np.ndarray | torch.Tensor) else found[name] == value
        for name, value in wanted.items()
    )


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
def test_every_micro_batch_is_its_samples_collated(sources: dict[str, MediaDataset], reading: Reading) -> None:
    blend = Blend(sources, weights={"typed": 2, "cooked": 1}, end="samples", num_samples=50)
    run = Run(blend, global_batch_size=6, order=Order(seed=3))
    seen: list[int] = []
    texts: set[str] = set()
    for rank in range(2):
        for batch in Loader(run, micro_batch_size=2, ranks=Ranks(rank, 2), reading=reading):
            positions = batch.pop("sample_positions").tolist()
            seen += positions
            texts.update(batch["caption"])
            assert isinstance(batch["image"], torch.Tensor | list)
            assert isinstance(batch["image"], torch.Tensor) == bool(positions)
            assert same(batch, expected(run, positions))
    assert sorted(seen) == list(range(50))
    assert texts == {f"cat {number}" for number in range(20)} | {f"cooked cat {number}" for number in range(13)}


def test_tensors_of_decoders_are_handed_on(captions: Path) -> None:
    run = Run(MediaDataset.open(captions), global_batch_size=4, epochs=1)
    for batch in Loader(run, micro_batch_size=4, reading=Reading(num_threads=1)):
        positions = batch.pop("sample_positions").tolist()
        assert batch["image"].dtype == torch.float32
        assert same(batch, expected(run, positions))


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(ranks, micro-batch, threads, micro-steps) of each life of a job."""
    one = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.integers(0, 5))
    return draw(st.lists(one, min_size=1, max_size=4))


@settings(max_examples=cases(10, 400), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), lives())
def test_killed_and_resumed_on_other_ranks(
    sources: dict[str, MediaDataset], data: st.DataObject, legs: list[tuple[int, int, int, int]]
) -> None:
    schedule = [(0, data.draw(st.integers(1, 9))), (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9)))]
    order = Order(kind=data.draw(st.sampled_from(["full", "blocks", "none"])), seed=data.draw(st.integers(0, 3)))
    run = Run(Blend(sources, repeats={"typed": 1.5, "cooked": 2}), global_batch_size=schedule, order=order)
    seen: dict[int, tuple[str, Any]] = {}
    state = None
    for ranks, micro, threads, micro_steps in legs:
        loaders = [
            Loader(run, micro_batch_size=micro, ranks=Ranks(rank, ranks), reading=Reading(num_threads=threads))
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(loader) for loader in loaders]
        for _ in range(micro_steps):
            for batch in filter(None, (next(iterator, None) for iterator in iterators)):
                rows = zip(batch["sample_positions"].tolist(), batch["caption"], batch["__restore_key__"], strict=True)
                for position, *what in rows:
                    assert position not in seen
                    seen[position] = tuple(what)
        state = loaders[0].state_dict()
        for iterator in iterators:
            iterator.close()  # type: ignore[attr-defined]
    assert sorted(seen) == slots.first_positions(run, len(seen))
    for position, what in seen.items():
        alone = expected(run, [position])
        assert what == (alone["caption"][0], alone["__restore_key__"][0])


def test_state_of_another_dataset_is_refused(captions: Path) -> None:
    run = Run(MediaDataset.open(captions, decoder=CHW), global_batch_size=2)
    state = Loader(run, micro_batch_size=2, position=2).state_dict()
    other = MediaDataset.open(captions, decoder=SampleDecoder(image_decode="chwl8"))
    with pytest.raises(StateError, match="dataset"):
        Loader(Run(other, global_batch_size=2), micro_batch_size=2).load_state_dict(state)


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
def test_a_fault_comes_out_of_the_loader(captions: Path, reading: Reading) -> None:
    shown = MediaDataset.open(captions, decoder=SampleDecoder(image_decode="chwrgb8", max_pixels=90))
    run = Run(shown, global_batch_size=4, order=Order(kind="none"))
    with pytest.raises(DecodeError, match=r"00.tar: key 'cats/0001': part 'jpg' at byte [\d,]+: .*max_pixels"):
        list(itertools.islice(Loader(run, micro_batch_size=2, reading=reading), 1))


def test_a_data_loader_of_ones_own(captions: Path) -> None:
    dataset = MediaDataset.open(captions, decoder=CHW)
    loader = torch.utils.data.DataLoader(dataset, batch_size=7, collate_fn=collate_fn(dataset))  # type: ignore[arg-type]
    batches = list(loader)
    assert [len(batch["caption"]) for batch in batches] == [7, 7, 6]
    assert all(isinstance(batch["image"], torch.Tensor) for batch in batches)


def test_what_does_not_go_with_media(sources: dict[str, MediaDataset], captions: Path) -> None:
    blend = Blend(sources, weights={"typed": 1, "cooked": 1}, unit="tokens")
    with pytest.raises(ConfigError, match="blend them by unit='samples'"):
        Run(blend, global_batch_size=2)
    bucketed = Run(sources["typed"], global_batch_size=4, bucketing=Bucketing(window_steps=2), epochs=1)
    with pytest.raises(ConfigError, match="leave bucketing out"):
        bucketed.positions(0), bucketed.step(0)
    text = Run(Blend(sources, weights={"typed": 2, "cooked": 1}), global_batch_size=2).describe()
    assert "66.667 % typed: 20 samples an epoch, CaptioningSample samples of" in text
    assert "below 2 samples of each of 2 sources at every prefix" in text
    crude = MediaDataset(sources["cooked"].store, decoder=CHW, part_filter=["txt"])
    mixed = Run(Blend({"a": sources["typed"], "b": crude}, weights={"a": 1, "b": 1}), global_batch_size=4)
    with pytest.raises(ConfigError, match="samples of one batch need the same fields"):
        next(iter(Loader(mixed, micro_batch_size=4)))
