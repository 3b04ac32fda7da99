"""Energon's names for our loader: exact resume on any ranks and workers, validation, and its own order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import media_texts
from columned import get_loader, get_savable_loader
from counts import cases
from headrace import Blend, ConfigError, MediaDataset, StateError
from headrace.compat.energon import (
    BlendDataset,
    EnergonDataset,
    EnergonLoader,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from headrace.datasets import Dataset
from headrace.datasets.lengths import Concat, Subset
from headrace.datasets.mix import Mix

GOLDEN = Path(__file__).parents[2] / "golden" / "energon_order" / "orders.json"
CASES = json.loads(GOLDEN.read_text())
GIVEN = [case for case in CASES["cases"] if "samples" in case]
COUNTS = (20, 11, 9)
SLICES: dict[str, Any] = {"max_samples_per_sequence": 4, "parallel_shard_iters": 3}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("face") / "texts", COUNTS, val=(7, 7, 7))


@pytest.fixture(scope="module")
def sources(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaDataset]:
    other = media_texts.shards(tmp_path_factory.mktemp("face") / "other", (5, 8))
    return {
        "one": MediaDataset.open(root, subflavors={"of": "one"}, **media_texts.TEXT),
        "two": MediaDataset.open(other, subflavors={"of": "two"}, **media_texts.TEXT),
    }


def alone(num_workers: int = 0, **more: Any) -> WorkerConfig:
    return WorkerConfig(0, 1, num_workers, **more)


def loaders(world_size: int, num_workers: int, make: Any) -> list[EnergonLoader]:
    configs = [WorkerConfig(rank, world_size, num_workers, seed_offset=3) for rank in range(world_size)]
    return [get_savable_loader(make(config), start_method="fork", prefetch_factor=1) for config in configs]


def rows(batch: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Position, dataset and text of each sample."""
    of = [(flavors or {}).get("of", "") for flavors in batch["__subflavors__"]]
    return list(zip(batch["sample_positions"].tolist(), of, batch["text"], strict=True))


def mixes(sources: dict[str, MediaDataset]) -> dict[str, Dataset | Mix]:
    weights = {"one": 2.0, "two": 1.0}
    return {
        "one": sources["one"],
        "part": Subset(sources["one"], ["25%", "75%"]),
        "weights": Blend(sources, weights=weights),
        "repeats": Blend(sources, repeats={"one": 1, "two": 2.5}),
        "blocks": BlendDataset(sources, weights=weights, block_samples=4),
        "concat": Concat(sources),
    }


