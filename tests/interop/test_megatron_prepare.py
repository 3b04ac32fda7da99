"""What ``headrace prepare`` writes, as Megatron-Core opens it, and as its builder would have written it."""

from __future__ import annotations

import json
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import headrace
from headrace.cli import main

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def megatron() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset

        return indexed_dataset


@pytest.fixture(scope="module")
def texts() -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    pieces = [
        text[at : at + 3000] for text in (file.read_text("utf-8") for file in files) for at in range(0, 9000, 3000)
    ]
    return [*pieces, "", " ", "naïve 漢字 🙂 <|endoftext|>", "last"]


@pytest.mark.parametrize("vocab_size", [600, 66_000], ids=["uint16", "int32"])
def test_prepared_text_is_megatrons(tmp_path: Path, megatron: Any, texts: list[str], vocab_size: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    )
    # Added tokens count: with these the ids no longer fit 16 bits as Megatron counts them.
    tokenizer.add_tokens([f"<extra-{i}>" for i in range(vocab_size - tokenizer.get_vocab_size())])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    out = tmp_path / "out"
    arguments = ["prepare", str(tmp_path / "in.jsonl"), "--output", str(out), "--append-eod", "--quiet"]
    ran = CliRunner().invoke(main, [*arguments, "--tokenizer", str(tmp_path / "tokenizer.json"), "--workers", "2"])
    assert ran.exit_code == 0, ran.output

    dtype = megatron.DType.optimal_dtype(vocab_size)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    documents = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        documents.append([*ids, 0] if ids else [])
        builder.add_document(documents[-1], [len(documents[-1])] if documents[-1] else [])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (out / f"text_document{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = megatron.IndexedDataset(str(out / "text_document"))
    ours = headrace.open(str(out))
    assert ours.num_documents == len(peer.document_indices) - 1 == len(texts)
    assert np.array_equal(np.concatenate([peer[i] for i in range(len(peer))]), ours.fetch(0, ours.num_tokens))
    for i, document in enumerate(documents):
        assert ours.document(i).tolist() == document
    assert list(ours.check(vocab_size=vocab_size)) == []


def test_windows_are_megatrons_samples(tmp_path: Path, megatron: Any) -> None:
    """Windows in order are the samples of a GPTDataset before its shuffles: the same tokens and labels."""
    rng = np.random.default_rng(5)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.uint16)
    for length in rng.integers(1, 90, 300).tolist():
        builder.add_document(rng.integers(0, 60_000, length).tolist(), [length])
    builder.finalize(str(tmp_path / "x.idx"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.utils import Split

        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=32,
            blend=([str(tmp_path / "x")], None),
            split="1,0,0",
            tokenizer=_Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        indexed = megatron.IndexedDataset(str(tmp_path / "x"))
        peer = GPTDataset(indexed, str(tmp_path / "x"), np.arange(300, dtype=np.int32), None, Split.train, config)
        # Its samples without its shuffles of documents and samples.
        peer.document_index = np.arange(300, dtype=np.int32)
        peer.shuffle_index = np.arange(len(peer), dtype=np.uint32)
        starts = np.searchsorted(np.cumsum(indexed.sequence_lengths), np.arange(len(peer) + 1) * 32, side="right")
        begins = np.cumsum(indexed.sequence_lengths) - indexed.sequence_lengths
        peer.sample_index = np.stack([starts, np.arange(len(peer) + 1) * 32 - begins[starts]], axis=1)
        ours = headrace.WindowDataset(headrace.open(str(tmp_path / "x")), window_tokens=32)
        assert len(ours) == len(peer)
        for i in range(len(peer)):
            sample = peer[i]
            assert np.array_equal(sample["tokens"].numpy(), ours[i]["input_ids"])
            assert np.array_equal(sample["labels"].numpy(), ours[i]["labels"])
            assert np.array_equal(sample["position_ids"].numpy(), ours[i]["position_ids"])


class _Tokenizer:
    unique_identifiers = {"class": "none"}  # noqa: RUF012 - what GPTDatasetConfig asks for
    eod = 0
    pad = 60_001
    vocab_size = 60_002
