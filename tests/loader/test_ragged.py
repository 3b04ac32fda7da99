"""Records and packs through the loader: padded micro-batch by micro-batch, or counted by step; exact on any ranks."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

import corpora
import media_texts
import records_made
from counts import cases
from energon_made import write_tar
from headrace import (
    BatchSchedule,
    Blend,
    ConfigError,
    GroupDataset,
    HeadraceError,
    Loader,
    MediaDataset,
    Order,
    PackedSequenceDataset,
    Packing,
    PreferenceDataset,
    PromptDataset,
    Run,
    SFTDataset,
    StateError,
    WindowDataset,
)
from headrace.compat.astrai import ResumableDistributedSampler
from headrace.compat.megatron import CyclicDataset
from headrace.datasets import Collation, RecordDataset, accounts, count_step
from headrace.io import PreadReader
from headrace.loader import Ranks, Reading, collate_fn, ragged
from headrace.loader.spans import BatchSpan, divide
from headrace.plan import Bucketing
from headrace.samples.media import ImageSample, SampleDecoder
from headrace.samples.media.sample import sample_type
from loader.jobs import Job
from media_made import encoded, pixels

COUNT = 37
READINGS = [Reading(num_threads=0), Reading(num_threads=1), Reading(num_threads=3), Reading(num_workers=2)]
KINDS = ["sft", "kto", "dpo", "stacked", "grpo", "prompts"]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordDataset]:
    folder = tmp_path_factory.mktemp("ragged")
    collation = Collation(multiple_of=2, padding_idx=1)
    pairs = records_made.store(folder / "dpo", records_made.preferences(2, COUNT))
    labelled = [{**record, "label": [number % 3 % 2]} for number, record in enumerate(records_made.sft(6, COUNT))]
    return {
        "kto": SFTDataset(records_made.store(folder / "kto", labelled, "keyed"), collation),
        "sft": SFTDataset(records_made.store(folder / "sft", records_made.sft(1, COUNT), "keyed"), collation),
        "dpo": PreferenceDataset(pairs, collation),
        "stacked": PreferenceDataset(pairs, collation, layout="stacked"),
        "grpo": GroupDataset(records_made.store(folder / "grpo", records_made.groups(3, COUNT)), collation),
        "prompts": PromptDataset(records_made.store(folder / "prompts", records_made.prompts(4, COUNT)), collation),
    }


def expected(run: Run, positions: list[int]) -> dict[str, Any]:
    """A micro-batch by the slow way: items one by one, collated."""
    found = [run.lookup(np.array([position])) for position in positions]
    samples = [run.datasets[int(one.sources[0])][int(one.indices[0])] for one in found]
    return records_made.tensors(run.datasets[0].collate(samples))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_micro_batch_is_its_items_collated(
    datasets: dict[str, RecordDataset], kind: str, reading: Reading
) -> None:
    run = Run(datasets[kind], global_batch_size=6, order=Order(seed=3), epochs=2)
    widths = set()
    seen: list[int] = []
    for rank in range(2):
        loader = Loader(run, micro_batch_size=2, ranks=Ranks(rank, 2), reading=reading)
        step = 0
        for batch in loader:
            positions = batch.pop("sample_positions").tolist()
            seen += positions
            total = batch.pop("step_supervised_tokens", None)
            assert records_made.tensors(batch) == expected(run, positions)
            if kind == "prompts":
                assert total is None
            else:
                assert total == count_step(run, step)["supervised_tokens"] == run.step(step)["num_supervised_tokens"]
            step = loader.step
            first = next(value for value in batch.values() if isinstance(value, torch.Tensor))
            widths.add(first.shape[1])
            assert all(value.is_contiguous() for value in batch.values() if isinstance(value, torch.Tensor))
    assert sorted(seen) == list(range(2 * COUNT))
    assert len(widths) > 3, "as wide as each needs"


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(ranks, micro-batch, threads, micro-steps) of each life of a job."""
    one = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2), st.integers(0, 6))
    return draw(st.lists(one, min_size=1, max_size=4))


