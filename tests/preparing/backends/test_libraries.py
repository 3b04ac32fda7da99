"""The fast libraries give the reference tokeniser's ids, or say at once that they do not fit."""

from __future__ import annotations

import json
import random
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
from headrace.preparing.backends import reference as memory
from headrace.preparing.backends.libraries import FastokensBackend, GigatokenBackend
from headrace.preparing.backends.reference import RefusedTextError, TextCutter, TokenizersBackend, most_bytes
from headrace.preparing.backends.tokenizer import UnsuitableError
from headrace.samples.tokenizer import TokenizerFile

FAST = {"gigatoken": GigatokenBackend, "fastokens": FastokensBackend}
SUITABLE = [(library, name) for library in FAST for name in ("gpt2", "cl100k", "o200k", "llama3", "qwen2", "llama2")]


@pytest.mark.parametrize(("library", "name"), SUITABLE)
@pytest.mark.sampled(5)
def test_same_ids(library: str, name: str, family: Any) -> None:
    content = family.make(name)
    fast = FAST[library](TokenizerFile(content), "encode")
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


@pytest.mark.parametrize("library", ["gigatoken", "fastokens"])
@pytest.mark.parametrize("special", ["encode", "literal"])
def test_special_tokens_in_text(library: str, special: Any, family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("<x>", special=False)])
    texts = ["a<s>b<x>c", "<s>", "<x><s> <s><x>", "plain"]
    ours, theirs = (make(TokenizerFile(content), special).encode(texts) for make in (FAST[library], TokenizersBackend))
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.lengths.tolist() == theirs.lengths.tolist()


