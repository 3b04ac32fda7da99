"""Context-parallel parts and varlen arguments of packed samples are those that megatron-core works with."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import corpora
import headrace
from headrace.loader import context_parallel, varlen_arguments

pytestmark = pytest.mark.interop


class Megatron(NamedTuple):
    rope: Any
    params: Any


@pytest.fixture(scope="module")
def megatron() -> Megatron:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Megatron(
            pytest.importorskip("megatron.core.models.common.embeddings.rope_utils"),
            pytest.importorskip("megatron.core.packed_seq_params"),
        )


@pytest.mark.parametrize("cp_size", [2, 3, 4])
def test_each_rank_holds_the_positions_that_megatron_rotates(tmp_path: Path, megatron: Megatron, cp_size: int) -> None:
    """Megatron picks a rank's rotary positions from whole segments; they must be those of the tokens we hand it."""
    corpus = corpora.make(tmp_path / "store", 1, 60)
    packing = headrace.Packing(seq_len=48 * cp_size, over_long="split", segment_multiple=2 * cp_size)
    run = headrace.Run(headrace.PackedSequenceDataset(corpus.store, packing), global_batch_size=3, samples=9)
    for batch in headrace.Loader(run, micro_batch_size=3, debug=True):
        supervised = 0
        for cp_rank in range(cp_size):
            part = context_parallel(batch, cp_size, cp_rank)
            lengths = np.diff(part["cu_seqlens_padded"].numpy())
            expected = [
                megatron.rope._get_thd_freqs_on_this_cp_rank(
                    cp_rank, cp_size, torch.empty(length // cp_size), torch.arange(length)
                )
                for length in lengths.tolist()
            ]
            assert torch.equal(part["position_ids"][0], torch.cat(expected))
            params = megatron.params.PackedSeqParams(**varlen_arguments(part, "megatron"))
            assert params.qkv_format == "thd"
            assert torch.equal(params.cu_seqlens_q_padded, batch["cu_seqlens"])
            assert params.max_seqlen_q == int(lengths.max())
            supervised += part["num_supervised_tokens"]
        assert supervised == batch["num_supervised_tokens"]