@settings(max_examples=cases(12, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), lives())
def test_killed_and_resumed_on_other_ranks(
    datasets: dict[str, RecordDataset], data: st.DataObject, legs: list[tuple[int, int, int, int]]
) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    schedule = [(0, data.draw(st.integers(1, 9))), (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9)))]
    bucketing = data.draw(
        st.one_of(
            st.none(),
            st.builds(
                Bucketing,
                window_steps=st.integers(1, 5),
                group_samples=st.one_of(st.none(), st.integers(1, 4)),
            ),
        )
    )
    order = Order(kind=data.draw(st.sampled_from(["full", "none"])), seed=data.draw(st.integers(0, 3)))
    length = data.draw(st.sampled_from([{"epochs": 1}, {"epochs": 2}, {"samples": 50}]))
    run = Run(datasets[kind], global_batch_size=schedule, order=order, bucketing=bucketing, **length)
    seen: dict[int, list[Any]] = {}
    state = None
    for ranks, micro, threads, micro_steps in legs:
        job = Job(run, ranks, micro, state, reading=Reading(num_threads=threads))
        for batches in job.micro_steps(micro_steps):
            for batch in batches:
                for row, position in enumerate(batch["sample_positions"].tolist()):
                    assert position not in seen
                    seen[position] = unpadded(kind, batch, row)
        state = job.state()
    assert sorted(seen) == list(range(len(seen)))
    alone: dict[int, list[Any]] = {}
    for batch in Loader(run, micro_batch_size=1, ranks=Ranks(), reading=Reading(num_threads=0)):
        alone[int(batch["sample_positions"][0])] = unpadded(kind, batch, 0)
    assert seen == {position: alone[position] for position in seen}
    if length == {"epochs": 1}:
        assert sorted(run.lookup(np.arange(COUNT)).indices.tolist()) == list(range(COUNT)), "each record once"


def unpadded(kind: str, batch: Any, row: int) -> list[Any]:
    """What a row holds of its record, whatever the width of its batch."""
    if kind in ("sft", "kto"):
        real = batch["attention_mask"][row].bool()
        label = batch["label"][row].tolist() if kind == "kto" else None
        return [label, *(batch[name][row][real].tolist() for name in ("input_ids", "labels", "position_ids"))]
    if kind == "dpo":
        names = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
        masks = [batch[f"{name.partition('_')[0]}_attention_mask"][row].bool() for name in names]
        return [batch[name][row][mask].tolist() for name, mask in zip(names, masks, strict=True)]
    if kind == "stacked":
        rows = [row, row + len(batch["sample_positions"])]
        return [batch["input_ids"][one][batch["attention_mask"][one].bool()].tolist() for one in rows]
    if kind == "grpo":
        group = batch["group_mask"][row]
        responses = zip(batch["responses"][row][group], batch["response_mask"][row][group], strict=True)
        prompt = batch["prompts"][row][batch["prompt_mask"][row]].tolist()
        return [prompt, [ids[mask].tolist() for ids, mask in responses], batch["rewards"][row][group].tolist()]
    return [batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist(), batch["columns"][row]]


def test_bucketing_brings_like_lengths_together(tmp_path: Path) -> None:
    dataset = SFTDataset(records_made.store(tmp_path / "many", records_made.sft(5, 640, longest=100)))
    for bucketing, least, most in (
        (None, 0.0, 0.75),
        (Bucketing(window_steps=10), 0.93, 1.0),
        (Bucketing(window_steps=10, group_samples=4), 0.96, 1.0),
    ):
        run = Run(dataset, global_batch_size=16, epochs=1, bucketing=bucketing)
        masks = [batch["attention_mask"] for batch in Loader(run, micro_batch_size=4)]
        assert least < sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks) < most
        assert sorted(run.lookup(np.arange(640)).indices.tolist()) == list(range(640))
        assert [len(run.positions(step)) for step in range(40)] == [16] * 40
    steps = Run(dataset, global_batch_size=16, epochs=1, bucketing=Bucketing(window_steps=10))
    tokens_of = np.array([count_step(steps, step)["tokens"] for step in range(40)]).reshape(4, 10)
    orders = {tuple(window) for window in np.argsort(tokens_of, axis=1).tolist()}
    assert len(orders) == 4, "short steps and long ones come in an order drawn for each window"