@settings(max_examples=cases(8, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_chains_of_lives_equal_the_uninterrupted_run(sources: dict[str, MediaDataset], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["one", "part", "weights", "repeats", "blocks", "concat"]))
    mix = mixes(sources)[name]
    order = data.draw(st.sampled_from(["shards", "full", "blocks"]))
    # Where a micro-batch is of one source it has to divide the block.
    sizes = st.just(data.draw(st.sampled_from([1, 2, 4]))) if name == "blocks" else st.integers(1, 5)
    steps = data.draw(st.sampled_from([None, None, 8])) if name != "blocks" else None
    options = {**SLICES, "order": order, "global_batch_size": steps}
    seen: dict[int, tuple[str, str]] = {}
    state = None
    for _ in range(data.draw(st.integers(1, 4))):
        world_size, workers = data.draw(st.sampled_from([(1, 0), (2, 0), (3, 0), (5, 0)] * 3 + [(1, 2), (2, 1)]))
        batch_size, virtual = data.draw(sizes), data.draw(st.integers(0, 3))
        ranks = loaders(
            world_size,
            workers,
            lambda config, b=batch_size, v=virtual: get_train_dataset(
                mix, worker_config=config, batch_size=b, virtual_epoch_length=v, **options
            ),
        )
        for loader in ranks:
            loader.restore_state_rank(None if state is None else json.loads(json.dumps(state)))
        for _ in range(data.draw(st.integers(0, 3))):
            # An iteration that ends by itself, or one that is left.
            wanted = virtual if virtual and data.draw(st.booleans()) else data.draw(st.integers(0, virtual or 4))
            iterators = [iter(loader) for loader in ranks]
            for _ in range(wanted):
                batches = [next(iterator, None) for iterator in iterators]
                assert len({batch is None for batch in batches}) == 1, "all ranks end together"
                for batch in filter(None, batches):
                    for position, *what in rows(batch):
                        assert position not in seen
                        seen[position] = tuple(what)
        states = [loader.save_state_rank() for loader in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert len(json.dumps(state)) < 1024
        for loader in ranks:
            loader.close()
    # Of a step that was left in its midst some were given, of a blend they are drawn.
    whole = len(seen) if steps is None else len(seen) // steps * steps
    assert set(range(whole)) <= seen.keys()
    assert max(seen, default=-1) < (len(seen) if whole == len(seen) else whole + 8)
    plain = get_train_dataset(
        mix, worker_config=alone(seed_offset=3), batch_size=1, **{**options, "global_batch_size": None}
    )
    for position, batch in zip(range(max(seen, default=-1) + 1), get_loader(plain), strict=False):
        assert position not in seen or rows(batch) == [(position, *seen[position])]


def test_ranks_that_do_not_divide_what_came_before(sources: dict[str, MediaDataset]) -> None:
    """One rank took one sample; two ranks go on, whose micro-batches are of one source each."""
    mix = mixes(sources)["blocks"]

    def make(config: WorkerConfig) -> EnergonDataset:
        return get_train_dataset(mix, worker_config=config, batch_size=1, **SLICES, order="shards")

    [whole], [alone_], ranks = (loaders(world_size, 0, make) for world_size in (1, 1, 2))
    next(iter(alone_))
    for loader in ranks:
        loader.restore_state_rank(alone_.save_state_rank())
    iterators = [iter(loader) for loader in ranks]
    found = [rows(next(iterator))[0] for _ in range(2) for iterator in iterators]
    assert sorted(found) == [rows(batch)[0] for batch in itertools.islice(whole, 1, 5)]


@pytest.mark.parametrize("drop", [False, True])
def test_without_repeat_an_iteration_is_a_pass(root: Path, drop: bool) -> None:
    options = {"batch_size": 6, "repeat": False, "batch_drop_last": drop, **SLICES, **media_texts.TEXT}
    loader, between = (get_savable_loader(get_train_dataset(root, worker_config=alone(), **options)) for _ in range(2))
    passes = [list(loader) for _ in range(2)]
    for batches in passes:
        assert [len(batch["text"]) for batch in batches] == [6] * 6 + [4] * (not drop)
        assert len({text for batch in batches for text in batch["text"]}) == 36 + 4 * (not drop)
    assert passes[0][0]["text"] != passes[1][0]["text"]
    between.restore_state_rank({**loader.save_state_rank(), "step": 0, "position": 0})
    list(between)
    assert between.save_state_rank()["position"] == 40
    assert next(iter(between))["text"] == passes[1][0]["text"]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (2, 0), (3, 0), (2, 2), (5, 0), (24, 0)])
@pytest.mark.parametrize("tail", ["spread", "pad", "drop"])
def test_validation_is_once_in_order_and_as_long_on_all_ranks(
    root: Path, world_size: int, num_workers: int, tail: Any
) -> None:
    """21 samples in batches of 4."""

    def make(config: WorkerConfig) -> EnergonDataset:
        return get_val_dataset(root, worker_config=config, batch_size=4, tail=tail, **media_texts.TEXT)

    if tail == "drop" and world_size > 5:
        with pytest.raises(ConfigError, match=r"21.*samples.*4"):
            make(WorkerConfig(0, world_size, 0))
        return
    ranks = loaders(world_size, num_workers, make)
    for _ in range(2):
        given = [list(loader) for loader in ranks]
        together = 4 * world_size
        steps = 21 // together if tail == "drop" else -(-21 // together)
        assert {len(batches) for batches in given} == {len(loader) for loader in ranks} == {steps}
        real: dict[int, str] = {}
        for batch in itertools.chain(*given):
            masks = batch.get("sample_mask", [True] * len(batch["text"]))
            real |= {position: text for (position, _, text), keep in zip(rows(batch), masks, strict=True) if keep}
        covered = steps * together if tail == "drop" else 21
        assert real == {position: str(40 + position) for position in range(covered)}
        sizes = {len(batch["text"]) for batches in given for batch in batches}
        assert tail == "spread" or sizes == {4}
        if tail == "spread":
            lasts = [len(batches[-1]["text"]) for batches in given]
            assert max(lasts) - min(lasts) <= 1 or 21 % together == 0


