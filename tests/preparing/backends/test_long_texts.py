"""Long texts are encoded in pieces, and their ids are those of the whole."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from headrace.preparing.backends.reference import TextCutter, TokenizersBackend, most_bytes

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
    return TextCutter(Tokenizer.from_str(content.decode()), content, piece_bytes=piece_bytes)


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
    backend = TokenizersBackend(content, "encode", piece_bytes=PIECE_BYTES)
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
@pytest.mark.sampled(1)
def test_prose_is_cut_into_small_pieces(name: str, family: Any) -> None:
    content = family.make(name)
    text = "\n".join(family.texts)
    pieces = cutter(content, 10_000).cut(text)
    assert max(map(most_bytes, pieces)) <= 60_000
    ids = TokenizersBackend(content, "encode", piece_bytes=10_000).encode(["a b", text, "", "c"])
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


@pytest.mark.parametrize("change", [unsplit, quoting])
def test_a_tokeniser_that_sees_further_gets_whole_texts(change: Any, family: Any) -> None:
    content = family.change(family.make("cl100k"), change)
    text = "some words here " * 500
    assert cutter(content).cut(text) == [text]


@pytest.mark.parametrize("token", ["new york", "x\ny", "end\n."])
def test_no_cut_where_an_added_token_may_reach_over(token: str, family: Any) -> None:
    content = family.make("gpt2", [AddedToken(token, special=False, normalized=False)])
    text = "new york new york\n" * 300
    pieces = cutter(content).cut(text)
    assert len(pieces) == 1 if " " in token else all(piece.startswith(" ") for piece in pieces[1:])


def test_no_cut_where_a_token_of_an_unsplit_text_holds_an_inner_space(family: Any) -> None:
    def add(made: dict[str, Any]) -> None:
        made["model"]["vocab"]["n\u2581y"] = len(made["model"]["vocab"])

    text = "some words here " * 500
    content = family.make("llama2")
    assert len(cutter(content).cut(text)) > 5
    assert cutter(family.change(content, add)).cut(text) == [text]


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"Regex": r"\(.*\)"}, "content": ""},
        {"type": "Replace", "pattern": {"String": "e w"}, "content": "-"},
    ],
)
def test_no_cut_under_a_normaliser_of_unknown_reach(normalizer: dict[str, Any], family: Any) -> None:
    content = family.change(family.make("gpt2"), lambda made: made.update(normalizer=normalizer))
    text = "some words here " * 500
    assert cutter(content).cut(text) == [text]


def test_metaspace_that_does_not_split_is_cut_by_its_vocabulary(family: Any) -> None:
    tokenizer = Tokenizer.from_str(family.make("metaspace").decode())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    content = tokenizer.to_str().encode()
    text = " ".join(family.texts)[:40_000]
    backend = TokenizersBackend(content, "encode", piece_bytes=PIECE_BYTES)
    assert len(cutter(content).cut(text)) > 10
    assert backend.encode([text]).ids.tolist() == whole(content, text)