def test_positions_in_any_order_and_windows_apart(datasets: dict[str, RecordDataset]) -> None:
    run = Run(datasets["sft"], global_batch_size=[(0, 5), (3, 2)], bucketing=Bucketing(window_steps=2), samples=90)
    every = run.lookup(np.arange(90)).indices
    some = np.random.default_rng(0).permutation(90)[:40]
    assert run.lookup(some).indices.tolist() == every[some].tolist()
    assert run.lookup(np.empty(0, np.int64)).indices.tolist() == []


def test_a_bucketed_run_keeps_its_length(datasets: dict[str, RecordDataset]) -> None:
    def run(**options: Any) -> Run:
        return Run(datasets["sft"], global_batch_size=4, **options)

    loader = Loader(run(samples=30, bucketing=Bucketing()), micro_batch_size=4)
    next(iter(loader))
    for other in (
        run(samples=60, bucketing=Bucketing()),
        run(samples=30),
        run(samples=30, bucketing=Bucketing(window_steps=2)),
    ):
        with pytest.raises(StateError, match="differ"):
            Loader(other, micro_batch_size=4).load_state_dict(loader.state_dict())


def test_blends_of_records(datasets: dict[str, RecordDataset], tmp_path: Path) -> None:
    collation = datasets["sft"].collation
    other = SFTDataset(records_made.store(tmp_path / "other", records_made.sft(9, 20)), collation)
    run = Run(Blend({"a": datasets["sft"], "b": other}, weights={"a": 1, "b": 2}, unit="tokens"), global_batch_size=6)
    for batch in itertools.islice(Loader(run, micro_batch_size=3), 20):
        positions = batch.pop("sample_positions").tolist()
        batch.pop("step_supervised_tokens")
        assert records_made.tensors(batch) == expected(run, positions)
    with pytest.raises(ConfigError, match="fields"):
        Blend({"a": datasets["sft"], "b": SFTDataset(other.store, labels="same")}, weights={"a": 1, "b": 1})


def test_an_empty_micro_batch(datasets: dict[str, RecordDataset]) -> None:
    for kind in KINDS:
        run = Run(datasets[kind], global_batch_size=3, samples=3)
        batch = next(iter(Loader(run, micro_batch_size=2, ranks=Ranks(0, 4))))
        assert len(batch["sample_positions"]) == 0
        full = next(iter(Loader(run, micro_batch_size=2, ranks=Ranks(1, 4))))
        assert batch.keys() == full.keys()
        assert {name: value.dtype for name, value in batch.items() if hasattr(value, "dtype")} == {
            name: value.dtype for name, value in full.items() if hasattr(value, "dtype")
        }
        assert batch.get("step_supervised_tokens") == full.get("step_supervised_tokens")


def test_pictures_are_decoded_into_the_memory_of_their_span(tmp_path: Path) -> None:
    pictures = [encoded(Image.fromarray(pixels(9, 13, seed=number)), "JPEG") for number in range(5)]
    write_tar(tmp_path / "0.tar", [(f"{number}.jpg", data) for number, data in enumerate(pictures)])
    decoder = SampleDecoder(image_decode="chwrgb")
    data = MediaDataset.open(tmp_path, sample_type=ImageSample, field_map={"image": "jpg"}, decoder=decoder)
    run = Run(data, global_batch_size=5, epochs=1)
    span = BatchSpan(run.locate(np.arange(5, dtype=np.int64)), [2, 2, 1], [0] * 3, [2, 4, 5])
    taken: list[Any] = []

    def allocate(num_bytes: int) -> Any:
        taken.append(np.empty(num_bytes, np.uint8))
        return taken[-1]

    rows = ragged.read_ragged(run, span, allocate)
    (memory,) = taken
    assert np.shares_memory(rows.columns["image"].numpy(), memory)
    batches = divide(rows, span, {})
    samples = data.samples(span.located.addresses)
    for sample, image in zip(samples, torch.cat([one["image"] for one in batches]), strict=True):
        assert np.array_equal(image.numpy(), sample.image)
        assert not np.shares_memory(sample.image, memory)