def test_a_stopped_validation_goes_on_and_then_begins_anew(root: Path) -> None:
    def make(world_size: int, rank: int, tail: Any) -> EnergonLoader:
        config = WorkerConfig(rank, world_size, 0)
        return get_loader(get_val_dataset(root, worker_config=config, batch_size=2, tail=tail, **media_texts.TEXT))

    for tail in ("spread", "pad", "drop"):
        first = make(2, 0, tail)
        for _ in zip(range(2), first, strict=False):
            pass
        assert first.position == 8
        second = [make(3, rank, tail) for rank in range(3)]
        for loader in second:
            loader.restore_state_rank(first.save_state_rank())
        rest = [row for loader in second for batch in loader for row in rows(batch)]
        assert [text for _, _, text in sorted(rest)][:12] == [str(40 + number) for number in range(8, 20)]
        assert {loader.position for loader in second} == {21}
        assert [next(iter(loader))["text"] for loader in second] == [["40", "41"], ["42", "43"], ["44", "45"]]


@pytest.mark.parametrize("order", ["energon", "stride"])
@pytest.mark.parametrize("taken", [None, 4, 2])
def test_a_state_behind_a_pass_begins_the_next_one(root: Path, order: Any, taken: int | None) -> None:
    """21 samples in batches of 6, all of them with or without the end of the iteration; as Energon resumes."""

    def make() -> EnergonLoader:
        dataset = get_val_dataset(root, worker_config=alone(), batch_size=6, order=order, **media_texts.TEXT)
        return get_loader(dataset)

    stopped = make()
    whole = [batch["text"] for batch in make()]
    assert len(whole) == 4
    given = [batch["text"] for batch in itertools.islice(stopped, taken)]
    assert given == whole[:taken]
    resumed = make()
    resumed.restore_state_rank(stopped.save_state_rank())
    for loader in (resumed, stopped):
        assert [batch["text"] for batch in loader] == (whole[2:] if taken == 2 else whole)
        assert [batch["text"] for batch in loader] == whole


def test_limits_and_single_datasets_of_validation(root: Path, sources: dict[str, MediaDataset]) -> None:
    for rank in range(2):
        config = WorkerConfig(rank, 2, 0)
        loader = get_loader(get_val_dataset(root, worker_config=config, batch_size=3, limit=2, **media_texts.TEXT))
        assert [batch["text"] for batch in loader] == [
            [str(40 + 6 * step + 3 * rank + row) for row in range(3)] for step in range(2)
        ]
    both = Concat({"a": sources["two"], "rest": Concat({"b": Subset(sources["one"], [3, 9])})})
    found = get_val_datasets(both, worker_config=alone(), batch_size=4, tail="pad")
    assert [part for _, part in found] == [sources["two"], both.children["rest"].children["b"]]  # type: ignore[union-attr]
    assert [len(dataset) for dataset, _ in found] == [4, 2], "batches of this rank"
    assert [dataset.num_samples for dataset, _ in found] == [13, 6]
    assert [[text for batch in get_loader(dataset) for text in batch["text"]] for dataset, _ in found][1] == [
        *map(str, range(3, 9)), "3", "4"
    ]  # fmt: skip


def test_the_first_batch_after_a_resume_reads_one_batch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = MediaDataset.samples

    def counted(self: MediaDataset, addresses: Any, watch: Any) -> list[Any]:
        read.append(len(addresses))
        return whole(self, addresses, watch)

    monkeypatch.setattr(MediaDataset, "samples", counted)
    data = get_train_dataset(root, worker_config=alone(), batch_size=4, **SLICES, **media_texts.TEXT)
    state = {**get_loader(data).save_state_rank(), "step": 10**12, "position": 10**12}
    loader = get_savable_loader(data)
    loader.restore_state_rank(state)
    assert next(iter(loader))["sample_positions"].tolist() == list(range(10**12, 10**12 + 4))
    assert sum(read) == 4


def test_a_state_of_another_run_is_refused_by_part(root: Path, sources: dict[str, MediaDataset]) -> None:
    def make(data: Any = root, seed_offset: int = 0, **options: Any) -> EnergonLoader:
        opening = media_texts.TEXT if isinstance(data, Path) else {}
        config = alone(seed_offset=seed_offset)
        return get_savable_loader(get_train_dataset(data, worker_config=config, batch_size=2, **opening, **options))

    loader = make()
    next(iter(loader))
    state = loader.save_state_rank()
    for other, part in [
        (make(sources["two"]), "dataset.*blend"),
        (make(max_samples_per_sequence=7), "order"),
        (make(seed_offset=1), "order"),
        (make(order="full"), "order"),
        (make(global_batch_size=2), "batch"),
        (make(split_part="val"), "dataset.*blend"),
    ]:
        with pytest.raises(StateError, match=part):
            other.restore_state_rank(state)
        assert other.position == 0
    with pytest.raises(StateError, match="loader"):
        loader.load_state_dict({"worker_states": []})
    loader.restore_state_global(loader.save_state_global(0), src_rank=0)
    assert loader.position == 2
    loader.restore_state_rank(None)
    assert loader.position == 0
    old = iter(loader)
    next(old)
    iter(loader)
    with pytest.raises(StateError, match="outdated"):
        next(old)


