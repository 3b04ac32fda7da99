"""Mock data and validation sets beside megatron-core's own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpora
from counts import cases
from headrace import Run
from headrace.compat.megatron import GPTDataset, GPTMasks, MockGPTDataset, MockStore

pytestmark = pytest.mark.interop


class Tokenizer:
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012

    def __init__(self, vocab_size: int, eod: int) -> None:
        self.vocab_size, self.eod = vocab_size, eod


@pytest.fixture(scope="module")
def megatron() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core")
        from megatron.core.datasets import gpt_dataset

        return gpt_dataset


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Any]:
    """Megatron's builder, in a process group of one, which it asks for its rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield BlendedMegatronDatasetBuilder
    torch.distributed.destroy_process_group()


def config(megatron: Any, tokenizer: Tokenizer, **options: Any) -> Any:
    flags = {"create_attention_mask": False, "reset_attention_mask": False, "mid_level_dataset_surplus": 0.005}
    defaults = {**flags, "reset_position_ids": False, "eod_mask_loss": False, "tokenizer": tokenizer}
    return megatron.GPTDatasetConfig(**{**defaults, **options})


@pytest.mark.parametrize(("vocab_size", "eod"), [(100, 0), (50_000, 49_999), (3_000, 3_000)])
def test_documents(megatron: Any, vocab_size: int, eod: int) -> None:
    theirs = megatron.MockGPTLowLevelDataset(Tokenizer(vocab_size, eod))
    ours = MockStore(vocab_size=vocab_size, eod=eod)
    assert ours.num_documents == len(theirs)
    assert ours.lengths.tolist() == theirs.sequence_lengths.tolist()
    for number in [0, 1, 99_999, *np.random.default_rng(0).integers(0, 100_000, 200).tolist()]:
        assert ours.document(number).tolist() == theirs[number].tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(cases(3, 20)))
def test_samples(megatron: Any, builder: Any, tmp_path: Path, seed: int) -> None:
    """All three parts, as the builder makes them without data, which is what ``--mock-data`` does."""
    rng = np.random.default_rng(seed)
    size, vocab_size, eod = int(rng.integers(10, 3000)), int(rng.integers(100, 9000)), int(rng.integers(100))
    wanted = [int(n) for n in rng.integers(1, 5000, 3)]
    eod_mask_loss, extra = bool(rng.random() < 0.5), bool(rng.random() < 0.7)
    # Megatron splits mock data in three, whatever it is told.
    theirs = builder(
        megatron.MockGPTDataset,
        wanted,
        lambda: True,
        config(
            megatron,
            Tokenizer(vocab_size, eod),
            random_seed=seed,
            sequence_length=size,
            split="98,1,1",
            eod_mask_loss=eod_mask_loss,
            add_extra_token_to_sequence=extra,
            path_to_cache=str(tmp_path / "cache"),
        ),
    ).build()
    for number, part in enumerate(("train", "valid", "test")):
        ours = MockGPTDataset(
            vocab_size=vocab_size,
            eod=eod,
            sequence_length=size,
            num_samples=wanted[number],
            seed=seed,
            split_part=part,
            add_extra_token_to_sequence=extra,
            masks=GPTMasks(eod=eod, eod_mask_loss=eod_mask_loss),
        )
        assert len(ours) == len(theirs[number])
        for i in [0, len(ours) - 1, *rng.integers(0, len(ours), 10).tolist()]:
            theirs[number].masks_and_position_ids_are_cached = False
            mine, expected = ours[i], theirs[number][i]
            assert set(mine) == set(expected)
            for name, value in expected.items():
                assert torch.equal(torch.from_numpy(mine[name]), value), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(cases(3, 20)))
def test_several_validation_sets_in_full(megatron: Any, builder: Any, tmp_path: Path, seed: int) -> None:
    """``--full-validation --multiple-validation-sets``: each set one epoch of its own, every sample."""
    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abc"]
    for prefix in prefixes:
        documents = [rng.integers(0, 50, size) for size in rng.integers(1, 30, 30)]
        corpora.write(Path(prefix), documents)
    theirs = builder(
        megatron.GPTDataset,
        [20, None, 0],
        lambda: True,
        config(
            megatron,
            Tokenizer(60, 0),
            random_seed=seed,
            sequence_length=7,
            blend_per_split=[(prefixes[:1], None), (prefixes, None), None],
            multiple_validation_sets=True,
            full_validation=True,
            drop_last_partial_validation_sequence=False,
            path_to_cache=str(tmp_path / "cache"),
        ),
    ).build()[1]
    assert len(theirs) == 3
    for prefix, expected in zip(prefixes, theirs, strict=True):
        ours = GPTDataset(
            prefix,
            sequence_length=7,
            seed=seed,
            split="0,1,0",
            split_part="valid",
            drop_last_partial_validation_sequence=False,
        )
        run = Run.validation(ours, global_batch_size=8)
        assert run.num_steps is not None
        rows = [row for step in range(run.num_steps) for row in run.step(step)["tokens"].tolist()]
        assert rows == [expected[i]["tokens"].tolist() for i in range(len(expected))]
