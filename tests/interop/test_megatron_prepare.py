"""What ``headrace prepare`` writes, as Megatron-Core opens it, and as its builder would have written it."""

from __future__ import annotations

import itertools
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
from copies_made import pair_bytes
from headrace.cli import main
from headrace.stores import load_manifest
from interop import megatron_peer

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("warm_workers")]

NUM_ADDED = 10


@pytest.fixture(scope="module")
def texts() -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    pieces = [
        text[at : at + 3000] for text in (file.read_text("utf-8") for file in files) for at in range(0, 9000, 3000)
    ]
    return [*pieces, "", " ", "naïve 漢字 🙂 <|endoftext|>", "last"]


def train(folder: Path, texts: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE, saved as ``tokenizer.json``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    )
    # The bulk is tokens that no merge makes; added tokens count, and with the last few the ids no longer fit 16 bits.
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"<unused-{i}>": i for i in range(len(vocabulary), vocab_size - NUM_ADDED)}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_tokens([f"<extra-{i}>" for i in range(vocab_size - tokenizer.get_vocab_size())])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """As Megatron's tool with ``--append-eod``: an empty text has no end, and special tokens in text are tokens."""
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [[*ids, 0] if ids else [] for ids in rows]


def write_records(path: Path, records: list[dict[str, str]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def prepare(folder: Path, *arguments: str) -> Path:
    out = folder / "out"
    common = ["prepare", str(folder / "in.jsonl"), "--output", str(out), "--append-eod", "--quiet", "--workers", "2"]
    common += ["--tokenizer", str(folder / "tokenizer.json"), "--special-tokens-in-text", "encode"]
    ran = CliRunner().invoke(main, [*common, *arguments])
    assert ran.exit_code == 0, ran.output
    return out


def build(prefix: Path, documents: list[list[int]], dtype: Any) -> None:
    """The original's builder, fed as its tool feeds it."""
    megatron_peer.write(prefix, [(ids, [len(ids)] if ids else []) for ids in documents], dtype)


def read_documents(prefix: Path) -> list[list[int]]:
    """What the original's reader finds."""
    peer = megatron_peer.indexed(prefix)
    bounds = peer.document_indices.tolist()
    return [[int(token) for at in range(begin, end) for token in peer[at]] for begin, end in itertools.pairwise(bounds)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["tokenizers", "fastokens"])
@pytest.mark.parametrize("vocab_size", [620, 65_505], ids=["uint16", "int32"])
def test_prepared_text_is_megatrons(
    tmp_path: Path, megatron: Any, texts: list[str], vocab_size: int, backend: str
) -> None:
    tokenizer = train(tmp_path, texts, vocab_size)
    write_records(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    out = prepare(tmp_path, "--backend", backend)
    used = load_manifest(out).backend
    assert used is not None
    assert used.name == backend  # proved, and no mismatch later
    documents = encode(tokenizer, texts)
    assert 0 in documents[-2][:-1]  # the special token inside the text
    build(tmp_path / "theirs", documents, megatron.DType.optimal_dtype(vocab_size))
    assert pair_bytes(out / "text_document") == pair_bytes(tmp_path / "theirs")

    assert read_documents(out / "text_document") == documents
    ours = headrace.open(str(out))
    assert ours.num_documents == len(texts)
    for i, document in enumerate(documents):
        assert ours.document(i).tolist() == document
    assert list(ours.check(vocab_size=vocab_size)) == []


def test_several_fields_are_megatrons_json_keys(tmp_path: Path, texts: list[str]) -> None:
    """``--field a --field b`` as ``--json-keys a b``: a pair of files for each key."""
    tokenizer = train(tmp_path, texts, 620)
    titles = [text[:20] for text in texts]
    records = [{"title": title, "body": text} for title, text in zip(titles, texts, strict=True)]
    write_records(tmp_path / "in.jsonl", records)
    out = prepare(tmp_path, "--field", "title", "--field", "body")
    for key, column in (("title", titles), ("body", texts)):
        build(tmp_path / key, encode(tokenizer, column), np.uint16)
        assert pair_bytes(out / f"{key}_document") == pair_bytes(tmp_path / key)


def test_windows_are_megatrons_samples(tmp_path: Path) -> None:
    """Windows in order are the samples of a GPTDataset before its shuffles: the same tokens and labels."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 90, 300).tolist()
    given = [(rng.integers(0, 60_000, length).tolist(), [length]) for length in lengths]
    megatron_peer.write(tmp_path / "x", given, np.uint16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"random_seed": 1, "sequence_length": 32, "blend": ([str(tmp_path / "x")], None), "split": "1,0,0"}
        config = megatron_peer.config(tokenizer=_Tokenizer(), **options)
        indexed = megatron_peer.indexed(tmp_path / "x")
        make, split = (megatron_peer.core(f"datasets.{name}") for name in ("gpt_dataset", "utils"))
        documents = np.arange(300, dtype=np.int32)
        peer = make.GPTDataset(indexed, str(tmp_path / "x"), documents, None, split.Split.train, config)
        # Its samples without its shuffles of documents and samples.
        peer.document_index = documents
        peer.shuffle_index = np.arange(len(peer), dtype=np.uint32)
        starts = np.searchsorted(np.cumsum(indexed.sequence_lengths), np.arange(len(peer) + 1) * 32, side="right")
        begins = np.cumsum(indexed.sequence_lengths) - indexed.sequence_lengths
        peer.sample_index = np.stack([starts, np.arange(len(peer) + 1) * 32 - begins[starts]], axis=1)
        ours = headrace.WindowDataset(headrace.open(str(tmp_path / "x")), seq_len=32)
        assert len(ours) == len(peer)
        for i in range(len(peer)):
            sample = peer[i]
            assert np.array_equal(sample["tokens"].numpy(), ours[i]["input_ids"])
            assert np.array_equal(sample["labels"].numpy(), ours[i]["labels"])
            assert np.array_equal(sample["position_ids"].numpy(), ours[i]["position_ids"])


class _Tokenizer(megatron_peer.Tokenizer):
    vocab_size = 60_002
    eod = 0
    pad = 60_001