@pytest.fixture(scope="module")
def golden_sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaDataset]:
    folder = tmp_path_factory.mktemp("golden")
    return {
        name: MediaDataset.open(
            media_texts.shards(folder / name, tuple(counts)), subflavors={"of": name}, **media_texts.TEXT
        )
        for name, counts in CASES["counts"].items()
    }


def data_of(case: dict[str, Any], found: dict[str, MediaDataset]) -> Dataset | Mix:
    children: dict[str, Dataset | Mix] = {}
    for number, source in enumerate(case["sources"]):
        child: Dataset | Mix = found[source["name"]]
        if "subset" in source:
            child = Subset(found[source["name"]], source["subset"])
        children[f"s{number}"] = child
    blend = case.get("mixing", {"blend": "none"})["blend"]
    if blend == "weights":
        return Blend(children, weights={f"s{i}": source["weight"] for i, source in enumerate(case["sources"])})
    if blend == "repetitions":
        return Blend(children, repeats={f"s{i}": source["repetitions"] for i, source in enumerate(case["sources"])})
    return Concat(children) if len(children) > 1 else children["s0"]


@pytest.mark.parametrize("number", range(len(GIVEN)))
def test_energons_own_order(golden_sources: dict[str, MediaDataset], number: int) -> None:
    """Against what megatron-energon 7.4.1 gave; half of it by a loader that was resumed."""
    case = GIVEN[number]
    config = WorkerConfig(case["rank"], case["world_size"], case["num_workers"], seed_offset=case["seed_offset"])
    batch_size = case["batch_size"] or 1
    options: dict[str, Any] = {
        "worker_config": config,
        "batch_size": batch_size,
        "batch_drop_last": case.get("drop_last", False),
        "order": "energon",
    }
    data = data_of(case, golden_sources)
    if "mixing" in case:
        mixing = {name: value for name, value in case["mixing"].items() if name != "blend"}
        multiplier = case.get("shuffle_over_epochs", 1)
        dataset = get_train_dataset(data, shuffle_over_epochs_multiplier=multiplier, **mixing, **options)
    else:
        dataset = get_val_dataset(data, limit=case.get("limit"), **options)
    # What workers read is tried below; here the plan counts, and processes would take long to start.
    wanted = case["samples"] if case["batch_size"] is not None else [[one] for one in case["samples"]]
    ends = len(case["samples"]) < 150
    own = dataset.own_order
    assert own is not None
    spans = own.spans(case["rank"], 0)
    flavors = [media.subflavors["of"] for media in own.run.datasets]  # type: ignore[attr-defined]
    found = []
    for span in itertools.islice(spans, len(wanted) + ends):
        pairs = zip(span.located.sources.tolist(), span.located.addresses.tolist(), strict=True)
        found.append([f"{flavors[source]}{address}" for source, address in pairs])
    assert found == wanted
    middle = len(wanted) // 2
    resumed = next(own.spans(case["rank"], middle), None)
    assert resumed is None or resumed.located.addresses.tolist() == [int(one[1:]) for one in wanted[middle]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_energons_own_order_is_bound(root: Path, num_workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2, "order": "energon", "shuffle_buffer_size": 5, **SLICES}

    def make(workers: int, **more: Any) -> EnergonLoader:
        data = get_train_dataset(root, worker_config=alone(workers), **options, **more, **media_texts.TEXT)
        return get_savable_loader(data, start_method="fork")

    loader = make(num_workers, virtual_epoch_length=4)
    epochs = [[batch["text"] for batch in loader] for _ in range(2)]
    resumed = make(num_workers)
    resumed.restore_state_rank(loader.save_state_rank())
    whole = [batch["text"] for batch in itertools.islice(make(num_workers), 12)]
    assert epochs == [whole[:4], whole[4:8]]
    assert [batch["text"] for batch in itertools.islice(resumed, 4)] == whole[8:]
    with pytest.raises(StateError, match=r"\nEnergon's.*1"):
        make(num_workers + 1).restore_state_rank(loader.save_state_rank())


def test_energons_validation_order(root: Path) -> None:
    """The vectors of three shards of seven samples."""
    for world, workers, rank, wanted in [
        (1, 0, 0, list(range(21))),
        (1, 2, 0, [0, 11, 1, 12, 2, 13]),
        (2, 1, 1, list(range(11, 21))),
        (3, 0, 2, list(range(14, 21))),
    ]:
        config = WorkerConfig(rank, world, workers)
        data = get_val_dataset(root, worker_config=config, batch_size=1, order="energon", **media_texts.TEXT)
        loader = get_loader(data, start_method="fork")
        for _ in range(2):
            found = [int(text) - 40 for batch in loader for text in batch["text"]]
            assert found[: len(wanted)] == wanted
            assert len(found) == (21 if world == 1 else len(wanted))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task_encoder": object()}, "TaskEncoder"),
        ({"order": "random"}, "'random'.*'energon'"),
        ({"batch_size": 0}, "batch_size"),
        ({"shuffle_over_epochs_multiplier": -1}, "epoch"),
        ({"order": "energon", "num_workers": 2, "virtual_epoch_length": 3}, "multiple"),
        ({"order": "energon", "global_batch_size": 3}, "global_batch_size"),
        ({"order": "energon", "shuffle_over_epochs_multiplier": None}, "shuffled"),
        ({"subset": [50, 60]}, "40"),
    ],
)
def test_what_does_not_go(root: Path, options: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"batch_size": 1, **media_texts.TEXT, **options}
    with pytest.raises(ConfigError, match=named):
        get_train_dataset(root, worker_config=alone(given.pop("num_workers", 0)), **given)