def set_model(**options: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made["model"].update(options)


def set_pre_tokenizer(step: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made.update(pre_tokenizer=step)


def set_steps(*steps: Any) -> Callable[[dict[str, Any]], None]:
    return set_pre_tokenizer({"type": "Sequence", "pretokenizers": list(steps)})


def drop_byte(made: dict[str, Any]) -> None:
    del made["model"]["vocab"]["\u0100"]


ALL, BYTE_LEVEL = "gigatoken fastokens", "gigatoken"
STEP = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
UNSPLIT = {**STEP, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\s+|\S+"}, "behavior": "Isolated", "invert": False}

UNSUITABLE = [
    ("gpt2", set_model(dropout=0.1), "chance", ALL),
    ("gpt2", set_model(continuing_subword_prefix="##"), "continuing_subword_prefix '##'", ALL),
    ("gpt2", set_model(end_of_word_suffix="</w>"), "end_of_word_suffix '</w>'", ALL),
    ("gpt2", drop_byte, "0x00 and 0 others", BYTE_LEVEL),
    ("gpt2", set_pre_tokenizer(None), "nothing", BYTE_LEVEL),
    ("gpt2", set_pre_tokenizer({"type": "Whitespace"}), "Whitespace", BYTE_LEVEL),
    ("gpt2", set_pre_tokenizer(UNSPLIT), "not split", BYTE_LEVEL),
    ("gpt2", set_steps(SPLIT, {**STEP, "use_regex": True}), "ByteLevel's", BYTE_LEVEL),
    ("gpt2", set_steps({"type": "Digits", "individual_digits": True}, STEP), "Digits", BYTE_LEVEL),
    ("gpt2", set_steps({**SPLIT, "behavior": "Removed"}, UNSPLIT), "Removed, invert False", BYTE_LEVEL),
    ("gpt2", set_steps({**SPLIT, "invert": True}, UNSPLIT), "Isolated, invert True", BYTE_LEVEL),
    ("gpt2", set_steps(SPLIT, UNSPLIT), "Unknown pre_tokenizer", "gigatoken"),
    ("gpt2", lambda made: made.update(normalizer={"type": "Lowercase"}), "Lowercase", BYTE_LEVEL),
    ("llama2", lambda made: made["model"]["vocab"].pop("<0x0A>"), "0x0a and 0 others", "gigatoken"),
    ("unigram", lambda made: None, "Unigram", ALL),
    ("wordpiece", lambda made: None, "WordPiece", ALL),
    ("gpt2", lambda made: made.pop("model"), "KeyError", ALL),
]


@pytest.mark.parametrize(
    ("name", "change", "message", "library"),
    [(name, change, message, library) for name, change, message, all_of in UNSUITABLE for library in all_of.split()],
)
def test_unsuitable(name: str, change: Any, message: str, library: str, family: Any) -> None:
    content = family.change(family.make(name), change)
    with pytest.raises((UnsuitableError, ConfigError)) as error:
        FAST[library](TokenizerFile(content), "encode")
    assert message in str(error.value)


@pytest.mark.parametrize("library", ["gigatoken", "fastokens"])
def test_a_library_whose_cache_is_full_is_loaded_anew(
    library: str, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LOOK_EVERY_CHARACTERS", 1)
    sizes = iter([100, 101, 100 + memory.GROWTH_BYTES, 101 + memory.GROWTH_BYTES, 50, 51])
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(sizes))
    fast = FAST[library](TokenizerFile(family.make("gpt2")), "encode")
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
    sizes = iter([1000, 1001 + memory.GROWTH_BYTES, 500, 501 + memory.GROWTH_BYTES])
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(sizes))
    guard = memory.CacheGuard()
    assert not guard.is_full(memory.LOOK_EVERY_CHARACTERS - 1)
    assert guard.is_full(1)
    guard.reset()
    assert not guard.is_full(1)
    assert guard.is_full(memory.LOOK_EVERY_CHARACTERS)


def test_where_the_size_cannot_be_seen_the_text_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "resident_bytes", lambda: 0)
    guard = memory.CacheGuard()
    half = memory.BLIND_CHARACTERS // 2
    assert [guard.is_full(half), guard.is_full(half)] == [False, True]
    guard.reset()
    assert not guard.is_full(half)


def test_the_size_of_this_process() -> None:
    assert 10e6 < memory.resident_bytes() < 100e9


def test_optional_libraries_are_imported_when_used() -> None:
    code = (
        "import sys, headrace.preparing.backends as b; "
        "print([name for name in ('gigatoken', 'fastokens', 'awkward') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# The reference tokeniser: long texts are encoded in pieces, and their ids are those of the whole.


FAMILIES = ["gpt2", "cl100k", "o200k", "llama3", "qwen2", "llama2", "metaspace", "wordpiece", "unigram"]
PIECE_BYTES = 700
ADDED = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("<mask>", special=True, lstrip=True, normalized=False),
    AddedToken("<r>", special=True, rstrip=True, normalized=False),
    AddedToken("and", special=False, single_word=True, normalized=True),
    AddedToken("  ", special=False, normalized=False),
]
WORDS = [
    "the", "of", "and", "in", "It's", "they've", "12345", "word", "x_y", "<mask>", "<r>", "<|endoftext|>", "...",
    "\u00e9t\u00e9", "e\u0301", "größer", "лиса", "σΣ", "敏捷的棕色狐狸。", "नमस्ते", "😀", "a" * 50, "ﬁ", "İ", '"', "(",
    "\n", "\n\n", "\r\n", "\t", "  ", "    ", "\u3000", "\u2581",
]  # fmt: skip


def cutter(content: bytes, piece_bytes: int = PIECE_BYTES) -> TextCutter:
    return TextCutter(Tokenizer.from_str(content.decode()), TokenizerFile(content), piece_bytes=piece_bytes)


def whole(content: bytes, text: str) -> list[int]:
    return list(Tokenizer.from_str(content.decode()).encode(text, add_special_tokens=False).ids)


def mixture(seed: int, count: int) -> str:
    rng = random.Random(seed)
    kinds = rng.sample(WORDS, rng.randint(4, len(WORDS)))
    return "".join(rng.choice(kinds) + rng.choice([" ", " ", " ", "", "\n"]) for _ in range(count))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.sampled(1)
def test_pieces_have_the_ids_of_the_whole(name: str, family: Any) -> None:
    content = family.make(name, ADDED)
    backend = TokenizersBackend(TokenizerFile(content), "encode", piece_bytes=PIECE_BYTES)
    cuts = cutter(content)
    num_cut = 0

    @given(seed=st.integers(0, 2**32), count=st.integers(300, 900))
    @settings(max_examples=25, deadline=None)
    def check(seed: int, count: int) -> None:
        nonlocal num_cut
        text = mixture(seed, count)
        num_cut += len(cuts.cut(text)) > 1
        assert backend.encode([text]).ids.tolist() == whole(content, text)

    check()
    assert num_cut > 10


@pytest.mark.parametrize("name", FAMILIES)
def test_prose_is_cut_into_small_pieces(name: str, family: Any) -> None:
    content = family.make(name)
    text = "\n".join(family.texts) + f"a{family.eod}b"
    pieces = cutter(content, 10_000).cut(text)
    assert max(map(most_bytes, pieces)) <= 60_000
    ids = TokenizersBackend(TokenizerFile(content), "encode", piece_bytes=10_000).encode(["a b", text, "", "c"])
    assert (ids.ids.dtype, ids.lengths.dtype) == (np.uint32, np.int64)
    assert ids.lengths.tolist() == [len(whole(content, one)) for one in ("a b", text, "", "c")]
    assert ids.ids.tolist() == [number for one in ("a b", text, "", "c") for number in whole(content, one)]


def test_chinese_is_cut_behind_line_ends(family: Any) -> None:
    text = "敏捷的棕色狐狸跳过懒狗。\n" * 2_000
    pieces = cutter(family.make("gpt2"), 3_000).cut(text)
    assert "".join(pieces) == text
    assert len(pieces) > 20


def test_a_text_without_a_place_stays_whole(family: Any) -> None:
    text = "0 " * 5_000
    assert cutter(family.make("gpt2")).cut(text) == [text]


def test_a_stretch_without_a_place_does_not_stop_the_cutting(family: Any) -> None:
    text = "some words here " * 200 + "x" * 5_000 + " and more words" * 200
    pieces = cutter(family.make("gpt2")).cut(text)
    assert "".join(pieces) == text
    assert sorted(map(len, pieces))[-2] < 2_000
    assert len(pieces) > 6


def unsplit(made: dict[str, Any]) -> None:
    made["pre_tokenizer"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False
    }  # fmt: skip


def quoting(made: dict[str, Any]) -> None:
    """Splits what stands in quotes from the rest: where it splits depends on all quotes before."""
    made["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r'"[^"]*"|[^"\s]+|\s'}


def add_inner_space(made: dict[str, Any]) -> None:
    """A token of an unsplit text that reaches over a space."""
    made["model"]["vocab"]["n\u2581y"] = len(made["model"]["vocab"])


def remove_brackets(made: dict[str, Any]) -> None:
    """A normaliser of unknown reach, as the next one."""
    made["normalizer"] = {"type": "Replace", "pattern": {"Regex": r"\(.*\)"}, "content": ""}


def join_words(made: dict[str, Any]) -> None:
    made["normalizer"] = {"type": "Replace", "pattern": {"String": "e w"}, "content": "-"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cl100k", unsplit),
        ("cl100k", quoting),
        ("llama2", add_inner_space),
        ("gpt2", remove_brackets),
        ("gpt2", join_words),
    ],
)
def test_a_tokeniser_that_sees_further_gets_whole_texts(name: str, change: Any, family: Any) -> None:
    content = family.make(name)
    text = "some words here " * 500
    assert len(cutter(content).cut(text)) > 5
    assert cutter(family.change(content, change)).cut(text) == [text]


@pytest.mark.parametrize("token", ["new york", "x\ny", "end\n."])
def test_no_cut_where_an_added_token_may_reach_over(token: str, family: Any) -> None:
    content = family.make("gpt2", [AddedToken(token, special=False, normalized=False)])
    text = "new york new york\n" * 300
    pieces = cutter(content).cut(text)
    assert len(pieces) == 1 if " " in token else all(piece.startswith(" ") for piece in pieces[1:])


def test_metaspace_that_does_not_split_is_cut_by_its_vocabulary(family: Any) -> None:
    tokenizer = Tokenizer.from_str(family.make("metaspace").decode())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    content = tokenizer.to_str().encode()
    text = " ".join(family.texts)[:40_000]
    backend = TokenizersBackend(TokenizerFile(content), "encode", piece_bytes=PIECE_BYTES)
    assert len(cutter(content).cut(text)) > 10
    assert backend.encode([text]).ids.tolist() == whole(content, text)


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
        TokenizerFile(json.dumps(json.loads(tokenizer.to_str())).encode()), "encode", piece_bytes=4
    )
    assert backend.encode(["a b", "b"]).ids.tolist() == [0, 1, 1]
    with pytest.raises(RefusedTextError, match=r"WordLevel.*\[UNK\]") as error:
        backend.encode(["a b", "b", "a", "a x b", "x"])
    assert error.value.index == 3
