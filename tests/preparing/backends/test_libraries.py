"""The fast libraries give the reference tokeniser's ids, or say at once that they do not fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from counts import cases
from headrace.preparing.backends import backend
from headrace.preparing.backends.layout import UnsuitableError
from headrace.preparing.backends.libraries import FastokensBackend, GigatokenBackend, TiktokenBackend
from headrace.preparing.backends.reference import TokenizersBackend

FAST = {"gigatoken": GigatokenBackend, "fastokens": FastokensBackend, "tiktoken": TiktokenBackend}
SUITABLE = [
    (library, name)
    for library in FAST
    for name in ("gpt2", "cl100k", "o200k", "llama3", "qwen2", "llama2", "metaspace")
    if (library, name) not in {("tiktoken", "qwen2"), ("tiktoken", "llama2")} and name != "metaspace"
]


@pytest.mark.parametrize(("library", "name"), SUITABLE)
@pytest.mark.sampled(5)
def test_same_ids(library: str, name: str, family: Any) -> None:
    content = family.make(name)
    fast = FAST[library](content, "encode")
    reference = TokenizersBackend(content, "encode")
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


@pytest.mark.parametrize("library", ["gigatoken", "fastokens"])
@pytest.mark.parametrize("special", ["encode", "literal"])
def test_special_tokens_in_text(library: str, special: Any, family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("<x>", special=False)])
    texts = ["a<s>b<x>c", "<s>", "<x><s> <s><x>", "plain"]
    ours, theirs = (make(content, special).encode(texts) for make in (FAST[library], TokenizersBackend))
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.lengths.tolist() == theirs.lengths.tolist()


def set_model(**options: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made["model"].update(options)


def set_pre_tokenizer(step: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made.update(pre_tokenizer=step)


def drop_byte(made: dict[str, Any]) -> None:
    del made["model"]["vocab"]["\u0100"]


def drop_merge(made: dict[str, Any]) -> None:
    """The first one, on which others build."""
    made["model"]["merges"].pop(0)


def repeat_merge(made: dict[str, Any]) -> None:
    made["model"]["merges"].append(made["model"]["merges"][0])


BYTE_LEVEL_STEP = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\s+|\S+"}, "behavior": "Isolated", "invert": False}

UNSUITABLE = [
    ("gpt2", set_model(dropout=0.1), "drop out by chance", "gigatoken fastokens tiktoken"),
    (
        "gpt2",
        set_model(continuing_subword_prefix="##"),
        "continuing_subword_prefix '##'",
        "gigatoken fastokens tiktoken",
    ),
    ("gpt2", set_model(end_of_word_suffix="</w>"), "end_of_word_suffix '</w>'", "gigatoken fastokens tiktoken"),
    ("gpt2", drop_byte, "lacks the byte 0x00 and 0 others", "gigatoken tiktoken"),
    ("gpt2", set_pre_tokenizer(None), "ends in nothing", "gigatoken tiktoken"),
    ("gpt2", set_pre_tokenizer({"type": "Whitespace"}), "ends in Whitespace, not in ByteLevel", "gigatoken tiktoken"),
    ("gpt2", set_pre_tokenizer({**BYTE_LEVEL_STEP, "use_regex": False}), "its text is not split", "gigatoken tiktoken"),
    (
        "gpt2",
        set_pre_tokenizer({"type": "Sequence", "pretokenizers": [SPLIT, {**BYTE_LEVEL_STEP, "use_regex": True}]}),
        "by its own regex and by ByteLevel's",
        "gigatoken tiktoken",
    ),
    (
        "gpt2",
        set_pre_tokenizer(
            {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL_STEP]}
        ),
        "Digits, where only Split by a regex is known",
        "gigatoken tiktoken",
    ),
    (
        "gpt2",
        set_pre_tokenizer(
            {
                "type": "Sequence",
                "pretokenizers": [{**SPLIT, "behavior": "Removed"}, {**BYTE_LEVEL_STEP, "use_regex": False}],
            }
        ),
        "splits as Removed, invert False",
        "gigatoken tiktoken",
    ),
    (
        "gpt2",
        set_pre_tokenizer(
            {"type": "Sequence", "pretokenizers": [{**SPLIT, "invert": True}, {**BYTE_LEVEL_STEP, "use_regex": False}]}
        ),
        "splits as Isolated, invert True",
        "gigatoken tiktoken",
    ),
    (
        "gpt2",
        set_pre_tokenizer({"type": "Sequence", "pretokenizers": [SPLIT, {**BYTE_LEVEL_STEP, "use_regex": False}]}),
        "the library refuses it: Unknown pre_tokenizer",
        "gigatoken",
    ),
    ("gpt2", lambda made: made.update(normalizer={"type": "Lowercase"}), "normaliser Lowercase", "gigatoken tiktoken"),
    ("qwen2", lambda made: None, "its normaliser NFC", "tiktoken"),
    ("gpt2", set_pre_tokenizer({**BYTE_LEVEL_STEP, "add_prefix_space": True}), "a space before each text", "tiktoken"),
    ("gpt2", repeat_merge, "at two places: ranks cannot follow them", "tiktoken"),
    ("gpt2", drop_merge, "its merges do not make the token", "tiktoken"),
    ("llama3", lambda made: made["model"]["merges"].pop(), "no merge makes its token", "tiktoken"),
    ("llama2", lambda made: None, "falls back to bytes, and is not byte-level", "tiktoken"),
    ("llama2", lambda made: made["model"]["vocab"].pop("<0x0A>"), "lacks the byte 0x0a and 0 others", "gigatoken"),
    ("unigram", lambda made: None, "its model is Unigram, not byte-pair", "gigatoken fastokens tiktoken"),
    ("wordpiece", lambda made: None, "its model is WordPiece, not byte-pair", "gigatoken fastokens tiktoken"),
    ("gpt2", lambda made: made.pop("model"), "cannot be taken apart: KeyError", "gigatoken fastokens tiktoken"),
]


@pytest.mark.parametrize(
    ("name", "change", "message", "library"),
    [(name, change, message, library) for name, change, message, all_of in UNSUITABLE for library in all_of.split()],
)
def test_unsuitable(name: str, change: Any, message: str, library: str, family: Any) -> None:
    content = family.change(family.make(name), change)
    with pytest.raises(UnsuitableError) as error:
        FAST[library](content, "encode")
    assert message in str(error.value)


def test_ranks_follow_the_merges_where_ids_do_not(family: Any) -> None:
    def renumber(made: dict[str, Any]) -> None:
        vocabulary = made["model"]["vocab"]
        size = len(vocabulary)
        shuffled = {token: (number * 601 + 7) % size for token, number in vocabulary.items()}
        assert len(set(shuffled.values())) == size
        made["model"]["vocab"] = shuffled
        made["added_tokens"] = []

    content = family.change(family.make("gpt2", []), renumber)
    texts = family.documents(100)
    ours, theirs = TiktokenBackend(content, "encode").encode(texts), TokenizersBackend(content, "encode").encode(texts)
    np.testing.assert_array_equal(ours.ids, theirs.ids)


def test_merges_of_one_token_may_follow_one_another(family: Any) -> None:
    def repeat(made: dict[str, Any]) -> None:
        made["model"]["merges"] = [merge for merge in made["model"]["merges"] for _ in range(2)]

    content = family.change(family.make("gpt2"), repeat)
    texts = family.documents(100)
    ours, theirs = TiktokenBackend(content, "encode").encode(texts), TokenizersBackend(content, "encode").encode(texts)
    np.testing.assert_array_equal(ours.ids, theirs.ids)


@pytest.mark.parametrize("library", ["gigatoken", "fastokens"])
def test_a_library_whose_cache_is_full_is_loaded_anew(
    library: str, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "LOOK_EVERY_CHARACTERS", 1)
    sizes = iter([100, 101, 100 + backend.GROWTH_BYTES, 101 + backend.GROWTH_BYTES, 50, 51])
    monkeypatch.setattr(backend, "resident_bytes", lambda: next(sizes))
    fast = FAST[library](family.make("gpt2"), "encode")
    first = fast._tokenizer
    expected = fast.encode(["some text"]).ids.tolist()
    assert fast._tokenizer is first
    fast.encode(["some text"])
    assert fast._tokenizer is first
    assert fast.encode(["some text"]).ids.tolist() == expected
    assert fast._tokenizer is None
    assert fast.encode(["some text"]).ids.tolist() == expected
    assert fast._tokenizer is not None


def test_growth_counts_from_the_last_load(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1000, 1001 + backend.GROWTH_BYTES, 500, 501 + backend.GROWTH_BYTES])
    monkeypatch.setattr(backend, "resident_bytes", lambda: next(sizes))
    guard = backend.CacheGuard()
    assert not guard.is_full(backend.LOOK_EVERY_CHARACTERS - 1)
    assert guard.is_full(1)
    guard.reset()
    assert not guard.is_full(1)
    assert guard.is_full(backend.LOOK_EVERY_CHARACTERS)


def test_where_the_size_cannot_be_seen_the_text_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "resident_bytes", lambda: 0)
    guard = backend.CacheGuard()
    half = backend.BLIND_CHARACTERS // 2
    assert [guard.is_full(half), guard.is_full(half)] == [False, True]
    guard.reset()
    assert not guard.is_full(half)


def test_the_size_of_this_process() -> None:
    assert 10e6 < backend.resident_bytes() < 100e9


def test_optional_libraries_are_imported_when_used() -> None:
    code = (
        "import sys, headrace.preparing.backends as b; "
        "print([name for name in ('gigatoken', 'fastokens', 'tiktoken', 'awkward') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
