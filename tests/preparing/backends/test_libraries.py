"""The fast libraries give the reference tokeniser's ids, or say at once that they do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from counts import cases
from headrace.errors import ConfigError
from headrace.preparing.backends.libraries import FastokensBackend
from headrace.preparing.backends.reference import RefusedTextError, TokenizersBackend
from headrace.preparing.backends.tokenizer import UnsuitableError
from headrace.samples.tokenizer import TokenizerFile


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k", "llama3", "qwen2", "llama2"])
@pytest.mark.sampled(3)
def test_same_ids(name: str, family: Any) -> None:
    content = family.make(name)
    fast = FastokensBackend(TokenizerFile(content), "encode")
    reference = TokenizersBackend(TokenizerFile(content), "encode")
    words = ["\n", "  ", "\t", "é", "e\u0301", "中文", "12345", "'ll", "...", "<|", "Word", "лиса", "\u200d", "İ"]
    text = st.lists(st.one_of(st.sampled_from(words), st.characters(exclude_categories=["Cs", "Cn"])), max_size=30)

    @given(texts=st.lists(text.map("".join), max_size=6))
    @settings(max_examples=cases(16, 40), deadline=None)
    def check(texts: list[str]) -> None:
        ours, theirs = fast.encode(texts), reference.encode(texts)
        assert ours.ids.dtype == np.uint32
        assert ours.lengths.dtype == np.int64
        assert ours.lengths.tolist() == theirs.lengths.tolist()
        assert ours.ids.tolist() == theirs.ids.tolist()

    check()
    check_texts = family.documents(200)
    np.testing.assert_array_equal(fast.encode(check_texts).ids, reference.encode(check_texts).ids)


@pytest.mark.parametrize("special", ["encode", "literal"])
def test_special_tokens_in_text(special: Any, family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("<x>", special=False)])
    texts = ["a<s>b<x>c", "<s>", "<x><s> <s><x>", "plain"]
    ours, theirs = (
        make(TokenizerFile(content), special).encode(texts) for make in (FastokensBackend, TokenizersBackend)
    )
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.lengths.tolist() == theirs.lengths.tolist()


def set_model(**options: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made["model"].update(options)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2", set_model(dropout=0.1), "chance"),
        ("gpt2", set_model(continuing_subword_prefix="##"), "continuing_subword_prefix '##'"),
        ("gpt2", set_model(end_of_word_suffix="</w>"), "end_of_word_suffix '</w>'"),
        ("unigram", lambda made: None, "Unigram"),
        ("wordpiece", lambda made: None, "WordPiece"),
        ("gpt2", lambda made: made.pop("model"), "KeyError"),
    ],
)
def test_unsuitable(name: str, change: Any, message: str, family: Any) -> None:
    content = family.change(family.make(name), change)
    with pytest.raises((UnsuitableError, ConfigError)) as error:
        FastokensBackend(TokenizerFile(content), "encode")
    assert message in str(error.value)


def test_optional_libraries_are_imported_when_used() -> None:
    code = "import sys, headrace.preparing.backends as b; print('fastokens' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# The reference tokeniser: its ids are those of the library, however many texts are encoded together.


@pytest.mark.parametrize("name", ["gpt2", "llama2", "wordpiece", "unigram"])
def test_the_ids_of_each_text_by_itself(name: str, family: Any) -> None:
    content = family.make(name)
    tokenizer = Tokenizer.from_str(content.decode())
    texts = ["a b", "\n".join(family.texts[:4]) + f"a{family.eod}b", "", "c"]
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    ids = TokenizersBackend(TokenizerFile(content), "encode", batch_bytes=1000).encode(texts)
    assert (ids.ids.dtype, ids.lengths.dtype) == (np.uint32, np.int64)
    assert ids.lengths.tolist() == list(map(len, expected))
    assert ids.ids.tolist() == [number for one in expected for number in one]


def test_special_tokens_are_text_where_literal_and_other_added_ones_are_not(family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("<x>", special=False)])
    vocabulary = Tokenizer.from_str(content.decode()).get_vocab()
    for special, has_special in (("encode", True), ("literal", False), ("error", True)):
        ids = TokenizersBackend(TokenizerFile(content), special).encode(["a<s>b<x>c"]).ids.tolist()
        assert (vocabulary["<s>"] in ids) == has_special
        assert vocabulary["<x>"] in ids


def test_truncation_and_padding_of_the_file_are_off(family: Any) -> None:
    tokenizer = Tokenizer.from_str(family.make("gpt2").decode())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    encoded = TokenizersBackend(TokenizerFile(tokenizer.to_str().encode()), "encode").encode(
        ["some words here, more than three", "a"]
    )
    assert encoded.lengths[0] > 3
    assert encoded.lengths[1] == 1


def test_a_refused_text_is_named() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="missing"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend = TokenizersBackend(
        TokenizerFile(json.dumps(json.loads(tokenizer.to_str())).encode()), "encode", batch_bytes=4
    )
    assert backend.encode(["a b", "b"]).ids.tolist() == [0, 1, 1]
    with pytest.raises(RefusedTextError, match=r"WordLevel.*\[UNK\]") as error:
        backend.encode(["a b", "b", "a", "a x b", "x"])
    assert error.value.index == 3
