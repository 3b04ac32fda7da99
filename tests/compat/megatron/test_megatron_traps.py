"""What goes wrong in Megatron's datasets and does not here, by the numbers of tests/interop/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
from headrace import ConfigError
from headrace.compat.megatron import GPTDataset, GPTMasks, IndexedDataset
from headrace.plan.megatron import GPTOrder, GPTSampling, order_samples


def part_kept_whole(prefix: Path, size: int, **options: Any) -> GPTDataset:
    """The validation part of a corpus that is all of it, the rest shorter than a sample too."""
    return GPTDataset(
        prefix,
        sequence_length=size,
        split="0,1,0",
        split_part="valid",
        drop_last_partial_validation_sequence=False,
        masks=GPTMasks(pad=-1),
        **options,
    )


def test_b1_the_number_of_samples_is_exact(tmp_path: Path) -> None:
    """2^24 + 2 tokens: float32 loses the last of them, and with it a sample; by option it is lost here too."""
    tokens = np.full((1 << 24) + 2, 7, dtype=np.uint8)
    tokens[-1] = 9
    corpora.write(tmp_path / "x", [tokens], np.uint8)
    exact, theirs = (part_kept_whole(tmp_path / "x", 8192, float32_ceil=flag) for flag in (False, True))
    assert (len(exact), len(theirs)) == (2049, 2048)
    assert [len(dataset.sample_index) - 1 for dataset in (exact, theirs)] == [2049, 2048]
    assert len({exact.fingerprint, theirs.fingerprint}) == 2
    last = exact[int(np.flatnonzero(exact.shuffle_index == 2048)[0])]
    assert last["labels"][:2].tolist() == [9, 0]
    assert last["loss_mask"].sum() == 1
    # Other parts drop their rest: one set of options does for all of them.
    train = GPTDataset(
        tmp_path / "x", sequence_length=8192, drop_last_partial_validation_sequence=False, float32_ceil=True
    )
    assert len(train) == 2048
    with pytest.raises(ConfigError, match="drop_last_partial=False"):
        GPTDataset(tmp_path / "x", sequence_length=8192, split="0,1,0", split_part="valid", float32_ceil=True)


def test_b2_a_last_sequence_without_tokens_ends_a_partial_sample(tmp_path: Path) -> None:
    """Megatron's offset is -1 then, which fails."""
    corpora.write(tmp_path / "x", [np.array([1, 2, 3, 4]), np.array([], dtype=int), np.array([5, 6, 7])])
    ended = [
        dataset
        for dataset in (part_kept_whole(tmp_path / "x", 4, seed=seed) for seed in range(12))
        if dataset.document_index[-1] == 1
    ]
    assert ended
    for dataset in ended:
        assert len(dataset) == 2
        trained = sorted(
            label for item in (dataset[0], dataset[1]) for label in item["labels"][item["loss_mask"] == 1].tolist()
        )
        first = dataset.store.document(int(dataset.document_index[0]))[0]
        assert trained == sorted({*range(1, 8)} - {int(first)})


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_b3_ids_are_read_in_the_width_that_the_index_says(tmp_path: Path, dtype: type) -> None:
    """A vocabulary of 65,500 to 65,536 is written in 4 bytes, and Megatron's fast path reads it in 2."""
    tokens = [10, 20, 30, 65_535, 40]
    corpora.write(tmp_path / "x", [np.array(tokens)], dtype)
    dataset = GPTDataset(tmp_path / "x", sequence_length=4)
    assert dataset[0]["tokens"].tolist() == tokens[:4]
    assert dataset[0]["labels"].tolist() == tokens[1:]
    assert IndexedDataset(tmp_path / "x").dtype == dtype


def test_b8_sequences_are_counted_in_64_bits() -> None:
    sampling = GPTSampling(sequence_length=4, num_samples=None, seed=0)
    last = GPTOrder(np.array([5, 5], np.int32), sampling, first_sequence=2**31 - 2)
    assert sorted(set(last.locate(np.arange(2)).sequences.tolist())) == [2**31 - 2, 2**31 - 1]
    for dialect in ("core", "aleph_alpha"):
        many = GPTSampling(sequence_length=4, num_samples=None, seed=0, dialect=dialect)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"2\^31.*2,147,483,648"):
            order_samples(np.broadcast_to(np.int8(1), 1 << 31), many)


@pytest.mark.parametrize("last_epoch", ["auto", "together", "separate"])
def test_b10_one_generator_draws_all_epochs(tmp_path: Path, last_epoch: Any) -> None:
    """The documentation of Megatron speaks of a seed for each epoch; its code has one, drawn from in this order."""
    corpora.write(tmp_path / "x", [np.arange(size) for size in (20, 50, 60, 30, 100, 5)])
    dataset = GPTDataset(tmp_path / "x", sequence_length=30, num_samples=12, seed=7, last_epoch=last_epoch)
    rng = np.random.RandomState(7)
    apart = last_epoch != "together"
    documents = [np.arange(6), np.arange(6)] if apart else [np.tile(np.arange(6), 2)]
    samples = [np.arange(8), np.arange(8, 17)] if apart else [np.arange(17)]
    for numbers in (*documents, *samples):
        rng.shuffle(numbers)
    assert dataset.document_index.tolist() == np.concatenate(documents).tolist()
    assert dataset.shuffle_index.tolist() == np.concatenate(samples).tolist()
    assert dataset.order.num_epochs == 2
