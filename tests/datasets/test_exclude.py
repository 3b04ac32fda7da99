"""What an edit excludes is never trained on from its step on, and nothing else changes."""

from __future__ import annotations

import json
import random
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import corpora
import headrace
import media_stores_made
import records_made
from counts import cases
from energon_prepared import prepared
from headrace import MediaDataset, PackedSequenceDataset, Packing, Run, ScheduledBlend, SFTDataset, WindowDataset
from headrace.datasets import Blend, Concat, Dataset, Exclude, MapDataset, PreferenceDataset, Stage, Subset, count_step
from headrace.datasets.exclusions import Exclusion, range_numbers, ranges_text
from headrace.errors import ConfigError
from headrace.loader import Ranks, Reading
from headrace.plan import Order
from headrace.plan.packed_check import check_packed
from headrace.stores import KeyedStore, Store
from headrace.tracing import filed_run, save_run
from token_shards import write_keyed

PAD = 0
EVEN = {"web": 1, "code": 1}
FIRST = {"web": 1, "code": 10_001}
"""Each token of a source is this number plus its place in the stream."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Two stores with a loss mask, some of whose documents are empty."""
    folder = tmp_path_factory.mktemp("exclude")
    found: dict[str, Store] = {}
    for seed, (name, first) in enumerate(FIRST.items()):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 30, 40) * (rng.random(40) > 0.15)
        bounds = np.cumsum([0, *lengths])
        documents = [np.arange(low, high) + first for low, high in pairwise(bounds)]
        marks = [(rng.random(length) < 0.6).astype(int) for length in lengths]
        write_keyed(folder / name, tokens=("int32", documents), loss_mask=("uint8", marks))
        found[name] = KeyedStore(folder / name)
    return found


def document_of(stores: dict[str, Store], tokens: np.ndarray) -> np.ndarray:
    """The document of each token as (source * 1000 + number); -1 for pads and missing labels."""
    found = np.full(tokens.shape, -1)
    for number, (name, first) in enumerate(FIRST.items()):
        mine = (tokens >= first) & (tokens < first + stores[name].num_tokens)
        found[mine] = stores[name].find_documents(tokens[mine] - first) + 1000 * number
    return found


def masked(stores: dict[str, Store], batch: dict[str, Any], excluded: set[int], *, is_unshifted: bool) -> Any:
    """What a batch must be without some documents, token by token."""
    found = {name: np.array(values) for name, values in batch.items()}
    inputs, labels = document_of(stores, batch["input_ids"]), document_of(stores, batch["labels"])
    for row, column in np.argwhere(np.isin(inputs, sorted(excluded))):
        found["input_ids"][row, column] = PAD
    for row, column in np.argwhere(labels >= 0):
        predicts = inputs[row, column - 1] if is_unshifted else inputs[row, column]
        if labels[row, column] in excluded or predicts in excluded:
            found["labels"][row, column] = -100
            if "loss_mask" in found:
                found["loss_mask"][row, column] = False
    return found


