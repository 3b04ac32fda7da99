"""The library `tokenizers` behind the common face."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from headrace.preparing.backends.backend import RefusedTextError
from headrace.preparing.backends.reference import TokenizersBackend

FAMILIES = ["gpt2", "cl100k", "o200k", "llama3", "qwen2", "llama2", "metaspace", "wordpiece", "unigram"]


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_lengths(name: str, family: Any) -> None:
    content = family.make(name)
    texts = ["", *family.documents(40), f"a{family.eod}b"]
    expected = [
        encoding.ids for encoding in Tokenizer.from_str(content.decode()).encode_batch(texts, add_special_tokens=False)
    ]
    encoded = TokenizersBackend(content, "encode").encode(texts)
    assert encoded.ids.dtype == np.uint32
    assert encoded.lengths.dtype == np.int64
    assert encoded.lengths.tolist() == [len(row) for row in expected]
    assert encoded.ids.tolist() == [number for row in expected for number in row]


def test_no_texts(family: Any) -> None:
    encoded = TokenizersBackend(family.make("gpt2"), "encode").encode([])
    assert encoded.ids.dtype == np.uint32
    assert len(encoded.ids) == len(encoded.lengths) == 0


def test_special_tokens_are_text_where_literal_and_other_added_ones_are_not(family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("<x>", special=False)])
    vocabulary = Tokenizer.from_str(content.decode()).get_vocab()
    for special, has_special in (("encode", True), ("literal", False), ("error", True)):
        ids = TokenizersBackend(content, special).encode(["a<s>b<x>c"]).ids.tolist()
        assert (vocabulary["<s>"] in ids) == has_special
        assert vocabulary["<x>"] in ids


def test_truncation_and_padding_of_the_file_are_off(family: Any) -> None:
    tokenizer = Tokenizer.from_str(family.make("gpt2").decode())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    encoded = TokenizersBackend(tokenizer.to_str().encode(), "encode").encode(["some words here, more than three", "a"])
    assert encoded.lengths[0] > 3
    assert encoded.lengths[1] == 1


def test_a_refused_text_is_named() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="missing"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend = TokenizersBackend(json.dumps(json.loads(tokenizer.to_str())).encode(), "encode", piece_bytes=4)
    assert backend.encode(["a b", "b"]).ids.tolist() == [0, 1, 1]
    with pytest.raises(RefusedTextError, match=r"WordLevel error: Missing \[UNK\]") as error:
        backend.encode(["a b", "b", "a", "a x b", "x"])
    assert error.value.index == 3
