"""Records through the loader: padded micro-batch by micro-batch, exact on any ranks, however they are read."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import records_made
from counts import cases
from headrace import (
    Blend,
    ConfigError,
    GroupDataset,
    Loader,
    Order,
    PreferenceDataset,
    PromptDataset,
    Run,
    SFTDataset,
    StateError,
    WindowDataset,
)
from headrace.compat.megatron import CyclicDataset
from headrace.datasets import Collation, RecordDataset, count_step
from headrace.loader import Ranks, Reading, collate_fn, ragged
from headrace.loader.spans import BatchSpan
from headrace.plan import Bucketing

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


@settings(max_examples=cases(24, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
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
        loaders = [
            Loader(run, micro_batch_size=micro, ranks=Ranks(rank, ranks), reading=Reading(num_threads=threads))
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(loader) for loader in loaders]
        for _ in range(micro_steps):
            for batch in (next(iterator, None) for iterator in iterators):
                for row, position in enumerate((batch or {"sample_positions": torch.empty(0)})["sample_positions"]):
                    assert int(position) not in seen
                    seen[int(position)] = unpadded(kind, batch, row)
        state = loaders[0].state_dict()
        for iterator in iterators:
            iterator.close()  # type: ignore[attr-defined]
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


def test_bucketing_brings_like_lengths_together(datasets: dict[str, RecordDataset], tmp_path: Path) -> None:
    dataset = SFTDataset(records_made.store(tmp_path / "many", records_made.sft(5, 640, longest=100)))
    fills = {}
    for name, bucketing in {
        "none": None,
        "steps": Bucketing(window_steps=10),
        "groups": Bucketing(window_steps=10, group_samples=4),
    }.items():
        run = Run(dataset, global_batch_size=16, epochs=1, bucketing=bucketing)
        batches = list(Loader(run, micro_batch_size=4))
        tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        fills[name] = tokens / sum(batch["attention_mask"].numel() for batch in batches)
        assert sorted(run.lookup(np.arange(640)).indices.tolist()) == list(range(640))
        assert [len(run.positions(step)) for step in range(40)] == [16] * 40
    assert fills["none"] < 0.75
    assert fills["steps"] > 0.93
    assert fills["groups"] > 0.96
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
        with pytest.raises(StateError, match="batch differ"):
            Loader(other, micro_batch_size=4).load_state_dict(loader.state_dict())


def test_blends_of_records(datasets: dict[str, RecordDataset], tmp_path: Path) -> None:
    collation = datasets["sft"].collation
    other = SFTDataset(records_made.store(tmp_path / "other", records_made.sft(9, 20)), collation)
    run = Run(Blend({"a": datasets["sft"], "b": other}, weights={"a": 1, "b": 2}, unit="tokens"), global_batch_size=6)
    for batch in itertools.islice(Loader(run, micro_batch_size=3), 20):
        positions = batch.pop("sample_positions").tolist()
        batch.pop("step_supervised_tokens")
        assert records_made.tensors(batch) == expected(run, positions)
    with pytest.raises(ConfigError, match="the same fields"):
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


@pytest.mark.parametrize("kind", ["sft", "stacked", "prompts"])
def test_waits_for_stores_are_no_cost_of_a_span(
    datasets: dict[str, RecordDataset], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A longer span waits less for each of its samples, so that a wait must not make the next ones short."""
    run = Run(datasets[kind], global_batch_size=4, epochs=1)
    span = BatchSpan(run.locate(np.arange(4, dtype=np.int64)), [2, 2], [0, 0], [2, 4])
    waited_s = iter([5.0, 1005.0])
    monkeypatch.setattr(ragged, "waited_s", waited_s.__next__)
    cost = ragged.read_ragged(run, span, None).cost
    assert cost is not None
    assert cost.seconds < 0


def test_batches_do_not_share_memory(datasets: dict[str, RecordDataset]) -> None:
    run = Run(datasets["sft"], global_batch_size=2, epochs=1)
    first = list(Loader(run, micro_batch_size=2))
    copies = [records_made.tensors(batch) for batch in first]
    for batch in Loader(run, micro_batch_size=2):
        batch["input_ids"].fill_(-1)
        batch["labels"].fill_(-1)
    assert [records_made.tensors(batch) for batch in first] == copies
    for batch in first[::2]:
        batch["input_ids"].fill_(0)
    assert [records_made.tensors(batch) for batch in first[1::2]] == copies[1::2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_of_your_own(datasets: dict[str, RecordDataset], workers: int) -> None:
    from headrace.compat.astrai import ResumableDistributedSampler

    for kind in KINDS if not workers else ["grpo"]:
        dataset = datasets[kind]
        order = ResumableDistributedSampler(dataset, seed=5)
        loader: Any = torch.utils.data.DataLoader(
            dataset,
            batch_size=4,
            sampler=order,
            collate_fn=collate_fn(dataset),
            num_workers=workers,  # type: ignore[arg-type]
        )
        indices = list(ResumableDistributedSampler(dataset, seed=5))
        for number, batch in enumerate(loader):
            wanted = dataset.read(np.array(indices[4 * number : 4 * number + 4]))
            assert records_made.tensors(batch) == records_made.tensors(wanted)
            assert all(isinstance(batch[name], torch.Tensor) for name in dataset.fields)


def test_what_is_not_for_records(datasets: dict[str, RecordDataset], tmp_path: Path) -> None:
    windows = WindowDataset(records_made.store(tmp_path / "s", records_made.sft(1, 9)), seq_len=4)
    with pytest.raises(ConfigError, match="bucketing is for records"):
        Run(windows, global_batch_size=2, bucketing=Bucketing())
    with pytest.raises(ConfigError, match="expected a Bucketing"):
        Run(datasets["sft"], global_batch_size=2, bucketing=16)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected the dataset that the DataLoader reads"):
        collate_fn(windows.store)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="CyclicDataset is for samples of one shape"):
        CyclicDataset(datasets["sft"], micro_batch_size=2, data_parallel_size=1)  # type: ignore[arg-type]
    assert not any(hasattr(windows, name) for name in ("samples", "collate", "sample_lengths"))
