"""Packed samples: every field against a plain assembly, the counts, and plans that are kept beside the store."""

from __future__ import annotations

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import headrace
import killing
import packs_plainly
from counts import cases
from headrace import Blend, ConfigError, Order, PackedSequenceDataset, Packing, Run, StoreError, stores
from headrace.datasets import packed_sequences
from headrace.datasets.packed_sequences import StoreLengths, make_plan, plan_name
from headrace.errors import OutputError
from headrace.io import cache_folder
from headrace.plan import derive_array
from headrace.plan.packing import PackPlan, plan_packs
from headrace.stores import Store, check_arrays, keep_arrays
from packs_plainly import check_samples
from token_shards import write_keyed

FIELDS = packs_plainly.FIELDS
PACKING = Packing(seq_len=20, over_long="split")


class Source(NamedTuple):
    """A store, its documents by plain lists, and their marks, 1 at tokens that are trained on, if it has any."""

    store: Store
    documents: list[list[int]]
    marks: list[list[int]] | None = None


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Stores with a parallel key ``trained``, and one that is not parallel: mapped, read, and of two shards."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 50, 60) * (rng.random(60) > 0.1)
    documents = [rng.integers(0, 90_000, length).astype(np.int32) for length in lengths]
    marks = [(rng.random(length) > 0.3).astype(np.uint8) for length in lengths]
    folder = tmp_path_factory.mktemp("marked")
    (folder / "shards").mkdir()
    for shard, (begin, end) in {"one": (0, 60), "shards/0": (0, 25), "shards/1": (25, 60)}.items():
        write_keyed(
            folder / shard,
            text=("int32", documents[begin:end]),
            trained=("uint8", marks[begin:end]),
            other=("int32", [*documents[begin : end - 1], np.zeros(77, np.int32)]),
        )
    opened = [stores.open(folder / "one"), stores.open(folder / "one", reader="pread"), stores.open(folder / "shards")]
    lists = [one.tolist() for one in documents], [one.tolist() for one in marks]
    return [Source(store, *lists) for store in opened]


@settings(max_examples=cases(25, 16_000), deadline=None)
@given(
    number=st.integers(0, 6),
    packing=packs_plainly.packings(most_units=40),
    border_labels=st.sampled_from(["mask", "keep"]),
    padding_idx=st.sampled_from([0, 7, 70_000, -1]),
    seed=st.integers(0, 99),
)
def test_every_field(
    corpus: list[corpora.Corpus],
    marked: list[Source],
    number: int,
    packing: Packing,
    border_labels: Any,
    padding_idx: int,
    seed: int,
) -> None:
    plain = [Source(one.store, [document.tolist() for document in split(one)]) for one in corpus]
    store, documents, marks = [*plain, *marked][number]
    options: dict[str, Any] = {"border_labels": border_labels, "padding_idx": padding_idx}
    options |= {"loss_mask_key": "trained"} if marks else {}
    if not packs_plainly.packs([len(document) for document in documents], packing):
        with pytest.raises(ConfigError, match="documents"):
            PackedSequenceDataset(store, packing, **options)
        return
    dataset = PackedSequenceDataset(store, packing, **options)
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, len(dataset), 6)
    check_samples(dataset, documents, indices, marks=marks)
    check_samples(dataset, documents, np.array([len(dataset) - 1, 0]), marks=marks)
    if packing.repack:
        check_samples(dataset, documents, indices, derive_array(5, rng.integers(0, 3, 6)), marks=marks)


def split(one: corpora.Corpus) -> list[np.ndarray]:
    return np.split(one.tokens, np.cumsum(one.store.lengths)[:-1])


def test_the_count_of_many_packs(marked: list[Source]) -> None:
    for store, documents, marks in marked:
        dataset = PackedSequenceDataset(store, Packing(seq_len=5, strategy="wrapped"), loss_mask_key="trained")
        assert len(dataset) > 200  # they are counted some at a time
        check_samples(dataset, documents, np.arange(len(dataset)), marks=marks)
        assert dataset.count(np.arange(0)).supervised_tokens.tolist() == []


