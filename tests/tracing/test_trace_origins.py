"""What samples are made of, against the documents that reading them shows; and how long a document is searched for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import energon_made
import records_made
from headrace import (
    Blend,
    ConfigError,
    MapDataset,
    MediaDataset,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    SFTDataset,
    WindowDataset,
    open as open_store,
)
from headrace.compat.megatron import CyclicDataset, GPTDataset
from headrace.datasets import Collation, Dataset, FilledDataset
from headrace.datasets.dataset import Origins
from headrace.tracing import history, history_of, trace_step
from token_shards import write_shard

KEYS = np.array([0, 1, 2**63 + 12345], dtype=np.uint64)


def spelled(origins: Origins) -> list[int]:
    """The document of each token."""
    return [one.document for one in origins for _ in range(one.tokens or 0)]


def check_holders(dataset: Dataset, keys: np.ndarray | None) -> None:
    """All samples with a document are named; without keys no others are."""
    indices = np.arange(len(dataset))
    held: dict[int, set[int]] = {}
    for key in [None] if keys is None else keys:
        own = None if key is None else np.full(len(dataset), key)
        for index, origins in enumerate(dataset.origins(dataset.locate(indices, own))):
            for one in origins:
                assert one.document is not None
                held.setdefault(one.document, set()).add(index)
    for document in range(dataset.store.num_documents):  # type: ignore[attr-defined]
        found = dataset.holders(document).tolist()
        assert found == sorted(set(found))
        if keys is None:
            assert set(found) == held.get(document, set())
        assert set(found) >= held.get(document, set())
    for wrong in (-1, 10**9):
        with pytest.raises(ConfigError, match="document"):
            dataset.holders(wrong)


@pytest.mark.parametrize("stride", [None, 3, 30])
@pytest.mark.parametrize("phase", [False, True])
def test_windows(corpus: list[corpora.Corpus], stride: int | None, phase: bool) -> None:
    for one in corpus[:3]:
        dataset = WindowDataset(one.store, seq_len=17, stride=stride, phase=phase, document_ids=True)
        for key in KEYS if phase else KEYS[:1]:
            addresses = dataset.locate(np.arange(len(dataset)), np.full(len(dataset), key))
            shown = dataset.read(addresses)["document_ids"].tolist()
            origins = dataset.origins(addresses)
            assert list(map(spelled, origins)) == shown
            begins = one.store.document_begins(np.array([pieces[0].document for pieces in origins]))
            assert [pieces[0].begin for pieces in origins] == (addresses - begins).tolist()
            assert all(piece.begin == 0 for pieces in origins for piece in pieces[1:])
        check_holders(dataset, KEYS if phase else None)
        assert dataset.origins(np.empty(0, dtype=np.int64)) == []


PACKINGS = {
    "greedy": Packing(seq_len=64, strategy="greedy", over_long="truncate_right"),
    "split": Packing(seq_len=20, strategy="best_fit_split"),
    "repack": Packing(seq_len=64, over_long="drop", repack=True),
    "repack_split": Packing(seq_len=20, strategy="best_fit_split", repack=True),
    "wrapped": Packing(seq_len=30, strategy="wrapped"),
}


@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_packs(corpus: list[corpora.Corpus], packing: Packing) -> None:
    for one in corpus[:2]:
        dataset = PackedSequenceDataset(one.store, packing)
        for key in KEYS:
            addresses = dataset.locate(np.arange(len(dataset)), np.full(len(dataset), key))
            shown = dataset.read(addresses)["document_ids"]
            for row, origins in zip(shown, dataset.origins(addresses), strict=True):
                assert spelled(origins) == row[row >= 0].tolist()
        check_holders(dataset, KEYS if packing.repack else None)


def test_megatron_samples(corpus: list[corpora.Corpus]) -> None:
    dataset = GPTDataset(corpus[0].store, sequence_length=30, num_samples=100)
    addresses = np.arange(len(dataset))
    for index, origins in enumerate(dataset.origins(addresses)):
        tokens = [
            corpus[0].tokens[corpus[0].documents == one.document][one.begin : one.begin + one.tokens]  # type: ignore[operator]
            for one in origins
        ]
        sample = dataset[index]
        assert np.concatenate(tokens).tolist() == [*sample["tokens"].tolist(), int(sample["labels"][-1])]
    with pytest.raises(ConfigError, match="GPTDataset"):
        dataset.holders(3)
    filled = FilledDataset(dataset, multiple_of=len(dataset) + 2)
    told = filled.origins(filled.locate(np.arange(len(filled))))
    assert told == [*dataset.origins(addresses), (), ()]
    cyclic = CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2)
    some = cyclic.locate(np.arange(20))
    assert cyclic.origins(some) == dataset.origins(some)


def test_records_and_maps(tmp_path: Path) -> None:
    store = records_made.store(tmp_path, records_made.sft(0, 20), "keyed")
    records = SFTDataset(store, Collation())
    assert [one.document for (one,) in records.origins(np.array([3, 0]))] == [3, 0]
    assert records.holders(7).tolist() == [7]
    with pytest.raises(ConfigError, match=r"document.*20.*20"):
        records.holders(20)
    mapped = MapDataset(records, dict)
    assert mapped.origins(np.array([3])) == records.origins(np.array([3]))
    assert mapped.holders(7).tolist() == [7]
    with pytest.raises(ConfigError, match="samples"):
        mapped.find_keys("7")


def test_media(tmp_path: Path) -> None:
    for shard in range(3):
        members = [(f"cats/{shard}{number}.txt", b"cat") for number in range(4)]
        energon_made.write_tar(tmp_path / f"{shard}.tar", members)
    dataset = MediaDataset.open(tmp_path)
    (origin,) = dataset.origins(np.array([6]))[0]
    assert (origin.key, origin.shard, origin.sample, origin.document) == ("cats/12", "1.tar", 2, None)
    assert dataset.find_keys("cats/12")[0] == 6
    with pytest.raises(ConfigError, match="'dogs'"):
        dataset.find_keys("dogs")
    times = history_of(Run(dataset, global_batch_size=4, epochs=2)).sample(".", key="cats/12")
    assert (times.count, times.shown[1].origins[0].key) == (2, "cats/12")


@pytest.mark.parametrize("order", ["full", "none"])
@pytest.mark.parametrize("kind", ["windows", "repack"])
def test_when_a_document_is_seen(corpus: list[corpora.Corpus], order: Any, kind: str) -> None:
    dataset: Dataset = (
        WindowDataset(corpus[0].store, seq_len=17, phase=True, document_ids=True)
        if kind == "windows"
        else PackedSequenceDataset(corpus[0].store, PACKINGS["repack"])
    )
    run = Run(dataset, global_batch_size=5, order=Order(kind=order), epochs=3)
    read = {position: set() for position in range(run.length or 0)}  # type: dict[int, set[int]]
    for step in range(run.num_steps or 0):
        batch = run.step(step)
        for position, row in zip(batch["sample_positions"].tolist(), batch["document_ids"], strict=True):
            read[position] = set(row.tolist())
        for one in trace_step(run, step):
            assert one.position is not None
            assert set(spelled(one.origins)) == read[one.position] - {-1}
    for document in range(0, corpus[0].store.num_documents, 2):
        times = history_of(run).sample(".", document=document, limit=1000)
        wanted = [position for position, documents in read.items() if document in documents]
        assert [one.position for one in times.shown] == wanted
        assert times.count == len(wanted)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_shard(tmp_path / "a", [np.arange(30), np.arange(3000) % 50, *[np.arange(20)] * 40])
    write_shard(tmp_path / "b", [np.arange(4000)])
    data = {name: WindowDataset(open_store(tmp_path / name), seq_len=8) for name in ("a", "b")}
    return Run(Blend(data, weights={"a": 2, "b": 1}), global_batch_size=24, order=Order(seed=1), samples=4000)


@pytest.mark.parametrize("is_edited", [False, True])
def test_the_same_times_are_found(run: Run, is_edited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = history_of(run.edit(10, weights={"a": 1, "b": 1}) if is_edited else run)
    one_by_one = [asked.sample("a", document=1, until_step=step, limit=50) for step in (7, 160)]
    monkeypatch.setattr(history, "_MANY_SAMPLES", 2)
    monkeypatch.setattr(history, "_WALKED_AT_ONCE", 100)
    assert [asked.sample("a", document=1, until_step=step, limit=50) for step in (7, 160)] == one_by_one
    assert one_by_one[1].count > 1000


@pytest.mark.parametrize("bound", ["_MAX_LOOKS", "_MAX_WALKED"])
def test_the_search_ends(run: Run, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MANY_SAMPLES", 2)
    monkeypatch.setattr(history, "_WALKED_AT_ONCE", 100)
    monkeypatch.setattr(history, bound, 300)
    found = history_of(run).sample("a", document=1)
    assert found.until_step is not None
    assert 10 < found.until_step < 40
    assert f"step {found.until_step} only: 376 " in found.notes[0]
    assert found.count == history_of(run).sample("a", document=1, until_step=found.until_step).count
