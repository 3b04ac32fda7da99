"""`FilledDataset`: every sample once, and copies without loss that make the last step whole."""

from __future__ import annotations

import numpy as np
import pytest

import corpora
from headrace import (
    ConfigError,
    Loader,
    PackedSequenceDataset,
    Packing,
    Run,
    WindowDataset,  # fmt: skip
)
from headrace.compat.megatron import CyclicDataset, GPTBlend, GPTDataset, GPTMasks
from headrace.datasets import FilledDataset
from headrace.loader import Ranks

STEP = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpus:
    return corpora.make(tmp_path_factory.mktemp("filled"), 0, 60)


@pytest.fixture
def dataset(corpus: corpora.Corpus) -> GPTDataset:
    found = GPTDataset(corpus.store.path, sequence_length=30, masks=GPTMasks(eod=3, eod_mask_loss=True))
    assert len(found) % STEP not in (0, 1)
    return found


def test_all_samples_and_then_copies_without_loss(dataset: GPTDataset) -> None:
    filled = FilledDataset(dataset, multiple_of=STEP)
    assert len(filled) % STEP == 0 < len(filled) - len(dataset) < STEP
    assert (filled.fields, filled.constants.keys()) == (dataset.fields, dataset.constants.keys())
    assert filled.num_tokens_per_sample * len(filled) == pytest.approx(30 * len(dataset))
    for i in range(len(filled)):
        expected = dataset[i] if i < len(dataset) else {**dataset[0], "loss_mask": np.zeros(30)}
        assert {name: v.tolist() for name, v in filled[i].items()} == {n: v.tolist() for n, v in expected.items()}
    assert f"{len(filled) - len(dataset)} without loss" in filled.describe()
    assert filled.fingerprint != dataset.fingerprint
    assert filled.fingerprint != FilledDataset(dataset, multiple_of=5).fingerprint
    rows = np.array([len(filled) - 1, 3, len(filled) - 2, 0])
    out = {name: np.zeros((9, *shape), dtype) for name, (shape, dtype) in filled.fields.items()}
    filled.read_into(filled.locate(rows), out, np.array([8, 2, 5, 1]))
    assert [bool(mask.any()) for mask in out["loss_mask"]] == [False, True, True, *[False] * 6]
    assert out["tokens"][[8, 2, 5, 1]].tolist() == [dataset[i]["tokens"].tolist() for i in (0, 3, 0, 0)]


def test_where_it_fits_nothing_is_added(dataset: GPTDataset) -> None:
    assert len(FilledDataset(dataset, multiple_of=1)) == len(FilledDataset(dataset, multiple_of=len(dataset)))
    assert len(FilledDataset(dataset, multiple_of=len(dataset))) == len(dataset)


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 4), (2, 3), (3, 2), (4, 1), (12, 1)])
def test_each_rank_gets_whole_micro_batches_and_the_loss_is_the_same(
    dataset: GPTDataset, world_size: int, micro_batch_size: int
) -> None:
    """A stand-in for a loss, summed over the mask: what the samples alone give, each once."""
    alone = dataset.read(np.arange(len(dataset)))
    run = Run.validation(FilledDataset(dataset, multiple_of=STEP), global_batch_size=STEP)
    total = count = 0.0
    shapes = set()
    for rank in range(world_size):
        loader = Loader(run, micro_batch_size=micro_batch_size, ranks=Ranks(rank, world_size), uneven="refuse")
        batches = list(loader)
        shapes |= {(len(batches), *batch["tokens"].shape) for batch in batches}
        total += sum(float((batch["labels"] * batch["loss_mask"]).sum()) for batch in batches)
        count += sum(float(batch["loss_mask"].sum()) for batch in batches)
    assert shapes == {(len(run.data) // world_size // micro_batch_size, micro_batch_size, 30)}  # type: ignore[arg-type]
    assert count == alone["loss_mask"].sum()
    assert total == (alone["labels"] * alone["loss_mask"]).sum(dtype=np.float64)


def test_a_blend_is_filled_up_too(dataset: GPTDataset) -> None:
    blend = GPTBlend([dataset, dataset])
    filled = FilledDataset(blend, multiple_of=7)
    last = filled[len(filled) - 1]
    assert (int(last["dataset_id"]), float(last["loss_mask"].sum())) == (int(blend[0]["dataset_id"]), 0.0)


def test_what_cannot_be_filled_up(corpus: corpora.Corpus, dataset: GPTDataset) -> None:
    with pytest.raises(
        ConfigError, match="marked only by a field loss_mask alone; WindowDataset has input_ids, labels"
    ):
        FilledDataset(WindowDataset(corpus.store, seq_len=8), multiple_of=4)
    packed = PackedSequenceDataset(corpus.store, Packing(seq_len=64, strategy="best_fit"))
    with pytest.raises(ConfigError, match="PackedSequenceDataset has"):
        FilledDataset(packed, multiple_of=4)
    with pytest.raises(ConfigError, match="CyclicDataset has no end, and so no last step"):
        FilledDataset(CyclicDataset(dataset, micro_batch_size=2, data_parallel_size=2), multiple_of=4)
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        FilledDataset(dataset, multiple_of=0)
