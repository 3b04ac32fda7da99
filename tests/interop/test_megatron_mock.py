"""Mock data beside megatron-core's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counts import cases
from headrace.compat.megatron import GPTMasks, MockGPTDataset, MockStore
from interop import megatron_peer

pytestmark = pytest.mark.interop


class Tokenizer(megatron_peer.Tokenizer):
    def __init__(self, vocab_size: int, eod: int) -> None:
        self.vocab_size, self.eod = vocab_size, eod


@pytest.mark.parametrize(("vocab_size", "eod"), [(100, 0), (50_000, 49_999), (3_000, 3_000)])
def test_documents(vocab_size: int, eod: int) -> None:
    theirs = megatron_peer.core("datasets.gpt_dataset").MockGPTLowLevelDataset(Tokenizer(vocab_size, eod))
    ours = MockStore(vocab_size=vocab_size, eod=eod)
    assert ours.num_documents == len(theirs)
    assert ours.lengths.tolist() == theirs.sequence_lengths.tolist()
    for number in [0, 1, 99_999, *np.random.default_rng(0).integers(0, 100_000, 200).tolist()]:
        assert ours.document(number).tolist() == theirs[number].tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(3, 20)))
def test_samples(tmp_path: Path, seed: int) -> None:
    """All three parts, as the builder makes them without data, which is what ``--mock-data`` does."""
    rng = np.random.default_rng(seed)
    size, vocab_size, eod = int(rng.integers(10, 3000)), int(rng.integers(100, 9000)), int(rng.integers(100))
    wanted = [int(n) for n in rng.integers(1, 5000, 3)]
    eod_mask_loss, extra = bool(rng.random() < 0.5), bool(rng.random() < 0.7)
    theirs = megatron_peer.build(
        wanted,
        kind="MockGPTDataset",
        tokenizer=Tokenizer(vocab_size, eod),
        random_seed=seed,
        sequence_length=size,
        split="98,1,1",  # Megatron splits mock data in three, whatever it is told
        eod_mask_loss=eod_mask_loss,
        add_extra_token_to_sequence=extra,
        path_to_cache=str(tmp_path / "cache"),
    )
    for number, part in enumerate(("train", "valid", "test")):
        ours = MockGPTDataset(
            vocab_size=vocab_size,
            eod=eod,
            sequence_length=size,
            num_samples=wanted[number],
            seed=seed,
            split_part=part,  # type: ignore[arg-type]
            add_extra_token_to_sequence=extra,
            masks=GPTMasks(eod=eod, eod_mask_loss=eod_mask_loss),
        )
        assert len(ours) == len(theirs[number])
        some = [0, len(ours) - 1, *rng.integers(0, len(ours), 10).tolist()]
        megatron_peer.check_samples(ours, theirs[number], some)
