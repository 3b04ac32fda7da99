"""What is taken from a ``tokenizer.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from headrace.errors import ConfigError
from headrace.io import hash_bytes
from headrace.preparing.tokenizer import load_tokenizer


def with_tokens(folder: Path, vocabulary: dict[str, int], special: list[str] | None = None) -> Path:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special or [])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_file_or_its_folder(kit: Any) -> None:
    loaded = load_tokenizer(kit.tokenizer)
    assert loaded.vocab_size == kit.vocab_size
    assert loaded.fingerprint == hash_bytes(kit.tokenizer.read_bytes())
    assert loaded.name == str(kit.tokenizer)
    in_folder = load_tokenizer(kit.tokenizer.parent)
    assert in_folder.name == str(kit.tokenizer.parent)
    assert in_folder.fingerprint == loaded.fingerprint


def test_the_vocabulary_counts_added_tokens_and_gaps(tmp_path: Path) -> None:
    assert load_tokenizer(with_tokens(tmp_path, {"a": 0, "[UNK]": 1}, ["<x>", "<y>"])).vocab_size == 4
    assert load_tokenizer(with_tokens(tmp_path, {"a": 0, "[UNK]": 99})).vocab_size == 100


def test_texts_are_neither_cut_nor_padded(kit: Any, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(kit.tokenizer))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "def function(argument): return argument + 1234567890"
    wanted = Tokenizer.from_file(str(kit.tokenizer)).encode(text).ids
    assert 4 < len(wanted) < 64
    assert load_tokenizer(tmp_path).instance().encode(text).ids == wanted


@pytest.mark.parametrize("token", ["<|endoftext|>", "</s>", "[EOS]", "<｜end▁of▁sentence｜>"])  # noqa: RUF001
def test_the_only_usual_end_of_document_is_found(tmp_path: Path, token: str) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0, "<pad>": 1}, [token]))
    assert loaded.find_eod(None) == (2, token)


def test_named_ends_of_document(tmp_path: Path) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0, "a": 1}, ["<end>"]))
    assert loaded.find_eod("<end>") == (2, "<end>")
    assert loaded.find_eod(1) == (1, "a")


@pytest.mark.parametrize(
    ("special", "wanted", "message"),
    [
        (["<end>"], None, "it has no usual one; its added tokens are: '<end>' (id 1). Name it with --eod"),
        ([], None, "its added tokens are: none"),
        (["</s>", "<eos>"], None, "several are usual: '</s>' (id 1), '<eos>' (id 2). Name it with --eod"),
        (["<end>"], "<stop>", "--eod '<stop>': not in the vocabulary"),
        (["<end>"], 2**70, "no token has this id"),
        (["<end>"], -1, "no token has this id"),
        (["<end>"], 2, "no token has this id"),
    ],
)
def test_unclear_ends_of_document(tmp_path: Path, special: list[str], wanted: str | int | None, message: str) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0}, special))
    with pytest.raises(ConfigError) as caught:
        loaded.find_eod(wanted)
    assert message in str(caught.value)


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"'gpt2' does not exist: give the path .* nothing is downloaded"):
        load_tokenizer("gpt2")
    for content in (b"", b"{}", b"\xff\xfe", json.dumps({"version": "1.0", "model": {"type": "?"}}).encode()):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"is not a tokenizer\.json of the library tokenizers"):
            load_tokenizer(tmp_path)