def test_pictures_that_a_type_of_the_users_keeps_lie_in_memory_of_their_own(tmp_path: Path) -> None:
    """The memory of a batch is used again, and what the type has kept would change with it."""
    kept: list[Any] = []

    @sample_type
    class Keeping(ImageSample):
        def __post_init__(self) -> None:
            kept.append(self.image)

    write_tar(tmp_path / "0.tar", [("0.jpg", encoded(Image.fromarray(pixels(9, 13)), "JPEG"))])
    decoder = SampleDecoder(image_decode="chwrgb")
    data = MediaDataset.open(tmp_path, sample_type=Keeping, field_map={"image": "jpg"}, decoder=decoder)
    (batch,) = Loader(Run(data, global_batch_size=1, epochs=1), micro_batch_size=1, reading=Reading(num_threads=0))
    (image,) = kept
    assert np.array_equal(batch["image"][0].numpy(), image)
    assert not np.shares_memory(batch["image"].numpy(), image)


class SlowReader(PreadReader):
    """Each read waits for a store."""

    def read_ranges(self, path: str, offsets: Any, lengths: Any, out: Any = None) -> Any:
        time.sleep(0.1)
        return super().read_ranges(path, offsets, lengths, out)


def test_waits_for_stores_are_no_cost_of_a_span(tmp_path: Path) -> None:
    """A longer span waits less for each of its samples, so that a wait must not make the next ones short."""
    data = MediaDataset.open(media_texts.shards(tmp_path, (5, 4)), reader=SlowReader(), **media_texts.TEXT)
    run = Run(data, global_batch_size=4, epochs=1)
    span = BatchSpan(run.locate(np.arange(4, dtype=np.int64)), [2, 2], [0, 0], [2, 4])
    begin = time.perf_counter()
    rows = ragged.read_ragged(run, span, None)
    took = time.perf_counter() - begin
    assert rows.times.read >= 0.1
    assert rows.cost is not None
    assert 0 < rows.cost.seconds <= took - 0.1, "however busy the machine is"


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in KINDS), ("grpo", 1)])
def test_a_dataloader_of_your_own(datasets: dict[str, RecordDataset], kind: str, workers: int) -> None:
    dataset = datasets[kind]
    indices = list(ResumableDistributedSampler(dataset, seed=5))
    loader: Any = torch.utils.data.DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=4,
        sampler=ResumableDistributedSampler(dataset, seed=5),
        collate_fn=collate_fn(dataset),
        num_workers=workers,
    )
    for number, batch in enumerate(loader):
        wanted = dataset.read(np.array(indices[4 * number : 4 * number + 4]))
        assert records_made.tensors(batch) == records_made.tensors(wanted)
        assert all(isinstance(batch[name], torch.Tensor) for name in dataset.fields)


def test_what_is_not_for_records(datasets: dict[str, RecordDataset], tmp_path: Path) -> None:
    windows = WindowDataset(records_made.store(tmp_path / "s", records_made.sft(1, 9)), seq_len=4)
    with pytest.raises(ConfigError, match="bucketing"):
        Run(windows, global_batch_size=2, bucketing=Bucketing())
    with pytest.raises(ConfigError, match="Bucketing"):
        Run(datasets["sft"], global_batch_size=2, bucketing=16)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="DataLoader"):
        collate_fn(windows.store)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="CyclicDataset"):
        CyclicDataset(datasets["sft"], micro_batch_size=2, data_parallel_size=1)  # type: ignore[arg-type]
    assert not any(hasattr(windows, name) for name in ("samples", "collate", "sample_lengths"))


PACKING = Packing(seq_len=24, over_long="split")


