"""A `tokenizer.json` taken apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from headrace.preparing.backends.layout import UnsuitableError, byte_characters, is_plain, read_layout


def make(added: list[dict[str, Any]], **parts: Any) -> bytes:
    numbered = [{"id": number, **token} for number, token in enumerate(added)]
    return json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": numbered, **parts}).encode()


def test_byte_characters_are_those_of_the_library() -> None:
    assert sorted(byte_characters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_characters().values()) == list(range(256))
    for text in ("a", " ", "\n", "é", "\u00ad", "\x7f", "\u4e00"):
        [(shown, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert bytes(byte_characters()[one] for one in shown) == text.encode()


def test_sequences_are_unrolled() -> None:
    inner = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}
    layout = read_layout(
        make(
            [],
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split"}, inner]},
            normalizer={"type": "Sequence", "normalizers": []},
        )
    )
    assert [step["type"] for step in layout.pre_tokenizers] == ["Split", "Digits", "ByteLevel"]
    assert layout.normalizers == []


def test_a_file_without_the_name_of_its_model_is_bpe_where_it_has_merges() -> None:
    assert read_layout(b'{"model": {"vocab": {}, "merges": []}}').model["type"] == "BPE"
    assert "type" not in read_layout(b'{"model": {"vocab": {}}}').model


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"model": 3}', b'{"model": {}, "added_tokens": [{"id": 1}]}'])
def test_what_is_no_tokeniser(content: bytes) -> None:
    with pytest.raises(UnsuitableError, match="cannot be taken apart"):
        read_layout(content)


def test_for_another_library_nothing_cuts_or_pads() -> None:
    added = [{"content": "<s>", "special": True}, {"content": "x", "special": False}]
    layout = read_layout(make(added, truncation={"max_length": 3}, padding={"length": 9}))
    for special_tokens, kept in ((False, ["<s>", "x"]), (True, ["x"])):
        json_made = json.loads(layout.without(special_tokens=special_tokens))
        assert (json_made["truncation"], json_made["padding"]) == (None, None)
        assert [token["content"] for token in json_made["added_tokens"]] == kept


CONTENTS = st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=3)


@given(special=CONTENTS, ordinary=CONTENTS)
def test_plain_is_where_no_two_kinds_can_share_text(special: list[str], ordinary: list[str]) -> None:
    added = [{"content": content, "special": True, "normalized": False} for content in special]
    added += [{"content": content, "special": False, "normalized": False} for content in ordinary]
    layout = read_layout(make(added))
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
    assert not is_plain(read_layout(make([{"content": "<s>", "special": True, flag: True}])), literal=False)


def test_a_token_of_the_normalised_text_is_plain_without_a_normaliser_only() -> None:
    added = [{"content": "<s>", "special": True, "normalized": True}]
    assert is_plain(read_layout(make(added)), literal=False)
    assert not is_plain(read_layout(make(added, normalizer={"type": "NFC"})), literal=False)
    assert not is_plain(read_layout(make([*added, {"content": "s>", "special": True}])), literal=False)
