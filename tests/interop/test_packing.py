"""PackedDataset against torchtune's own, tensor for tensor."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import corpora
import headrace
from counts import cases
from headrace.compat.torchtune import PackedDataset
from headrace.loader import context_parallel, varlen_arguments
from interop.oracles import Torchtune, torchtune

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = ("tokens", "labels", "input_pos", "seq_lens")


@pytest.fixture(scope="module")
def peer() -> Torchtune:
    return torchtune()


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[dict[str, list[int]]], dict[str, Any]]:
    """Samples, empty and over-long ones among them, and options."""
    size = draw(st.integers(1, 14))
    split = draw(st.booleans())
    longest = draw(st.sampled_from([size, size, 3 * size] if not split else [2, size, 3 * size]))
    length = st.one_of(st.just(0), st.integers(0, longest), st.just(size))
    made, token = [], 1
    for count in draw(st.lists(length, max_size=14)):
        tokens = list(range(token, token + count))
        made.append({"tokens": tokens, "labels": [-100 if token % 4 == 0 else token + 1 for token in tokens]})
        token += count
    options = {"max_seq_len": size, "split_across_pack": split, "padding_idx": draw(st.sampled_from([0, 8]))}
    return made, {**options, "max_packs": draw(st.sampled_from([None, None, 0, 1, 2, 3, 9]))}


@settings(max_examples=cases(80, 4_000), deadline=None)
@given(drawn())
def test_every_item_is_equal(peer: Torchtune, case: tuple[list[dict[str, list[int]]], dict[str, Any]]) -> None:
    made, options = case
    try:
        theirs = peer.PackedDataset(made, **options)
    except ValueError as error:
        with pytest.raises(ValueError, match="^" + re.escape(str(error))):
            PackedDataset(made, **options)
        return
    ours = PackedDataset(made, mask_pads="causal", **options)
    assert len(ours) == len(theirs) == len(theirs.packs) == len(ours.packs)
    for item, pack in zip(ours, theirs.packs, strict=True):
        assert set(pack) == set(NAMES)
        for name in NAMES:
            assert item[name].dtype == pack[name].dtype == torch.int64
            assert torch.equal(item[name], pack[name]), name
        assert torch.equal(item["mask"], peer.create_block_causal_mask([pack["seq_lens"]])[0])


def test_their_collator_takes_our_items(peer: Torchtune) -> None:
    if torch.cuda.is_available():
        pytest.skip("torchtune makes a block mask on the GPU there")
    made = [{"tokens": list(range(n)), "labels": list(range(n))} for n in (3, 2, 2, 2, 5, 0, 4)]
    ours, theirs = PackedDataset(made, max_seq_len=6), peer.PackedDataset(made, max_seq_len=6)
    batch, expected = peer.padded_collate_packed(list(ours)), peer.padded_collate_packed(list(theirs))
    assert set(batch) == set(expected) == {"tokens", "labels", "input_pos", "mask"}
    for name, values in expected.items():
        assert torch.equal(batch[name], values), name


def test_their_concatenation_takes_ours_for_packed(peer: Torchtune, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ConcatDataset`` asks for torchtune's class; a mix with unpacked ones is refused, and workers get copies."""
    made = [{"tokens": list(range(n)), "labels": list(range(n))} for n in (3, 2, 2, 5)]
    monkeypatch.setitem(sys.modules, "torchtune.datasets._concat", peer.concat)
    ours, theirs = PackedDataset(made, max_seq_len=6), peer.PackedDataset(made, max_seq_len=6)
    both = peer.concat.ConcatDataset([ours, theirs])
    assert both.packed
    assert len(both) == 2 * len(ours)
    for number in range(len(ours)):
        assert torch.equal(both[number]["tokens"], both[len(ours) + number]["tokens"])
    with pytest.raises(ValueError, match="packed"):
        peer.concat.ConcatDataset([ours, made])
    assert type(pickle.loads(pickle.dumps(ours))) is PackedDataset


def test_the_golden_files_are_what_the_peers_make(tmp_path: Path) -> None:
    for name in ("trl", "transformers"):
        pytest.importorskip(name)
    spec = importlib.util.spec_from_file_location("make_packing", GOLDEN / "make_packing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(tmp_path)
    names = sorted(path.name for path in (GOLDEN / "packing").iterdir())
    assert names == ["flattening.json", "torchtune.json", "trl.json"]
    for name in names:
        assert json.loads((tmp_path / name).read_text()) == json.loads((GOLDEN / "packing" / name).read_text())


# Context-parallel parts and varlen arguments of packed samples are those that megatron-core works with.


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