@pytest.fixture
def run(corpus: list[corpora.Corpus]) -> Run:
    sources = {name: PackedSequenceDataset(one.store, PACKING) for name, one in zip("abcd", corpus, strict=True)}
    mix = Blend(sources, weights={"a": 3, "b": 1, "c": 1, "d": 2}, unit="tokens", end="samples", num_samples=75)
    return Run(mix, global_batch_size=BatchSchedule.of([(0, 10), (3, 7)]), order=Order(seed=2))


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 10), (3, 2)])
def test_the_counts_of_all_micro_batches_make_the_step(
    run: Run, reading: Reading, world_size: int, micro_batch_size: int
) -> None:
    by_step: dict[int, list[dict[str, Any]]] = {}
    job, step = Job(run, world_size, micro_batch_size, reading=reading, debug=True), 0
    for batches in job.micro_steps():
        by_step.setdefault(step, []).extend(batches)
        step = job.loaders[0].step
    assert sorted(by_step) == list(range(run.num_steps or 0))
    for step, batches in by_step.items():
        counted = sum(int(batch["num_supervised_tokens"]) for batch in batches)
        assert {int(batch["step_supervised_tokens"]) for batch in batches} == {counted}
        assert batches[0]["step_supervised_tokens"] == count_step(run, step)["supervised_tokens"]
        assert count_step(run, step) == {
            "tokens": sum(int((batch["document_ids"] >= 0).sum()) for batch in batches),
            "supervised_tokens": sum(int(batch["loss_mask"].sum()) for batch in batches),
            "pads": sum(int((batch["document_ids"] < 0).sum()) for batch in batches),
            "documents": sum(_documents(batch) for batch in batches),
        }


def _documents(batch: dict[str, Any]) -> int:
    begins = batch["position_ids"] == 0
    return int((begins & (batch["document_ids"] >= 0)).sum())


def test_types_and_an_empty_micro_batch(run: Run) -> None:
    """A rank that gets nothing of an uneven step has no segments and no tokens, and still the step's count."""
    batches = list(Loader(run, micro_batch_size=4, ranks=Ranks(0, 8), debug=True))
    empty = [batch for batch in batches if not len(batch["input_ids"])]
    assert empty
    for batch in empty:
        assert batch["cu_seqlens"].tolist() == [0]
        assert (batch["max_seqlen"], batch["num_supervised_tokens"]) == (0, 0)
        assert batch["step_supervised_tokens"] > 0
    for batch in batches:
        assert batch["cu_seqlens"].dtype == torch.int32
        assert type(batch["max_seqlen"]) is type(batch["num_supervised_tokens"]) is int


def test_many_short_steps_are_counted_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    count = accounts.count_samples

    def counting(run: Run, located: Any) -> Any:
        calls.append(len(located.positions))
        return count(run, located)

    monkeypatch.setattr(accounts, "count_samples", counting)
    # Before the first step, the samples are looked at for steps without labels.
    monkeypatch.setattr("headrace.loader.collating.check_supervised", lambda *_: None)
    assert len(list(Loader(run, micro_batch_size=10))) == run.num_steps
    assert calls == [75]
    monkeypatch.setattr(accounts, "COUNT_POSITIONS", 17)
    calls.clear()
    list(Loader(run, micro_batch_size=10))
    assert calls == [20, 17, 21, 17]


def test_debug_mode_refuses_a_batch_that_contradicts_itself(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read_into = PackedSequenceDataset.read_into

    def leaking(self: PackedSequenceDataset, addresses: Any, out: Any, rows: Any) -> None:
        read_into(self, addresses, out, rows)
        out["labels"][rows] = np.roll(out["input_ids"][rows], -1, axis=1)  # each document predicts the next one

    monkeypatch.setattr(PackedSequenceDataset, "read_into", leaking)
    next(iter(Loader(run, micro_batch_size=10)))
    loader = Loader(run, micro_batch_size=10, debug=True)
    with pytest.raises(HeadraceError, match="labels"):
        next(iter(loader))
    assert loader.position == 0, "what was refused was not delivered"
