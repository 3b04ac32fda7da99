"""Texts that hold an added token are found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from headrace.preparing.backends.special import SpecialFinder


def make(contents: list[str], *, special: bool = True) -> bytes:
    added = [
        {"id": number, "content": content, "special": special, "normalized": False, "single_word": False,
         "lstrip": False, "rstrip": False}
        for number, content in enumerate(contents)
    ]  # fmt: skip
    return json.dumps({"added_tokens": added, "model": {"type": "BPE", "vocab": {}, "merges": []}}).encode()


PIECES = st.text(alphabet="<|>ab [é\u4e00", min_size=1, max_size=4)


@given(
    contents=st.lists(PIECES, min_size=1, max_size=8), texts=st.lists(st.text(alphabet="<|>ab [é\u4e00"), max_size=8)
)
def test_found_is_what_a_search_for_each_finds(contents: list[str], texts: list[str]) -> None:
    finder = SpecialFinder(make(contents))
    assert finder.find(texts).tolist() == [any(content in text for content in contents) for text in texts]
    for text in texts:
        name = finder.which(text)
        firsts = [(text.index(one), -len(one), one) for one in contents if one in text]
        assert name == (min(firsts)[2] if firsts else "")


def test_many_reserved_tokens_are_one_group() -> None:
    contents = [f"<|reserved_special_token_{number}|>" for number in range(256)] + ["<|eot|>"]
    finder = SpecialFinder(make(contents))
    assert len(finder._groups) == 1
    texts = ["a < b | c", "x<|reserved_special_token_255|>", "<|reserved_special_token_256|>", "<|eot|", "<|eot|>"]
    assert finder.find(texts).tolist() == [False, True, False, False, True]


def test_runs_of_spaces_are_found() -> None:
    finder = SpecialFinder(make(["<|endoftext|>", *(" " * count for count in range(2, 25))], special=False), "ordinary")
    assert finder.find(["a b", "a  b", "a" + " " * 30, "<|endoftext|>", ""]).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_only_the_kind_asked_for(family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("  ", special=False)])
    texts = ["<s>", "a  b", "none"]
    assert SpecialFinder(content).find(texts).tolist() == [True, False, False]
    assert SpecialFinder(content, "ordinary").find(texts).tolist() == [False, True, False]
    assert SpecialFinder(content, "added").find(texts).tolist() == [True, True, False]


def test_without_any_nothing_is_found() -> None:
    finder = SpecialFinder(make([]))
    assert not finder.find(["", "<s>"]).any()
    assert finder.which("<s>") == ""


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        ({"type": "NFKC"}, "a \uff1c\uff53\uff1e b"),
        ({"type": "Lowercase"}, "a <S> b"),
        ({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]}, "\uff1cS\uff1e"),
    ],
)
def test_normalised_tokens_are_found_in_the_normalised_text(normalizer: dict[str, Any], text: str, family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True, normalized=True)])
    content = family.change(content, lambda made: made.update(normalizer=normalizer))
    encoder = Tokenizer.from_str(content.decode())
    assert encoder.token_to_id("<s>") in encoder.encode(text).ids
    finder = SpecialFinder(content)
    assert finder.find(["plain é", text, "plain"]).tolist() == [False, True, False]
    assert finder.which(text) == "<s>"


@given(seed=st.integers(0, 1000))
def test_a_text_that_is_not_found_has_no_added_token(seed: int, family: Any) -> None:
    added = [
        AddedToken("<mask>", special=True, lstrip=True, normalized=False),
        AddedToken("and", special=False, single_word=True),
        AddedToken("été", special=False, rstrip=True, normalized=True),
    ]
    content = family.make("qwen2", added)
    encoder = Tokenizer.from_str(content.decode())
    numbers = {encoder.token_to_id(token.content) for token in added}
    texts = family.documents(20, seed)
    texts += [text + "e\u0301te\u0301" for text in texts[:3]] + [text + " and " for text in texts[:3]]
    found = SpecialFinder(content, "added").find(texts)
    held = [bool(numbers & set(encoding.ids)) for encoding in encoder.encode_batch_fast(texts)]
    assert not any(has and not was for has, was in zip(held, found, strict=True))
    assert any(held)