def hidden(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    labels = np.where(rng.random(len(sample["labels"])) < 0.2, -100, sample["labels"])
    return {**sample, "labels": labels} | ({"loss_mask": labels != -100} if "loss_mask" in sample else {})


def random_datasets(rng: random.Random, stores: dict[str, Store]) -> dict[str, Dataset]:
    labels: Any = rng.choice(["next", "next", "same"])
    mask = rng.choice(["auto", None])
    found: dict[str, Dataset] = {}
    if rng.random() < 0.5:
        options: dict[str, Any] = {"document_ids": rng.random() < 0.5}
        options["position_ids"] = rng.choice(["continue", "restart"])
        for name, store in stores.items():
            stride, phase = rng.choice([None, 5, 11]), rng.random() < 0.5
            options |= {"labels": labels, "loss_mask_key": mask}
            found[name] = WindowDataset(store, seq_len=13, stride=stride, phase=phase, **options)
    else:
        borders: Any = rng.choice(["mask", "keep"])
        for name, store in stores.items():
            strategy: Any = rng.choice(["greedy", "best_fit", "best_fit_split", "wrapped"])
            splits = strategy in ("best_fit_split", "wrapped")
            over_long: Any = rng.choice(["split"] if splits else ["split", "truncate_right", "drop"])
            multiple = 1 if strategy == "wrapped" else rng.choice([1, 4])
            packing = Packing(seq_len=24, strategy=strategy, over_long=over_long, segment_multiple=multiple)
            if packing.strategy == "best_fit":
                packing = msgspec.structs.replace(packing, repack=rng.random() < 0.5)
            options = {"labels": labels, "loss_mask_key": mask, "border_labels": borders}
            found[name] = PackedSequenceDataset(store, packing, padding_idx=PAD, **options)
    if rng.random() < 0.3:
        found = {name: MapDataset(dataset, hidden, seeded=True) for name, dataset in found.items()}
    return found


def random_order(rng: random.Random) -> Order:
    return Order(kind=rng.choice(["full", "full", "blocks", "none"]), seed=rng.randrange(3), block_samples=3)


def asked(documents: list[int], names: Any) -> dict[str, Any]:
    return {name: Exclude(documents=documents, pad_id=PAD) for name in names}


@pytest.mark.parametrize("seed", range(cases(40, 1500)))
def test_random_masks(stores: dict[str, Store], seed: int) -> None:
    rng = random.Random(seed)
    datasets = random_datasets(rng, stores)
    is_unshifted = next(iter(datasets.values())).traits.is_unshifted
    is_packed = next(iter(datasets.values())).traits.is_packed
    mix = Blend(datasets, weights={"web": 2, "code": 1})
    run = Run(mix, global_batch_size=rng.choice([4, 6]), order=random_order(rng))
    edited, excluded, gone = run, {}, set[int]()
    for step in sorted(rng.sample(range(9), 2)):
        names = rng.sample(["web", "code"], rng.choice([1, 2]))
        documents = rng.sample(range(40), rng.choice([1, 3, 20]))
        edited = edited.edit(step, exclude=asked(documents, names))
        gone = gone | {1000 * ["web", "code"].index(name) + document for name in names for document in documents}
        excluded[step] = gone
    gone = set()
    for step in range(12):
        gone = excluded.get(step, gone)
        before, after = run.step(step), edited.step(step)
        expected = masked(stores, before, gone, is_unshifted=is_unshifted)
        assert after.keys() == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(after[name], values), (step, name)
        if is_packed:
            assert check_packed(after, is_unshifted=is_unshifted) == []
        assert not set(document_of(stores, after["input_ids"]).flat) & gone
        assert not set(document_of(stores, after["labels"]).flat) & gone
        counts = count_step(edited, step)
        if not isinstance(next(iter(datasets.values())), MapDataset):
            assert counts["supervised_tokens"] == np.count_nonzero(after["labels"] != -100)
            here = document_of(stores, before["input_ids"])
            assert counts["tokens"] == np.count_nonzero((here >= 0) & ~np.isin(here, sorted(gone)))
        assert counts["tokens"] + counts["pads"] == after["input_ids"].size


def test_counts_and_documents_of_masked_windows_and_packs(stores: dict[str, Store]) -> None:
    store = stores["web"]
    documents = np.array([0, 3, 4, 5, 39])
    packs = PackedSequenceDataset(store, Packing(seq_len=64, over_long="split"))
    for dataset in (WindowDataset(store, seq_len=16), packs):
        rest = dataset.without(documents, PAD)
        addresses = dataset.locate(np.arange(len(dataset)))
        lost = dataset.count(addresses).documents - rest.count(addresses).documents
        for origins, number in zip(dataset.origins(addresses), lost.tolist(), strict=True):
            # Those without tokens lie in windows, too, but in no pack.
            held = {origin.document for origin in origins} & set(documents.tolist())
            assert len(held) <= number <= len(held) + (dataset is not packs) * len(documents)
            assert dataset is not packs or number == len([one for one in origins if one.document in held])
        assert rest.holders(3).tolist() == []
        assert rest.holders(6).tolist() == dataset.holders(6).tolist()
    assert packs.holders(documents, as_labels=True).tolist() == sorted(
        {int(i) for d in documents for i in packs.holders(int(d))}
    )


def test_holders_of_packs_that_are_repacked_with_pads_in_segments(stores: dict[str, Store]) -> None:
    """Documents change places with all whose segments are equally long, so that their own lengths may differ."""
    packing = Packing(seq_len=24, over_long="split", repack=True, segment_multiple=4)
    packs = PackedSequenceDataset(stores["web"], packing)
    numbers = np.arange(len(packs))
    for key in np.random.default_rng(0).integers(0, 1 << 63, 40, dtype=np.uint64):
        items = packs.items(packs.locate(numbers, np.full(len(packs), key)))
        rows = np.repeat(numbers, np.diff(items.offsets))
        for row, document in zip(rows.tolist(), items.documents.tolist(), strict=True):
            assert row in packs.holders(document)


def first_batches(run: Run, state: Any = None, **options: Any) -> list[dict[str, Any]]:
    """The first eight batches of a run, or of what comes after a state."""
    loader = headrace.Loader(run, micro_batch_size=2, ranks=Ranks(0, 1), **options)
    if state is not None:
        loader.load_state_dict(state)
    return list(islice(loader, 8))


@pytest.mark.parametrize("kind", ["windows", "packs"])
def test_loader_counts_and_resumes(stores: dict[str, Store], kind: str) -> None:
    packing = Packing(seq_len=64, over_long="split")
    makers: dict[str, Any] = {
        "windows": partial(WindowDataset, seq_len=16),
        "packs": partial(PackedSequenceDataset, packing=packing),
    }
    datasets = {name: makers[kind](store, loss_mask_key=None) for name, store in stores.items()}
    run = Run(Blend(datasets, weights=EVEN), global_batch_size=8, order=Order(seed=2))
    edited = run.edit(2, exclude=asked(list(range(3, 12)), ["web", "code"]), reason="a takedown")
    early = headrace.Loader(run, micro_batch_size=2, position=16).state_dict()
    late = headrace.Loader(edited, micro_batch_size=2, position=24).state_dict()
    for batches in (first_batches(edited, early), first_batches(edited, early, reading=Reading(num_workers=1))):
        for at, step in ((0, 2), (4, 3)):
            mine = batches[at : at + 4]
            numbers = [int((batch["labels"] != -100).sum()) for batch in mine]
            assert [batch["num_supervised_tokens"] for batch in mine] == numbers
            assert {batch["step_supervised_tokens"] for batch in mine} == {sum(numbers)}
            order = np.argsort(np.concatenate([batch["sample_positions"] for batch in mine]))
            found = np.concatenate([batch["input_ids"] for batch in mine])[order]
            assert np.array_equal(found, edited.step(step)["input_ids"])
    with pytest.raises(headrace.StateError, match="samples"):
        first_batches(run, late)


@pytest.mark.parametrize("seed", range(cases(20, 300)))
def test_random_drops(stores: dict[str, Store], seed: int) -> None:
    rng = random.Random(seed)
    datasets = random_datasets(rng, stores)
    mix = Blend(datasets, weights={"web": 2, "code": 1})
    run = Run(mix, global_batch_size=6, order=random_order(rng))
    documents = rng.sample(range(40), 2)
    edited = run.edit(4, exclude={"web": Exclude(documents=documents, how="drop")})
    dataset = datasets["web"]
    gone = set(dataset.holders(np.array(sorted(documents)), as_labels=True).tolist())
    assert gone >= {int(sample) for document in documents for sample in dataset.holders(document)}
    [(path, part)] = edited.edits[-1].exclude.items()
    assert (path, part.how, range_numbers(part.documents).tolist()) == ("web", "drop", sorted(documents))
    assert range_numbers(part.left_out).tolist() == sorted(gone)
    assert all(np.array_equal(edited.step(n)[name], values) for n in range(4) for name, values in run.step(n).items())
    found = edited.lookup(np.arange(24, 24 + 6 * len(dataset)))
    mine = [i for source, i in zip(found.sources, found.indices, strict=True) if edited.plan.source_of[source] == 0]  # type: ignore[union-attr]
    assert not gone & {int(index) for index in mine}
    assert {int(index) for index in mine} == set(range(len(dataset))) - gone
    for step in range(4, 12):
        batch = edited.step(step)
        seen = {*document_of(stores, batch["input_ids"]).flat, *document_of(stores, batch["labels"]).flat}
        assert not seen & set(documents)


def first_tokens(run: Run, steps: range) -> list[list[int]]:
    return [run.step(step)["input_ids"][:, 0].tolist() for step in steps]


@pytest.fixture
def windows(stores: dict[str, Store]) -> dict[str, WindowDataset]:
    return {name: WindowDataset(store, seq_len=16, loss_mask_key=None) for name, store in stores.items()}


def held(run: Run, stores: dict[str, Store], steps: range) -> set[int]:
    return {int(one) for step in steps for one in document_of(stores, run.step(step)["input_ids"]).flat}


def test_what_is_excluded_stays_so(stores: dict[str, Store], windows: dict[str, WindowDataset]) -> None:
    run = Run(Blend(windows, weights=EVEN), global_batch_size=8)
    edited = run.edit(2, exclude=asked([7, 8], ["web"]))
    steps = range(9, 24)
    assert {7, 8} <= held(run, stores, steps)
    # Moved, renamed, away and back, given as the plain dataset or as the one that is fed.
    code = windows["code"]
    text = Blend({"en": windows["web"]}, weights={"en": 1})
    for data, renamed in (
        (Blend(windows, weights={"web": 3, "code": 1}), {}),
        (Blend({"web": edited.datasets[2], "code": code}, weights={"web": 3, "code": 1}), {}),
        (Blend({"text": text, "code": code}, weights={"text": 1, "code": 1}), {"en": "web"}),
    ):
        later = edited.edit(5, data=data, renamed=renamed)
        assert not {7, 8} & held(later, stores, steps)
        # No epoch begins anew.
        found = later.lookup(np.arange(40, 60))
        mine = np.array([later.plan.source_of[source] for source in found.sources]) == 0  # type: ignore[union-attr]
        assert found.epochs[mine].max() <= 1
        assert held(later, stores, steps) >= {9, 10, 11}
    away = edited.edit(5, remove=["web"])
    away = away.edit(7, add={"web": windows["web"]}, weights=EVEN, exclude=asked([9], ["web"]))
    assert not {7, 8, 9} & held(away, stores, steps)
    # Another cut of the same store begins a new epoch, without the documents.
    finer = WindowDataset(stores["web"], seq_len=16, stride=8, loss_mask_key=None)
    assert finer.fields == windows["web"].fields
    cut_anew = Blend({"web": finer, "code": code}, weights=EVEN)
    cut = edited.edit(5, data=cut_anew)
    assert not {7, 8} & held(cut, stores, steps)
    assert np.array_equal(first_tokens(cut, range(5)), first_tokens(edited, range(5)))
    dropping = run.edit(2, exclude={"web": Exclude(documents=[7, 8], how="drop")})
    cut = dropping.edit(5, data=cut_anew)
    assert not {7, 8} & held(cut, stores, range(2, 24))
    assert {9, 10} <= held(cut, stores, range(5, 24))
    by_number = run.edit(2, exclude={"web": Exclude(samples=[3], how="drop")})
    with pytest.raises(ConfigError, match=r"1.*'web'"):
        by_number.edit(5, data=cut_anew)


def test_edits_add_up_and_stay_numbers(stores: dict[str, Store], windows: dict[str, WindowDataset]) -> None:
    run = Run(Blend(windows, weights=EVEN), global_batch_size=8)
    edited = run.edit(2, exclude=asked([3, 7, 8, 9], ["web"]))
    edited = edited.edit(4, exclude={"web": Exclude(samples=[0, 5], how="drop")})
    edited = edited.edit(6, exclude=asked([20], ["web"]), order=Order(seed=5))
    assert not {3, 7, 8, 9} & held(edited, stores, range(2, 30))
    assert not {20} & held(edited, stores, range(6, 30))
    assert edited.datasets[-1].recipe["documents"] == "3 7-9 20"
    shown = [msgspec.json.encode(edit.exclude) for edit in edited.edits]
    wanted = {"how": "mask", "documents": "3 7-9", "samples": "", "left_out": "", "pad_id": PAD}
    assert json.loads(shown[0]) == {"web": wanted}
    for edit, text in zip(edited.edits, shown, strict=True):
        assert msgspec.json.decode(text, type=dict[str, Exclusion]) == edit.exclude
    again = run.rebuilt(edited.edits)
    assert np.array_equal(first_tokens(again, range(20)), first_tokens(edited, range(20)))
    assert "web: 4 documents masked" in edited.describe()
    parts = [(edit.at_step, one) for edit in edited.edits for one in edit.exclude.values()]
    found = [(step, one.how, one.documents, one.left_out) for step, one in parts]
    assert found == [(2, "mask", "3 7-9", ""), (4, "drop", "", "0 5"), (6, "mask", "20", "")]
    with pytest.raises(ConfigError, match=r"0.*pad_id.*5"):
        edited.edit(8, exclude={"web": Exclude(documents=[1], pad_id=5)})


@pytest.mark.parametrize("seed", range(20))
def test_ranges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = np.unique(rng.integers(0, rng.choice([3, 30, 1 << 40]), rng.integers(0, 30)))
    assert range_numbers(ranges_text(numbers)).tolist() == numbers.tolist()
    for text in ("3 2", "a", "5-3", "1-", "-1", "3 3"):
        with pytest.raises(ConfigError, match="numbers"):
            range_numbers(text)


def test_shards_of_tokens(tmp_path: Path) -> None:
    corpora.make(tmp_path / "web", 1, 24, num_shards=3)
    dataset = WindowDataset(headrace.open(tmp_path / "web"), seq_len=8)
    run = Run(dataset, global_batch_size=4)
    by_number = run.edit(1, exclude={".": Exclude(shards=[1], pad_id=PAD)})
    by_name = run.edit(1, exclude={".": Exclude(shards=["shard-1"], pad_id=PAD)})
    assert by_name.edits[0].exclude[""].documents == "8-15"
    assert by_number.edits[0].exclude == by_name.edits[0].exclude
    for shard, named in (("shard-9", "'shard-9'"), (3, r"3.*allowed.*0")):
        with pytest.raises(ConfigError, match=named):
            run.edit(1, exclude={".": Exclude(shards=[shard], pad_id=PAD)})


def test_records_are_dropped(tmp_path: Path) -> None:
    answers = SFTDataset(records_made.store(tmp_path / "sft", records_made.sft(0, 30)))
    pairs = PreferenceDataset(records_made.store(tmp_path / "dpo", records_made.preferences(0, 30)))
    for number, dataset in enumerate((answers, pairs)):
        run = Run(dataset, global_batch_size=4, order=Order(seed=number))
        edited = run.edit(2, exclude={".": [3, 4, 17]})
        assert edited.edits[0].exclude[""].left_out == "3-4 17"
        found = edited.lookup(np.arange(8, 60)).indices
        assert not {3, 4, 17} & set(found.tolist())
        assert edited.step(1).keys() == run.step(1).keys()
        # What was not fed of the first epoch comes, then whole epochs of 27.
        rest = [i for i in run.lookup(np.arange(8, 30)).indices.tolist() if i not in (3, 4, 17)]
        assert found[: len(rest)].tolist() == rest
        assert sorted(found[len(rest) : len(rest) + 27].tolist()) == [i for i in range(30) if i not in (3, 4, 17)]
        # Records of the same store keep their numbers.
        twice = edited.edit(9, exclude={".": Exclude(samples=[5])})
        assert not {3, 4, 5, 17} & set(twice.lookup(np.arange(36, 100)).indices.tolist())
        with pytest.raises(ConfigError, match="how='drop'"):
            run.edit(2, exclude={".": Exclude(documents=[3], how="mask")})
        with pytest.raises(ConfigError, match="keys"):
            run.edit(2, exclude={".": ["a"]})


def test_media_are_dropped_by_key_shard_and_number(tmp_path: Path) -> None:
    media_stores_made.ocr(tmp_path)
    dataset = MediaDataset.open(tmp_path)
    assert len(dataset) == 8
    run = Run(Blend({"pictures": dataset}, weights={"pictures": 1}), global_batch_size=2)

    def left(exclude: Any) -> list[int]:
        return sorted({*run.edit(1, exclude={"pictures": exclude}).lookup(np.arange(2, 40)).indices.tolist()})

    assert left(["k0_1", "k1_2"]) == [0, 2, 3, 4, 5, 7]
    assert left(Exclude(shards=["c01.tar"])) == [0, 1, 2, 3]
    assert left(Exclude(shards=[0], samples=[7])) == [4, 5, 6]
    for exclude, named in (
        ([1], "samples="),
        (Exclude(documents=[1]), "documents"),
        (["k0_9"], "'k0_9'"),
        (Exclude(shards=["c02.tar"]), r"'c02\.tar'"),
        (Exclude(samples=[8]), r"8.*0.*7"),
        (Exclude(samples=range(8)), r"all.*8"),
        (Exclude(samples=[1], how="mask"), "masked"),
        (Exclude(samples=[1], pad_id=3), "pad_id"),
    ):
        with pytest.raises(ConfigError, match=named):
            left(exclude)


def test_a_key_is_found_each_time_that_its_shard_is_listed(tmp_path: Path) -> None:
    shards = {f"c{shard}.tar": [(f"k{shard}_{number}.txt", b"text") for number in range(4)] for shard in range(2)}
    prepared(tmp_path, shards, {"train": ["c0.tar", "c1.tar", "c0.tar"]})
    dataset = MediaDataset.open(tmp_path)
    assert len(dataset) == 12
    assert dataset.find_keys("k0_1") == [1, 9]
    run = Run(dataset, global_batch_size=2).edit(1, exclude={".": ["k0_1"]})
    assert run.edits[0].exclude[""].left_out == "1 9"


def test_masks_after_skips_and_in_the_same_edit_as_other_changes(
    stores: dict[str, Store], windows: dict[str, WindowDataset]
) -> None:
    run = Run(Blend(windows, weights={"web": 2, "code": 1}), global_batch_size=8)
    skipping = run.skip(range(1, 3), then="defer").edit(3, order=Order(seed=4))
    some = asked([7, 8, 20], ["web", "code"])
    for step in (3, 4, 6):
        before = skipping if step > 3 else run.skip(range(1, 3), then="defer")
        edited = before.edit(step, exclude=some, order=Order(seed=4))
        gone = {7, 8, 20, 1007, 1008, 1020}
        for number in range(20):
            expected = skipping.step(number)
            if number >= step:
                expected = masked(stores, expected, gone, is_unshifted=False)
            assert np.array_equal(edited.step(number)["input_ids"], expected["input_ids"])
            assert np.array_equal(edited.step(number)["labels"], expected["labels"])
    # Another cut of the store and what goes of it, in one edit.
    finer = WindowDataset(stores["web"], seq_len=16, stride=8, loss_mask_key=None)
    cut = Blend({"web": finer, "code": windows["code"]}, weights={"web": 2, "code": 1})
    for exclude in (Exclude(documents=[7], pad_id=PAD), Exclude(documents=[7], how="drop"), [7]):
        if isinstance(exclude, list):
            exclude = Exclude(samples=finer.holders(np.array(exclude), as_labels=True), how="drop")
        edited = run.edit(2, data=cut, exclude={"web": exclude})
        assert 7 not in held(edited, stores, range(2, 30))
        assert {3, 10, 30} <= held(edited, stores, range(2, 30))
        assert edited.edits[-1].exclude["web"].how == (exclude.how or "mask")
    stages = ScheduledBlend(dict(windows), [Stage(until=40, weights=EVEN), Stage(weights={"web": 1})])
    scheduled = Run(stages, global_batch_size=8).edit(2, exclude={"web": Exclude(documents=[7], how="drop")})
    assert 7 not in held(scheduled, stores, range(2, 20))
    twice = Blend({"a": Blend(windows, weights=EVEN), "b": Blend(windows, weights=EVEN)}, weights={"a": 1, "b": 1})
    with pytest.raises(ConfigError, match=r"'web'.*\['a/web'.*'b/web'"):
        Run(twice, global_batch_size=8).edit(2, exclude=asked([7], ["web"]))
    once = Run(twice, global_batch_size=8).edit(2, exclude=asked([7], ["a/web"]))
    assert list(once.edits[0].exclude) == ["a/web"]


def test_a_subset_keeps_its_numbers(windows: dict[str, WindowDataset], stores: dict[str, Store]) -> None:
    dataset = windows["web"]
    half = len(dataset) // 2
    mix = Blend({"web": Subset(dataset, (half, len(dataset)))}, weights={"web": 1})
    run = Run(mix, global_batch_size=4)
    inside = int(stores["web"].find_documents(np.array([16 * (half + 3)]))[0])
    edited = run.edit(1, exclude={"web": Exclude(documents=[1, inside], how="drop")})
    gone = dataset.holders(np.array([1, inside]), as_labels=True)
    found = set(edited.lookup(np.arange(4, 4 * len(dataset))).indices.tolist())
    assert found == set(range(half, len(dataset))) - set(gone.tolist())
    with pytest.raises(ConfigError, match=rf"0.*{half:,}"):
        run.edit(1, exclude={"web": Exclude(samples=[0], how="drop")})


def test_what_mixes_with_passes_allow(windows: dict[str, WindowDataset], stores: dict[str, Store]) -> None:
    run = Run(Concat(dict(windows)), global_batch_size=4)
    with pytest.raises(ConfigError, match=r"'web'.*how='mask'"):
        run.edit(1, exclude={"web": Exclude(samples=[1], how="drop")})
    edited = run.edit(1, exclude=asked([7], ["web"]))
    assert edited.length == run.length
    assert 7 not in held(edited, stores, range(1, 12))
    dropping = Run(Blend(windows, weights=EVEN), global_batch_size=4, samples=80)
    dropping = dropping.edit(1, exclude={"web": Exclude(samples=[1], how="drop")})
    with pytest.raises(ConfigError, match="'web'"):
        dropping.edit(3, data=Concat(dict(windows)), samples=80)
    single = Run(windows["web"], global_batch_size=4, epochs=2)
    assert single.length is not None
    # The step of the edit is within the first epoch, whose samples before it were fed.
    shorter = single.edit(0, exclude={".": Exclude(samples=[0, 1, 2], how="drop")})
    assert shorter.length == single.length - 6


@pytest.mark.parametrize(
    ("exclude", "named"),
    [
        ({"wbe": [1]}, r"'wbe'.*'web'"),
        ({"web": [40]}, r"40.*40"),
        ({"web": [-1]}, "list"),
        ({"web": [1.5]}, "list"),
        ({"web": 3}, r"3.*headrace.Exclude"),
        ({"web": "3"}, r"'3'.*headrace.Exclude"),
        ([3], "dict"),
        ({"web": []}, "nothing"),
        ({"web": Exclude()}, "nothing"),
        ({"web": Exclude(documents="12")}, r"documents.*'12'"),
        ({"web": Exclude(keys="12")}, r"keys.*'12'"),
        ({"web": Exclude(documents=[3], how="hide")}, "how"),  # type: ignore[arg-type]
        ({"web": [3]}, r"manifest.*pad_id=0"),
        ({"web": Exclude(documents=[3], pad_id=-1)}, r"pad_id.*-1"),
        ({"web": Exclude(documents=range(40), pad_id=0)}, "documents"),
        ({"web": Exclude(documents=range(40), how="drop")}, r"all.*samples"),
        ({"web": Exclude(samples=[3])}, "how='drop'"),
        ({"web": Exclude(samples=[3000], how="drop")}, r"3,000.*0"),
        ({"web": ["key"]}, "keys"),
    ],
)
def test_what_is_refused(windows: dict[str, WindowDataset], exclude: Any, named: str) -> None:
    run = Run(Blend(windows, weights=EVEN), global_batch_size=8)
    with pytest.raises(ConfigError, match=named):
        run.edit(3, exclude=exclude)
    assert run.edits == ()


def test_datasets_that_cannot_be_masked(tmp_path: Path, windows: dict[str, WindowDataset]) -> None:
    corpora.make(tmp_path / "web", 1, 24)
    megatron = headrace.compat.megatron.GPTDataset(str(tmp_path / "web" / "shard-0"), sequence_length=8)
    run = Run(megatron, global_batch_size=2, order=Order(kind="none"))
    with pytest.raises(ConfigError, match=r"GPTDataset.*WindowDataset"):
        run.edit(1, exclude={".": Exclude(documents=[3], pad_id=0)})
    assert 5 not in run.edit(1, exclude={".": Exclude(samples=[5], how="drop")}).lookup(np.arange(2, 40)).indices

    def without_labels(sample: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": sample["input_ids"]}

    mapped = MapDataset(windows["web"], without_labels, fields={"tokens": ((16,), np.int64)})
    with pytest.raises(ConfigError, match="returns"):
        Run(mapped, global_batch_size=2).edit(1, exclude={".": Exclude(documents=[3], pad_id=0)})


def test_the_pad_id_comes_from_packs_or_the_manifest(stores: dict[str, Store], tmp_path: Path) -> None:
    packs = PackedSequenceDataset(stores["web"], Packing(seq_len=64), padding_idx=7)
    run = Run(packs, global_batch_size=2).edit(0, exclude={".": range(20)})
    assert run.edits[0].exclude[""].pad_id == 7
    assert 7 in run.step(0)["input_ids"][run.step(0)["document_ids"] >= 0]


def now_fed(run: Run) -> dict[str, Dataset]:
    """The datasets that a run is fed from now, without what is masked."""
    series = {source: number for number, source in enumerate(run.plan.source_of)}
    return {path: run.datasets[series[source]] for path, source in run.plan.chapters[-1].sources.items()}


@pytest.mark.parametrize("seed", range(cases(18, 500)))
def test_the_file_of_a_run_holds_what_is_excluded(stores: dict[str, Store], tmp_path: Path, seed: int) -> None:
    """It is made again with the same samples and the same account, and planned again without its data."""
    rng = random.Random(seed)
    mix = Blend(random_datasets(rng, stores), weights={"web": 2, "code": 1})
    run, step = Run(mix, global_batch_size=rng.choice([4, 6]), order=random_order(rng)), 0
    for _ in range(rng.randrange(1, 5)):
        step += rng.randrange(1, 9)
        names = rng.sample(["web", "code"], rng.choice([1, 2]))
        documents = rng.sample(range(40), rng.choice([1, 3]))
        what = rng.choice(["mask", "mask", "drop", "data", "skip"])
        if what == "data":
            run = run.edit(step, data=Blend(now_fed(run), weights=EVEN))
        elif what == "skip":
            run = run.skip(range(step, step + 2), then=rng.choice(["drop", "defer"]))
        elif what == "mask":
            run = run.edit(step, exclude=asked(documents, names))
        else:
            run = run.edit(step, exclude={name: Exclude(documents=documents, how="drop") for name in names})
    save_run(run, tmp_path / "run.json", position=0)
    made, planned = Run.load(tmp_path / "run.json", trust_code=True), filed_run(tmp_path / "run.json", read_data=False)
    assert made.recipe.hashes() == planned.recipe.hashes() == run.recipe.hashes()
    for number in range(step + 8):
        expected, found = run.step(number), made.step(number)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert made.account(step + 4) == run.account(step + 4)
    presents = [[one.present for one in each.account(step + 4).sources] for each in (run, planned)]
    assert presents[0] == presents[1]