def test_what_does_not_go_with_data(sources: dict[str, MediaDataset]) -> None:
    blend = Blend(sources, weights={"one": 1, "two": 1})
    given: dict[str, Any] = {"worker_config": alone(), "batch_size": 1}
    for make, named in [
        (lambda: get_train_dataset(blend, repeat=False, **given), "end"),
        (lambda: get_train_dataset(blend, decoder=None, **given), "open"),
        (lambda: get_val_dataset(blend, **given), "end"),
        (lambda: get_val_dataset(blend, order="energon", **given), "order"),
        (lambda: get_val_dataset(sources["one"], limit=0, **given), "limit.*0.*1"),
        (lambda: WorkerConfig(2, 2, 0), "2"),
        (lambda: WorkerConfig(0, 2, -1), "num_workers"),
    ]:
        with pytest.raises(ConfigError, match=named):
            make()


def test_a_worker_config_can_be_changed_until_a_dataset_is_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    config = WorkerConfig.default_worker_config(seed_offset=5)
    assert (config.rank, config.world_size, config.num_workers, config.seed_offset) == (1, 3, 4, 5)
    config.rank, config.world_size, config.num_workers, config.seed_offset = 1, 2, 0, 9
    given: dict[str, Any] = {"batch_size": 4, **media_texts.TEXT}
    made = get_train_dataset(root, worker_config=config, **given)
    other = get_train_dataset(root, worker_config=WorkerConfig(1, 2, 0, seed_offset=9), **given)
    loader = get_loader(made)
    config.seed_offset, config.num_workers = 10, -1
    assert made.worker_config == WorkerConfig(1, 2, 0, seed_offset=9)
    for make in (lambda: get_loader(made), lambda: get_savable_loader(made, worker_config=config)):
        with pytest.raises(ConfigError, match=r"seed_offset=10.*seed_offset=9"):
            make()
    assert next(iter(loader))["__key__"] == next(iter(get_loader(other)))["__key__"]
    with pytest.raises(ConfigError, match=r"num_workers.*-1.*0"):
        get_train_dataset(root, worker_config=config, **given)
    with pytest.warns(UserWarning, match="worker_debug_path"):
        config.worker_debug_path = "debug.jsonl"
    with pytest.raises(AttributeError):
        config.num_wokers = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("buffer", "more", "slices", "samples"),
    [(5_000, {"max_samples_per_sequence": 10}, 500, 10), (50, {}, 128, 100)],
)
def test_a_buffer_opens_as_many_slices(root: Path, buffer: int, more: Any, slices: int, samples: int) -> None:
    given = {"batch_size": 1, "shuffle_buffer_size": buffer, **more, **media_texts.TEXT}
    data = get_train_dataset(root, worker_config=alone(), **given)
    assert (data.stream.order.parallel_shard_iters, data.stream.order.max_samples_per_sequence) == (slices, samples)
    assert "40 samples an epoch" in data.describe()