def test_rows_of_a_batch_that_others_fill_too(corpus: list[corpora.Corpus]) -> None:
    dataset = PackedSequenceDataset(corpus[1].store, Packing(seq_len=64))
    wanted = dataset.read(np.array([3, 0, 2]))
    for rows in (np.array([4, 1, 2]), slice(2, 5), slice(0, 6, 2)):
        out = {name: np.full((6, 64), 1, dtype=dtype) for name, (_, dtype) in dataset.fields.items()}
        dataset.read_into(np.array([3, 0, 2]), out, rows)
        others = np.delete(np.arange(6), rows)
        for name, values in out.items():
            assert np.array_equal(values[rows], wanted[name])
            assert (values[others] == 1).all()
    dataset.read_into(np.arange(0), out, slice(0, 0))
    assert dataset.read(np.arange(0))["labels"].shape == (0, 64)


OPTIONS: list[tuple[Packing, dict[str, Any]]] = [
    (PACKING, {}),
    (Packing(seq_len=40, over_long="split"), {}),
    (Packing(seq_len=20, over_long="truncate_left"), {}),
    (Packing(seq_len=20, over_long="truncate_right"), {}),
    (Packing(seq_len=20, over_long="split", strategy="greedy"), {}),
    (Packing(seq_len=20, over_long="split", strategy="best_fit_split"), {}),
    (Packing(seq_len=20, over_long="split", window_documents=7), {}),
    (Packing(seq_len=20, over_long="split", repack=True), {}),
    (Packing(seq_len=20, over_long="split", segment_multiple=2), {}),
    (PACKING, {"padding_idx": 1}),
    (PACKING, {"border_labels": "keep"}),
]


