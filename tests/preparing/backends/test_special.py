"""A `tokenizer.json` is taken apart, and texts that hold one of its added tokens are found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from headrace.errors import ConfigError
from headrace.preparing.backends.special import SpecialFinder
from headrace.preparing.backends.tokenizer import byte_characters, is_plain
from headrace.samples.tokenizer import TokenizerFile


def make_layout(added: list[dict[str, Any]], **parts: Any) -> bytes:
    numbered = [{"id": number, **token} for number, token in enumerate(added)]
    return json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": numbered, **parts}).encode()


PIECES = st.text(alphabet="<|>ab [é\u4e00", min_size=1, max_size=4)


@given(contents=st.lists(PIECES, max_size=8), texts=st.lists(st.text(alphabet="<|>ab [é\u4e00"), max_size=8))
@example(contents=[], texts=["", "<s>"])
@example(contents=["<|a|>", "  ", "   "], texts=["a b", "a  b", "a    b", "<|a|>", "<|a"])
def test_found_is_what_a_search_for_each_finds(contents: list[str], texts: list[str]) -> None:
    finder = SpecialFinder(TokenizerFile(make_layout([{"content": one, "special": True} for one in contents])))
    assert finder.find(texts).tolist() == [any(content in text for content in contents) for text in texts]
    for text in texts:
        name = finder.which(text)
        firsts = [(text.index(one), -len(one), one) for one in contents if one in text]
        assert name == (min(firsts)[2] if firsts else "")


def test_only_the_kind_asked_for(family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("  ", special=False)])
    texts = ["<s>", "a  b", "none"]
    assert SpecialFinder(TokenizerFile(content)).find(texts).tolist() == [True, False, False]
    assert SpecialFinder(TokenizerFile(content), "ordinary").find(texts).tolist() == [False, True, False]
    assert SpecialFinder(TokenizerFile(content), "added").find(texts).tolist() == [True, True, False]


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
    finder = SpecialFinder(TokenizerFile(content))
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
    found = SpecialFinder(TokenizerFile(content), "added").find(texts)
    held = [bool(numbers & set(encoding.ids)) for encoding in encoder.encode_batch_fast(texts)]
    assert not any(has and not was for has, was in zip(held, found, strict=True))
    assert any(held)


# A `tokenizer.json` taken apart.


def test_byte_characters_are_those_of_the_library() -> None:
    assert sorted(byte_characters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_characters().values()) == list(range(256))
    for text in ("a", " ", "\n", "é", "\u00ad", "\x7f", "\u4e00"):
        [(shown, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert bytes(byte_characters()[one] for one in shown) == text.encode()


def test_sequences_are_unrolled() -> None:
    inner = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}
    layout = TokenizerFile(
        make_layout(
            [],
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split"}, inner]},
            normalizer={"type": "Sequence", "normalizers": []},
        )
    ).parts
    assert [step["type"] for step in layout.pre_tokenizers] == ["Split", "Digits", "ByteLevel"]
    assert layout.normalizers == []


def test_a_file_without_the_name_of_its_model_is_bpe_where_it_has_merges() -> None:
    assert TokenizerFile(b'{"model": {"vocab": {}, "merges": []}}').parts.model["type"] == "BPE"
    assert "type" not in TokenizerFile(b'{"model": {"vocab": {}}}').parts.model


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"model": 3}', b'{"model": {}, "added_tokens": [{"id": 1}]}'])
def test_what_is_no_tokeniser(content: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot"):
        _ = TokenizerFile(content).parts


def test_for_another_library_nothing_cuts_or_pads() -> None:
    added = [{"content": "<s>", "special": True}, {"content": "x", "special": False}]
    layout = TokenizerFile(make_layout(added, truncation={"max_length": 3}, padding={"length": 9})).parts
    for special_tokens, kept in ((False, ["<s>", "x"]), (True, ["x"])):
        json_made = json.loads(layout.without(special_tokens=special_tokens))
        assert (json_made["truncation"], json_made["padding"]) == (None, None)
        assert [token["content"] for token in json_made["added_tokens"]] == kept


CONTENTS = st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=3)


@given(special=CONTENTS, ordinary=CONTENTS)
def test_plain_is_where_no_two_kinds_can_share_text(special: list[str], ordinary: list[str]) -> None:
    added = [{"content": content, "special": True, "normalized": False} for content in special]
    added += [{"content": content, "special": False, "normalized": False} for content in ordinary]
    layout = TokenizerFile(make_layout(added)).parts
    # Two share text where one can be laid over the other, shifted, so that all characters in common agree.
    shared = any(
        all(first[at] == second[at + shift] for at in range(len(first)) if 0 <= at + shift < len(second))
        for first in special
        for second in ordinary
        for shift in range(1 - len(first), len(second))
    )
    assert is_plain(layout, literal=False)
    assert is_plain(layout, literal=True) == (not shared)


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_a_token_that_looks_beside_it_is_not_plain(flag: str) -> None:
    assert not is_plain(
        TokenizerFile(make_layout([{"content": "<s>", "special": True, flag: True}])).parts, literal=False
    )


def test_a_token_of_the_normalised_text_is_plain_without_a_normaliser_only() -> None:
    added = [{"content": "<s>", "special": True, "normalized": True}]
    assert is_plain(TokenizerFile(make_layout(added)).parts, literal=False)
    assert not is_plain(TokenizerFile(make_layout(added, normalizer={"type": "NFC"})).parts, literal=False)
    assert not is_plain(TokenizerFile(make_layout([*added, {"content": "s>", "special": True}])).parts, literal=False)
