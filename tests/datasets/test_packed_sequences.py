"""Packed samples: every field against a plain assembly, the counts, and what tells one dataset from another."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpora
import packs_plainly
from counts import cases
from headrace import Blend, ConfigError, Order, PackedSequenceDataset, Packing, Run, WindowDataset, stores
from headrace.plan import derive_array
from headrace.plan.packing import plan_packs
from headrace.testing.shards import write_keyed
from packs_plainly import check_samples

FIELDS = packs_plainly.FIELDS


@settings(max_examples=cases(30, 5_000), deadline=None)
@given(
    number=st.integers(0, 3),
    packing=packs_plainly.packings(most_units=40),
    border_labels=st.sampled_from(["mask", "keep"]),
    padding_idx=st.sampled_from([0, 7, 70_000, -1]),
    seed=st.integers(0, 99),
)
def test_every_field(
    corpus: list[corpora.Corpus], number: int, packing: Packing, border_labels: Any, padding_idx: int, seed: int
) -> None:
    one = corpus[number]
    documents = [document.tolist() for document in np.split(one.tokens, np.cumsum(one.store.lengths)[:-1])]
    options: dict[str, Any] = {"border_labels": border_labels, "padding_idx": padding_idx}
    if not packs_plainly.packs([len(document) for document in documents], packing):
        with pytest.raises(ConfigError, match="has no documents to pack into"):
            PackedSequenceDataset(one.store, packing, **options)
        return
    dataset = PackedSequenceDataset(one.store, packing, **options)
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, len(dataset), 6)
    check_samples(dataset, documents, indices)
    check_samples(dataset, documents, np.array([len(dataset) - 1, 0]))
    if packing.repack:
        check_samples(dataset, documents, indices, derive_array(5, rng.integers(0, 3, 6)))


def test_an_example(tmp_path: Path) -> None:
    """Documents of 5, 2 and 3 tokens in packs of 8, each padded to a multiple of 2."""
    corpora.write(tmp_path / "s", [np.arange(10, 15), np.arange(20, 22), np.arange(30, 33)])
    packing = Packing(seq_len=8, segment_multiple=2)
    dataset = PackedSequenceDataset(stores.open(str(tmp_path / "s")), packing, padding_idx=9)
    none = -100
    first, second = dataset[0], dataset[1]
    assert {name: value.tolist() if name != "max_seqlen" else value for name, value in first.items()} == {
        "input_ids": [10, 11, 12, 13, 14, 9, 20, 21],
        "labels": [11, 12, 13, 14, none, none, 21, none],
        "loss_mask": [True, True, True, True, False, False, True, False],
        "position_ids": [0, 1, 2, 3, 4, 5, 0, 1],
        "document_ids": [0, 0, 0, 0, 0, -1, 1, 1],
        "seq_lens": [6, 2],
        "cu_seqlens": [0, 6, 8],
        "max_seqlen": 6,
    }
    assert second["input_ids"].tolist() == [30, 31, 32, 9, 9, 9, 9, 9]
    assert second["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert second["cu_seqlens"].tolist() == [0, 4, 8]
    kept = PackedSequenceDataset(dataset.store, Packing(seq_len=8), padding_idx=9, border_labels="keep")
    assert kept[0]["input_ids"].tolist() == [10, 11, 12, 13, 14, 30, 31, 32]
    assert kept[0]["labels"].tolist() == [11, 12, 13, 14, 30, 31, 32, none]


def test_items_own_their_memory(corpus: list[corpora.Corpus]) -> None:
    dataset = PackedSequenceDataset(corpus[0].store, Packing(seq_len=64))
    before = {name: np.copy(value) for name, value in dataset[1].items()}
    many = dataset.__getitems__([1, 1, -len(dataset) + 1])
    for value in (*dataset[1].values(), *many[0].values()):
        if isinstance(value, np.ndarray):
            value[:] = 5
    for item in (*many[1:], dataset[1]):
        for name, value in before.items():
            assert np.array_equal(item[name], value)
    assert not any(np.shares_memory(many[1][a], many[1][b]) for a in FIELDS for b in FIELDS if a < b)
    with pytest.raises(IndexError, match="sample"):
        dataset[len(dataset)]
    with pytest.raises(IndexError, match="samples"):
        dataset.__getitems__([0, len(dataset)])


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


PACKING = Packing(seq_len=20, over_long="split")
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


def test_blends_of_packed_sources_by_samples_and_by_tokens(corpus: list[corpora.Corpus]) -> None:
    full = PackedSequenceDataset(corpus[0].store, Packing(seq_len=60))
    loose = PackedSequenceDataset(corpus[2].store, Packing(seq_len=60, window_documents=2))
    packs = packs_plainly.packs(corpus[2].store.lengths.tolist(), loose.packing)
    tokens = [sum(piece.length for piece in pack) for pack in packs]
    assert loose.num_tokens_per_sample == pytest.approx(np.mean(tokens))
    assert loose.deviation_tokens_per_sample == pytest.approx(np.std(tokens))
    assert loose.num_tokens_per_sample < full.num_tokens_per_sample / 5
    for unit in ("samples", "tokens"):
        blend = Blend({"full": full, "loose": loose}, weights={"full": 2, "loose": 1}, unit=unit)  # type: ignore[arg-type]
        run = Run(blend, global_batch_size=6)
        found = run.lookup(np.arange(3000))
        samples = np.bincount(found.sources)
        if unit == "samples":
            assert samples.tolist() == [2000, 1000]
        else:
            share = samples[0] * full.num_tokens_per_sample / samples[1] / loose.num_tokens_per_sample
            assert share == pytest.approx(2, rel=0.02)
        batch = run.step(1)
        assert batch["input_ids"].shape == (6, 60)
        located = run.locate(run.positions(1))
        for row, (source, address) in enumerate(zip(located.sources, located.addresses, strict=True)):
            wanted = (full, loose)[source].read(np.array([address]))
            assert all(np.array_equal(batch[name][row], wanted[name][0]) for name in FIELDS)
        assert "best_fit by windows of 2 documents" in run.describe()


def test_packs_of_other_lengths_are_not_stacked(corpus: list[corpora.Corpus]) -> None:
    one, other = (PackedSequenceDataset(corpus[0].store, Packing(seq_len=size)) for size in (60, 61))
    with pytest.raises(ConfigError, match=r"same fields .*input_ids \(60,\) int64.*input_ids \(61,\) int64"):
        Blend({"one": one, "other": other}, weights={"one": 1, "other": 1})
    windows = WindowDataset(corpus[0].store, seq_len=60)
    with pytest.raises(ConfigError, match="same fields"):
        Blend({"packs": one, "windows": windows}, weights={"packs": 1, "windows": 1})


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


def test_one_line_and_repr(corpus: list[corpora.Corpus]) -> None:
    dataset = PackedSequenceDataset(corpus[0].store, Packing(seq_len=50, over_long="split"))
    lengths = corpus[0].store.lengths
    packs = packs_plainly.packs(lengths.tolist(), dataset.packing)
    some, split = np.count_nonzero(lengths), np.count_nonzero(lengths > 50)
    assert dataset.describe() == (
        f"packs of 50 tokens (best_fit): {some} documents, {some / len(packs):.1f} a pack, "
        f"fill {lengths.sum() / 50 / len(packs):.2%}, {split} documents split, 0.00% of the tokens lost"
    )
    assert repr(dataset) == f"<PackedSequenceDataset: {len(packs)} samples, {dataset.describe()}>"
    capped = PackedSequenceDataset(corpus[0].store, Packing(seq_len=50, over_long="split", max_documents=2))
    assert "packs of 50 tokens (best_fit, at most 2 documents): " in capped.describe()
    assert dataset.traits.is_packed
    assert dataset.ledger.raw_tokens == corpus[0].store.num_tokens


def test_refused_arguments(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    store = corpus[0].store
    with pytest.raises(ConfigError, match=r"store is 'data/web'; expected an open store, such as headrace.open"):
        PackedSequenceDataset("data/web", PACKING)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"packing is 4096; expected a Packing, such as headrace.Packing"):
        PackedSequenceDataset(store, 4096)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"border_labels is 'drop'; allowed are 'mask', 'keep'"):
        PackedSequenceDataset(store, PACKING, border_labels="drop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no key 'mask'"):
        PackedSequenceDataset(store, PACKING, loss_mask_key="mask")
    with pytest.raises(ConfigError, match=r"documents are longer than seq_len=20"):
        PackedSequenceDataset(store, Packing(seq_len=20))
    corpora.write(tmp_path / "empty", [np.zeros(0, np.uint16)])
    with pytest.raises(ConfigError, match=r"empty has no documents to pack into 20 tokens"):
        PackedSequenceDataset(stores.open(str(tmp_path / "empty")), PACKING)


def test_packs_beyond_two_to_the_32(corpus: list[corpora.Corpus]) -> None:
    """Of wrapped ones there can be so many; their numbers are no 32 bits."""
    dataset = PackedSequenceDataset(corpus[0].store, Packing(seq_len=1, strategy="wrapped"))
    dataset.plan = plan_packs(np.array([1 << 34, 5]), dataset.packing)
    wanted = np.array([(1 << 32) + 5, (1 << 34) + 2])
    items = dataset.items(dataset.locate(wanted, np.array([2**64 - 1] * 2, dtype=np.uint64)))
    assert items.documents.tolist() == [0, 1]
    assert items.begins.tolist() == [(1 << 32) + 5, 2]