def test_recipe_and_fingerprint_tell_every_option(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    made = [PackedSequenceDataset(corpus[0].store, packing, **options) for packing, options in OPTIONS]
    made.append(PackedSequenceDataset(corpus[1].store, PACKING))
    keyed = tmp_path / "keyed"
    write_keyed(keyed, ids=("int32", [np.arange(30)]), one=("bool", [np.ones(30)]), two=("bool", [np.ones(30)]))
    for key in (None, "one", "two"):
        made.append(PackedSequenceDataset(stores.open(keyed), PACKING, loss_mask_key=key))
    assert len({dataset.fingerprint for dataset in made}) == len(made)
    assert len({json.dumps(dataset.recipe, sort_keys=True) for dataset in made}) == len(made), "JSON-safe, too"
    assert PackedSequenceDataset(corpus[0].store, PACKING).fingerprint == made[0].fingerprint
    assert PackedSequenceDataset(corpus[0].store, PACKING, plan_folder=tmp_path).fingerprint == made[0].fingerprint


def test_blends_of_packed_sources_by_tokens(corpus: list[corpora.Corpus]) -> None:
    full = PackedSequenceDataset(corpus[0].store, Packing(seq_len=60))
    loose = PackedSequenceDataset(corpus[2].store, Packing(seq_len=60, window_documents=2))
    packs = packs_plainly.packs(corpus[2].store.lengths.tolist(), loose.packing)
    tokens = [sum(piece.length for piece in pack) for pack in packs]
    assert loose.num_tokens_per_sample == pytest.approx(np.mean(tokens))
    assert loose.num_tokens_per_sample < full.num_tokens_per_sample / 5
    blend = Blend({"full": full, "loose": loose}, weights={"full": 2, "loose": 1}, unit="tokens")
    run = Run(blend, global_batch_size=6)
    samples = np.bincount(run.lookup(np.arange(3000)).sources)
    share = samples[0] * full.num_tokens_per_sample / samples[1] / loose.num_tokens_per_sample
    assert share == pytest.approx(2, rel=0.02)
    batch = run.step(1)
    located = run.locate(run.positions(1))
    for row, (source, address) in enumerate(zip(located.sources, located.addresses, strict=True)):
        wanted = (full, loose)[source].read(np.array([address]))
        assert all(np.array_equal(batch[name][row], wanted[name][0]) for name in FIELDS)
    assert "best_fit by windows of 2 documents" in run.describe()


def test_epochs_repack_unless_the_order_is_that_of_the_store(corpus: list[corpora.Corpus]) -> None:
    dataset = PackedSequenceDataset(corpus[2].store, Packing(seq_len=12, repack=True))
    size = len(dataset)
    for kind in ("full", "blocks", "none"):
        run = Run(dataset, global_batch_size=size, order=Order(kind=kind, seed=3))  # type: ignore[arg-type]
        epochs = []
        for epoch in range(3):
            batch = run.step(epoch)
            tokens = np.sort(batch["document_ids"][batch["document_ids"] >= 0])
            assert np.array_equal(tokens, np.sort(corpus[2].documents)), "every token once an epoch"
            epochs.append({tuple(np.unique(row).tolist()) for row in batch["document_ids"]})
            if kind == "none":
                assert np.array_equal(batch["input_ids"], dataset.read(np.arange(size))["input_ids"])
        again = Run(dataset, global_batch_size=size, order=Order(kind=kind, seed=3)).step(1)  # type: ignore[arg-type]
        assert np.array_equal(again["input_ids"], run.step(1)["input_ids"])
        same = len(epochs[0] & epochs[1]) / size
        assert same == 1 if kind == "none" else same < 0.3


def test_it_says_what_is_lost(corpus: list[corpora.Corpus], caplog: pytest.LogCaptureFixture) -> None:
    """Before the first step, at construction; where nothing is lost there is no warning."""
    caplog.set_level(logging.INFO, logger="headrace")
    lengths = corpus[0].store.lengths
    for over_long in ("truncate_left", "truncate_right", "drop", "split"):
        caplog.clear()
        dataset = PackedSequenceDataset(corpus[0].store, Packing(seq_len=50, over_long=over_long))  # type: ignore[arg-type]
        (record,) = caplog.records
        over = lengths[lengths > 50]
        lost = {"drop": over.sum(), "split": 0}.get(over_long, (over - 50).sum())
        assert record.levelno == (logging.INFO if over_long == "split" else logging.WARNING)
        assert f"{lost / lengths.sum():.2%} of the tokens lost" in record.getMessage()
        assert str(corpus[0].store.path) in record.getMessage()
        assert dataset.describe() in record.getMessage()


def test_what_it_says(corpus: list[corpora.Corpus]) -> None:
    dataset = PackedSequenceDataset(corpus[0].store, Packing(seq_len=50, over_long="split", max_documents=2))
    lengths = corpus[0].store.lengths
    fill = lengths.sum() / 50 / len(packs_plainly.packs(lengths.tolist(), dataset.packing))
    for words in ("best_fit", "at most 2 documents", f"fill {fill:.2%}", f"{np.count_nonzero(lengths > 50)} documents"):
        assert words in dataset.describe()
    assert repr(dataset) == f"<PackedSequenceDataset: {len(dataset)} samples, {dataset.describe()}>"
    assert dataset.traits.is_packed
    assert dataset.ledger.raw_tokens == corpus[0].store.num_tokens


@pytest.mark.parametrize(
    ("given", "options", "named"),
    [
        (("data/web", PACKING), {}, r"'data/web'.*headrace.open"),
        ((None, 4096), {}, r"4096.*headrace.Packing"),
        ((None, PACKING), {"border_labels": "drop"}, r"border_labels.*'drop'.*'mask'"),
        ((None, Packing(seq_len=20)), {}, "seq_len=20"),
        ((None, PACKING), {"loss_mask_key": "mask"}, r"'mask'.*'text'.*'trained'"),
        ((None, PACKING), {"loss_mask_key": "other"}, "parallel"),
    ],
    ids=lambda one: "" if isinstance(one, tuple) else repr(one),
)
def test_refused_arguments(marked: list[Source], given: Any, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PackedSequenceDataset(given[0] or marked[0].store, given[1], **options)


def test_packs_beyond_two_to_the_32(corpus: list[corpora.Corpus]) -> None:
    """Of wrapped ones there can be so many; their numbers are no 32 bits."""
    dataset = PackedSequenceDataset(corpus[0].store, Packing(seq_len=1, strategy="wrapped"))
    dataset.plan = plan_packs(np.array([1 << 34, 5]), dataset.packing)
    wanted = np.array([(1 << 32) + 5, (1 << 34) + 2])
    items = dataset.items(dataset.locate(wanted, np.array([2**64 - 1] * 2, dtype=np.uint64)))
    assert items.documents.tolist() == [0, 1]
    assert items.begins.tolist() == [(1 << 32) + 5, 2]


PACKINGS = [
    Packing(seq_len=20, over_long="split"),
    Packing(seq_len=20, over_long="split", repack=True),
    Packing(seq_len=20, strategy="wrapped"),
    Packing(seq_len=60, strategy="greedy"),
    Packing(seq_len=1, over_long="split"),  # packs of full pieces alone: arrays without elements
]


@pytest.fixture
def store(corpus: list[corpora.Corpus]) -> Store:
    return corpus[1].store


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Packing]:
    """Each packing that was planned, not found."""
    calls = []
    plan_packs = packed_sequences.plan_packs

    def counted(lengths: Any, packing: Packing) -> PackPlan:
        calls.append(packing)
        return plan_packs(lengths, packing)

    monkeypatch.setattr(packed_sequences, "plan_packs", counted)
    return calls


def same(one: PackedSequenceDataset, other: PackedSequenceDataset) -> bool:
    indices = np.arange(len(one))
    keys = np.full(len(one), 5, dtype=np.uint64)
    return all(
        np.array_equal(mine, theirs)
        for some in (None, keys)
        for mine, theirs in zip(
            one.read(one.locate(indices, some)).values(), other.read(other.locate(indices, some)).values(), strict=True
        )
    )


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_second_time_it_is_mapped(store: Store, planned: list[Packing], tmp_path: Path, packing: Packing) -> None:
    held = PackedSequenceDataset(store, packing)
    first = PackedSequenceDataset(store, packing, plan_folder=tmp_path / "plans")
    assert planned == [packing, packing]
    second = PackedSequenceDataset(store, packing, plan_folder=str(tmp_path / "plans"))
    assert len(planned) == 2
    name = plan_name(store, packing)
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [name]
    assert check_arrays(tmp_path / "plans", name) == []
    for dataset in (first, second):
        assert same(held, dataset)
        assert dataset.plan.meta == held.plan.meta
        assert dataset.fingerprint == held.fingerprint
        assert dataset.ledger == held.ledger
        # Both read the file: the processes of a machine share one copy.
        assert all(not array.flags.owndata and not array.flags.writeable for array in _filled(dataset))
    assert len(_filled(first)) == len(_filled(held))


def _filled(dataset: PackedSequenceDataset) -> list[np.ndarray]:
    return [array for array in dataset.plan.arrays.values() if array.size]


def test_a_name_for_each_store_and_packing(tmp_path: Path) -> None:
    """Also where two stores have the same number of documents, and of tokens; not where one lies in another place."""
    lengths = ([5, 6, 7], [7, 6, 5], [5, 6, 7])
    for number, some in enumerate(lengths):
        corpora.write(tmp_path / str(number), [np.arange(length) for length in some])
    opened = [headrace.open(str(tmp_path / str(number))) for number in range(len(lengths))]
    names = [[plan_name(store, packing) for packing in PACKINGS] for store in opened]
    assert len({*names[0], *names[1]}) == 2 * len(PACKINGS)
    assert names[0] == names[2]


def test_small_plans_are_not_kept_unless_asked_for(
    store: Store, planned: list[Packing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    PackedSequenceDataset(store, PACKINGS[0])
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", store.num_documents)
    PackedSequenceDataset(store, PACKINGS[0])
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", store.num_documents - 1)
    first = PackedSequenceDataset(store, PACKINGS[0])
    name = plan_name(store, PACKINGS[0])
    assert check_arrays(tmp_path / "cache" / "packs", name) == []
    assert len(planned) == 3
    assert same(first, PackedSequenceDataset(store, PACKINGS[0]))
    assert len(planned) == 3


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder("packs") == Path("/h/.cache/headrace/packs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder("packs") == Path("/x/headrace/packs")
    monkeypatch.setenv("HEADRACE_CACHE", "/c")
    assert cache_folder("packs") == Path("/c/packs")


@pytest.fixture
def cached(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a run in which every plan is kept."""
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packs"


def test_a_cache_that_cannot_be_written(cached: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs time, and nothing else; a folder that was asked for is an error."""
    wanted = PackedSequenceDataset(store, PACKINGS[1])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setenv("HEADRACE_CACHE", str(cached.parent / "read-only"))
    found = PackedSequenceDataset(store, PACKINGS[1])
    assert same(wanted, found)
    assert all(array.flags.owndata or array.base.flags.owndata for array in _filled(found))
    with pytest.raises(OutputError, match="read-only/"):
        PackedSequenceDataset(store, PACKINGS[1], plan_folder=cached.parent / "read-only")


def test_a_cache_that_cannot_be_read(cached: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where HOME belongs to another user: nobody asked for a cache there."""
    wanted = PackedSequenceDataset(store, PACKINGS[0])
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "kept.json":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert same(wanted, PackedSequenceDataset(store, PACKINGS[0]))
    with pytest.raises(StoreError, match=r"kept\.json"):
        PackedSequenceDataset(store, PACKINGS[0], plan_folder=cached)


def test_no_home(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry in the list of users, as containers have them, and without a HOME."""
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", 0)
    for name in ("HEADRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert len(PackedSequenceDataset(store, PACKINGS[0]))


def test_a_torn_plan_is_made_anew_with_a_warning(
    cached: Path, store: Store, planned: list[Packing], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = PackedSequenceDataset(store, PACKINGS[1], plan_folder=cached / "another")  # it stays mapped
    PackedSequenceDataset(store, PACKINGS[1])
    place = cached / plan_name(store, PACKINGS[1])
    for path in sorted(place.iterdir()):
        content = path.read_bytes()
        flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
        header = content.replace(b"'shape': (", b"'shape': ((") if path.suffix == ".npy" else b"{}"
        for damage in (content[: len(content) // 2], flipped, header, b""):
            path.write_bytes(damage)
            caplog.clear()
            planned.clear()
            assert same(wanted, PackedSequenceDataset(store, PACKINGS[1]))
            assert planned == [PACKINGS[1]]
            (record,) = caplog.records
            assert record.levelname == "WARNING"
            assert record.getMessage().startswith(f"{path}: ")
            assert record.getMessage().endswith("it is made again")
            assert path.read_bytes() == content
    planned.clear()
    assert same(wanted, PackedSequenceDataset(store, PACKINGS[1]))
    assert not planned


def test_a_plan_that_says_something_else(cached: Path, store: Store) -> None:
    """Whole, and of another store, or not what this version knows: nobody's damage, but a defect of somebody."""
    arrays = PackedSequenceDataset(store, PACKINGS[0]).plan.arrays
    name = plan_name(store, PACKINGS[0])
    meta = json.loads(json.loads((cached / name / "kept.json").read_text())["meta"])

    def say(other: dict[str, Any]) -> None:
        shutil.rmtree(cached / name)
        keep_arrays(cached, name, arrays, json.dumps(other).encode())

    say(meta)
    assert len(PackedSequenceDataset(store, PACKINGS[0]))
    say({**meta, "num_documents": 41})
    with pytest.raises(StoreError, match=r"41.*documents.*40"):
        PackedSequenceDataset(store, PACKINGS[0])
    for other in ({}, {**meta, "unknown": 1}, {**meta, "packing": {"seq_len": 0}}):
        say(other)
        with pytest.raises(StoreError, match=rf"{cached / name}"):
            PackedSequenceDataset(store, PACKINGS[0])


def test_killed_at_any_moment(store: Store, planned: list[Packing], tmp_path: Path) -> None:
    wanted = PackedSequenceDataset(store, PACKINGS[1])
    lengths = StoreLengths(store)

    def make(folder: Path) -> None:
        make_plan(store, lengths, PACKINGS[1], folder)

    moment = 0
    while not killing.run(partial(make, tmp_path / str(moment)), moment=moment):
        for _ in range(2):
            assert same(wanted, PackedSequenceDataset(store, PACKINGS[1], plan_folder=tmp_path / str(moment)))
        moment += 1
    assert moment > 6
    # The plan was made once more after each kill, but for those that came after the rename.
    assert moment - 2 <= len(planned) - 1 <= moment


def test_the_errors_of_planning_are_its_own(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ConfigError, match="seq_len=20"):
        PackedSequenceDataset(store, Packing(seq_len=20), plan_folder=tmp_path / "plans")
    assert not (tmp_path / "plans").exists()
    assert not caplog.records
